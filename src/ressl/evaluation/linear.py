"""Linear evaluation: a classifier on the frozen backbone's average-pooled features, trained as the paper does.

The last epoch is the result; the best test epoch stands beside it because the authors' script prints that one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ressl import rng
from ressl.data.views import View, Views
from ressl.engine.folding import fold
from ressl.engine.schedules import step_decay, warmup_cosine
from ressl.engine.streams import Later
from ressl.engine.tuning import fastest
from ressl.errors import ResslError
from ressl.evaluation.blocks import Blocks
from ressl.evaluation.classifier import Classifier, Classroom
from ressl.evaluation.features import autocast, extract, frozen


@dataclass(frozen=True)
class LinearProtocol:
    """How the classifier is trained: SGD with momentum 0.9 and no weight decay."""

    schedule: Literal["step", "cosine"] = "step"
    lr: float = 30.0  # step: as it is; cosine: per 256 samples
    epochs: int = 100
    milestones: tuple[float, ...] = (0.6, 0.8)  # step: fractions of the epochs at which lr falls to a tenth
    batch_size: int = 256
    nesterov: bool = True
    augment: bool = True  # random crop and flip of the training pictures; without, features are taken once
    scale: tuple[float, float] = (0.08, 1.0)  # area range of that crop
    resize: int | None = None  # test: short side before the centre crop; None: the picture as it is
    standardize: bool = False  # features to mean 0, deviation 1 first (for features of unknown scale)

    @property
    def rate(self) -> str:
        """Schedule and learning rate as a sweep names them: ``step:30``."""
        return f"{self.schedule}:{self.lr:.12g}"

    def check(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ResslError(f"{name} of a linear evaluation must be at least 1, not {getattr(self, name)}")
        if not 0 < self.lr < math.inf:
            raise ResslError(f"lr of a linear evaluation must be above 0 and finite, not {self.lr}")
        if not all(0 < m < 1 for m in self.milestones):
            raise ResslError(f"milestones are fractions of the epochs, between 0 and 1, not {self.milestones}")
        if self.resize is not None and self.resize < 1:
            raise ResslError(f"resize must be at least 1 pixel, not {self.resize}")


@dataclass(frozen=True)
class LinearSweepProtocol:
    """Linear classifiers on the same features at several rates: how much of a number is the classifier's."""

    rates: tuple[str, ...] = ("step:30", "step:10", "step:3", "step:1", "cosine:0.2", "cosine:1", "cosine:5")
    epochs: int = 100
    milestones: tuple[float, ...] = (0.6, 0.8)
    batch_size: int = 256
    nesterov: bool = True
    augment: bool = True
    scale: tuple[float, float] = (0.08, 1.0)
    resize: int | None = None
    standardize: bool = False

    @classmethod
    def beside(cls, own: LinearProtocol) -> LinearSweepProtocol:
        """As a recipe's own protocol, whose rate is the first."""
        rates = (own.rate, *cls.rates)
        return cls(tuple(dict.fromkeys(rates)), **cls._but_for_rates(own))

    @classmethod
    def _but_for_rates(cls, of: LinearProtocol | LinearSweepProtocol) -> dict[str, Any]:
        return {field.name: getattr(of, field.name) for field in fields(cls) if field.name != "rates"}

    def protocols(self) -> list[LinearProtocol]:
        """One for each rate."""
        kept, made = self._but_for_rates(self), list[LinearProtocol]()
        for rate in self.rates:
            schedule, _, lr = rate.partition(":")
            try:
                made.append(LinearProtocol(_SCHEDULES[schedule.strip()], float(lr), **kept))
            except (KeyError, ValueError):
                raise ResslError(f"a rate is a schedule and lr, as step:30 or cosine:0.2, not '{rate}'") from None
        return made

    def check(self) -> None:
        if not self.rates:
            raise ResslError("a sweep of linear classifiers needs rates, as step:30,cosine:0.2")
        protocols = self.protocols()
        common(protocols)
        names = [protocol.rate for protocol in protocols]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ResslError(f"the rate {twice[0]} is named twice")


