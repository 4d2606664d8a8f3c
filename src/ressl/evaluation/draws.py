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
    member = one_hot(labels, int(labels.max()) + 1)
    count = torch.tensor([max(1, math.floor(fraction * n + 0.5)) for n in member.sum(0).tolist()], device=labels.device)
    return torch.nonzero(first_of_each(member, count, seed, draw).any(1))[:, 0]
