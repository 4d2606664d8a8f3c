"""Linear evaluation: a classifier on the frozen backbone's average-pooled features, trained as the paper does.

The last epoch is the result; the best test epoch stands beside it because the authors' script prints that one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
from ressl.evaluation.classifier import Classifier
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

    def check(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ResslError(f"{name} of a linear evaluation must be at least 1, not {getattr(self, name)}")
        if self.lr <= 0:
            raise ResslError(f"lr of a linear evaluation must be above 0, not {self.lr}")
        if not all(0 < m < 1 for m in self.milestones):
            raise ResslError(f"milestones are fractions of the epochs, between 0 and 1, not {self.milestones}")
        if self.resize is not None and self.resize < 1:
            raise ResslError(f"resize must be at least 1 pixel, not {self.resize}")


BLOCK = 32  # steps whose features are made together
CHUNK = 2048  # pictures that go through the backbone at once

STEP = LinearProtocol()
COSINE = LinearProtocol(schedule="cosine", lr=0.2)
IMAGENET = LinearProtocol(schedule="cosine", lr=0.3, nesterov=False)
PROTOCOLS = {"step": STEP, "cosine": COSINE, "imagenet": IMAGENET}


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
    mean: tuple[float, ...] = (0.0, 0.0, 0.0),
    std: tuple[float, ...] = (1.0, 1.0, 1.0),
    image_size: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    precision: torch.dtype = torch.float32,
    progress: Callable[[int, int, float], None] | None = None,
) -> LinearResult:
    """Train and test a linear classifier; ``backbone=None`` means that the inputs are features already."""
    protocol.check()
    start, device = time.monotonic(), torch.device(device)
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
    steps = N // B
    classifier = Classifier(
        test_features.shape[1],
        int(max(fit.labels.max(), held.labels.max())) + 1,
        schedule=lambda step: learning_rate(protocol, step, steps * protocol.epochs, B),
        nesterov=protocol.nesterov,
        seed=seed,
        device=device,
    )
    folded = fold(backbone, precision) if augment and device.type == "cuda" and backbone is not None else None
    blocks = None if folded is None else Blocks(folded, views, fit.x, fit.labels, classifier, B, seed)
    curve: list[float] = []
    start_seconds, scored = 0.0, deque[Later]()

    def look_back() -> None:
        nonlocal start_seconds
        curve.append(float(scored.popleft()))
        start_seconds = start_seconds or time.monotonic() - start
        if progress is not None:
            progress(len(curve), protocol.epochs, curve[-1])

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
                        classifier.learn(x, y)
            scored.append(Later(classifier.accuracy((test_features - shift) * scale, held.labels)))
            if epoch or device.type != "cuda":  # there, at the epoch before: meanwhile the device goes on with this one
                look_back()
        if scored:
            look_back()
    best = max(range(len(curve)), key=curve.__getitem__)
    return LinearResult(curve[-1], curve[best], best + 1, curve, time.monotonic() - start, start_seconds)


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
