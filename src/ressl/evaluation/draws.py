"""Few labels, drawn class by class: a pure function of (seed, draw)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ressl import rng


def first_of_each(member: Tensor, count: Tensor | int, seed: int, draw: int) -> Tensor:
    """``count`` random members of each class: N x C bool, from N x C bool that may overlap.

    The N samples have one random order per draw, so a larger count holds the smaller one's samples.
    """
    order = rng.permutation(seed, draw, len(member), rng.EVALUATION, member.device)
    place = member[order].cumsum(0)  # N x C: the how-manieth of its class
    taken = torch.zeros_like(member)
    taken[order] = member[order] & (place <= count)
    return taken


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """N x C bool."""
    return labels[:, None] == torch.arange(classes, device=labels.device)


def balanced_fraction(labels: Tensor, fraction: float, seed: int, draw: int) -> Tensor:
    """The sorted indices of a fraction of every class, at least one each.

    >>> len(balanced_fraction(torch.arange(1000) % 10, 0.01, seed=0, draw=0))
    10
    """
    # By sorting, not by a table of N x C: of a million pictures in a thousand classes that would be gigabytes.
    order = rng.permutation(seed, draw, len(labels), rng.EVALUATION, labels.device)
    order = order[torch.argsort(labels[order], stable=True)]  # class by class, each in the order of the draw
    sizes = torch.bincount(labels)
    count = torch.tensor([max(1, math.floor(fraction * n + 0.5)) for n in sizes.tolist()], device=labels.device)
    classes = labels[order]
    place = torch.arange(len(labels), device=labels.device) - (sizes.cumsum(0) - sizes)[classes]  # within its class
    return order[place < count[classes]].sort().values
