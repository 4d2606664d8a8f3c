"""Where the pixels come from: crop, resize and flip as products with per-sample interpolation matrices.

Resampling is linear in the pixels and separable, so a crop + resize + flip of one channel X is ``A_y X A_x^T``. The
box, the antialiasing and the flip all live in the two small matrices A, which makes a batch of different crops two
batched matrix products, with no gather and no loop over samples.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ressl.errors import ResslError

ATTEMPTS = 10  # how often torchvision's RandomResizedCrop tries before it falls back to a central crop
BOX_COLUMNS = 2 * ATTEMPTS + 2  # area and aspect ratio of every attempt, then the two positions


def to_float(images: Tensor) -> Tensor:
    """float32 in [0, 1], from uint8 in [0, 255] or from any float already in [0, 1]."""
    return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images.to(torch.float32)


def per_sample(values: Tensor) -> Tensor:
    """B -> B x 1 x 1 x 1, to meet images."""
    return values[:, None, None, None]


def separable(images: Tensor, rows: Tensor, columns: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """``rows @ X @ columns^T`` for every sample and channel X; each row of the matrices must hold an average.

    images B x C x H x W, rows B x h x H, columns B x w x W -> B x C x h x w, float32. The products run in ``dtype``
    (float32 when None) whatever autocast says: a view rounded to bfloat16 has lost bits of every pixel.
    """
    (b, c, height, width), (h, w) = images.shape, (rows.shape[1], columns.shape[1])
    dtype = dtype or torch.float32
    with torch.autocast(images.device.type, enabled=False):
        # Both products keep the channels among the rows, so no matrix is repeated per channel and nothing is copied
        # in between; only the (usually small) result is transposed.
        x = columns.to(dtype) @ images.to(dtype).reshape(b, c * height, width).mT  # B x w x CH
        x = x.reshape(b, w * c, height) @ rows.to(dtype).mT  # B x wC x h
    # An average of [0, 1] lies in [0, 1]; the clamp removes what rounding adds.
    return x.reshape(b, w, c, h).permute(0, 2, 3, 1).to(torch.float32).clamp(0, 1).contiguous()


def crop_boxes(
    u: Tensor, height: int | Tensor, width: int | Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> Tensor:
    """The boxes of torchvision's RandomResizedCrop from uniforms u (B x 22): B x 4 int64 (top, left, height, width).

    ``height`` and ``width`` of the images are one number for all, or one for each sample (B).
    """
    tall, wide = _per_row(height, u)[:, None], _per_row(width, u)[:, None]  # B x 1
    area = tall * wide * (scale[0] + (scale[1] - scale[0]) * u[:, :ATTEMPTS])  # B x 10
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * u[:, ATTEMPTS : 2 * ATTEMPTS])
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= wide) & (h > 0) & (h <= tall)

    # The first attempt that fits has the highest score; all scores 0 means that none does.
    score, first = (fits * torch.arange(ATTEMPTS, 0, -1, device=u.device)).max(1, keepdim=True)
    # Otherwise the largest central box whose aspect ratio is allowed.
    w = torch.where(score > 0, w.gather(1, first), torch.minimum(wide, (tall * ratio[1]).round()))
    h = torch.where(score > 0, h.gather(1, first), torch.minimum(tall, (wide / ratio[0]).round()))
    slack = torch.cat((tall - h, wide - w), 1)  # B x 2
    place = torch.minimum((u[:, 2 * ATTEMPTS : BOX_COLUMNS] * (slack + 1)).floor(), slack)
    place = torch.where(score > 0, place, (slack / 2).floor())
    return torch.cat((place, h, w), 1).to(torch.int64)


def crop_window(
    height: Tensor, width: Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int]:
    """The height and width that hold every box that ``crop_boxes`` may draw in images of these sizes (N each).

    Not by the largest image: a box's own aspect ratio is bounded, so a panorama's are hardly wider than it is high.
    """
    tall, wide = height.to(torch.float64), width.to(torch.float64)
    # Attempts are this large at most; the pixel more is for rounding, as it is below.
    area, thin = tall * wide, min(ratio[0], 1 / ratio[1])
    h, w = (area * scale[1] / ratio[0]).sqrt() + 1, (area * scale[1] * ratio[1]).sqrt() + 1
    # Where one may fail, what remains is that neither an attempt that fits nor the central box leaves image or ratio.
    fits = (h <= tall) & (w <= wide) & ((area * scale[0] * thin).sqrt() >= 1)
    h = torch.where(fits, h, torch.minimum(tall, (wide + 1) / ratio[0] + 1))
    w = torch.where(fits, w, torch.minimum(wide, (tall + 1) * ratio[1] + 1))
    return int(h.max()), int(w.max())


def full_boxes(count: int, height: int | Tensor, width: int | Tensor, device: torch.device) -> Tensor:
    """The boxes that keep the whole image: B x 4 int64."""
    zero = torch.zeros(count, dtype=torch.int64, device=device)
    return torch.stack((zero, zero, zero + height, zero + width), 1)


def crop_resize(
    images: Tensor, boxes: Tensor, size: int, flip: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Cut each sample's box (B x 4) and resize it to size x size, antialiased bilinear; mirror it where ``flip`` (B).

    images B x 3 x H x W -> B x 3 x size x size, float32 in [0, 1]. ``dtype`` is that of the products, float32 if None.
    """
    images, (top, left, height, width) = to_float(images), boxes.to(torch.float32).unbind(1)
    rows = _interpolation(top, height, size, images.shape[-2])
    columns = _interpolation(left, width, size, images.shape[-1], flip)
    return separable(images, rows, columns, dtype)


