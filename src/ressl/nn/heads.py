"""Projection heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def l2_normalize(x: Tensor) -> Tensor:
    """Rows of unit length, in float32 whatever autocast says (a bf16 norm would not be one)."""
    with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
        return F.normalize(x.float() if x.dtype in (torch.bfloat16, torch.float16) else x, dim=-1)


class ProjectionHead(nn.Sequential):
    """The two-layer head g of the paper: linear, ReLU, linear, with biases; batch norm only where a method asks."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, *, batch_norm: bool = False) -> None:
        norm = [nn.BatchNorm1d(hidden_dim)] if batch_norm else []
        super().__init__(nn.Linear(in_dim, hidden_dim), *norm, nn.ReLU(inplace=True), nn.Linear(hidden_dim, out_dim))
