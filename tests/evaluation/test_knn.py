"""Weighted kNN against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from ressl.evaluation.knn import knn_accuracy, knn_predict


def blobs(n: int, d: int, classes: int, seed: int, noise: float = 1.5) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, d, generator=torch.Generator().manual_seed(99))
    labels = torch.arange(n) % classes
    scale = 0.1 + 10 * torch.rand(n, 1, generator=draw)  # lengths differ: only the direction may count
    return (centres[labels] + noise * torch.randn(n, d, generator=draw)) * scale, labels


@settings(max_examples=25, deadline=None)
@given(n=st.integers(3, 80), d=st.integers(2, 10), classes=st.integers(1, 6), k=st.integers(1, 60),
       t=st.sampled_from([0.05, 0.1, 0.5]), seed=st.integers(0, 10**6))  # fmt: skip
def test_it_agrees_with_scikit_learn(n, d, classes, k, t, seed):  # type: ignore[no-untyped-def]
    bank, labels = blobs(n, d, min(classes, n), seed)
    queries, _ = blobs(30, d, min(classes, n), seed + 1)
    reference = KNeighborsClassifier(min(k, n), metric="cosine", weights=lambda distance: np.exp((1 - distance) / t))
    reference.fit(bank.double().numpy(), labels.numpy())
    ours = knn_predict(bank, labels, queries, k=k, temperature=t)
    votes = np.sort(reference.predict_proba(queries.double().numpy()), axis=1)
    clear = torch.from_numpy(votes[:, -1] - votes[:, -2] > 1e-4 if votes.shape[1] > 1 else np.ones(30, bool))
    assert clear.any()
    assert torch.equal(ours[clear], torch.from_numpy(reference.predict(queries.double().numpy()))[clear])


def test_the_weights_matter() -> None:
    """One near neighbour outvotes two far ones at a low temperature, and loses at a high one."""
    bank = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]])
    labels = torch.tensor([0, 1, 1])
    query = torch.tensor([[1.0, 0.0]])
    assert knn_predict(bank, labels, query, k=3, temperature=0.1).item() == 0
    assert knn_predict(bank, labels, query, k=3, temperature=10.0).item() == 1


def test_tiny_temperatures_neither_overflow_nor_vanish() -> None:
    bank, labels = blobs(40, 6, 4, 0)
    predicted = knn_predict(bank, labels, bank, k=10, temperature=1e-4)
    assert torch.equal(predicted, labels)  # each is its own nearest neighbour


def test_chunks_make_no_difference() -> None:
    bank, labels = blobs(60, 5, 3, 0)
    queries, _ = blobs(37, 5, 3, 1)
    assert torch.equal(knn_predict(bank, labels, queries, k=7, chunk=5), knn_predict(bank, labels, queries, k=7))


def test_accuracy_is_a_percentage() -> None:
    bank, labels = torch.eye(4), torch.arange(4)
    assert knn_accuracy(bank, labels, torch.eye(4), torch.tensor([0, 1, 2, 0]), k=1) == 75.0


def test_a_class_that_only_the_test_set_has_counts_as_wrong() -> None:
    assert knn_accuracy(torch.eye(2), torch.tensor([0, 1]), torch.eye(2), torch.tensor([0, 7]), k=1) == 50.0


@pytest.mark.parametrize("k", [5, 200])
def test_more_neighbours_than_samples_are_all_of_them(k: int) -> None:
    bank, labels = blobs(5, 3, 2, 0)
    assert torch.equal(knn_predict(bank, labels, bank, k=k), knn_predict(bank, labels, bank, k=5))
