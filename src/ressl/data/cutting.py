"""Crops of one picture on the CPU, for pictures that do not fit on the device whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image

from ressl.data.decode import Bitmap, Picture

Box = Sequence[int]  # top, left, height, width


def cut(picture: Picture | Bitmap, boxes: Sequence[Box], sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Each box resized to its size (antialiased, as torchvision's resized_crop): size x size x 3.

    A JPEG is decoded at the smallest scale that still gives every crop twice the pixels it needs per side.
    """
    spare = min(min(height, width) // (2 * size) for (_, _, height, width), size in zip(boxes, sizes, strict=True))
    image, scale = _load(picture, spare)
    if scale > 1:
        return [_resized(image, box, size, size, scale) for box, size in zip(boxes, sizes, strict=True)]
    # torch does what Pillow does in half the time, but has no boxes between two pixels.
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, image.height, image.width, 3)
    pixels = pixels.permute(0, 3, 1, 2)
    return [
        F.interpolate(pixels[..., y : y + h, x : x + w], (size, size), mode="bilinear", antialias=True)[0]
        .permute(1, 2, 0)
        .numpy()
        for (y, x, h, w), size in zip(boxes, sizes, strict=True)
    ]


def centre(picture: Picture | Bitmap, size: int, short_side: int, inner: int | None = None) -> NDArray[np.uint8]:
    """The picture with its short side at ``short_side``, and the middle ``size`` x ``size`` of that.

    With ``inner``, placed so that whoever cuts the middle ``inner`` x ``inner`` out of it gets the picture's own: the
    middle of a middle may else lie one pixel off.
    """
    short = min(picture.height, picture.width)
    height, width = (int(short_side * side / short) for side in (picture.height, picture.width))
    image, scale = _load(picture, short // (2 * short_side))
    pixels = _resized(image, (0, 0, picture.height, picture.width), height, width, scale)
    inner = size if inner is None else inner
    top, left = (round((side - inner) / 2) - round((size - inner) / 2) for side in (height, width))
    return pixels[top : top + size, left : left + size]


def _load(picture: Picture | Bitmap, spare: int) -> tuple[Image.Image, int]:
    """The pixels, decoded ``spare`` times smaller where that can be had, and how many times it was."""
    shrink = next((s for s in (8, 4, 2) if s <= spare), 1) if picture.can_shrink else 1
    image = picture.load(shrink)
    return image, round(picture.width / image.width)


def _resized(image: Image.Image, box: Box, height: int, width: int, scale: int) -> NDArray[np.uint8]:
    top, left, box_height, box_width = box
    edges = [left / scale, top / scale, (left + box_width) / scale, (top + box_height) / scale]
    # Cut first, outwards to whole pixels: Pillow's resize alone lets pixels from outside the box into its border.
    x, y, right, bottom = int(edges[0]), int(edges[1]), math.ceil(edges[2]), math.ceil(edges[3])
    part = image.crop((x, y, min(right, image.width), min(bottom, image.height)))
    inside = (edges[0] - x, edges[1] - y, min(edges[2] - x, part.width), min(edges[3] - y, part.height))
    return np.asarray(part.resize((width, height), Image.Resampling.BILINEAR, box=inside))
