"""Settings of torch that hold for a whole process, changed for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fastest(device: torch.device) -> Iterator[None]:
    """Within, on a GPU: convolutions chosen by trial, float32 products in TF32 (three bits more than bf16 has)."""
    if device.type != "cuda":
        yield
        return
    tried, products = torch.backends.cudnn.benchmark, torch.get_float32_matmul_precision()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = tried
        torch.set_float32_matmul_precision(products)