def resize(images: Tensor, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """The whole image at size x size, whatever its aspect ratio."""
    height, width = images.shape[-2:]
    return crop_resize(images, full_boxes(len(images), height, width, images.device), size, dtype=dtype)


def resize_center_crop(images: Tensor, resize: int, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """The usual test view: short side to ``resize``, aspect ratio kept, then the central size x size."""
    if size > resize:
        raise ResslError(f"a central crop of {size} px does not fit in images resized to {resize} px; raise resize.")
    images = to_float(images)
    short = min(images.shape[-2:])
    matrices = []
    for side in images.shape[-2:]:
        resized = int(resize * side / short)
        first = round((resized - size) / 2)
        start = torch.zeros(1, device=images.device)
        matrix = _interpolation(start, start + side, resized, side)[:, first : first + size]  # 1 x size x side
        matrices.append(matrix.expand(len(images), -1, -1))
    rows, columns = matrices
    return separable(images, rows, columns, dtype)


def flip(images: Tensor, where: Tensor) -> Tensor:
    """Mirror left and right where ``where`` (B, bool)."""
    images = to_float(images)
    return torch.where(per_sample(where), images.flip(-1), images)


def pad_crop(images: Tensor, offsets: Tensor) -> Tensor:
    """A crop of the image's own size from the image with a black border, ``offsets`` (B x 2: down, right) from it.

    torchvision's RandomCrop(size, padding) on images of that size: offset 0 is the image itself, -2 starts two pixels
    inside the border.
    """
    images, matrices = to_float(images), []
    for side, offset in zip(images.shape[-2:], offsets.unbind(1), strict=True):
        place = torch.arange(side, device=images.device)
        matrices.append((place[None, None, :] == place[None, :, None] + offset[:, None, None]).to(torch.float32))
    rows, columns = matrices
    return separable(images, rows, columns)


def _per_row(value: int | Tensor, like: Tensor) -> Tensor:
    """B, float32; full, not as_tensor, because a copy from the host cannot be captured in a CUDA graph."""
    if isinstance(value, Tensor):
        return value.to(torch.float32)
    return torch.full((len(like),), float(value), device=like.device)


def _interpolation(start: Tensor, length: Tensor, size: int, side: int, flip: Tensor | None = None) -> Tensor:
    """B x size x side: output i as an average of the pixels of the interval [start, start + length) of an axis.

    A triangle around the place of i in the interval. It is one pixel wide to either side when enlarging (plain
    bilinear) and grows with the factor when shrinking (antialias). Pixels outside the interval never count, and the
    weights of those inside are normalised: the border is the crop's, not the image's.
    """
    out = torch.arange(size, dtype=torch.float32, device=start.device)[None, :]  # 1 x size
    if flip is not None:
        out = torch.where(flip[:, None], size - 1 - out, out)  # B x size
    step = (length / size)[:, None]  # B x 1: input pixels per output pixel
    center = ((out + 0.5) * step)[:, :, None]  # B x size x 1
    pixel = torch.arange(side, dtype=torch.float32, device=start.device) - start[:, None]  # B x side: from the interval
    inside = (pixel >= 0) & (pixel < length[:, None])
    distance = (pixel[:, None, :] + 0.5 - center).abs() / step.clamp(min=1)[:, :, None]
    weight = (1 - distance).clamp(min=0) * inside[:, None, :]  # B x size x side
    return weight / weight.sum(2, keepdim=True)
