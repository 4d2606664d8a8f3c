"""Fine-tuning of the whole network with a small share of the labels."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl import rng
from ressl.data.reading import Progress
from ressl.data.unread import Unread
from ressl.data.views import View, Views
from ressl.engine.schedules import warmup_cosine
from ressl.errors import ResslError
from ressl.evaluation.draws import balanced_fraction
from ressl.evaluation.features import autocast, extract
from ressl.evaluation.intervals import interval
from ressl.evaluation.streamed import extract_unread
from ressl.nn.batchnorm import GroupedBatchNorm2d


@dataclass(frozen=True)
class FinetuneProtocol:
    """SGD with Nesterov momentum 0.9 on all weights; the new classifier learns faster than the backbone."""

    fractions: tuple[float, ...] = (0.01, 0.1)
    draws: int = 1
    epochs: int = 60
    batch_size: int = 64
    lr: float = 0.08  # of the backbone, per 256 samples, cosine to 0
    head_lr: float = 8.0  # of the classifier, per 256 samples
    weight_decay: float = 0.0
    scale: tuple[float, float] = (0.2, 1.0)  # area range of the training crop

    def check(self) -> None:
        if not self.fractions or not all(0 < f <= 1 for f in self.fractions):
            raise ResslError(f"fractions of a fine-tuning must lie above 0 and up to 1, not {self.fractions}")
        if self.draws < 1 or self.epochs < 1 or self.batch_size < 2 or self.lr < 0 or self.head_lr <= 0:
            raise ResslError("a fine-tuning needs draws and epochs of at least 1, batch_size 2 and lr above 0")


Labelled = tuple[Tensor | Unread, Tensor]  # pictures, at hand or in their files, and labels
Broken = Callable[[dict[str, str]], None]  # is told of files that could not be read: path and reason


def finetune_evaluation(
    backbone: nn.Module,
    train: Labelled,
    test: Labelled,
    *,
    protocol: FinetuneProtocol,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    image_size: int,
    resize: int | None = None,
    seed: int = 0,
    device: torch.device,
    precision: torch.dtype = torch.float32,
    progress: Progress | None = None,
    reading: Progress | None = None,
    broken: Broken | None = None,
) -> dict[str, Any]:
    """Top-1 after the last epoch for each fraction; the given backbone stays as it is.

    Of pictures in their files, a draw's share is read and held, and test pictures are read chunk by chunk; ``reading``
    and ``broken`` are told of that.
    """
    protocol.check()
    _check_room(train, protocol, seed)
    rows, done, total = [], 0, len(protocol.fractions) * protocol.draws * protocol.epochs
    taken = Input(mean, std, image_size, resize, device, precision, reading, broken)
    classes = int(max(train[1].max(), test[1].max())) + 1
    for fraction in protocol.fractions:
        values, pictures = [], 0
        for draw in range(protocol.draws):
            index = balanced_fraction(train[1], fraction, seed, draw)
            few = taken.held(train, index)
            pictures = len(few[1])
            model = _network(backbone, few[0], classes, taken)
            for _ in _epochs(model, few, protocol, taken, seed + draw):
                done += 1
                if progress is not None:
                    progress(done, total)
            scores, truth = taken.scores(model, test)
            values.append(100.0 * (scores.argmax(1) == truth).float().mean().item())
        rows.append({"fraction": fraction, "pictures": pictures, **interval(values).as_dict()})
    return {"by_fraction": rows}


class Input(NamedTuple):
    """What the network sees, and where."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int
    resize: int | None  # of test pictures
    device: torch.device
    precision: torch.dtype
    reading: Progress | None = None
    broken: Broken | None = None

    def held(self, train: Labelled, index: Tensor) -> tuple[Tensor, Tensor]:
        """Some of the pictures and their labels on the device, without the broken ones."""
        pictures, labels = train[0], train[1][index].to(self.device)
        if isinstance(pictures, Tensor):
            return pictures[index].to(self.device), labels
        images, which, broken = pictures.read(index, self.reading)
        if self.broken is not None:
            self.broken(broken)
        return images.to(self.device), labels[which.to(self.device)]

    def scores(self, network: nn.Module, test: Labelled) -> tuple[Tensor, Tensor]:
        """What a network gives for test pictures, and their labels."""
        pictures, labels = test[0], test[1].to(self.device)
        if isinstance(pictures, Tensor):
            return self.through(network, pictures, self.precision), labels
        found = extract_unread(
            network, pictures, mean=self.mean, std=self.std, size=self.size, resize=self.resize,
            precision=self.precision, progress=self.reading,
        )  # fmt: skip
        if self.broken is not None:
            self.broken(found.broken)
        return found.features, labels[found.kept]

    def through(self, network: nn.Module, images: Tensor, precision: torch.dtype = torch.float32) -> Tensor:
        """What a network gives for test pictures."""
        return extract(
            network, images, mean=self.mean, std=self.std, size=self.size, resize=self.resize, precision=precision
        )


def _check_room(train: Labelled, protocol: FinetuneProtocol, seed: int) -> None:
    """Say that a share is too large before any is trained on."""
    if isinstance(train[0], Unread):
        for fraction in sorted(protocol.fractions):
            count = len(balanced_fraction(train[1], fraction, seed, 0))
            train[0].check_room(count, f"choose shares below {fraction:g} with --fractions")


def _network(backbone: nn.Module, images: Tensor, classes: int, taken: Input) -> nn.Sequential:
    """A copy of the backbone with a classifier that starts at zero."""
    body = copy.deepcopy(backbone).to(taken.device).requires_grad_(True)
    for module in body.modules():
        if isinstance(module, GroupedBatchNorm2d):
            module.groups = 1  # the groups are the pre-training's; few pictures need all the statistics there are
    width = taken.through(body, images[:1]).shape[1]
    head = nn.Linear(width, classes).to(taken.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(body, head)


def _epochs(
    model: nn.Sequential, few: tuple[Tensor, Tensor], protocol: FinetuneProtocol, taken: Input, seed: int
) -> Iterator[int]:
    """Train the network, an epoch at a time."""
    (images, labels), device = few, taken.device
    views = Views([View(size=taken.size, crop=protocol.scale, flip=0.5)], taken.mean, taken.std, seed)
    N, B = len(labels), min(protocol.batch_size, len(labels))
    steps = max(1, N // B)
    total = steps * protocol.epochs
    peaks = (protocol.lr * B / 256, protocol.head_lr * B / 256)
    optimiser = torch.optim.SGD(
        [{"params": part.parameters(), "lr": torch.zeros((), device=device)} for part in model],
        momentum=0.9,
        nesterov=True,
        weight_decay=protocol.weight_decay,
        fused=True,
    )
    rows = torch.arange(B, device=device)
    model.train()
    for epoch in range(protocol.epochs):
        order = rng.permutation(seed, epoch, N, rng.EVALUATION, device)
        for step in range(steps):
            number = torch.full((), epoch * steps + step, dtype=torch.int64, device=device)
            for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                group["lr"].copy_(warmup_cosine(number, peak=peak, warmup_steps=0.0, total_steps=total))
            index = order[step * B : (step + 1) * B]
            with autocast(device, taken.precision):
                loss = F.cross_entropy(model(views(images[index], number, rows)[0]).float(), labels[index])
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        yield epoch
