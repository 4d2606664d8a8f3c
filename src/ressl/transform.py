"""What prepares a picture for a backbone."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ressl.data.decode import rgb  # the same pixels as in training and embedding, from 16 bits, too
from ressl.errors import ResslError


@dataclass(frozen=True)
class Transform:
    """A picture (PIL image, uint8 H x W x 3 or H x W array, 3 x H x W tensor) to the backbone's input, 3 x s x s."""

    size: int
    resize: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, picture: Image.Image | np.ndarray | Tensor) -> Tensor:
        from torchvision.transforms.v2 import functional as TF  # here, because it takes seconds

        pixels = _pixels(picture)
        if min(pixels.shape[-2:]) != self.resize:
            pixels = TF.resize(pixels, [self.resize], antialias=True)
        pixels = TF.center_crop(pixels, [self.size, self.size])
        return TF.normalize(TF.to_dtype(pixels, torch.float32, scale=True), list(self.mean), list(self.std))


def _pixels(picture: Image.Image | np.ndarray | Tensor) -> Tensor:
    """3 x H x W, upright; raises where it is nothing of the kind."""
    from torchvision.transforms.v2.functional import pil_to_tensor

    if isinstance(picture, Image.Image):
        with contextlib.suppress(Exception):  # a damaged EXIF block is no reason to lose the picture
            picture = ImageOps.exif_transpose(picture)
        return pil_to_tensor(rgb(picture))
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim in (2, 3):
        with contextlib.suppress(TypeError):  # of a shape that Pillow does not know
            return pil_to_tensor(Image.fromarray(picture).convert("RGB"))  # gray and RGBA arrays too
    if isinstance(picture, Tensor) and picture.ndim >= 3 and picture.shape[-3] == 3 and _is_scaled(picture):
        return picture
    what = type(picture).__name__
    if isinstance(picture, (np.ndarray, Tensor)):
        what = f"{str(picture.dtype).removeprefix('torch.')} of shape {tuple(picture.shape)}"
        if isinstance(picture, Tensor) and picture.is_floating_point() and not _is_scaled(picture):
            what += " with values outside 0..1"
    elif isinstance(picture, (str, os.PathLike)):
        what = "a path: open it with PIL.Image.open"
    raise ResslError(
        "a transform takes one picture, a PIL image, uint8 H x W x 3 or a 3 x H x W tensor of uint8 or of floats in "
        f"0..1, not {what}"
    )


def _is_scaled(picture: Tensor) -> bool:
    """Whether its values have one meaning: bytes, or floats in 0..1. Of 0.0 to 255.0 the features would be nonsense.

    With some room, for resizing by cubic curves leads a little beyond the ends.
    """
    if picture.is_floating_point():
        return bool(((picture >= -0.25) & (picture <= 1.25)).all())
    return picture.dtype == torch.uint8
