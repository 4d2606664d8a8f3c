"""Crops of one picture, as loader workers make them, against torchvision's on the same file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms.v2 import functional as TF

from ressl.data.cutting import centre, cut
from ressl.data.decode import Bitmap, Picture
from ressl.transform import Transform

BOXES = [(0, 0, 90, 120), (7, 11, 40, 33), (50, 60, 20, 60), (3, 0, 1, 5)]  # all of it, a part, larger and smaller


def smooth(height: int, width: int) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def theirs(image: Image.Image, box: tuple[int, ...], size: int) -> np.ndarray:
    return np.asarray(TF.resized_crop(image, *box, [size, size], TF.InterpolationMode.BILINEAR, antialias=True))


def apart(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.abs(a.astype(int) - b.astype(int)).max())


@pytest.mark.parametrize("kind", ["png", "jpg", "array"])
def test_crops_are_torchvisions_to_a_grey_level(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    image = smooth(90, 120)
    if kind != "array":
        image.save(path)
        image = Image.open(path).convert("RGB")
    with Bitmap(np.asarray(image)) if kind == "array" else Picture(str(path)) as picture:
        found = cut(picture, BOXES, [32, 24, 24, 16])
    for piece, box, size in zip(found, BOXES, [32, 24, 24, 16], strict=True):
        assert piece.shape == (size, size, 3)
        assert piece.dtype == np.uint8
        assert apart(piece, theirs(image, box, size)) <= 1


def test_a_large_jpeg_is_decoded_smaller_and_cut_at_the_same_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    smooth(600, 800).save(path, quality=95)
    image, box = Image.open(path).convert("RGB"), (101, 57, 481, 523)
    with Picture(str(path)) as picture:
        (piece,) = cut(picture, [box], [64])
        assert picture.load().width == 400  # half of it: what was decoded last
    shifted = theirs(image, (103, 57, 481, 523), 64)  # by a quarter of a pixel of the result
    near, far = (np.abs(piece - other.astype(float)).mean() for other in (theirs(image, box, 64), shifted))
    assert near < 1.5
    assert far > 3 * near
    whole = np.asarray(TF.center_crop(TF.resize(image, [80], antialias=True), [64, 64]))
    assert np.abs(centre_of(path) - whole.astype(float)).mean() < 1.5


@pytest.mark.parametrize(("height", "width"), [(90, 121), (150, 101), (64, 64)])
def test_the_centre_is_what_the_loaded_models_transform_takes(height: int, width: int) -> None:
    image = smooth(height, width)
    ours = centre(Bitmap(np.asarray(image)), 56, 64)
    theirs = Transform(56, 64, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))(image)
    assert np.array_equal(ours, (255 * theirs).round().permute(1, 2, 0).numpy())


def centre_of(path: Path) -> np.ndarray:
    with Picture(str(path)) as picture:
        return centre(picture, 64, 80)
