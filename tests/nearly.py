"""Results that are equal but for the last digits of their numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch


def close(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            close(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            close(one, other)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    else:
        assert a == (pytest.approx(b, rel=1e-4, abs=1e-4) if isinstance(b, float) else b)
