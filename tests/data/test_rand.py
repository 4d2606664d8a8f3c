"""RandAugment and the padded crop against torchvision, sample by sample, for the same parameters."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision.transforms as T
import torchvision.transforms.v2.functional as TF
from torch import Tensor
from torchvision.transforms.autoaugment import _apply_op

from ressl import rng
from ressl.data import augment as A
from ressl.data.augment import rand
from ressl.data.augment.rand import FACTOR, OPERATIONS, ROTATE, SHEAR, TRANSLATE
from ressl.data.views import View, Views
from ressl.errors import ResslError

NAMES = {
    "identity": "Identity", "shear_x": "ShearX", "shear_y": "ShearY", "translate_x": "TranslateX",
    "translate_y": "TranslateY", "rotate": "Rotate", "brightness": "Brightness", "color": "Color",
    "contrast": "Contrast", "sharpness": "Sharpness", "posterize": "Posterize", "solarize": "Solarize",
    "autocontrast": "AutoContrast", "equalize": "Equalize",
}  # fmt: skip


def pictures(batch: int = 8, sides: tuple[int, int] = (32, 32)) -> Tensor:
    """uint8: smooth colours with some noise."""
    draw = torch.Generator().manual_seed(5)
    coarse = torch.rand(batch, 3, 4, 4, generator=draw)
    smooth = TF.resize(coarse, list(sides), antialias=True)
    return (255 * (0.9 * smooth + 0.1 * torch.rand(batch, 3, *sides, generator=draw))).round().to(torch.uint8)


def strength(name: str, magnitude: float, positive: bool, sides: tuple[int, int]) -> float:
    """torchvision's own number for a share of its range."""
    sign = 1 if positive else -1
    if name.startswith("shear"):
        return sign * SHEAR * magnitude
    if name.startswith("translate"):
        return sign * TRANSLATE * sides[1 if name.endswith("x") else 0] * magnitude
    if name == "rotate":
        return sign * ROTATE * magnitude
    if name == "posterize":
        return int(8 - round(4 * magnitude))
    if name == "solarize":
        return 255 * (1 - magnitude)
    return sign * FACTOR * magnitude


