"""Crops of one picture on the CPU, for pictures that do not fit on the device whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ressl.data.decode import Bitmap, Picture

Box = tuple[int, int, int, int]  # top, left, height, width


def cut(picture: Picture | Bitmap, boxes: Sequence[Box], sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Each box resized to its size (antialiased, as torchvision's resized_crop): size x size x 3.

    A JPEG is decoded at the smallest scale that still gives every crop twice the pixels it needs per side.
    """
    spare = min(min(height, width) // (2 * size) for (_, _, height, width), size in zip(boxes, sizes, strict=True))
    shrink = next((s for s in (8, 4, 2) if s <= spare), 1) if picture.can_shrink else 1
    image = picture.load(shrink)
    scale = round(picture.width / image.width)  # what the decoder made of it
    return [_resized(image, box, size, size, scale) for box, size in zip(boxes, sizes, strict=True)]


def centre(picture: Picture | Bitmap, size: int, short_side: int) -> NDArray[np.uint8]:
    """The picture with its short side at ``short_side``, and the middle ``size`` x ``size`` of that."""
    short = min(picture.height, picture.width)
    height, width = (int(short_side * side / short) for side in (picture.height, picture.width))
    spare = short // (2 * short_side)
    shrink = next((s for s in (8, 4, 2) if s <= spare), 1) if picture.can_shrink else 1
    image = picture.load(shrink)
    whole = (0, 0, picture.height, picture.width)
    pixels = _resized(image, whole, height, width, round(picture.width / image.width))
    top, left = round((height - size) / 2), round((width - size) / 2)
    return pixels[top : top + size, left : left + size]


def _resized(image: Image.Image, box: Box, height: int, width: int, scale: int) -> NDArray[np.uint8]:
    top, left, box_height, box_width = box
    if scale == 1:
        # Cut first: Pillow's resize with a box lets pixels from outside the box into its border.
        part = image.crop((left, top, left + box_width, top + box_height))
        return np.asarray(part.resize((width, height), Image.Resampling.BILINEAR))
    right, bottom = min((left + box_width) / scale, image.width), min((top + box_height) / scale, image.height)
    edges = (left / scale, top / scale, right, bottom)
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box=edges))
