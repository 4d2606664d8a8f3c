"""The kernel that makes the views of the linear evaluation: in Triton's interpreter, and compiled for a card."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ressl.data.views import STRONG, WEAK, View, Views
from ressl.engine.building import build
from ressl.engine.folding import fold
from ressl.engine.launching import noted
from ressl.nn import build_backbone

pytest.importorskip("triton")
H200 = ("cuda", 90, 32)

CASES = """
import torch
from ressl.data.augment import crop_resize
from ressl.data.shapes import make_shapes
from ressl.data.views import View, Views, normalize
from ressl.engine.folding import fold
from ressl.engine import looking
from ressl.engine.looking import Looking
from ressl.evaluation.blocks import Blocks
from ressl.evaluation.classifier import Classifier
from ressl.nn import build_backbone

torch.set_num_threads(1)
mean, std = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
net = lambda stem, dtype, width=4: fold(build_backbone("resnet10", stem, width=width, bn_groups=1).eval(), dtype)
# Not a stem in bf16: the interpreter takes such numbers for whole ones in a product. tests/gpu has it.
both = [("small", torch.float32), ("imagenet", torch.float32), ("imagenet", torch.bfloat16)]

# As large as the view, not square and enlarged to an odd size, and with a row that is more than fits; the boxes are the
# whole picture, its corners, one pixel, one row and one column, and some that a view draws.
for H, W, size, stems in ((32, 32, 32, both), (20, 27, 33, both), (9, 7, 9, both[:1])):
    looking.VALUES = 64 if size == 9 else 1024
    torch.manual_seed(size)
    images = torch.randint(0, 256, (5, 3, H, W), dtype=torch.uint8)
    views = Views([View(size=size, crop=(0.08, 1.0), flip=0.5)], mean, std, 3)
    fixed = [(0, 0, H, W), (0, 0, H - 3, 4), (2, W - 5, H - 2, 5), (H - 1, W - 1, 1, 1), (H - 1, 0, 1, W), (0, 1, H, 1)]
    boxes = torch.cat((torch.tensor(fixed), views.views[0].boxes(torch.rand(3, View.COLUMNS), H, W)))
    index, flips = torch.arange(len(boxes)) * 2 % 5, torch.arange(len(boxes)) % 3 != 1
    for stem, dtype in stems if size == 32 else stems[:2]:
        frozen = net(stem, dtype)
        look = Looking(views, images, frozen)
        close = {"rtol": 1e-5, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2e-5}
        wanted = frozen.prepare(normalize(crop_resize(images[index], boxes, size, flips), mean, std))
        found = frozen.room(len(boxes), size, images.device).fill_(float("nan"))
        assert found.shape == wanted.shape and found.stride() == wanted.stride()
        look.write(found, index, boxes, flips)
        torch.testing.assert_close(found, wanted, **close)
        if not frozen.columns:
            assert (found[wanted == 0] == 0).all()  # padding is nothing, exactly
        rows, step = torch.arange(3) + 7, torch.tensor(2)
        look(found[:3], index[:3], step, rows)
        torch.testing.assert_close(found[:3], frozen.prepare(views(images[index[:3]], step, rows)[0]), **close)

# A whole evaluation by it.
looking.VALUES = 1024
images, labels = make_shapes(25, size=16)
views = Views([View(size=16, crop=(0.2, 1.0), flip=0.5)], mean, std, 0)
torch.manual_seed(0)
frozen = net("small", torch.float32, 24)  # more channels than a product needs, and no power of two
weights = []
for ours in (False, True):
    how = {"schedule": lambda step: 0.5 / (1 + step), "nesterov": True, "seed": 0, "device": images.device}
    classifier = Classifier(frozen(torch.zeros(1, 3, 16, 16)).shape[1], int(labels.max()) + 1, **how)
    blocks = Blocks(frozen, views, images, labels, classifier, 8, 0)
    if ours:
        blocks.show = Looking(views, images, frozen)
    for _ in range(2):
        blocks.train_epoch()
    weights.append(classifier.weight)
assert (weights[0] - weights[0].mean()).norm() > 0.1
torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
print("all agree")
"""


def test_the_kernel_makes_what_plain_operations_make(interpret: Callable[[str], None]) -> None:
    interpret(CASES)


def test_it_compiles_for_a_card_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ressl.engine.looking import Looking

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    views, images = Views([replace(WEAK, size=32)], (0.5,) * 3, (0.25,) * 3, 0), torch.zeros(4, 3, 32, 32).byte()
    with noted() as found:
        for stem in ("small", "imagenet"):
            net = fold(build_backbone("resnet10", stem, width=24, bn_groups=1).eval(), torch.bfloat16)
            assert net is not None
            out, numbers = net.room(4, 32, images.device), torch.arange(4)
            Looking(views, images, net)(out, numbers, torch.tensor(0), numbers)
    assert [launch.constants["STEM"] for launch in found] == [24, 0]
    build(found, H200)
    assert len(list(tmp_path.glob("*/*.cubin"))) == 2


def test_it_says_what_it_cannot_make() -> None:
    from ressl.engine.looking import can_look

    bytes_ = torch.zeros(1, 3, 32, 24, dtype=torch.uint8)
    view = View(size=32, crop=(0.08, 1.0))
    assert can_look(view, bytes_)
    assert can_look(replace(view, crop=None, flip=0.0), bytes_)
    assert can_look(replace(view, size=40), bytes_)
    assert not can_look(replace(view, size=28), bytes_)  # one side would be made smaller
    assert not can_look(replace(view, crop=None, pad=4), bytes_)
    assert not can_look(replace(STRONG, size=32), bytes_)
    assert not can_look(view, bytes_.float())


def test_few_numbers_are_the_first_of_all() -> None:
    views, rows = Views([WEAK, STRONG], (0.5,) * 3, (0.25,) * 3, 5), torch.arange(6)
    for few, whole in zip(views.draws(3, rows, View.PLACES), views.draws(3, rows), strict=True):
        torch.testing.assert_close(few, whole[:, : View.PLACES], rtol=0, atol=0)
        torch.testing.assert_close(WEAK.boxes(few, 32, 32), WEAK.boxes(whole, 32, 32), rtol=0, atol=0)
        torch.testing.assert_close(WEAK.flips(few), WEAK.flips(whole), rtol=0, atol=0)
