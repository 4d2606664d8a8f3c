"""The linear classifier and how it learns, without the host: a step is a few operations on tensors that stay in place.

Softmax regression has its gradient in closed form, so there is no graph of operations to record and walk back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


class Classifier:
    """Weights N(0, 0.01), bias 0; SGD with momentum 0.9, with or without Nesterov, and no weight decay."""

    MOMENTUM = 0.9

    def __init__(
        self,
        inputs: int,
        classes: int,
        *,
        schedule: Callable[[Tensor], Tensor],
        nesterov: bool,
        seed: int,
        device: torch.device,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        weight = torch.empty(classes, inputs).normal_(0.0, 0.01, generator=generator)
        # One matrix for weight and bias (its last column): half as many operations.
        self.weight = torch.cat((weight, torch.zeros(classes, 1)), 1).to(device)  # C x (D + 1)
        self.buffer = torch.zeros_like(self.weight)
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.schedule, self.nesterov = schedule, nesterov

    @property
    def inputs(self) -> int:
        return self.weight.shape[1] - 1

    def state(self) -> list[Tensor]:
        return [self.weight, self.buffer, self.step]

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        return torch.addmm(self.weight[:, -1], x, self.weight[:, :-1].T)

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor, valid: Tensor | None = None) -> None:
        """One step on features x (B x D) and labels y (B); none where ``valid`` (0-dim, bool) is false."""
        g = (F.softmax(self.logits(x), 1) - F.one_hot(y, len(self.weight))) / len(x)  # B x C, d loss / d logits
        gradient = torch.cat((g.T @ x, g.sum(0)[:, None]), 1)
        buffer = self.MOMENTUM * self.buffer + gradient
        change = gradient + self.MOMENTUM * buffer if self.nesterov else buffer
        weight = self.weight - self.schedule(self.step) * change
        if valid is not None:
            buffer, weight = torch.where(valid, buffer, self.buffer), torch.where(valid, weight, self.weight)
        self.buffer.copy_(buffer)
        self.weight.copy_(weight)
        self.step.add_(1 if valid is None else valid.to(torch.int64))

    @torch.no_grad()
    def accuracy(self, x: Tensor, y: Tensor) -> Tensor:
        """Top-1 in percent, on the device."""
        return 100.0 * (self.logits(x).argmax(1) == y).double().mean()


class Classroom:
    """Classifiers that learn from the same features, each at its own rate; the features are made once."""

    def __init__(self, classifiers: Sequence[Classifier]) -> None:
        self.classifiers = classifiers

    @property
    def inputs(self) -> int:
        return self.classifiers[0].inputs

    def state(self) -> list[Tensor]:
        return [tensor for classifier in self.classifiers for tensor in classifier.state()]

    def learn(self, x: Tensor, y: Tensor, valid: Tensor | None = None) -> None:
        for classifier in self.classifiers:
            classifier.learn(x, y, valid)

    def accuracy(self, x: Tensor, y: Tensor) -> Tensor:
        """Of each, in their order."""
        return torch.stack([classifier.accuracy(x, y) for classifier in self.classifiers])
