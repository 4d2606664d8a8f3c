"""The batched augmentations against torchvision, sample by sample, for the same parameters."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torchvision.transforms as T
import torchvision.transforms.v2.functional as TF
from torch import Tensor

from ressl import rng
from ressl.data import augment as A
from ressl.data.augment import filters
from ressl.errors import ResslError

Sides = tuple[int, int]
SIDES = [(32, 32), (24, 24), (64, 64), (40, 57)]


def uniforms(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def pictures(kind: str, sides: Sides, batch: int = 4) -> Tensor:
    """Noise (all frequencies, saturated colours) or smooth ramps (where a shifted grid shows)."""
    noise = uniforms(7, batch, 3, *sides)
    if kind == "noise":
        return noise
    y, x = torch.linspace(0, 1, sides[0])[:, None], torch.linspace(0, 1, sides[1])[None, :]
    a, b, c = noise[:, :, :1, :1], noise[:, :, 1:2, :1], noise[:, :, 2:3, :1]
    return (0.5 + 0.25 * torch.sin(6 * a * y + 5 * b * x) + 0.25 * torch.cos(7 * c * x * y)).clamp(0, 1)


def as_uint8(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8)


def loop(twin: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """torchvision's function on one sample at a time."""
    return torch.stack(
        [twin(image, *(p[i].item() for p in parameters)) for i, image in enumerate(images)],
    )


def far(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


every_picture = pytest.mark.parametrize(("kind", "sides"), list(itertools.product(["noise", "smooth"], SIDES)))


# Geometry


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
