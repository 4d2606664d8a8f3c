"""k-means on the device: the same clusters for the same key, in every process and every time on the same machine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ressl import rng

CHUNK = 2**24  # distances held at once
DRAWS = 2**20  # random numbers made at once
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
    # Nothing below asks the host for a value: a GPU gets all the rounds at once. Seen from the middle of all points,
    # distances lose no digits where these lie close together, as those of a bank that is about to collapse.
    middle = points.mean(0)
    points = points - middle
    square = points.pow(2).sum(1)
    centroids = points[_start(points, square, k, key, round)]
    for _ in range(iterations):
        labels, distance = _assign(points, square, centroids)
        centroids = _means(points, labels, distance, k)
    labels, distance = _assign(points, square, centroids)
    return Clusters(centroids + middle, labels, distance.sum())


def few_clusters(k: int, n: int) -> int:
    """``k``, but at most one for four of ``n`` points: a cluster of one point says nothing of its place.

    >>> few_clusters(1000, 50_000), few_clusters(1000, 600), few_clusters(1000, 1001)
    (1000, 150, 250)
    """
    return min(k, max(1, n // 4))


def cluster_sums(values: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The sum of each cluster's rows of ``values`` (N x D -> k x D, float64) and how many they are (k).

    In a fixed order: to scatter on a GPU adds in whatever order threads come.
    """
    n, device = len(labels), labels.device
    labels, order = labels.sort(stable=True)
    bounds = torch.searchsorted(labels, torch.arange(k + 1, device=device))  # cluster c: bounds[c] to bounds[c + 1]
    # A GPU adds up a bag row after row, all bags at once. So none is long, even where a cluster has all the points:
    # sorted rows are cut at every bound and at every sqrt(n)-th row, and then the pieces of each cluster added up.
    cuts = torch.cat((bounds, torch.arange(0, n, math.isqrt(n), device=device))).sort().values
    pieces = F.embedding_bag(order, values, cuts, mode="sum", include_last_offset=True).double()
    places = torch.arange(len(pieces), device=device)
    sums = F.embedding_bag(places, pieces, torch.searchsorted(cuts, bounds), mode="sum", include_last_offset=True)
    return sums, bounds.diff()


def _assign(points: Tensor, square: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest centroid of each point (N) and the squared distance to it (N). ``square``: |x|^2 of each (N)."""
    size = max(1, CHUNK // len(centroids))
    half = -0.5 * centroids.pow(2).sum(1)
    # |x - c|^2 = |x|^2 - 2 (x c - |c|^2 / 2): the nearest has the largest bracket.
    parts = [torch.addmm(half, part, centroids.T).max(1) for part in points.split(size)]
    best, labels = torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts])
    return labels, (square - 2 * best).clamp(min=0)


def _start(points: Tensor, square: Tensor, k: int, key: Tensor | int, round: Tensor | int) -> Tensor:
    """k different points. Each wave draws by squared distance to what was chosen before (k-means++ in waves)."""
    n, device = len(points), points.device
    waves = min(k, WAVES)
    chosen = torch.zeros(0, dtype=torch.int64, device=device)
    weight = torch.ones(n, dtype=torch.float64, device=device)
    for wave, log_u in enumerate(_draws(n, waves, key, round, device)):
        count = k * (wave + 1) // waves - len(chosen)
        # The largest u^(1/w) are a draw by weight without replacement (Efraimidis and Spirakis, 2006).
        score = (log_u / weight.clamp(min=1e-12)).index_fill_(0, chosen, -torch.inf)
        greedy = wave > 0 and count == 1
        new = _best(points, score, weight, 2 + int(math.log(k))) if greedy else score.topk(count).indices
        chosen = torch.cat((chosen, new))
        distance = _assign(points, square, points[new])[1].double()
        weight = distance if wave == 0 else torch.minimum(weight, distance)
    return chosen


def _draws(n: int, waves: int, key: Tensor | int, round: Tensor | int, device: torch.device) -> Iterator[Tensor]:
    """log u of every point (n, float64), wave by wave; made for several at once, which a GPU does in the same time."""
    rows = torch.arange(n, dtype=torch.int64, device=device)
    for some in torch.arange(waves, device=device).split(max(1, DRAWS // n)):
        u = rng.uniform(key, round * WAVES + some[:, None], rows, 1, rng.CLUSTERS)[..., 0]
        yield from u.double().clamp(min=2.0**-25).log()


def _best(points: Tensor, score: Tensor, weight: Tensor, trials: int) -> Tensor:
    """Of the first few drawn, the point that brings all others closest to a centroid (greedy k-means++)."""
    drawn = score.topk(min(trials, len(score))).indices
    left = torch.cdist(points[drawn], points).pow(2).double().minimum(weight).sum(1)
    return drawn[left.argmin(0, keepdim=True)]


def _means(points: Tensor, labels: Tensor, distance: Tensor, k: int) -> Tensor:
    sums, count = cluster_sums(points, labels, k)
    means = (sums / count.clamp(min=1)[:, None]).to(points.dtype)
    # The e-th empty cluster takes the e-th farthest point.
    empty = count == 0
    far = points[distance.topk(k).indices]
    return torch.where(empty[:, None], far[(empty.cumsum(0) - 1).clamp(min=0)], means)
