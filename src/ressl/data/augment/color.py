"""What the pixels are worth: the colour operations of torchvision, with one factor per sample.

Images are B x 3 x H x W, uint8 or float in [0, 1]; the result is float32 in [0, 1]. A neutral factor (1 for brightness,
contrast and saturation, 0 for hue) leaves a sample alone, which is how a view switches an operation off for part of a
batch without a branch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ressl.data.augment.geometry import per_sample, to_float


def _gray(images: Tensor) -> Tensor:
    """The luma of ITU-R 601 as torchvision rounds it: B x 1 x H x W."""
    r, g, b = images.split(1, 1)
    return 0.2989 * r + 0.587 * g + 0.114 * b


def _blend(images: Tensor, target: Tensor, factor: Tensor) -> Tensor:
    """Away from (factor > 1) or towards (factor < 1) a target."""
    factor = per_sample(factor)
    return (factor * images + (1 - factor) * target).clamp(0, 1)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return (per_sample(factor) * to_float(images)).clamp(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean gray of the image."""
    images = to_float(images)
    return _blend(images, _gray(images).mean((1, 2, 3), keepdim=True), factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the gray of the pixel."""
    images = to_float(images)
    return _blend(images, _gray(images), factor)


def adjust_hue(images: Tensor, factor: Tensor) -> Tensor:
    """Turn the hue by ``factor`` (B) of a full circle, at the same saturation and value in HSV."""
    images = to_float(images)
    r, g, b = images.split(1, 1)  # B x 1 x H x W
    high, low = images.amax(1, keepdim=True), images.amin(1, keepdim=True)
    chroma = high - low
    safe = torch.where(chroma > 0, chroma, 1)  # a gray pixel has no hue; any will do, because its chroma is 0
    # The hue in sixths of the circle: which channel leads, and how far it leans to either neighbour.
    sixth = torch.where(
        r == high, (g - b) / safe, torch.where(g == high, (b - r) / safe + 2, (r - g) / safe + 4)
    ) + 6 * per_sample(factor)
    # Around the circle a channel stays high for two sixths, ramps down for one, stays low for two and ramps up for one;
    # red, green and blue do so at offsets 5, 3 and 1. Hence no table of the six cases.
    k = torch.cat((sixth + 5, sixth + 3, sixth + 1), 1).remainder(6)  # B x 3 x H x W
    return high - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


def color_jitter(
    images: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor, when: Tensor | None = None
) -> Tensor:
    """All four with per-sample factors (B each); None: in this order.

    ``when`` (B x 4) gives each sample its own order: the moments of brightness, contrast, saturation and hue, any
    comparable numbers, so four uniform draws per sample make every order equally likely. (For torchvision's list of
    the operations in their order, pass ``order.argsort(1)``.)

    Samples with different orders go through one sequence that contains every order, b s b H b s b C b s b H b s b,
    where each operation is neutral for a sample except at its own place. Contrast stands in it once, because its mean
    is the only reduction: all else is pointwise, and a compiler fuses either side of the mean into one kernel.
    """
    images = to_float(images)
    if when is None:
        images = adjust_contrast(adjust_brightness(images, brightness), contrast)
        return adjust_hue(adjust_saturation(images, saturation), hue)

    b, c, s, h = when.unbind(1)  # B each
    for before_contrast in (True, False):
        for before_hue in (True, False):
            b_here = ((b < c) == before_contrast) & ((b < h) == before_hue)
            s_here = ((s < c) == before_contrast) & ((s < h) == before_hue)
            images = adjust_brightness(images, torch.where(b_here & (b < s), brightness, 1))
            images = adjust_saturation(images, torch.where(s_here, saturation, 1))
            images = adjust_brightness(images, torch.where(b_here & (b >= s), brightness, 1))
            if before_hue:
                images = adjust_hue(images, torch.where((h < c) == before_contrast, hue, 0))
        if before_contrast:
            images = adjust_contrast(images, contrast)
    return images


def grayscale(images: Tensor, where: Tensor | None = None) -> Tensor:
    """Three equal channels of luma, where ``where`` (B, bool); None: everywhere."""
    images = to_float(images)
    gray = _gray(images).expand_as(images)
    return gray if where is None else torch.where(per_sample(where), gray, images)


def solarize(images: Tensor, threshold: float, where: Tensor | None = None) -> Tensor:
    """Invert the values from ``threshold`` (in [0, 1]) up, where ``where`` (B, bool); None: everywhere."""
    images = to_float(images)
    bright = images >= threshold
    return torch.where(bright if where is None else bright & per_sample(where), 1 - images, images)
