"""RandAugment (Cubuk et al., 2020) for a batch: every sample its own operations, strengths and signs.

The fourteen operations and their ranges are torchvision's. A sample that another operation was drawn for passes with a
neutral parameter, so a round is the same program for every batch: one gather for whatever moves pixels, then the colour
operations in turn. Images are B x 3 x H x W in [0, 1]; operations that count levels (posterize, equalize) round to 255.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ressl.data.augment.color import adjust_brightness, adjust_contrast, adjust_saturation
from ressl.data.augment.geometry import per_sample, to_float
from ressl.uncompiled import uncompiled

OPERATIONS = (
    *("identity", "shear_x", "shear_y", "translate_x", "translate_y", "rotate", "brightness", "color", "contrast"),
    *("sharpness", "posterize", "solarize", "autocontrast", "equalize"),
)
_OF = {name: number for number, name in enumerate(OPERATIONS)}
SHEAR, TRANSLATE, ROTATE, FACTOR = 0.3, 150 / 331, 30.0, 0.9  # the strongest: slope, share of the side, degrees, +-


def rand_augment(images: Tensor, operations: Tensor, magnitudes: Tensor, positive: Tensor) -> Tensor:
    """``operations`` (B x n, numbers of OPERATIONS) one after the other, each of its ``magnitudes`` (B x n, 0 to 1).

    ``positive`` (B x n, bool) is the sign of those that have two directions.
    """
    images = to_float(images)
    turn = _round_by_itself if torch.compiler.is_compiling() else _round
    for op, magnitude, sign in zip(operations.unbind(1), magnitudes.unbind(1), positive.unbind(1), strict=True):
        images = turn(images, op, magnitude, torch.where(sign, magnitude, -magnitude))
    return images


@uncompiled
def _round_by_itself(*what: Tensor) -> Tensor:
    """The same program five times over: compiled once for each size of view instead of in each place."""
    return _compiled()(*what)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_round, dynamic=False)


def _round(images: Tensor, op: Tensor, magnitude: Tensor, signed: Tensor) -> Tensor:
    def chosen(name: str) -> Tensor:
        return op == _OF[name]

    def factor(name: str) -> Tensor:
        return torch.where(chosen(name), 1 + FACTOR * signed, 1.0)

    images = _move(images, op, signed)
    images = adjust_brightness(images, factor("brightness"))
    images = adjust_saturation(images, factor("color"))
    images = adjust_contrast(images, factor("contrast"))
    images = sharpness(images, factor("sharpness"))
    bits = 8 - torch.where(chosen("posterize"), (4 * magnitude).round(), 0.0)
    images = torch.where(per_sample(chosen("posterize")), posterize(images, bits), images)
    threshold = torch.where(chosen("solarize"), 1 - magnitude, 2.0)
    images = torch.where(images >= per_sample(threshold), 1 - images, images)
    images = torch.where(per_sample(chosen("autocontrast")), autocontrast(images), images)
    return torch.where(per_sample(chosen("equalize")), equalize(images), images)


def _move(images: Tensor, op: Tensor, signed: Tensor) -> Tensor:
    """Shear, translate and rotate: where each pixel comes from, as an affine map per sample."""
    height, width = images.shape[-2:]
    at = lambda name, value: torch.where(op == _OF[name], value, 0.0)
    angle = at("rotate", math.radians(ROTATE) * signed)
    cos, sin = torch.cos(angle), torch.sin(angle)
    # Turned around the centre, sheared from the corner, moved by whole pixels.
    cx, cy = width / 2, height / 2
    matrix = torch.stack((cos, at("shear_x", SHEAR * signed) - sin, at("shear_y", SHEAR * signed) + sin, cos), 1)
    shift_x = cx - cos * cx + sin * cy - at("translate_x", (TRANSLATE * width * signed).trunc())
    shift_y = cy - sin * cx - cos * cy - at("translate_y", (TRANSLATE * height * signed).trunc())
    return affine(images, matrix.unflatten(1, (2, 2)), torch.stack((shift_x, shift_y), 1))


def affine(images: Tensor, matrix: Tensor, shift: Tensor) -> Tensor:
    """The pixel at p (x, y) is the nearest to ``matrix p + shift`` (B x 2 x 2, B x 2), and black outside."""
    height, width = images.shape[-2:]
    y, x = (torch.arange(side, dtype=torch.float32, device=images.device) + 0.5 for side in (height, width))
    grid = torch.stack((x[None, :].expand(height, -1), y[:, None].expand(-1, width)), 0).flatten(1)  # 2 x HW
    with torch.autocast(images.device.type, enabled=False):
        # Written out: as a matrix product it might run in TF32, which cannot tell neighbouring pixels apart.
        source = (matrix[:, :, :, None] * grid[None, None]).sum(2) + shift[:, :, None]  # B x 2 x HW
    column, row = (source - 0.5).round().unbind(1)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).long()  # B x HW
    moved = images.flatten(2).gather(2, place[:, None, :].expand(-1, images.shape[1], -1))
    return (moved * inside[:, None, :]).unflatten(2, (height, width))


def sharpness(images: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor above 1) or towards a 3 x 3 smoothing; the border stays."""
    if min(images.shape[-2:]) < 3:
        return images
    inner = images[:, :, 1:-1, 1:-1]
    rows = images[:, :, :-2] + images[:, :, 1:-1] + images[:, :, 2:]
    smooth = (rows[:, :, :, :-2] + rows[:, :, :, 1:-1] + rows[:, :, :, 2:] + 4 * inner) / 13
    sharp = (per_sample(factor) * inner + (1 - per_sample(factor)) * smooth).clamp(0, 1)
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = sharp
    return out


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the upper ``bits`` (B) of eight."""
    step = per_sample(torch.exp2(8 - bits))
    return torch.floor((255 * images).round() / step) * step / 255


def autocontrast(images: Tensor) -> Tensor:
    """Stretch every channel to the full range; a channel of one value stays."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = high == low
    return torch.where(flat, images, ((images - low) / torch.where(flat, 1.0, high - low)).clamp(0, 1))


def equalize(images: Tensor) -> Tensor:
    """Spread the levels of every channel evenly, by PIL's rule."""
    level = (255 * images).round().long().flatten(2)  # B x 3 x HW
    histogram = torch.zeros(*level.shape[:2], 256, dtype=torch.int64, device=images.device)
    histogram = histogram.scatter_add(2, level, torch.ones_like(level))
    last = (histogram.flip(2) > 0).to(torch.int32).argmax(2, keepdim=True)  # how far the brightest is from 255
    step = (level.shape[2] - histogram.gather(2, 255 - last)) // 255  # B x 3 x 1
    table = (histogram.cumsum(2) - histogram + step // 2) // step.clamp(min=1)
    found = table.clamp(0, 255).gather(2, level).to(images.dtype) / 255
    return torch.where((step == 0)[..., None], images, found.unflatten(2, images.shape[-2:]))
