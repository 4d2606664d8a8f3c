"""What the page says of our arithmetic, groups and batches is what the program does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ressl.engine import accelerate as engine
from ressl.engine.tuning import fastest
from ressl.evaluation.classifier import Classifier
from ressl.evaluation.linear import LinearProtocol, linear_evaluation
from ressl.nn import GroupedBatchNorm2d
from ressl.reproduce.differences import DIFFERENCES

SAID = " ".join(DIFFERENCES.split())
GPU = torch.device("cuda")  # only named: nothing here touches one


def test_products_of_float32_matrices_are_in_tf32_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, products = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    monkeypatch.setattr(engine, "dismiss", lambda: None)
    step: Any = SimpleNamespace(device=GPU)
    try:
        torch.set_float32_matmul_precision("highest")
        engine.accelerate(step, "eager")
        assert torch.get_float32_matmul_precision() == "high"
        torch.set_float32_matmul_precision("highest")
        with fastest(GPU):
            assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.backends.cudnn.benchmark = tried
        torch.set_float32_matmul_precision(products)
    assert "Similarities to the queue are products of float32 matrices in TF32" in SAID
    assert "`--precision fp32 --engine eager` has no bf16 and no graph, but its products and convolutions are" in SAID
    assert "the classifier's weights and sums are float32, its products TF32" in SAID
    assert "similarities to the queue, softmax and loss in float32" not in SAID


def test_a_batch_that_is_not_full_is_left_out_of_the_linear_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    learned: list[int] = []
    learn = Classifier.learn
    monkeypatch.setattr(Classifier, "learn", lambda self, x, *rest: learned.append(len(x)) or learn(self, x, *rest))
    data = torch.randn(10, 3), torch.arange(10) % 2
    linear_evaluation(None, data, data, protocol=LinearProtocol(epochs=2, batch_size=4))
    assert learned == [4, 4] * 2
    assert "The last batch of an epoch is left out where it is not full; the authors' script trains on it, too." in SAID


def test_the_groups_of_a_batch_are_every_eighth_sample() -> None:
    x = torch.randn(32, 3, 4, 4)
    found = GroupedBatchNorm2d(3, groups=8).train()(x)
    for i in range(8):
        torch.testing.assert_close(found[i::8], torch.nn.BatchNorm2d(3).train()(x[i::8]))
    assert "are every eighth sample, as in the authors' code for the small data sets" in SAID
