"""k-means on the device: the same clusters for the same key, on every machine and in every process."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ressl import rng

CHUNK = 2**24  # distances held at once
WAVES = 128  # in which the starting points are drawn


class Clusters(NamedTuple):
    centroids: Tensor  # K x D
    labels: Tensor  # N int64: the nearest centroid of each point
    inertia: Tensor  # 0-dim: the sum of squared distances to it


@torch.no_grad()
def kmeans(points: Tensor, k: int, *, key: Tensor | int, round: Tensor | int = 0, iterations: int = 20) -> Clusters:
    """Lloyd's algorithm on ``points`` (N x D) from ``k`` of them.

    A cluster that loses all its points takes the point farthest from its centroid. ``key`` and ``round`` decide where
    it starts.
    """
    n = len(points)
    if not 0 < k <= n:
        raise ValueError(f"{n} points cannot make {k} clusters")
    centroids = points[_start(points, k, key, round)].clone()
    for _ in range(iterations):
        labels, distance = assign(points, centroids)
        centroids = _means(points, labels, distance, k)
    labels, distance = assign(points, centroids)
    return Clusters(centroids, labels, distance.sum())


def few_clusters(k: int, n: int) -> int:
    """``k``, but at most one for four of ``n`` points: a cluster of one point says nothing of its place.

    >>> few_clusters(1000, 50_000), few_clusters(1000, 600), few_clusters(1000, 1001)
    (1000, 150, 250)
    """
    return min(k, max(1, n // 4))


def assign(points: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point (N) and the squared distance to it (N)."""
    size = max(1, CHUNK // len(centroids))
    half = 0.5 * centroids.pow(2).sum(1)
    # |x - c|^2 = |x|^2 - 2 (x c - |c|^2 / 2): the nearest has the largest bracket.
    parts = [(part @ centroids.T - half).max(1) for part in points.split(size)]
    best, labels = torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])
    return labels, (points.pow(2).sum(1) - 2 * best).clamp(min=0)


def _start(points: Tensor, k: int, key: Tensor | int, round: Tensor | int) -> Tensor:
    """k different points. Each wave draws by squared distance to what was chosen before (k-means++ in waves)."""
    n, device = len(points), points.device
    waves = min(k, WAVES)
    rows = torch.arange(n, dtype=torch.int64, device=device)
    chosen = torch.zeros(0, dtype=torch.int64, device=device)
    weight = torch.ones(n, dtype=torch.float64, device=device)
    for wave in range(waves):
        count = k * (wave + 1) // waves - len(chosen)
        u = rng.uniform(key, round * WAVES + wave, rows, 1, rng.CLUSTERS)[:, 0].double().clamp(min=2.0**-25)
        # The largest u^(1/w) are a draw by weight without replacement (Efraimidis and Spirakis, 2006).
        score = torch.log(u) / weight.clamp(min=1e-12)
        score[chosen] = -torch.inf
        greedy = wave > 0 and count == 1
        new = _best(points, score, weight, 2 + int(math.log(k))) if greedy else score.topk(count).indices
        chosen = torch.cat((chosen, new))
        distance = assign(points, points[new])[1].double()
        weight = distance if wave == 0 else torch.minimum(weight, distance)
    return chosen


def _best(points: Tensor, score: Tensor, weight: Tensor, trials: int) -> Tensor:
    """Of the first few drawn, the point that brings all others closest to a centroid (greedy k-means++)."""
    drawn = score.topk(min(trials, len(score))).indices
    left = torch.cdist(points[drawn], points).pow(2).double().minimum(weight).sum(1)
    return drawn[left.argmin()][None]


def _means(points: Tensor, labels: Tensor, distance: Tensor, k: int) -> Tensor:
    # A sum in a fixed order, in float64: scatter on a GPU adds in whatever order threads come.
    order = torch.argsort(labels, stable=True)
    total = torch.cat((points.new_zeros(1, points.shape[1]).double(), points[order].double().cumsum(0)))
    ends = torch.bincount(labels, minlength=k).cumsum(0)
    starts = torch.cat((ends.new_zeros(1), ends[:-1]))
    count = ends - starts
    means = ((total[ends] - total[starts]) / count.clamp(min=1)[:, None]).to(points.dtype)
    # The e-th empty cluster takes the e-th farthest point.
    empty = count == 0
    far = points[distance.topk(k).indices]
    return torch.where(empty[:, None], far[(empty.cumsum(0) - 1).clamp(min=0)], means)
