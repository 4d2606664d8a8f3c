"""Linear evaluation against a plain loop of torch, on data where the answer is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ressl import rng
from ressl.data.views import Views
from ressl.errors import ResslError
from ressl.evaluation.linear import (
    COSINE,
    IMAGENET,
    PROTOCOLS,
    STEP,
    LinearProtocol,
    LinearSweepProtocol,
    linear_evaluation,
    linear_evaluations,
)
from ressl.nn import build_backbone
from ressl.recipes import get_recipe


def separable(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(n) % 4
    return 3 * torch.eye(4)[labels] + 0.3 * torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)), labels


def noisy(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(n) % 4
    return torch.eye(4)[labels] + torch.randn(n, 4, generator=torch.Generator().manual_seed(seed)), labels


@pytest.mark.parametrize("protocol", [STEP, COSINE], ids=["step", "cosine"])
def test_separable_features_are_separated(protocol: LinearProtocol) -> None:
    result = linear_evaluation(None, separable(200, 0), separable(80, 1), protocol=replace(protocol, epochs=20))
    assert result.last == 100.0


@pytest.mark.parametrize("augment", [True, False])
@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_backbone_whose_features_are_separable_reaches_100_percent(protocol: LinearProtocol, augment: bool) -> None:
    """It sees the mean colour, which crops and flips leave alone."""
    backbone = nn.Sequential(nn.Conv2d(3, 3, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    nn.init.dirac_(backbone[0].weight)
    y = torch.arange(60) % 3
    x = torch.randint(0, 100, (60, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x[torch.arange(60), y] += 150
    protocol = replace(protocol, epochs=30, batch_size=20, augment=augment)
    result = linear_evaluation(backbone, (x[:40], y[:40]), (x[40:], y[40:]), protocol=protocol, image_size=8)
    assert result.last == 100.0


def test_random_labels_are_not_learnt() -> None:
    x, y = torch.randn(400, 4, generator=torch.Generator().manual_seed(0)), torch.arange(400) % 4
    other = torch.randn(400, 4, generator=torch.Generator().manual_seed(1))
    assert linear_evaluation(None, (x, y), (other, y), protocol=replace(COSINE, epochs=5)).last < 40


def plain(train: Any, test: Any, protocol: LinearProtocol, seed: int) -> list[float]:
    """The same protocol with Python's learning rates, an ordinary optimiser and a test after each epoch."""
    (x, y), (tx, ty) = train, test
    if protocol.standardize:
        mean, std = x.mean(0), x.std(0)
        x, tx = (x - mean) / std, (tx - mean) / std
    classifier = nn.Linear(x.shape[1], int(max(y.max(), ty.max())) + 1)
    with torch.no_grad():
        weight = torch.empty_like(classifier.weight)
        classifier.weight.copy_(weight.normal_(0, 0.01, generator=torch.Generator().manual_seed(seed)))
        classifier.bias.zero_()
    optimiser = torch.optim.SGD(classifier.parameters(), lr=1.0, momentum=0.9, nesterov=protocol.nesterov)
    B = min(protocol.batch_size, len(x))
    steps, curve = len(x) // B, []
    for epoch in range(protocol.epochs):
        order = rng.permutation(seed, epoch, len(x), rng.EVALUATION, "cpu")
        for s in range(steps):
            done = (epoch * steps + s) / (steps * protocol.epochs)
            if protocol.schedule == "cosine":
                lr = protocol.lr * B / 256 * (1 + math.cos(math.pi * done)) / 2
            else:
                lr = protocol.lr * 0.1 ** sum(done >= m for m in protocol.milestones)
            optimiser.param_groups[0]["lr"] = lr
            index = order[s * B : (s + 1) * B]
            optimiser.zero_grad()
            F.cross_entropy(classifier(x[index]), y[index]).backward()
            optimiser.step()
        curve.append(100.0 * (classifier(tx).argmax(1) == ty).float().mean().item())
    return curve


