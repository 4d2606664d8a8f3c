"""Crops of one picture on the CPU, for pictures that do not fit on the device whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ressl.data.decode import Bitmap, Picture

Box = Sequence[int]  # top, left, height, width
_LARGE = 16_000_000  # pixels; a larger picture is not held twice


def cut(picture: Picture | Bitmap, boxes: Sequence[Box], sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Each box resized to its size (antialiased, as torchvision's resized_crop): size x size x 3.

    A JPEG is decoded at the smallest scale that still gives every crop twice the pixels it needs per side.
    """
    spare = min(min(height, width) // (2 * size) for (_, _, height, width), size in zip(boxes, sizes, strict=True))
    resized = _resizer(picture, spare)
    return [resized(box, size, size) for box, size in zip(boxes, sizes, strict=True)]


def centre(picture: Picture | Bitmap, size: int, short_side: int, inner: int | None = None) -> NDArray[np.uint8]:
    """The picture with its short side at ``short_side``, and the middle ``size`` x ``size`` of that.

    With ``inner``, placed so that whoever cuts the middle ``inner`` x ``inner`` out of it gets the picture's own: the
    middle of a middle may else lie one pixel off.
    """
    short = min(picture.height, picture.width)
    height, width = (int(short_side * side / short) for side in (picture.height, picture.width))
    pixels = _resizer(picture, short // (2 * short_side))((0, 0, picture.height, picture.width), height, width)
    inner = size if inner is None else inner
    top, left = (round((side - inner) / 2) - round((size - inner) / 2) for side in (height, width))
    return pixels[top : top + size, left : left + size]


def _resizer(picture: Picture | Bitmap, spare: int) -> Callable[[Box, int, int], NDArray[np.uint8]]:
    """What makes a box of the picture so high and wide; it is decoded ``spare`` times smaller where that can be had."""
    shrink = next((s for s in (8, 4, 2) if s <= spare), 1) if picture.can_shrink else 1
    image = picture.load(shrink)
    scale = round(picture.width / image.width)
    if scale > 1 or image.width * image.height > _LARGE:
        return partial(_by_pillow, image, scale)
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, image.height, image.width, 3)
    return partial(_by_torch, pixels)


def _by_torch(pixels: Tensor, box: Box, height: int, width: int) -> NDArray[np.uint8]:
    """What Pillow does, in half the time; but a box begins and ends with a pixel."""
    y, x, h, w = box
    part = pixels[:, y : y + h, x : x + w].permute(0, 3, 1, 2)
    return F.interpolate(part, (height, width), mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()


def _by_pillow(image: Image.Image, scale: int, box: Box, height: int, width: int) -> NDArray[np.uint8]:
    y, x, h, w = box
    edges = [x / scale, y / scale, (x + w) / scale, (y + h) / scale]
    # Cut first, outwards to whole pixels: Pillow's resize alone lets pixels from outside the box into its border.
    left, top, right, bottom = int(edges[0]), int(edges[1]), math.ceil(edges[2]), math.ceil(edges[3])
    part = image.crop((left, top, min(right, image.width), min(bottom, image.height)))
    inside = (edges[0] - left, edges[1] - top, min(edges[2] - left, part.width), min(edges[3] - top, part.height))
    return np.asarray(part.resize((width, height), Image.Resampling.BILINEAR, box=inside))