BLOCK = 32  # steps whose features are made together
CHUNK = 2048  # pictures that go through the backbone at once

STEP = LinearProtocol()
COSINE = LinearProtocol(schedule="cosine", lr=0.2)
IMAGENET = LinearProtocol(schedule="cosine", lr=0.3, nesterov=False)
PROTOCOLS = {"step": STEP, "cosine": COSINE, "imagenet": IMAGENET}
_SCHEDULES: dict[str, Literal["step", "cosine"]] = {"step": "step", "cosine": "cosine"}
_OF_CLASSIFIER = ("schedule", "lr", "milestones", "nesterov")  # the rest decides which features it sees, and how often


@dataclass(frozen=True)
class LinearResult:
    last: float  # top-1 in percent after the last epoch
    best: float  # of the epoch that does best on the test set
    best_epoch: int
    curve: list[float]  # test top-1 after every epoch
    seconds: float
    start_seconds: float = 0.0  # of these, until the first epoch was done: test features, compilation

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, curve: list[float], seconds: float, start_seconds: float) -> LinearResult:
        best = max(range(len(curve)), key=curve.__getitem__)
        return cls(curve[-1], curve[best], best + 1, curve, seconds, start_seconds)


class Data:
    """Pictures (uint8 N x 3 x H x W) or ready features (float N x D), with labels."""

    def __init__(self, x: Tensor, labels: Tensor, device: torch.device) -> None:
        if len(x) != len(labels):
            raise ResslError(f"there are {len(x)} samples but {len(labels)} labels")
        self.x, self.labels = x.to(device), labels.to(device)


def linear_evaluation(
    backbone: nn.Module | None,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    protocol: LinearProtocol = STEP,
    **how: Any,
) -> LinearResult:
    """Train and test a linear classifier; the rest as for :func:`linear_evaluations`."""
    return linear_evaluations(backbone, train, test, protocols=[protocol], **how)[0]


def linear_evaluations(
    backbone: nn.Module | None,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    *,
    protocols: Sequence[LinearProtocol],
    mean: tuple[float, ...] = (0.0, 0.0, 0.0),
    std: tuple[float, ...] = (1.0, 1.0, 1.0),
    image_size: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    precision: torch.dtype = torch.float32,
    progress: Callable[[int, int, float], None] | None = None,
) -> list[LinearResult]:
    """Train and test linear classifiers on the same features; ``backbone=None``: the inputs are features already.

    The protocols may differ in schedule, lr, milestones and Nesterov's momentum. Each has the result that it would have
    alone, and features are made once for all. ``progress`` is told (epochs done, epochs, the last one's best accuracy).
    """
    start, device = time.monotonic(), torch.device(device)
    protocol = common(protocols)
    fit, held = Data(*train, device), Data(*test, device)
    size = image_size or fit.x.shape[-1]

    def features_of(images: Tensor, resize: int | None) -> Tensor:
        if backbone is None:
            return images.float()
        return extract(backbone, images, mean=mean, std=std, size=size, resize=resize, precision=precision)

    augment = protocol.augment and backbone is not None
    if augment and protocol.standardize:
        raise ResslError("standardize needs features that are taken once; add augment=false")
    test_features = features_of(held.x, protocol.resize)
    # The seed as a tensor: what makes the views on a GPU is then one compiled program for every seed.
    views = Views([View(size=size, crop=protocol.scale, flip=0.5)], mean, std, torch.tensor(seed, device=device))
    train_features = None if augment else features_of(fit.x, protocol.resize)
    shift, scale = _standardizer(train_features, protocol.standardize)

    N, B = len(fit.x), min(protocol.batch_size, len(fit.x))
    steps, classes = N // B, int(max(fit.labels.max(), held.labels.max())) + 1
    classroom = classroom_of(protocols, test_features.shape[1], classes, steps, B, seed, device)
    folded = fold(backbone, precision) if augment and device.type == "cuda" and backbone is not None else None
    blocks = None if folded is None else Blocks(folded, views, fit.x, fit.labels, classroom, B, seed)
    curves: list[list[float]] = []  # an epoch, each classifier
    start_seconds, scored = 0.0, deque[Later]()

    def look_back() -> None:
        nonlocal start_seconds
        curves.append(scored.popleft().tolist())
        start_seconds = start_seconds or time.monotonic() - start
        if progress is not None:
            progress(len(curves), protocol.epochs, max(curves[-1]))

    with fastest(device):
        for epoch in range(protocol.epochs):
            if blocks is not None:
                blocks.train_epoch()
            else:
                order = rng.permutation(seed, epoch, N, rng.EVALUATION, device)[: steps * B]
                for first in range(0, steps, BLOCK):  # the backbone is frozen, so many steps' features are made at once
                    index = order[first * B : (first + BLOCK) * B]
                    if train_features is not None:
                        features = (train_features[index] - shift) * scale
                    else:
                        assert backbone is not None
                        rows = torch.arange(len(index), device=device) + first * B
                        features = _augmented(backbone, views, fit.x, index, epoch, rows, precision)
                    for x, y in zip(features.split(B), fit.labels[index].split(B), strict=True):
                        classroom.learn(x, y)
            scored.append(Later(classroom.accuracy((test_features - shift) * scale, held.labels)))
            if epoch or device.type != "cuda":  # there, at the epoch before: meanwhile the device goes on with this one
                look_back()
        if scored:
            look_back()
    took = time.monotonic() - start
    return [LinearResult.of(list(curve), took, start_seconds) for curve in zip(*curves, strict=True)]


