"""Views: pure in (seed, step, rows), applied as often as they say, and named as in the paper's Table 11."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torchvision.transforms.v2.functional as TF
from torch import Tensor

from ressl import rng
from ressl.data import augment
from ressl.data.views import STRONG, WEAK, View, Views, describe, normalize, parse_view
from ressl.errors import ResslError

MEAN, STD = (0.49, 0.48, 0.45), (0.2, 0.19, 0.21)
EVERYTHING = replace(STRONG, size=24, solarize=0.3)


def pictures(batch: int, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (batch, 3, side, side), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def uniforms(batch: int, stream: int = 0) -> Tensor:
    return rng.uniform(3, 5, torch.arange(batch), View.COLUMNS, rng.VIEWS + stream)


def two_views(seed: int = 3) -> Views:
    return Views([WEAK, EVERYTHING], MEAN, STD, seed)


def far(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


def test_views_are_normalised_floats_of_their_size() -> None:
    images, rows = pictures(16), torch.arange(16)
    weak, strong = two_views()(images, 5, rows)
    assert (weak.shape, strong.shape) == ((16, 3, 32, 32), (16, 3, 24, 24))
    for v, (view, out) in enumerate(((WEAK, weak), (EVERYTHING, strong))):
        expected = view(images, uniforms(16, v))
        assert expected.dtype == torch.float32
        assert expected.min() >= 0
        assert expected.max() <= 1
        assert far(out, TF.normalize(expected, list(MEAN), list(STD))) < 1e-5


def test_normalize_takes_numbers_or_tensors() -> None:
    images = pictures(2)
    expected = TF.normalize(images / 255, list(MEAN), list(STD))
    assert far(normalize(images, MEAN, STD), expected) < 1e-5
    tensors = [torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, STD)]
    assert far(normalize(images, *tensors), expected) < 1e-5


def test_rows_decide_not_places() -> None:
    images, rows, views = pictures(16), torch.arange(100, 116), two_views()
    whole = views(images, 5, rows)
    order = torch.tensor([3, 15, 0, 8, 4, 7, 1, 2, 14, 13, 12, 11, 10, 9, 6, 5])
    for a, b in zip(views(images[order], 5, rows[order]), whole, strict=True):
        assert far(a, b[order]) < 1e-5
    for a, b in zip(views(images[8:], torch.tensor(5), rows[8:]), whole, strict=True):
        assert far(a, b[8:]) < 1e-5


def test_seed_step_row_and_view_all_matter() -> None:
    images, rows = pictures(1).expand(16, -1, -1, -1), torch.arange(16)
    base = two_views()(images, 5, rows)
    others = [two_views()(images, 6, rows), two_views(seed=4)(images, 5, rows), two_views()(images, 5, rows + 16)]
    for other in others:
        for a, b in zip(other, base, strict=True):
            assert ((a - b).abs().amax((1, 2, 3)) > 1e-2).all()
    for out in base:  # one picture, sixteen rows: sixteen different views
        assert torch.pdist(out.flatten(1)).min() > 1e-2
    twins = Views([WEAK, WEAK], MEAN, STD, 3)(images, 5, rows)
    assert ((twins[0] - twins[1]).abs().amax((1, 2, 3)) > 1e-2).all()


def test_finish_equals_the_whole_view() -> None:
    images, rows, views = pictures(16, 48), torch.arange(7, 23), two_views()
    whole = views(images, 5, rows)
    crops = [
        augment.crop_resize(images, view.boxes(u, 48, 48), view.size)
        for view, u in zip(views.views, views.draws(5, rows), strict=True)
    ]
    for a, b in zip(views.finish(crops, 5, rows), whole, strict=True):
        assert far(a, b) < 1e-4
    # From a worker they come rounded to uint8: half a level, times the jitter's gains and 1 / std. Solarize is left
    # out, because rounding may carry a value across its threshold.
    views = Views([WEAK, replace(EVERYTHING, solarize=0.0)], MEAN, STD, 3)
    rounded = [(crop * 255).round().to(torch.uint8) for crop in crops]
    for a, b in zip(views.finish(rounded, 5, rows), views(images, 5, rows), strict=True):
        assert far(a, b) < 2 / 255 / min(STD)


def test_boxes_per_sample_and_without_a_crop() -> None:
    u = uniforms(3)
    sizes = torch.tensor([40, 50, 60]), torch.tensor([70, 30, 60])
    for view in (WEAK, parse_view("none", 32)):
        boxes = view.boxes(u, *sizes)
        for i in range(3):
            assert torch.equal(boxes[i], view.boxes(u[i : i + 1], int(sizes[0][i]), int(sizes[1][i]))[0])
    assert boxes.tolist() == [[0, 0, 40, 70], [0, 0, 50, 30], [0, 0, 60, 60]]


@pytest.mark.parametrize(
    ("name", "probability"), [("flip", 0.5), ("jitter", 0.8), ("gray", 0.2), ("blur", 0.5), ("solarize", 0.2)]
)
def test_an_operation_touches_its_share_of_the_batch(name: str, probability: float) -> None:
    n = 2000
    images = pictures(1, 8).expand(n, -1, -1, -1)
    view = parse_view(name, 8)
    assert getattr(view, name) == probability
    # Sigmas from 0.1 to about 0.2 blur nothing that can be seen, so the test starts where it shows.
    view = replace(view, blur_sigma=(0.5, 2.0))
    changed = (view(images, uniforms(n)) - images / 255).abs().amax((1, 2, 3)) > 1e-3
    sigma = (probability * (1 - probability) / n) ** 0.5
    assert abs(changed.double().mean().item() - probability) < 4 * sigma
    always = replace(view, **{name: 1.0})  # type: ignore[arg-type]
    assert ((always(images, uniforms(n)) - images / 255).abs().amax((1, 2, 3)) > 1e-3).double().mean() > 0.995


def test_photometric_draws_are_torchvisions_ranges() -> None:
    # A flat gray picture shows the brightness factor, a hueless one nothing else.
    n = 4000
    gray = torch.full((1, 3, 4, 4), 0.5).expand(n, -1, -1, -1)
    view = View(crop=None, flip=0.0, size=4, jitter=1.0, hue=0.0, contrast=0.0, saturation=0.0, brightness=0.4)
    factor = view(gray, uniforms(n))[:, 0, 0, 0] / 0.5
    quantiles = torch.quantile(factor, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert far(quantiles, torch.tensor([0.6, 0.8, 1.0, 1.2, 1.4])) < 0.03
    # Pure red shows the hue: the green or blue that it gains is six times the turn.
    red = torch.zeros(n, 3, 4, 4)
    red[:, 0] = 1
    view = View(crop=None, flip=0.0, size=4, jitter=1.0, hue=0.1, contrast=0.0, saturation=0.0, brightness=0.0)
    pixel = view(red, uniforms(n))[:, :, 0, 0]
    turn = (pixel[:, 1] - pixel[:, 2]) / 6
    quantiles = torch.quantile(turn, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    assert far(quantiles, torch.tensor([-0.1, -0.05, 0.0, 0.05, 0.1])) < 0.01


def test_the_order_of_the_jitter() -> None:
    images, u = pictures(64), uniforms(64)
    jitter = View(crop=None, flip=0.0, jitter=1.0)
    random, fixed = jitter(images, u), replace(jitter, jitter_order="fixed")(images, u)
    same = (random - fixed).abs().amax((1, 2, 3)) < 1e-4
    assert same.sum() < 16  # 1 order of 24, and a few more that come to the same
    assert not same.all()


def test_every_decision_has_its_own_columns() -> None:
    """Which columns of u an operation listens to, found by mirroring one column at a time."""
    images, u = pictures(64, 8), uniforms(64)

    def ears(view: View) -> set[int]:
        before = view(images, u)
        mirrored = [torch.cat((u[:, :c], 1 - u[:, c : c + 1], u[:, c + 1 :]), 1) for c in range(View.COLUMNS)]
        return {c for c in range(View.COLUMNS) if far(view(images, mirrored[c]), before) > 1e-3}

    crop = ears(parse_view("crop", 8))
    assert {0, 10, 20, 21} <= crop <= set(range(22))  # the later attempts are rarely needed
    assert ears(parse_view("flip", 8)) == {22}
    assert ears(parse_view("jitter", 8)) == set(range(23, 32))
    assert ears(replace(parse_view("jitter", 8), jitter_order="fixed")) == set(range(23, 28))
    assert ears(parse_view("gray", 8)) == {32}
    assert ears(parse_view("blur", 8)) == {33, 34}
    assert ears(parse_view("solarize", 8)) == {35}
    assert ears(parse_view("none", 8)) == set()
    assert ears(parse_view("pad", 8)) == {36, 37}
    assert ears(replace(parse_view("none", 8), randaugment=2, randaugment_magnitude=(0.0, 1.0))) == {
        38,
        39,
        43,
        44,
        48,
        49,
    }
    assert View.COLUMNS == 53


def test_an_operation_leaves_the_draws_of_the_others() -> None:
    images, u = pictures(32), uniforms(32)
    with_gray, without = STRONG(images, u), replace(STRONG, gray=0.0)(images, u)
    untouched = (with_gray - without).abs().amax((1, 2, 3)) < 1e-6
    assert 16 < untouched.sum() < 32


def test_the_strong_view_is_its_steps_in_order() -> None:
    images, u = pictures(12), uniforms(12)
    view = replace(EVERYTHING, gray=0.5, blur_sigma=(1.0, 2.0))
    photometric = ("jitter", "gray", "blur", "solarize")
    off = replace(view, jitter=0, gray=0, blur=0, solarize=0)
    steps = [off, *(replace(off, crop=None, flip=0, **{name: getattr(view, name)}) for name in photometric)]
    expected: Tensor = images
    for step in steps:
        expected = step(expected, u)
    assert far(view(images, u), expected) < 1e-4


def test_the_strong_view_compiles_without_a_break() -> None:
    views, images, rows = two_views(), pictures(4), torch.arange(4)
    compiled = torch.compile(views.__call__, fullgraph=True, backend="aot_eager")
    step = torch.tensor(5)
    for a, b in zip(compiled(images, step, rows), views(images, step, rows), strict=True):
        assert far(a, b) < 1e-4
    # The other branch of the blur, and the streaming half.
    big = Views([replace(STRONG, size=132)], MEAN, STD, 3)
    finish = torch.compile(big.finish, fullgraph=True, backend="aot_eager")
    crops = [pictures(2, 132)]
    assert far(finish(crops, step, rows[:2])[0], big.finish(crops, step, rows[:2])[0]) < 1e-4


TABLE_11 = {
    "none": "",
    "crop": "crop",
    "flip": "flip",
    "jitter": "jitter",
    "gray": "gray",
    "blur": "blur",
    "crop+flip": "crop flip",
    "crop+jitter": "crop jitter",
    "crop+gray": "crop gray",
    "crop+blur": "crop blur",
    "crop+flip+jitter": "crop flip jitter",
    "crop+flip+gray": "crop flip gray",
    "crop+flip+blur": "crop flip blur",
}


@pytest.mark.parametrize("text", TABLE_11)
def test_the_papers_teacher_views(text: str) -> None:
    view, words = parse_view(text, 64), TABLE_11[text].split()
    view.validate()
    strong = {"flip": 0.5, "jitter": 0.8, "gray": 0.2, "blur": 0.5, "solarize": 0.0}
    assert view.size == 64
    assert view.crop == ((0.2, 1.0) if "crop" in words else None)
    assert {name: getattr(view, name) for name in strong} == {k: p if k in words else 0.0 for k, p in strong.items()}
    for word in ("crop", "flip", "jitter", "gray", "blur"):
        assert (word in describe(view)) == (word in words)


def test_named_views() -> None:
    assert parse_view("weak", 64) == replace(WEAK, size=64) == parse_view("crop+flip", 64)
    assert parse_view("strong", 64) == replace(STRONG, size=64) == parse_view("crop + flip+jitter+gray+blur", 64)
    assert (STRONG.crop, STRONG.flip, STRONG.jitter, STRONG.gray, STRONG.blur) == ((0.2, 1.0), 0.5, 0.8, 0.2, 0.5)
    resized = parse_view("none", 20)(pictures(4), uniforms(4))
    assert far(resized, TF.resize(pictures(4) / 255, [20, 20], antialias=True)) < 1e-5
    assert parse_view("solarize", 32).solarize == 0.2
    assert describe(STRONG) == (
        "32 px: crop 0.2-1, flip 50 %, jitter 80 % (0.4 0.4 0.4 0.1), gray 20 %, blur 50 % (sigma 0.1-2)"
    )


@pytest.mark.parametrize(
    ("text", "hint"), [("stong", "'strong'"), ("crop+jiter", "'jitter'"), ("", "known: blur"), ("crop+", "known: blur")]
)
def test_a_wrong_word_names_the_nearest(text: str, hint: str) -> None:
    with pytest.raises(ResslError, match=hint):
        parse_view(text, 32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 0}, "size"),
        ({"flip": 1.5}, "'flip'"),
        ({"gray": -0.1}, "'gray'"),
        ({"blur": float("nan")}, "'blur'"),
        ({"hue": 0.6}, "'hue'"),
        ({"contrast": -1.0}, "'contrast'"),
        ({"crop": (1.0, 0.2)}, "crop"),
        ({"crop": (0.0, 1.0)}, "crop"),
        ({"crop": (0.2, 1.1)}, "crop"),
        ({"ratio": (2.0, 1.0)}, "ratio"),
        ({"blur_sigma": (0.0, 2.0)}, "blur_sigma"),
        ({"solarize_threshold": 128}, "solarize_threshold"),
        ({"jitter_order": "fxed"}, "did you mean 'fixed'"),
    ],
)
def test_nonsense_is_refused(change: dict[str, object], message: str) -> None:
    view = replace(STRONG, **change)  # type: ignore[arg-type]
    with pytest.raises(ResslError, match=message):
        view.validate()
    with pytest.raises(ResslError, match=message):
        Views([WEAK, view], MEAN, STD, 0)


def test_views_of_one_kind_are_made_together_and_are_the_same() -> None:
    kinds = [STRONG, replace(WEAK, size=16), STRONG, replace(WEAK, size=16), STRONG]
    images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    crops = [torch.randint(0, 256, (6, 3, view.size, view.size), dtype=torch.uint8) for view in kinds]
    views, rows, made = Views(kinds, MEAN, STD, seed=1), torch.arange(6), list[int]()
    together, finished = views(images, 3, rows), views.finish(crops, 3, rows)
    for v, (view, u) in enumerate(zip(kinds, views.draws(3, rows), strict=True)):
        assert torch.equal(together[v], normalize(view(images, u), MEAN, STD))
        alone = view.photometric(view.finish_geometry(crops[v], u), u)
        assert torch.equal(finished[v], normalize(alone, MEAN, STD))
        made.append(together[v].shape[-1])
    assert made == [32, 16, 32, 16, 32]
    assert not torch.equal(together[0], together[2])


def test_views_that_are_cut_alike_are_cut_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weak and a strong one, but not one of another size; the numbers are those of each alone."""
    cuts: list[tuple[int, int]] = []
    geometry = View.geometry

    def noted(view: View, images: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        cuts.append((len(images), view.size))
        return geometry(view, images, u)

    kinds = [WEAK, STRONG, replace(STRONG, size=16)]
    images, rows = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8), torch.arange(6)
    views = Views(kinds, MEAN, STD, seed=1)
    alone = [normalize(view(images, u), MEAN, STD) for view, u in zip(kinds, views.draws(3, rows), strict=True)]
    monkeypatch.setattr(View, "geometry", noted)
    made = views(images, 3, rows)
    assert cuts == [(12, 32), (6, 16)]
    for one, other in zip(made, alone, strict=True):
        assert torch.equal(one, other)
