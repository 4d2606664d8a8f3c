"""What ``--method`` brings with it, against the paper's appendix and Table 1 written out a second time."""

from __future__ import annotations

from typing import Any

import pytest
from torchvision import transforms

from ressl.errors import ResslError
from ressl.methods import METHODS
from ressl.nn import build_backbone
from ressl.recipes import RECIPES, Recipe, get_recipe, method_options
from ressl.recipes.baselines import BASELINES, DEMO, FEW_PICTURES, IMAGENET, PAPER

SETS = ("cifar10", "cifar100", "stl10", "tiny-imagenet")
TABLE1 = {
    "supervised": (94.22, 74.66, 82.55, 59.26),
    "simclr": (84.92, 59.28, 85.48, 44.38),
    "byol": (85.82, 57.75, 87.45, 42.70),
    "simsiam": (88.51, 60.00, 87.47, 37.04),
    "moco-v2": (86.18, 59.51, 85.88, 43.36),
}
SGD = {"optimiser": "sgd", "lr": 0.06, "weight_decay": 5e-4, "momentum": 0.9, "warmup_epochs": 5.0, "epochs": 200}
LARS = SGD | {"optimiser": "lars", "lr": 1.0, "weight_decay": 1e-4}
APPENDIX = {"simclr": LARS, "byol": LARS, "simsiam": SGD, "moco-v2": SGD}


def test_every_method_has_settings_and_every_setting_a_method() -> None:
    assert set(BASELINES) == set(METHODS)
    assert set(PAPER) <= set(METHODS)
    assert set(DEMO) | set(FEW_PICTURES) | set(IMAGENET) <= set(METHODS)
    for name, found in [*BASELINES.items(), *DEMO.items(), *FEW_PICTURES.items(), *IMAGENET.items()]:
        assert set(found.options) <= set(method_options(name)), name


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("base", RECIPES)
def test_every_recipe_takes_every_method(base: str, name: str) -> None:
    recipe = get_recipe(base).replace(method=name)
    assert recipe.check() == []
    assert recipe.name == base
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert METHODS[name].fewest_views <= len(recipe.views) <= (METHODS[name].most_views or len(recipe.views))


