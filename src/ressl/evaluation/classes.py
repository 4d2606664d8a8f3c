"""Which classes are told apart, and which are taken for which."""

from __future__ import annotations

import torch
from torch import Tensor


def confusion(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """C x C counts; row: what it is, column: what it was taken for."""
    return torch.bincount(truth * classes + predicted, minlength=classes * classes).view(classes, classes)


def per_class(counts: Tensor) -> list[float | None]:
    """Accuracy of each class in percent; None for one without test pictures."""
    total = counts.sum(1).tolist()
    return [100.0 * hit / n if n else None for hit, n in zip(counts.diagonal().tolist(), total, strict=True)]


def mistaken(counts: Tensor, most: int = 20) -> list[tuple[int, int, int]]:
    """(what it is, what it was taken for, how often), the most frequent first."""
    wrong = counts.clone().fill_diagonal_(0)
    value, place = wrong.flatten().sort(descending=True, stable=True)
    C = len(counts)
    pairs = zip(value[:most].tolist(), place[:most].tolist(), strict=True)
    return [(p // C, p % C, n) for n, p in pairs if n > 0]
