"""What the page says of our arithmetic, groups, batches and recipes is what the program does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ressl.data.base import ArraySource
from ressl.data.loaders import ResidentLoader
from ressl.engine import accelerate as engine
from ressl.engine.optimisers import build_optimiser
from ressl.engine.tuning import fastest
from ressl.evaluation.classifier import Classifier
from ressl.evaluation.linear import LinearProtocol, learning_rate, linear_evaluation
from ressl.nn import GroupedBatchNorm2d
from ressl.nn.backbones import build_backbone
from ressl.recipes import RECIPES, Recipe, get_recipe
from ressl.reproduce.differences import DIFFERENCES
from ressl.reproduce.grid import jobs
from ressl.reproduce.tables import SETS, TABLES

SAID = " ".join(DIFFERENCES.split())
GPU = torch.device("cuda")  # only named: nothing here touches one


def test_products_of_float32_matrices_are_in_tf32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, products = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    monkeypatch.setattr(engine, "dismiss", lambda: None)
    step: Any = SimpleNamespace(device=GPU)
    try:
        torch.set_float32_matmul_precision("highest")
        engine.accelerate(step, "eager")
        assert torch.get_float32_matmul_precision() == "high"
        torch.set_float32_matmul_precision("highest")
        with fastest(GPU):
            assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.backends.cudnn.benchmark = tried
        torch.set_float32_matmul_precision(products)
    assert "Similarities to the queue are products of float32 matrices in TF32" in SAID
    assert "`--precision fp32 --engine eager` has no bf16 and no graph, but its products and convolutions are" in SAID
    assert "the classifier's weights and sums are float32, its products TF32" in SAID
    assert "similarities to the queue, softmax and loss in float32" not in SAID


def test_a_batch_that_is_not_full_is_left_out_of_the_linear_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []
    learn = Classifier.learn
    monkeypatch.setattr(Classifier, "learn", lambda self, x, *rest: learned.append(len(x)) or learn(self, x, *rest))
    data = torch.randn(10, 3), torch.arange(10) % 2
    linear_evaluation(None, data, data, protocol=LinearProtocol(epochs=2, batch_size=4))
    assert learned == [4, 4] * 2
    assert "The last batch of an epoch is left out where it is not full; the authors' script trains on it, too." in SAID


def test_the_groups_of_a_batch_are_every_eighth_sample() -> None:
    x = torch.randn(32, 3, 4, 4)
    found = GroupedBatchNorm2d(3, groups=8).train()(x)
    for i in range(8):
        torch.testing.assert_close(found[i::8], torch.nn.BatchNorm2d(3).train()(x[i::8]))
    assert "are every eighth sample, as in the authors' code for the small data sets" in SAID


def decayed(recipe: Recipe) -> set[bool]:
    """Whether norms and biases of its backbone are decayed."""
    backbone = build_backbone("resnet10", "small", 4)
    how = {"momentum": recipe.momentum, "decay_norm_and_bias": recipe.decay_norm_and_bias}
    optimiser = build_optimiser(recipe.optimiser, backbone, weight_decay=recipe.weight_decay, **how)
    groups = optimiser.param_groups
    return {group.get("decay", group["weight_decay"]) > 0 for group in groups for p in group["params"] if p.ndim == 1}


def test_weight_decay_is_where_it_is_said_to_be() -> None:
    assert "weight decay on every parameter (LARS leaves norms and biases out)" in SAID
    for name in SETS:
        assert decayed(get_recipe(name)) == {True}
        assert {
            decay for method in ("simclr", "byol") for decay in decayed(get_recipe(name).replace(method=method))
        } == {False}
    large = [recipe for recipe in RECIPES.values() if recipe.data == "imagenet"]
    assert len(large) == 4
    assert {(decay, recipe.weight_decay) for recipe in large for decay in decayed(recipe)} == {(False, 1e-4)}
    assert "weight decay 1e-4, none on norms and biases" in SAID


def test_what_imagenet_takes_from_the_authors_code_is_what_its_recipes_have() -> None:
    for recipe in (recipe for recipe in RECIPES.values() if recipe.data == "imagenet"):
        assert f"{recipe.options['queue_size']:,} in the queue, m {recipe.options['teacher_momentum']:g}," in SAID
        assert recipe.warmup_epochs == 5
        for view in recipe.views[1:]:
            assert view.crop is not None
            assert (
                f"{view.crop[0]:g} to {view.crop[1]:g} {'of the picture ' * (view.size == 224)}at {view.size} px"
                in SAID
            )
    assert "five epochs of warm-up" in SAID


def test_what_small_and_medium_pictures_take_from_it_is_what_their_recipes_have() -> None:
    for name in SETS:
        recipe = get_recipe(name)
        teacher, student = recipe.views
        assert (recipe.batch_size, recipe.bn_groups) == (256, 8)
        assert f"a head of {recipe.options['hidden_dim']} and {recipe.options['output_dim']} without batch norm" in SAID
        assert (teacher.gray, teacher.blur, student.flip) == (0, 0, 0.5)
        said = f"gray at {student.gray:g}, a blur of {student.blur_sigma[0]:g} to {student.blur_sigma[1]:g} px, colour"
        assert said in SAID
    assert "batches of 256 in eight groups" in SAID
    assert "mirrored half of the time" in SAID


def test_supervised_training_is_said_as_its_recipes_have_it() -> None:
    for job in jobs(TABLES["table1"], only="supervised"):
        (view,), size = job.recipe.views, job.recipe.image_size
        assert (view.crop, view.pad * 32 // size, view.flip, job.recipe.lr) == (None, 4, 0.5, 0.1)
        assert (view.jitter, view.gray, view.blur) == (0, 0, 0)
    (job,) = jobs(TABLES["imagenet"], only="supervised")
    (view,) = job.recipe.views
    assert (view.crop, view.flip, view.strong, job.recipe.lr) == ((0.08, 1.0), 0.5, False, 0.1)
    assert "padded by 4 px of 32, cropped and mirrored, at lr 0.1; on ImageNet crops from 0.08 of the area on" in SAID


def test_the_last_batch_of_an_epoch_is_left_out_where_it_is_not_full() -> None:
    source = ArraySource("ten", torch.zeros(10, 3, 8, 8, dtype=torch.uint8))
    assert [len(batch.index) for batch in ResidentLoader(source, 4, "cpu", 0).iterate(0)] == [4, 4]
    assert "**The last batch** of an epoch is left out where it is not full, as in the authors' code." in SAID


def test_the_classifiers_are_said_as_they_learn() -> None:
    small, large = get_recipe("cifar10").linear, get_recipe("imagenet-r50").linear
    for linear in (small, large):
        assert (linear.augment, linear.scale, linear.batch_size) == (True, (0.08, 1.0), 256)
    assert (small.nesterov, large.nesterov, large.schedule, large.lr) == (True, False, "cosine", 0.3)
    rates = [float(learning_rate(large, torch.tensor(step), total=100, batch=256)) for step in (0, 1, 2)]
    assert rates[0] > rates[1] > rates[2]  # at every step, whatever an epoch has of them
    learner = Classifier(
        3, 2, schedule=lambda step: torch.tensor(1.0), nesterov=False, seed=0, device=torch.device("cpu")
    )
    before = learner.weight.clone()
    learner.learn(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0]))
    assert torch.equal(learner.weight[:, 1:3], before[:, 1:3])  # no weight decay: what saw nothing stays
    assert not torch.equal(learner.weight[:, 0], before[:, 0])
    assert "has no weight decay and lowers it at every step, and so does ours (lr 0.3, cosine, no Nesterov)" in SAID
    assert "crops from 0.08 of the area on, mirrored half of the time" in SAID
