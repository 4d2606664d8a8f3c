"""What prepares a picture for a backbone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as TF


@dataclass(frozen=True)
class Transform:
    """A picture (PIL image, uint8 H x W x 3 or H x W array, 3 x H x W tensor) to the backbone's input, 3 x s x s."""

    size: int
    resize: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, picture: Image.Image | np.ndarray | Tensor) -> Tensor:
        if isinstance(picture, Image.Image):
            pixels = TF.pil_to_tensor(picture.convert("RGB"))
        elif isinstance(picture, np.ndarray):
            pixels = TF.pil_to_tensor(Image.fromarray(picture).convert("RGB"))  # gray and RGBA arrays too
        else:
            pixels = picture
        if min(pixels.shape[-2:]) != self.resize:
            pixels = TF.resize(pixels, [self.resize], antialias=True)
        pixels = TF.center_crop(pixels, [self.size, self.size])
        return TF.normalize(TF.to_dtype(pixels, torch.float32, scale=True), list(self.mean), list(self.std))
