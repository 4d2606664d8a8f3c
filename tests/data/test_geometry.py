"""Crops, boxes and resizing against torchvision, sample by sample, for the same parameters."""

from __future__ import annotations

import pytest
import torch
import torchvision.transforms as T
import torchvision.transforms.v2.functional as TF
from samples import SIDES, Sides, as_uint8, every_picture, far, pictures, uniforms
from torch import Tensor

from ressl import rng
from ressl.data import augment as A
from ressl.errors import ResslError


def boxes_in(sides: Sides, batch: int) -> Tensor:
    return A.crop_boxes(uniforms(3, batch, A.BOX_COLUMNS), *sides, (0.2, 1.0), (3 / 4, 4 / 3))


def resized_crops(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    return torch.stack(
        [
            TF.resized_crop(image, *box, [size, size], TF.InterpolationMode.BILINEAR, antialias=True)
            for image, box in zip(images, boxes.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("kind", ["noise", "smooth"])
@pytest.mark.parametrize(
    ("sides", "size"),
    [((32, 32), 32), ((64, 64), 32), ((24, 24), 32), ((224, 224), 96), ((230, 181), 96), ((37, 61), 48), ((9, 90), 16)],
)
def test_crop_resize_is_torchvisions(kind: str, sides: Sides, size: int) -> None:
    images, boxes = pictures(kind, sides, 8), boxes_in(sides, 8)
    assert far(A.crop_resize(images, boxes, size), resized_crops(images, boxes, size)) < 1e-5
    pixels = as_uint8(images)
    ours, theirs = A.crop_resize(pixels, boxes, size), resized_crops(pixels, boxes, size)
    assert ours.dtype == torch.float32
    assert far(ours, theirs / 255) < 1.1 / 255  # theirs rounds to whole numbers after either axis


@pytest.mark.parametrize("box", [(0, 0, 1, 1), (31, 12, 1, 20), (5, 3, 7, 2), (0, 0, 32, 32)])
def test_crop_resize_at_its_extremes(box: tuple[int, int, int, int]) -> None:
    images, boxes = pictures("noise", (32, 32), 1), torch.tensor([box])
    for size in (1, 5, 40):
        assert far(A.crop_resize(images, boxes, size), resized_crops(images, boxes, size)) < 1e-5


def test_a_crop_never_sees_beyond_its_border() -> None:
    images = torch.zeros(1, 3, 32, 32)
    images[:, :, 8:20, 10:24] = 1  # white exactly inside the box
    for size in (6, 32, 50):
        assert far(A.crop_resize(images, torch.tensor([[8, 10, 12, 14]]), size), torch.ones(1, 3, size, size)) < 1e-6


def test_crop_resize_flips_the_result() -> None:
    images, boxes = pictures("noise", (40, 57), 4), boxes_in((40, 57), 4)
    where = torch.tensor([True, False, False, True])
    plain = A.crop_resize(images, boxes, 32)
    expected = torch.where(where[:, None, None, None], TF.horizontal_flip(plain), plain)
    assert far(A.crop_resize(images, boxes, 32, where), expected) < 1e-6
    assert torch.equal(A.flip(plain, where), expected)
    assert not torch.equal(plain, expected)


def test_crop_resize_takes_a_dtype_and_ignores_autocast() -> None:
    images, boxes = pictures("smooth", (32, 32), 4), boxes_in((32, 32), 4)
    exact = A.crop_resize(images, boxes, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(A.crop_resize(images, boxes, 32), exact)
    rough = A.crop_resize(images, boxes, 32, dtype=torch.bfloat16)
    assert rough.dtype == torch.float32
    assert 1e-4 < far(rough, exact) < 0.02


@every_picture
def test_resize_is_torchvisions(kind: str, sides: Sides) -> None:
    images = pictures(kind, sides)
    assert far(A.resize(images, 32), TF.resize(images, [32, 32], antialias=True)) < 1e-5


@pytest.mark.parametrize(("resize", "size"), [(32, 32), (40, 32), (25, 20), (64, 33)])
@pytest.mark.parametrize("sides", SIDES)
def test_resize_center_crop_is_torchvisions(sides: Sides, resize: int, size: int) -> None:
    images = pictures("noise", sides)
    expected = TF.center_crop(TF.resize(images, [resize], antialias=True), [size, size])
    assert far(A.resize_center_crop(images, resize, size), expected) < 1e-5


def test_center_crop_must_fit() -> None:
    with pytest.raises(ResslError, match="does not fit"):
        A.resize_center_crop(pictures("noise", (32, 32)), 24, 32)


def ks(a: Tensor, b: Tensor) -> float:
    """The two-sample Kolmogorov-Smirnov statistic in units of its scale; beyond 1.95 with probability 0.001."""
    grid = torch.cat((a, b)).unique()
    edf = [torch.searchsorted(s.sort().values, grid, right=True) / len(s) for s in (a, b)]
    return (edf[0] - edf[1]).abs().max().item() * (len(a) * len(b) / (len(a) + len(b))) ** 0.5


@pytest.mark.parametrize(
    ("sides", "scale"),
    [((32, 32), (0.2, 1.0)), ((64, 48), (0.08, 1.0)), ((20, 90), (0.2, 1.0)), ((90, 20), (0.6, 1.0))],
)
def test_boxes_are_distributed_as_torchvisions(sides: Sides, scale: tuple[float, float]) -> None:
    n, ratio = 6000, (3 / 4, 4 / 3)
    ours = A.crop_boxes(rng.uniform(11, 0, torch.arange(n), A.BOX_COLUMNS, rng.VIEWS), *sides, scale, ratio)
    image = torch.empty(3, *sides)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        theirs = torch.tensor([T.RandomResizedCrop.get_params(image, list(scale), list(ratio)) for _ in range(n)])
    top, left, height, width = ours.unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= sides[0]).all()
    assert (left + width <= sides[1]).all()
    # The four numbers, and two that tie them together: the area and the gap on the far side.
    joint = [
        torch.cat((b, b[:, 2:3] * b[:, 3:4], sides[1] - b[:, 1:2] - b[:, 3:4]), 1).double() for b in (ours, theirs)
    ]
    for column in range(6):
        assert ks(joint[0][:, column], joint[1][:, column]) < 1.95
    # Height and width together: a chi-square test over the cells of an 8 x 8 grid.
    cells = [(b[:, 2] * 8 // (sides[0] + 1)) * 8 + b[:, 3] * 8 // (sides[1] + 1) for b in (ours, theirs)]
    common = torch.cat(cells).unique()
    counts = torch.stack([torch.bincount(torch.searchsorted(common, c), minlength=len(common)) for c in cells]).double()
    counts = counts[:, counts.sum(0) >= 20]
    chi2 = ((counts[0] - counts[1]) ** 2 / counts.sum(0)).sum().item()
    freedom = counts.shape[1] - 1
    assert chi2 <= freedom + 4 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("sides", [(16, 160), (160, 16), (30, 30)])
def test_boxes_fall_back_to_the_central_crop(sides: Sides) -> None:
    u = uniforms(2, 5, A.BOX_COLUMNS)
    # More than the whole area never fits: torchvision's function falls back as well.
    theirs = T.RandomResizedCrop.get_params(torch.empty(3, *sides), [2.0, 3.0], [3 / 4, 4 / 3])
    assert A.crop_boxes(u, *sides, (2.0, 3.0), (3 / 4, 4 / 3)).tolist() == [list(theirs)] * 5


def test_boxes_take_the_first_attempt_that_fits() -> None:
    u = torch.full((1, A.BOX_COLUMNS), 0.5)
    u[0, :2] = 0.999999  # two attempts at the whole area ...
    u[0, 10:12] = torch.tensor([0.0, 1.0])  # ... that are too tall and too wide
    u[0, 2], u[0, 3] = 0.25, 0.75  # the third fits, and so would the fourth
    u[0, 20:] = torch.tensor([0.0, 0.999999])
    side = round((0.4 * 100 * 100) ** 0.5)
    assert A.crop_boxes(u, 100, 100, (0.2, 1.0), (3 / 4, 4 / 3)).tolist() == [[0, 100 - side, side, side]]


def test_boxes_of_images_of_different_sizes() -> None:
    u, heights, widths = (
        uniforms(4, 6, A.BOX_COLUMNS),
        torch.arange(20, 80, 10),
        torch.tensor([33, 90, 12, 64, 500, 20]),
    )
    together = A.crop_boxes(u, heights, widths, (0.2, 1.0), (3 / 4, 4 / 3))
    for i, (height, width) in enumerate(zip(heights.tolist(), widths.tolist(), strict=True)):
        assert torch.equal(A.crop_boxes(u[i : i + 1], height, width, (0.2, 1.0), (3 / 4, 4 / 3))[0], together[i])
