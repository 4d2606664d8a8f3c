"""Weighted k-nearest-neighbour classification of frozen features (Wu et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ressl.errors import ResslError


@dataclass(frozen=True)
class KnnProtocol:
    k: int = 200
    temperature: float = 0.1

    def check(self) -> None:
        if self.k < 1 or self.temperature <= 0:
            raise ResslError(f"k must be at least 1 and temperature above 0, not {self.k} and {self.temperature}")


@dataclass(frozen=True)
class SweepProtocol:
    ks: tuple[int, ...] = (1, 5, 10, 20, 50, 100, 200)
    temperature: float = 0.1

    def check(self) -> None:
        if min(self.ks, default=0) < 1 or self.temperature <= 0:
            raise ResslError("a kNN sweep needs ks of at least 1 and a temperature above 0")


@torch.no_grad()
def knn_predict(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.1,
    classes: int | None = None,
    chunk: int = 1024,
) -> Tensor:
    """The class whose neighbours have the most weight, each neighbour counting exp(cosine / temperature).

    Features are N x D and M x D; the result is M class numbers. ``k`` is cut to N.
    """
    C = classes if classes is not None else int(train_labels.max()) + 1
    k = min(k, len(train_features))
    bank = F.normalize(train_features, dim=1)  # N x D
    predictions = []
    for part in F.normalize(test_features, dim=1).split(chunk):
        similarity, neighbour = (part @ bank.T).topk(k, dim=1)  # m x k
        # Subtracting the row's largest changes no vote's order and keeps exp in range at any temperature.
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        votes = torch.zeros(len(part), C, device=part.device, dtype=weight.dtype)
        votes.scatter_add_(1, train_labels[neighbour], weight)
        predictions.append(votes.argmax(1))
    return torch.cat(predictions)


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.1,
) -> float:
    """Top-1 accuracy in percent."""
    classes = int(max(train_labels.max(), test_labels.max())) + 1
    predicted = knn_predict(train_features, train_labels, test_features, k=k, temperature=temperature, classes=classes)
    return 100.0 * (predicted == test_labels).float().mean().item()


@torch.no_grad()
def knn_sweep(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    ks: Sequence[int],
    temperature: float = 0.1,
    chunk: int = 1024,
) -> dict[int, float]:
    """Top-1 accuracy in percent for each k; the neighbours are looked up once, for the largest."""
    C = int(max(train_labels.max(), test_labels.max())) + 1
    counts = sorted({min(k, len(train_features)) for k in ks})
    bank = F.normalize(train_features, dim=1)
    hits = torch.zeros(len(counts), dtype=torch.int64, device=bank.device)
    for part, truth in zip(F.normalize(test_features, dim=1).split(chunk), test_labels.split(chunk), strict=True):
        similarity, neighbour = (part @ bank.T).topk(counts[-1], dim=1)
        weight = ((similarity - similarity[:, :1]) / temperature).exp()
        votes, before = torch.zeros(len(part), C, device=part.device, dtype=weight.dtype), 0
        for i, k in enumerate(counts):  # each k adds its neighbours to the votes of the one before
            votes.scatter_add_(1, train_labels[neighbour[:, before:k]], weight[:, before:k])
            hits[i] += (votes.argmax(1) == truth).sum()
            before = k
    return {k: 100.0 * hit / len(test_labels) for k, hit in zip(counts, hits.tolist(), strict=True)}