@pytest.mark.parametrize("schedule", ["step", "cosine"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
def test_it_is_a_plain_training_loop(schedule: Any, nesterov: bool, standardize: bool) -> None:
    protocol = LinearProtocol(schedule, lr=2.0, epochs=6, batch_size=32, nesterov=nesterov, standardize=standardize)
    train, test = noisy(150, 0), noisy(200, 1)
    ours = linear_evaluation(None, train, test, protocol=protocol, seed=5)
    reference = plain(train, test, protocol, 5)
    assert len(set(reference)) > 2  # a curve that moves
    assert ours.curve == pytest.approx(reference, abs=0.51)  # one of 200 may tip over by rounding
    assert ours.last == ours.curve[-1]
    assert ours.best == max(ours.curve)
    assert ours.curve[ours.best_epoch - 1] == ours.best
    assert ours.best not in ours.curve[: ours.best_epoch - 1]  # the first of equals


@pytest.mark.parametrize("augment", [True, False])
def test_those_that_learn_together_learn_what_each_learns_alone(augment: bool) -> None:
    torch.manual_seed(0)
    backbone = build_backbone("resnet10", "medium", 4)
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 256, (90, 3, 16, 16), dtype=torch.uint8, generator=draw), torch.arange(90) % 3
    x[torch.arange(90), y] //= 2
    own = LinearProtocol("step", lr=5.0, epochs=5, batch_size=20, augment=augment)
    protocols = [own, replace(own, lr=0.5), replace(own, schedule="cosine", lr=5.0), replace(own, nesterov=False)]
    data, told = ((x[:60], y[:60]), (x[60:], y[60:])), list[tuple[int, int, float]]()
    together = linear_evaluations(backbone, *data, protocols=protocols, seed=2, progress=lambda *t: told.append(t))
    alone = [linear_evaluation(backbone, *data, protocol=protocol, seed=2) for protocol in protocols]
    assert [found.curve for found in together] == [found.curve for found in alone]
    assert [(f.last, f.best, f.best_epoch) for f in together] == [(f.last, f.best, f.best_epoch) for f in alone]
    assert len({tuple(found.curve) for found in together}) >= 3  # they are not all the same
    assert told == [(i + 1, 5, max(found.curve[i] for found in together)) for i in range(5)]


@pytest.mark.parametrize("other", [{"epochs": 4}, {"batch_size": 9}, {"scale": (0.2, 1.0)}, {"augment": False}])
def test_what_does_not_see_the_same_features_cannot_learn_together(other: dict[str, Any]) -> None:
    with pytest.raises(ResslError, match="may differ in schedule, lr, milestones, nesterov alone"):
        linear_evaluations(None, noisy(20, 0), noisy(20, 1), protocols=[STEP, replace(STEP, **other)])


def test_a_sweep_begins_with_the_recipe_s_own_rate() -> None:
    sweep = LinearSweepProtocol.beside(replace(IMAGENET, resize=256))
    assert sweep.rates == ("cosine:0.3", *LinearSweepProtocol().rates)
    assert sweep.protocols()[0] == replace(IMAGENET, resize=256)
    assert sweep.protocols()[1] == replace(IMAGENET, resize=256, schedule="step", lr=30.0)
    assert LinearSweepProtocol.beside(STEP).rates == LinearSweepProtocol().rates  # each once


@pytest.mark.parametrize(
    "rates", [(), ("step",), ("step:x",), ("stairs:3",), ("cosine:-1",), (":",), ("step:nan",), ("step:inf",)]
)
def test_rates_that_are_none_are_an_error(rates: tuple[str, ...]) -> None:
    with pytest.raises(ResslError, match=r"step:30|lr of a linear evaluation"):
        LinearSweepProtocol(rates=rates).check()


def test_a_rate_is_named_once_and_as_it_is() -> None:
    with pytest.raises(ResslError, match="the rate step:3 is named twice"):
        LinearSweepProtocol(rates=("step:3", "step: 3.0")).check()
    sweep = LinearSweepProtocol.beside(replace(STEP, lr=0.123456789))
    assert sweep.protocols()[0].lr == 0.123456789


def test_a_backbone_without_augmentation_is_its_features() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("resnet10", "medium", 4).train()
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (60, 3, 16, 16), dtype=torch.uint8, generator=draw)
    y = torch.arange(60) % 3
    x[torch.arange(60), y] //= 2  # a class darkens its colour
    protocol = LinearProtocol("cosine", lr=5.0, epochs=4, batch_size=20, augment=False)
    ours = linear_evaluation(backbone, (x, y), (x, y), protocol=protocol, seed=2)
    assert backbone.training
    with torch.no_grad():
        features = backbone.eval()(x.float() / 255)
    assert ours.curve == pytest.approx(plain((features, y), (features, y), protocol, 2), abs=1.7)
    assert len(set(ours.curve)) > 1


