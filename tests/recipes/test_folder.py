"""Recipes chosen from what is in a folder: valid for every finding, and sensible in comparison."""

from __future__ import annotations

import itertools

import pytest

from ressl.errors import ResslError
from ressl.recipes import Findings, Recipe, choose_recipe

COUNTS = (32, 33, 100, 256, 1000, 2048, 5000, 50_000, 100_000, 200_000, 1_281_167, 20_000_000)
SIDES = (1, 16, 28, 32, 48, 49, 64, 96, 128, 129, 200, 201, 256, 480, 4000)
ALL = [Findings(count, side, gpu) for count, side, gpu in itertools.product(COUNTS, SIDES, (False, True))]


def chosen(count: int, side: int, gpu: bool = True) -> Recipe:
    return choose_recipe("folder", Findings(count, side, gpu))[0]


def test_every_choice_is_valid_and_explained() -> None:
    for found in ALL:
        for kind in ("folder", "array"):
            recipe, reasons = choose_recipe(kind, found)
            assert recipe.check() == [], found  # neither error nor warning
            assert recipe.data == recipe.name == kind
            assert recipe.batch_size <= found.count
            assert recipe.batch_size <= recipe.options["queue_size"] <= max(found.count, recipe.batch_size)
            assert recipe.knn_k < found.count
            assert all(view.size == recipe.image_size for view in recipe.views)
            assert recipe.epochs >= 10
            said = "\n".join(reasons)
            for number in (recipe.image_size, recipe.batch_size, recipe.bn_groups, recipe.epochs):
                assert str(number) in said
            assert all("\n" not in reason for reason in reasons)


@pytest.mark.parametrize("gpu", [False, True])
def test_more_pictures_never_mean_a_smaller_batch_queue_or_momentum(gpu: bool) -> None:
    recipes = [chosen(count, 64, gpu) for count in COUNTS]
    for value in (
        lambda r: r.batch_size,
        lambda r: r.bn_groups,
        lambda r: r.options["queue_size"],
        lambda r: r.options["teacher_momentum"],
        lambda r: r.knn_k,
    ):
        values = [value(r) for r in recipes]
        assert values == sorted(values)


@pytest.mark.parametrize("gpu", [False, True])
def test_larger_pictures_never_mean_a_smaller_input(gpu: bool) -> None:
    sizes = [chosen(10_000, side, gpu).image_size for side in SIDES]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 1


def test_known_sets_are_met_with_nearly_the_paper_s_choice() -> None:
    cifar = chosen(50_000, 32)
    assert (cifar.image_size, cifar.stem, cifar.backbone, cifar.width) == (32, "small", "resnet18", 64)
    assert (cifar.batch_size, cifar.bn_groups, cifar.options["queue_size"], cifar.epochs) == (256, 8, 4096, 200)
    tiny = chosen(100_000, 64)
    assert (tiny.image_size, tiny.stem, tiny.options["teacher_momentum"]) == (64, "medium", 0.996)
    imagenet = chosen(1_281_167, 375)
    assert (imagenet.image_size, imagenet.stem, imagenet.backbone) == (224, "imagenet", "resnet50")
    assert (imagenet.options["queue_size"], imagenet.options["teacher_momentum"]) == (131072, 0.999)


def test_without_a_gpu_the_work_is_smaller() -> None:
    for count, side in itertools.product(COUNTS, SIDES):
        cpu, gpu = chosen(count, side, False), chosen(count, side, True)
        assert cpu.image_size <= gpu.image_size
        assert cpu.width < gpu.width
        assert cpu.epochs <= gpu.epochs


def test_colour_statistics_are_taken_over() -> None:
    recipe, _ = choose_recipe("array", Findings(100, 32, False, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    assert (recipe.mean, recipe.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))


@pytest.mark.parametrize("count", [0, 1, 31])
def test_too_few_pictures_are_refused(count: int) -> None:
    with pytest.raises(ResslError, match=rf"{count} pictures are too few .*at least 32"):
        choose_recipe("folder", Findings(count, 64, False))


def test_what_is_told_is_not_explained() -> None:
    """A reason for 800 epochs beside a run of ten would be a contradiction, and kNN every 40th a surprise."""
    found = Findings(120, 160, False)
    everything = choose_recipe("folder", found)[1]
    recipe, reasons = choose_recipe("folder", found, {"epochs": "10", "width": 8})
    assert reasons == [reason for reason in everything if "epochs" not in reason and "width" not in reason]
    assert len(reasons) == len(everything) - 2
    assert recipe.knn_every == 1
    assert choose_recipe("folder", found)[0].knn_every == 40
