"""Settings of the process that are changed for a while."""

from __future__ import annotations

import pytest
import torch

from ressl.engine.tuning import fastest


def settings() -> tuple[bool, str]:
    return torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()


def test_fast_kernels_on_a_gpu_and_all_as_before_afterwards() -> None:
    before, within = settings(), []

    def fail() -> None:
        with fastest(torch.device("cuda")):
            within.append(settings())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert within == [(True, "high")]
    assert settings() == before


def test_nothing_changes_on_a_cpu() -> None:
    before = settings()
    with fastest(torch.device("cpu")):
        assert settings() == before
