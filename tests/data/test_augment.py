"""Colour and blur against torchvision, sample by sample; and what holds for every batched augmentation."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from samples import Sides, as_uint8, every_picture, far, loop, pictures, uniforms
from torch import Tensor

from ressl.data import augment as A
from ressl.data.augment import filters

# Colour

FACTORS = {
    "brightness": (A.adjust_brightness, TF.adjust_brightness, [0.0, 0.6, 1.0, 1.4]),
    "contrast": (A.adjust_contrast, TF.adjust_contrast, [0.0, 0.6, 1.0, 1.4]),
    "saturation": (A.adjust_saturation, TF.adjust_saturation, [0.0, 0.6, 1.0, 1.4]),
    "hue": (A.adjust_hue, TF.adjust_hue, [-0.5, -0.1, 0.0, 0.37]),
}


@pytest.mark.parametrize("name", FACTORS)
@every_picture
def test_colour_is_torchvisions(name: str, kind: str, sides: Sides) -> None:
    ours, theirs, values = FACTORS[name]
    images, factor = pictures(kind, sides), torch.tensor(values)
    assert far(ours(images, factor), loop(theirs, images, factor)) < 2e-6
    pixels = as_uint8(images)
    assert far(ours(pixels, factor), loop(theirs, pixels, factor) / 255) < 2 / 255  # theirs truncates, twice
    assert far(ours(pixels, factor), ours(A.to_float(pixels), factor)) == 0


def test_hue_of_gray_and_pure_colours() -> None:
    # Ties between channels decide the sextant: all corners and edge centres of the colour cube.
    colours = torch.tensor(list(itertools.product([0.0, 0.5, 1.0], repeat=3))).T.reshape(1, 3, 27, 1)
    for factor in (-0.5, -1 / 6, 0.0, 1 / 12, 1 / 3, 0.5):
        assert far(A.adjust_hue(colours, torch.tensor([factor])), TF.adjust_hue(colours, factor)) < 2e-6


def test_jitter_in_every_order() -> None:
    orders = torch.tensor(list(itertools.permutations(range(4))))  # 24 x 4, torchvision's lists of operations
    images = pictures("noise", (16, 20), 24)
    low, high = torch.tensor([0.4, 0.4, 0.4, -0.3]), torch.tensor([1.6, 1.6, 1.6, 0.3])
    factors = (low + (high - low) * uniforms(1, 24, 4)).unbind(1)  # strong, so that the clamps bite and order matters
    b, c, s, h = factors
    twins = [twin for _, twin, _ in FACTORS.values()]
    expected = images.clone()
    for i in range(24):
        for op in orders[i].tolist():
            expected[i] = twins[op](expected[i], factors[op][i].item())
    assert far(A.color_jitter(images, b, c, s, h, orders.argsort(1)), expected) < 5e-6
    assert far(A.color_jitter(images, *factors)[0], expected[0]) < 5e-6  # the first order is the fixed one
    assert far(A.color_jitter(images, *factors)[1:], expected[1:]) > 0.05


def test_jitter_with_neutral_factors_is_the_identity() -> None:
    images, one = pictures("noise", (16, 20)), torch.ones(4)
    for when in (None, uniforms(0, 4, 4)):
        assert far(A.color_jitter(images, one, one, one, 0 * one, when), images) < 1e-6


@every_picture
def test_grayscale_and_solarize_are_torchvisions(kind: str, sides: Sides) -> None:
    images, where = pictures(kind, sides), torch.tensor([True, False, True, False])
    gray, sun = TF.rgb_to_grayscale(images, 3), TF.solarize(images, 0.4)
    assert far(A.grayscale(images), gray) < 1e-6
    assert far(A.solarize(images, 0.4), sun) < 1e-6
    for ours, theirs in ((A.grayscale(images, where), gray), (A.solarize(images, 0.4, where), sun)):
        assert far(ours[where], theirs[where]) < 1e-6
        assert torch.equal(ours[~where], images[~where])
    pixels = as_uint8(images)
    assert far(A.grayscale(pixels), TF.rgb_to_grayscale(pixels, 3) / 255) < 1.01 / 255
    assert far(A.solarize(pixels, 102 / 255), TF.solarize(pixels, 102) / 255) < 1e-6


# Blur


@pytest.mark.parametrize("matrix_side", [0, 10**6], ids=["taps", "matrix"])
@pytest.mark.parametrize("kernel_size", [3, 13, 23])
@every_picture
def test_blur_is_torchvisions(
    kind: str, sides: Sides, kernel_size: int, matrix_side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MATRIX_SIDE", matrix_side)
    images, sigma = pictures(kind, sides), torch.tensor([0.1, 0.5, 1.3, 2.0])
    expected = torch.stack(
        [TF.gaussian_blur(x, [kernel_size] * 2, [s] * 2) for x, s in zip(images, sigma.tolist(), strict=True)]
    )
    assert far(A.gaussian_blur(images, sigma, kernel_size), expected) < 2e-6
    pixels = as_uint8(images)
    rounded = TF.gaussian_blur(pixels[3], [kernel_size] * 2, [2.0] * 2) / 255
    assert far(A.gaussian_blur(pixels, sigma, kernel_size)[3], rounded) < 0.51 / 255


@pytest.mark.parametrize("matrix_side", [0, 10**6], ids=["taps", "matrix"])
def test_blur_leaves_the_others_alone(matrix_side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "MATRIX_SIDE", matrix_side)
    images, where = pictures("noise", (32, 24)), torch.tensor([True, False, False, True])
    blurred = A.gaussian_blur(images, torch.full((4,), 2.0), 13, where)
    assert torch.equal(blurred[~where], images[~where])
    assert far(blurred[where], images[where]) > 0.1


@pytest.mark.parametrize("matrix_side", [0, 10**6], ids=["taps", "matrix"])
def test_blur_wider_than_the_image(matrix_side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "MATRIX_SIDE", matrix_side)
    images, sigma = pictures("noise", (4, 9)), torch.full((4,), 2.0)
    expected = TF.gaussian_blur(images, [13, 7], [2.0, 2.0])  # kernel (x, y): radius 6 fits 9, and 4 allows radius 3
    assert far(A.gaussian_blur(images, sigma, 13), expected) < 2e-6
    assert far(A.gaussian_blur(images[..., :1, :1], sigma, 13), images[..., :1, :1]) < 1e-6


# All of them


def crop(images: Tensor, share: Tensor, where: Tensor) -> Tensor:
    side = (20 * share).long()
    return A.crop_resize(images, torch.stack((20 - side, 0 * side, side, side), 1), 16, where)


OPERATIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "crop_resize": crop,
    "flip": lambda x, f, w: A.flip(x, w),
    "brightness": lambda x, f, w: A.adjust_brightness(x, f),
    "contrast": lambda x, f, w: A.adjust_contrast(x, f),
    "saturation": lambda x, f, w: A.adjust_saturation(x, f),
    "hue": lambda x, f, w: A.adjust_hue(x, f - 0.5),
    "jitter": lambda x, f, w: A.color_jitter(x, f, f, f, f - 0.5, torch.stack((f, 0.5 + 0 * f, 1 - f, w.float()), 1)),
    "grayscale": lambda x, f, w: A.grayscale(x, w),
    "solarize": lambda x, f, w: A.solarize(x, 0.5, w),
    "blur": lambda x, f, w: A.gaussian_blur(x, 2 * f, 9, w),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_samples_do_not_touch_each_other(name: str) -> None:
    run = OPERATIONS[name]
    images, factor = pictures("noise", (20, 20)), torch.tensor([0.3, 0.9, 0.6, 0.75])
    where = torch.tensor([True, False, True, True])
    batch = run(images, factor, where)
    alone = [run(images[i : i + 1], factor[i : i + 1], where[i : i + 1]) for i in range(4)]
    assert far(batch, torch.cat(alone)) < 1e-6
    # Another factor and another decision for sample 1 change sample 1 and nothing else.
    factor[1], where[1] = 0.45, True
    changed = (run(images, factor, where) - batch).abs().amax((1, 2, 3))
    assert changed[1] > 1e-2
    assert changed[[0, 2, 3]].max() < 1e-6


@pytest.mark.parametrize("name", OPERATIONS)
def test_values_stay_in_range_and_float32(name: str) -> None:
    for images in (
        torch.ones(4, 3, 20, 20),
        torch.full((4, 3, 20, 20), 255, dtype=torch.uint8),
        pictures("noise", (20, 20)).half(),
    ):
        out = OPERATIONS[name](images, torch.tensor([0.3, 0.9, 0.6, 0.75]), torch.tensor([True, False, True, True]))
        assert out.dtype == torch.float32
        assert out.min() >= 0
        assert out.max() <= 1
