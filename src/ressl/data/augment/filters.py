"""What neighbouring pixels share: Gaussian blur with one sigma per sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ressl.data.augment.geometry import per_sample, separable, to_float

# Sides up to this are blurred by a product with a side x side matrix, larger ones tap by tap. Measured on one H200
# (torch 2.11, compiled, 13 taps, 256 images; ms as product / taps): 64 px 0.055 / 0.057, 96 px 0.158 / 0.140,
# 160 px 0.48 / 0.32, 224 px 1.15 / 0.61. Not compiled the product is twice as fast as the taps at all of them.
MATRIX_SIDE = 128

_NO_BLUR = 1e-3  # a sigma at which exp(-1 / (2 sigma^2)) is 0 in float32: all weight on the pixel itself


def gaussian_blur(
    images: Tensor, sigma: Tensor, kernel_size: int, where: Tensor | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """Blur with sigma (B) in pixels, cut off at ``kernel_size`` (odd) taps, reflected at the borders.

    Samples where ``where`` (B, bool) is false stay as they are, at no second pass: their kernel is the identity. The
    kernel is cut to what one reflection can fill where it is larger than the image. ``dtype`` is that of the products.
    """
    images = to_float(images)
    if where is not None:
        sigma = torch.where(where, sigma, _NO_BLUR)
    height, width = images.shape[-2:]
    radius_y, radius_x = (min(kernel_size // 2, side - 1) for side in (height, width))
    if max(height, width) <= MATRIX_SIDE:
        return separable(images, _blur_matrix(sigma, radius_y, height), _blur_matrix(sigma, radius_x, width), dtype)
    for dim, radius in ((3, radius_x), (2, radius_y)):
        images = _blur_by_taps(images, sigma, radius, dim)
    return images.clamp(0, 1)


def _gauss(distance: Tensor, sigma: Tensor) -> Tensor:
    """exp(-d^2 / 2 sigma^2), not normalised; sigma must broadcast against the distances."""
    return torch.exp(-0.5 * (distance / sigma) ** 2)


def _blur_matrix(sigma: Tensor, radius: int, side: int) -> Tensor:
    """B x side x side: output i as an average of the pixels j, those beyond the border folded back by reflection."""
    place = torch.arange(side, dtype=torch.float32, device=sigma.device)
    i, j = place[:, None], place[None, :]  # side x 1, 1 x side

    def reach(j: Tensor) -> Tensor:
        """B x side x side: the weight of a pixel at j, which may lie beyond the border."""
        distance = (j - i).abs()
        return _gauss(distance, sigma[:, None, None]) * (distance <= radius)

    # Pixel j is also seen at -j and at 2 (side - 1) - j; a border pixel is its own image and is not counted twice.
    weight = reach(j) + reach(-j) * (j > 0) + reach(2 * (side - 1) - j) * (j < side - 1)
    return weight / weight.sum(2, keepdim=True)


def _blur_by_taps(images: Tensor, sigma: Tensor, radius: int, dim: int) -> Tensor:
    """The same along one axis as a weighted sum of shifted images."""
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float32, device=images.device)
    taps = _gauss(offsets, sigma[:, None])  # B x taps
    taps = taps / taps.sum(1, keepdim=True)
    padded = F.pad(images, (radius, radius, 0, 0) if dim == 3 else (0, 0, radius, radius), mode="reflect")
    total = torch.zeros_like(images)
    for t in range(2 * radius + 1):
        total = total + per_sample(taps[:, t]) * padded.narrow(dim, t, images.shape[dim])
    return total
