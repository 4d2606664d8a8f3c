"""The paper's recipes against the table of facts, written out here a second time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ressl.recipes import RECIPES
from ressl.runs import build_method

SMALL = {
    "image_size": 32, "backbone": "resnet18", "stem": "small", "width": 64, "bn_groups": 8, "method": "ressl",
    "epochs": 200, "batch_size": 256, "lr": 0.06, "optimiser": "sgd", "momentum": 0.9, "weight_decay": 5e-4,
    "decay_norm_and_bias": True, "warmup_epochs": 5.0, "knn_k": 200, "knn_temperature": 0.1,
}  # fmt: skip
MEDIUM = SMALL | {"image_size": 64, "stem": "medium"}
IMAGENET = SMALL | {
    "data": "imagenet", "image_size": 224, "stem": "imagenet", "lr": 0.05, "weight_decay": 1e-4,
    "decay_norm_and_bias": False, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225),
}  # fmt: skip

FIELDS: dict[str, dict[str, Any]] = {
    "cifar10": SMALL
    | {"data": "cifar10", "mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)},
    "cifar100": SMALL
    | {"data": "cifar100", "mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)},
    "stl10": MEDIUM | {"data": "stl10", "mean": (0.4408, 0.4279, 0.3867), "std": (0.2682, 0.2610, 0.2686)},
    "tiny-imagenet": MEDIUM
    | {"data": "tiny-imagenet", "mean": (0.4802, 0.4481, 0.3975), "std": (0.2302, 0.2265, 0.2262)},
    "imagenet-r50": IMAGENET | {"backbone": "resnet50"},
    "imagenet-r18": IMAGENET | {"backbone": "resnet18"},
}  # fmt: skip

#            hidden  out    queue   m      tau_s tau_t  paper's linear top-1
NUMBERS = {
    "cifar10": (2048, 128, 4096, 0.99, 0.1, 0.05, 90.20),
    "cifar100": (2048, 128, 4096, 0.99, 0.1, 0.04, 63.79),
    "stl10": (2048, 128, 16384, 0.996, 0.1, 0.05, 88.25),
    "tiny-imagenet": (2048, 128, 16384, 0.996, 0.1, 0.04, 46.60),
    "imagenet-r50": (4096, 512, 131072, 0.999, 0.1, 0.04, 69.9),
    "imagenet-r18": (4096, 512, 131072, 0.999, 0.1, 0.04, 58.1),
}


def test_every_recipe_of_the_issue_is_there() -> None:
    assert set(RECIPES) >= {"demo", *FIELDS}
    assert all(name == recipe.name for name, recipe in RECIPES.items())


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_the_table_s(name: str) -> None:
    recipe = RECIPES[name]
    assert {key: getattr(recipe, key) for key in FIELDS[name]} == FIELDS[name]


@pytest.mark.parametrize("name", NUMBERS)
def test_options_are_the_table_s(name: str) -> None:
    hidden, out, queue, momentum, tau_s, tau_t, paper = NUMBERS[name]
    recipe = RECIPES[name]
    assert dict(recipe.options) == {
        "hidden_dim": hidden, "output_dim": out, "queue_size": queue, "teacher_momentum": momentum,
        "student_temperature": tau_s, "teacher_temperature": tau_t,
    }  # fmt: skip
    assert recipe.paper["linear"] == paper


@pytest.mark.parametrize("name", FIELDS)
def test_views_are_weak_for_the_teacher_and_strong_for_the_student(name: str) -> None:
    recipe = RECIPES[name]
    weak, strong = recipe.views
    for view in (weak, strong):
        assert view.size == recipe.image_size
        assert (view.crop, view.flip, view.solarize) == ((0.2, 1.0), 0.5, 0.0)
        assert view.ratio == (3 / 4, 4 / 3)
    assert (weak.jitter, weak.gray, weak.blur) == (0.0, 0.0, 0.0)
    assert (strong.jitter, strong.gray, strong.blur, strong.blur_sigma) == (0.8, 0.2, 0.5, (0.1, 2.0))
    assert (strong.brightness, strong.contrast, strong.saturation, strong.hue) == (0.4, 0.4, 0.4, 0.1)
    assert strong.jitter_order == "random"


@pytest.mark.parametrize("name", FIELDS)
def test_linear_protocols_are_the_table_s(name: str) -> None:
    linear = RECIPES[name].linear
    assert (linear.epochs, linear.batch_size, linear.scale, linear.augment) == (100, 256, (0.08, 1.0), True)
    assert not linear.standardize
    if name.startswith("imagenet"):
        assert (linear.schedule, linear.lr, linear.nesterov, linear.resize) == ("cosine", 0.3, False, 256)
    else:
        assert (linear.schedule, linear.lr, linear.nesterov) == ("step", 30.0, True)
        assert linear.milestones == (0.6, 0.8)


def test_the_network_is_the_paper_s() -> None:
    """CIFAR: 512 -> 2048 -> 128 with biases, no batch norm in the head, 11,168,832 weights in the backbone."""
    method: Any = build_method(RECIPES["cifar10"].replace(queue_size=256))
    shapes = [tuple(p.shape) for p in method.head.parameters()]
    assert shapes == [(2048, 512), (2048,), (128, 2048), (128,)]
    assert sum(p.numel() for p in method.backbone.parameters()) == 11_168_832  # torchvision's, stem 3 x 3, without fc
    assert method.backbone.bn1.groups == 8
    assert method.teacher.module[0].bn1.groups == 8


@pytest.mark.parametrize(
    ("name", "sizes", "linear"),
    [("imagenet-r50-4crops", (224, 160, 128, 96), 73.8), ("imagenet-r50-5crops", (224, 192, 160, 128, 96), 74.7)],
)
def test_multi_crop_recipes_have_the_papers_crops(name: str, sizes: tuple[int, ...], linear: float) -> None:
    low = {224: 0.2, 192: 0.172, 160: 0.143, 128: 0.114, 96: 0.086}
    high = {224: 1.0, 192: 0.86, 160: 0.715, 128: 0.571, 96: 0.429}
    recipe = RECIPES[name]
    teacher, *students = recipe.views
    assert teacher == RECIPES["imagenet-r50"].views[0]
    assert tuple(view.size for view in students) == sizes
    assert [view.crop for view in students] == [(low[s], high[s]) for s in sizes]
    assert all(replace(view, size=224, crop=(0.2, 1.0)) == RECIPES["imagenet-r50"].views[1] for view in students)
    assert recipe.paper["linear"] == linear
    same = replace(recipe, name="x", summary="", views=(), paper={})
    assert same == replace(RECIPES["imagenet-r50"], name="x", summary="", views=(), paper={})
    half = recipe.replace(image_size=112)  # the crops keep their proportions
    assert [view.size for view in half.views] == [112, *(s // 2 for s in sizes)]