def test_augmentation_changes_training_but_not_the_backbone() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("resnet10", "medium", 4).train()
    before = {name: t.clone() for name, t in backbone.state_dict().items()}
    x = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 2
    run = lambda seed: linear_evaluation(
        backbone, (x, y), (x, y), protocol=LinearProtocol(epochs=3, batch_size=10, lr=1.0), seed=seed
    )
    first, again = run(0), run(0)
    assert first.curve == again.curve
    assert all(torch.equal(t, before[name]) for name, t in backbone.state_dict().items())


def test_views_are_one_program_for_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each would be compiled anew, for many seconds, on a GPU and where pictures are larger than their views."""
    programs: list[torch.fx.GraphModule] = []

    def note(program: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        programs.append(program)
        return program.forward

    draw, counts = torch.Generator().manual_seed(0), list[int]()
    images = torch.randint(0, 256, (16, 3, 10, 10), dtype=torch.uint8, generator=draw)
    data = (images, torch.arange(16) % 2)
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    monkeypatch.setattr(Views, "__call__", torch.compile(Views.__call__, backend=note, dynamic=False))
    for seed in (1, 2):
        linear_evaluation(backbone, data, data, protocol=replace(STEP, epochs=1, batch_size=8), image_size=8, seed=seed)
        counts.append(len(programs))
    torch._dynamo.reset()
    assert counts[0] > 0
    assert counts[0] == counts[1]


def test_the_named_protocols_are_the_paper_s() -> None:
    assert PROTOCOLS == {"step": STEP, "cosine": COSINE, "imagenet": IMAGENET}
    assert (STEP.schedule, STEP.lr, STEP.epochs, STEP.milestones, STEP.batch_size) == (
        "step",
        30.0,
        100,
        (0.6, 0.8),
        256,
    )
    assert (STEP.nesterov, STEP.scale, STEP.augment) == (True, (0.08, 1.0), True)
    assert (COSINE.schedule, COSINE.lr) == ("cosine", 0.2)
    assert replace(COSINE, lr=0.3, nesterov=False) == IMAGENET
    assert get_recipe("imagenet-r50").linear == replace(IMAGENET, resize=256)


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"batch_size": 0}, {"batch_size": -3}, {"lr": 0.0}, {"resize": 0}, {"milestones": (60.0, 80.0)}],
)
def test_a_protocol_that_cannot_be_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ResslError, match=next(iter(wrong))):
        linear_evaluation(None, noisy(20, 0), noisy(20, 1), protocol=replace(STEP, **wrong))


def test_standardize_without_an_effect_is_an_error() -> None:
    images, labels = torch.zeros(20, 3, 8, 8, dtype=torch.uint8), torch.arange(20) % 2
    backbone = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
    with pytest.raises(ResslError, match="standardize needs features that are taken once"):
        linear_evaluation(backbone, (images, labels), (images, labels), protocol=replace(STEP, standardize=True))


def test_labels_must_match_samples() -> None:
    x, y = noisy(20, 0)
    with pytest.raises(ResslError, match="20 samples but 19 labels"):
        linear_evaluation(None, (x, y[:-1]), (x, y))