@pytest.mark.parametrize("sides", [(32, 32), (24, 37)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_torchvision_s(name: str, sides: tuple[int, int]) -> None:
    images = pictures(8, sides)
    magnitudes = torch.linspace(0.07, 0.97, 8)
    positive = torch.arange(8) % 2 == 0
    operation = torch.full((8, 1), OPERATIONS.index(name))
    ours = 255 * A.rand_augment(images, operation, magnitudes[:, None], positive[:, None])
    theirs = torch.stack(
        [
            _apply_op(image, NAMES[name], strength(name, float(m), bool(p), sides), T.InterpolationMode.NEAREST, None)
            for image, m, p in zip(images, magnitudes, positive, strict=True)
        ]
    ).float()
    far = (ours - theirs).abs()
    if name in ("shear_x", "shear_y", "rotate"):
        # Nearest neighbours: a place that lies halfway between two pixels may fall to either.
        assert (far > 2).float().mean() < 0.01
    else:
        assert far.max() <= 2
    assert (name == "identity") == torch.equal(ours.round(), images.float())


def test_every_sample_has_its_own_operations_one_after_the_other() -> None:
    images = pictures(6)
    draw = torch.Generator().manual_seed(0)
    operations = torch.randint(len(OPERATIONS), (6, 3), generator=draw)
    magnitudes = torch.rand(6, 3, generator=draw)
    positive = torch.rand(6, 3, generator=draw) < 0.5
    together = A.rand_augment(images, operations, magnitudes, positive)
    for i in range(6):
        alone = images[i : i + 1]
        for r in range(3):
            one = (slice(i, i + 1), slice(r, r + 1))
            alone = A.rand_augment(alone, operations[one], magnitudes[one], positive[one])
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-6)
    assert together.min() >= 0
    assert together.max() <= 1


@pytest.mark.parametrize("flat", [0.0, 0.3, 1.0])
def test_a_picture_of_one_colour_survives_every_operation(flat: float) -> None:
    images = torch.full((len(OPERATIONS), 3, 8, 8), flat)
    out = A.rand_augment(
        images, torch.arange(len(OPERATIONS))[:, None], torch.full((14, 1), 0.9), torch.ones(14, 1) > 0
    )
    assert out.isfinite().all()
    for name in ("identity", "color", "contrast", "sharpness", "autocontrast", "equalize"):
        torch.testing.assert_close(out[OPERATIONS.index(name)], images[0], rtol=0, atol=1e-4)  # luma's sum is 0.9999


def test_a_view_draws_operations_evenly_and_changes_nothing_else() -> None:
    u = rng.uniform(0, 0, torch.arange(4000), View.COLUMNS, rng.VIEWS)
    images = pictures(4)
    plain, rand = View(), View(randaugment=5, randaugment_magnitude=(0.0, 1.0))
    assert torch.equal(plain.boxes(u, 40, 40), rand.boxes(u, 40, 40))
    assert not torch.equal(plain(images, u[:4]), rand(images, u[:4]))
    for r in range(5):
        which = (u[:, -15 + r] * len(OPERATIONS)).long()
        counts = torch.bincount(which, minlength=len(OPERATIONS))
        assert (counts - 4000 / 14).abs().max() < 5 * math.sqrt(4000 / 14)
    zero = View(randaugment=2, randaugment_magnitude=(0.0, 0.0), crop=None, flip=0.0)
    assert zero(images, u[:4]).shape == images.shape


# --- the padded crop ---


def test_pad_crop_is_torchvision_s_crop_of_a_padded_picture() -> None:
    images = pictures(9, (20, 24))
    offsets = torch.tensor([[y, x] for y in (-4, 0, 3) for x in (-4, 1, 4)])
    ours = 255 * A.pad_crop(images, offsets)
    padded = TF.pad(images, [4, 4, 4, 4])
    for i, (y, x) in enumerate((offsets + 4).tolist()):
        torch.testing.assert_close(ours[i], TF.crop(padded[i], y, x, 20, 24).float(), rtol=0, atol=1e-3)


def test_the_padded_view_is_crop_then_flip_also_for_what_a_worker_cut() -> None:
    view = View(crop=None, pad=4)
    images, rows = pictures(16), torch.arange(16)
    views = Views([view], (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), 3)
    whole = views(images, 7, rows)[0]
    (u,) = views.draws(7, rows)
    offsets = (u[:, -17:-15] * 9).floor().long() - 4
    assert offsets.min() == -4
    assert offsets.max() == 4
    for i in range(16):
        y, x = (offsets[i] + 4).tolist()
        crop = TF.crop(TF.pad(images[i], [4, 4, 4, 4]), y, x, 32, 32)
        crop = TF.horizontal_flip(crop) if view.flips(u)[i] else crop
        torch.testing.assert_close(whole[i], (crop / 255 - 0.5) / 0.25, rtol=0, atol=1e-4)
    torch.testing.assert_close(views.finish([images], 7, rows)[0], whole)


@pytest.mark.parametrize(
    ("view", "says"),
    [
        (View(pad=4), "goes with crop=none"),
        (View(pad=-1, crop=None), "at least 0"),
        (View(randaugment=6), "0 to 5 operations"),
        (View(randaugment=1, randaugment_magnitude=(0.5, 0.2)), "in 0 to 1"),
    ],
)
def test_a_senseless_setting_is_named(view: View, says: str) -> None:
    with pytest.raises(ResslError, match=says):
        view.validate()


def test_a_round_is_compiled_once_for_all_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five rounds in one program are five times as much to compile, and again for every size of view."""
    programs: list[int] = []

    def note(graph: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        programs.append(len(graph.graph.nodes))
        return graph

    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: plain(function, backend=note))
    rand._compiled.cache_clear()
    torch._dynamo.reset()
    generator = torch.Generator().manual_seed(0)
    operations = torch.randint(0, len(OPERATIONS), (64, 5), generator=generator)
    magnitudes, positive = torch.rand(64, 5, generator=generator), torch.rand(64, 5, generator=generator) < 0.5
    compiled = torch.compile(A.rand_augment)
    for side in (16, 12, 9):
        images = torch.rand(64, 3, side, side, generator=generator)
        drawn = operations, magnitudes, positive
        assert torch.equal(compiled(images, *drawn), A.rand_augment(images, *drawn))
    assert max(programs) < 300
    assert len([size for size in programs if size > 150]) <= 3  # the round itself: for one size, and for any
    rand._compiled.cache_clear()
    torch._dynamo.reset()
