"""The generated set: reproducible, balanced, and hard for raw pixels."""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ressl.data.shapes import CLASSES, FIGURES, make_shapes
from ressl.data.sources import ArraySource, open_source, splits
from ressl.errors import ResslError


def test_bytes_are_the_same_everywhere() -> None:
    images, labels = make_shapes(300, seed=5)
    assert images.shape == (300, 3, 32, 32)
    assert images.dtype == torch.uint8
    digest = hashlib.sha256(images.numpy().tobytes() + labels.numpy().tobytes()).hexdigest()[:16]
    assert digest == "c4de8635f54bcc58"
    again, _ = make_shapes(300, seed=5)
    other, _ = make_shapes(300, seed=6)
    assert torch.equal(images, again)
    assert not torch.equal(images, other)


@pytest.mark.parametrize("n", [0, 1, 7, 300])
def test_balanced(n: int) -> None:
    images, labels = make_shapes(n, size=16, seed=0)
    assert images.shape == (n, 3, 16, 16)
    counts = torch.bincount(labels, minlength=len(CLASSES))
    assert int(counts.max() - counts.min()) <= 1


def test_source() -> None:
    train, test = open_source("shapes"), open_source("shapes", "test")
    assert isinstance(train, ArraySource)
    assert isinstance(test, ArraySource)
    assert (len(train), len(test)) == (4096, 1024)
    assert train.classes == test.classes == CLASSES
    assert not torch.equal(train.images[:1024], test.images)
    assert splits("shapes") == {"train", "test"}
    with pytest.raises(ResslError, match="split of shapes"):
        open_source("shapes", "validate")


def test_the_figure_is_prominent() -> None:
    """Inside and outside of every figure differ, and each fills a good part of the picture."""
    import numpy as np

    axis = np.linspace(-1, 1, 101, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    for name, distance in FIGURES.items():
        inside = float((distance(x, y) < 0).mean())
        assert 0.2 < inside < 0.9, name
    areas = {name: (distance(x, y) < 0) for name, distance in FIGURES.items()}
    for a in CLASSES:
        for b in CLASSES:
            if a != b:
                assert (areas[a] != areas[b]).mean() > 0.1, (a, b)


def _knn(train: Tensor, labels: Tensor, test: Tensor, k: int) -> Tensor:
    mean = train.mean(0)
    similarity = F.normalize(test - mean, dim=1) @ F.normalize(train - mean, dim=1).T
    weights, nearest = similarity.topk(k)
    votes = torch.zeros(len(test), len(CLASSES)).scatter_add_(1, labels[nearest], (weights / 0.1).exp())
    return votes.argmax(1)


def test_raw_pixels_do_badly() -> None:
    images, labels = make_shapes(4000, seed=1)
    test, truth = make_shapes(1000, seed=2)
    train, test = images.flatten(1).float() / 255, test.flatten(1).float() / 255
    for k in (20, 200):
        assert (_knn(train, labels, test, k) == truth).float().mean() < 0.36
    # Ridge regression on one-hot labels: the best linear rule in the least-squares sense, lightly regularised.
    mean = train.mean(0)
    a, targets = train - mean, F.one_hot(labels).float() - 1 / len(CLASSES)
    weights = torch.linalg.solve(a.T @ a + 10 * torch.eye(a.shape[1]), a.T @ targets)
    assert (((test - mean) @ weights).argmax(1) == truth).float().mean() < 0.30


def test_one_class_can_be_told_by_its_outline() -> None:
    """The label is in the picture: with the nuisances known to be absent, the figure can be matched exactly."""
    images, labels = make_shapes(64, size=64, seed=3)
    edges = (images.float().mean(1).diff(dim=1).abs() > 40).flatten(1).sum(1)
    assert (edges > 10).float().mean() > 0.9  # a strong outline nearly everywhere
    assert len(labels.unique()) == len(CLASSES)