@pytest.mark.parametrize("name", TABLE1)
@pytest.mark.parametrize("place", range(4))
def test_table_1_and_the_appendix(name: str, place: int) -> None:
    own, recipe = get_recipe(SETS[place]), get_recipe(SETS[place]).replace(method=name)
    assert recipe.paper == {"linear": TABLE1[name][place]}
    if name in APPENDIX:
        assert {key: getattr(recipe, key) for key in APPENDIX[name]} == APPENDIX[name]
        assert recipe.views == (own.views[1], own.views[1])
    linear = recipe.linear
    if name in ("simclr", "byol"):
        assert (linear.schedule, linear.lr, linear.epochs) == ("cosine", 0.2, 100)
    else:
        assert (linear.schedule, linear.lr, linear.epochs) == ("step", 30.0, 100)
    if name == "moco-v2":
        shared = ("hidden_dim", "output_dim", "queue_size", "teacher_momentum")
        assert {k: recipe.options[k] for k in shared} == {k: own.options[k] for k in shared}
        assert recipe.options["temperature"] == 0.2
        assert recipe.bn_groups == 8
    if name == "supervised":
        (view,) = recipe.views
        assert (view.crop, view.pad, view.flip, view.jitter) == (None, recipe.image_size // 8, 0.5, 0.0)
        assert recipe.options["num_classes"] == (10, 100, 10, 200)[place]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("base", ["imagenet-r50", "imagenet-r18"])
def test_on_imagenet_all_are_evaluated_as_swav_evaluates(base: str, name: str) -> None:
    linear = get_recipe(base).replace(method=name).linear
    assert (linear.schedule, linear.lr, linear.epochs, linear.nesterov) == ("cosine", 0.3, 100, False)
    assert (linear.batch_size, linear.scale, linear.resize) == (256, (0.08, 1.0), 256)


ORIGINALS: dict[str, dict[str, Any]] = {  # on ImageNet, in the methods' own papers
    "simsiam": {"projector_layers": 3, "output_dim": 2048, "predictor_dim": 512},
    "swav": {"hidden_dim": 2048, "output_dim": 128, "prototypes": 3000, "queue_size": 3840},
    "instdisc": {"output_dim": 128, "negatives": 4096},
    "localagg": {"output_dim": 128, "background": 4096, "clusterings": 10, "clusters": 30_000},
    "mochi": {"hardest": 1024, "mixed": 1024, "mixed_with_query": 128},
    "cpc-v2": {"patch": 64, "stride": 32},
    "pcl-v2": {"granularities": (25_000, 50_000, 100_000)},
    "adco": {"negatives": 65_536, "temperature": 0.12, "negatives_temperature": 0.02},
}


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("base", ["imagenet-r50", "imagenet-r18"])
def test_on_imagenet_methods_have_the_sizes_of_their_papers(base: str, name: str) -> None:
    recipe = get_recipe(base).replace(method=name)
    full = {key: default for key, (_, default) in method_options(name).items()} | dict(recipe.options)
    assert {key: full[key] for key in ORIGINALS[name]} == ORIGINALS[name]
    if name == "cpc-v2":  # a grid of 7 x 7
        assert (recipe.views[0].size - full["patch"]) / full["stride"] + 1 == 7
    small = get_recipe("tiny-imagenet").replace(method=name)
    assert {key: small.options.get(key) for key in ORIGINALS[name]} != ORIGINALS[name]


def test_photographs_are_cropped_at_random_under_supervision() -> None:
    """As torchvision's reference training has it; whole pictures shifted by a border are for CIFAR."""
    (view,) = get_recipe("imagenet-r50").replace(method="supervised").views
    usual = transforms.RandomResizedCrop(224)
    assert (view.size, view.crop, view.ratio) == (usual.size[0], usual.scale, usual.ratio)
    assert (view.pad, view.flip, view.jitter) == (0, 0.5, 0.0)
    (view,) = get_recipe("tiny-imagenet").replace(method="supervised").views
    assert (view.crop, view.pad) == (None, 8)


@pytest.mark.parametrize("base", ["cifar10", "imagenet-r50", "imagenet-r18"])
def test_the_head_of_simclr_is_as_wide_as_the_features(base: str) -> None:
    recipe = get_recipe(base).replace(method="simclr")
    assert recipe.options["hidden_dim"] == build_backbone(recipe.backbone, recipe.stem, recipe.width).features_dim


def test_what_is_asked_for_wins_over_the_method_s_settings() -> None:
    recipe = get_recipe("cifar10").replace(
        method="byol", lr="0.5", hidden_dim="64", views=["weak", "weak"], bn_groups=4
    )
    assert (recipe.lr, recipe.options["hidden_dim"], recipe.bn_groups, recipe.optimiser) == (0.5, 64, 4, "lars")
    assert recipe.views[0].jitter == 0.0
    again = recipe.replace(method="byol", epochs=3)  # the same method changes nothing else
    assert (again.lr, again.options, again.epochs) == (0.5, recipe.options, 3)


def test_settings_follow_the_size_and_data_asked_for_in_the_same_breath() -> None:
    recipe = get_recipe("cifar10").replace(method="cpc-v2", image_size=64)
    assert (recipe.options["patch"], recipe.options["stride"], recipe.views[0].size) == (32, 16, 64)
    assert [v.size for v in get_recipe("cifar10").replace(method="swav", image_size=64).views] == [
        64,
        64,
        32,
        32,
        32,
        32,
    ]
    assert get_recipe("cifar10").replace(method="instdisc", data="stl10").options["bank_size"] == 105_000


def test_another_method_takes_back_what_the_first_had_set() -> None:
    there = get_recipe("cifar10").replace(method="byol").replace(method="moco-v2")
    straight = get_recipe("cifar10").replace(method="moco-v2")
    assert (there.optimiser, there.lr, there.bn_groups, there.linear) == (
        *(straight.optimiser, straight.lr, straight.bn_groups, straight.linear),
    )
    assert get_recipe("cifar10").replace(method="byol").replace(method="ressl").views == get_recipe("cifar10").views


def test_stronger_views_are_clsa_s_and_adco_s_alone() -> None:
    rand: dict[str, Any] = {}
    for name in METHODS:
        rand[name] = [view.randaugment for view in get_recipe("cifar10").replace(method=name).views]
    assert rand.pop("clsa") == [0, 0, 5]
    assert rand.pop("clsa-multi") == [0, 0, 5, 5, 5, 5, 5]
    assert rand.pop("adco") == [0, 5]  # the key's stays as it is
    clsa, adco = (get_recipe("cifar10").replace(method=name).views for name in ("clsa", "adco"))
    assert adco == (clsa[0], clsa[2])
    assert not any(any(found) for found in rand.values())


def test_too_few_views_for_a_method_are_named() -> None:
    with pytest.raises(ResslError, match="clsa needs at least 3 views, teacher first, not 2"):
        get_recipe("cifar10").replace(method="clsa", views=["strong", "strong"]).check()
    with pytest.raises(ResslError, match=r"byol has no option 'queue_size', which is one of ressl, .*moco-v2"):
        get_recipe("cifar10").replace(method="byol", queue_size=5)
    with pytest.raises(ResslError, match="unknown recipe field or option 'queue_sise'; did you mean"):
        get_recipe("cifar10").replace(queue_sise=5)


@pytest.mark.parametrize("name", METHODS)
def test_a_view_that_a_method_would_not_look_at_is_refused(name: str) -> None:
    recipe = get_recipe("cifar10").replace(method=name)
    more = recipe.replace(views=[*recipe.views, recipe.views[-1]])
    several = ("ressl", "swav", "clsa", "clsa-multi")
    if name in several:
        assert more.check() == []
    else:
        with pytest.raises(ResslError, match=f"{name} learns from (one view|two views), .*leave out the others"):
            more.check()
