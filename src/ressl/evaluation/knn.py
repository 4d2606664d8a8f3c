"""Weighted k-nearest-neighbour classification of frozen features (Wu et al., 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


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