def common(protocols: Sequence[LinearProtocol]) -> LinearProtocol:
    """The first of protocols that can see the same features; an error where they cannot."""
    first, own = protocols[0], {key: getattr(STEP, key) for key in _OF_CLASSIFIER}
    for protocol in protocols:
        protocol.check()
        if replace(protocol, **own) != replace(first, **own):
            raise ResslError(f"linear classifiers that learn together may differ in {', '.join(_OF_CLASSIFIER)} alone")
    return first


def classroom_of(
    protocols: Sequence[LinearProtocol], inputs: int, classes: int, steps: int, batch: int, seed: int,
    device: torch.device,
) -> Classroom:  # fmt: skip
    """A classifier for each protocol; ``steps`` make an epoch."""

    def classifier(protocol: LinearProtocol) -> Classifier:
        schedule = lambda step: learning_rate(protocol, step, steps * protocol.epochs, batch)
        return Classifier(
            inputs, classes, schedule=schedule, nesterov=protocol.nesterov, seed=seed, device=device
        )  # fmt: skip

    return Classroom([classifier(protocol) for protocol in protocols])


def _augmented(
    backbone: nn.Module, views: Views, images: Tensor, index: Tensor, epoch: int, rows: Tensor, precision: torch.dtype
) -> Tensor:
    """Features of fresh random views of ``images[index]``; ``rows`` are their places in the epoch."""
    features = []
    with frozen(backbone), autocast(rows.device, precision):
        for i, r in zip(index.split(CHUNK), rows.split(CHUNK), strict=True):
            view = views(images[i], epoch, r)[0]
            if view.device.type == "cuda":
                view = view.contiguous(memory_format=torch.channels_last)
            features.append(backbone(view).float())
    return torch.cat(features)


def _standardizer(features: Tensor | None, wanted: bool) -> tuple[Tensor | float, Tensor | float]:
    if features is None or not wanted:
        return 0.0, 1.0
    return features.mean(0), 1.0 / features.std(0).clamp_min(1e-6)


def learning_rate(protocol: LinearProtocol, step: Tensor, total: int, batch: int) -> Tensor:
    if protocol.schedule == "step":
        return step_decay(step, peak=protocol.lr, milestones=protocol.milestones, total_steps=total)
    return warmup_cosine(step, peak=protocol.lr * batch / 256, warmup_steps=0.0, total_steps=total)
