"""The nearest pictures to a picture, by the cosine of their features."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


@torch.no_grad()
def nearest(bank: Tensor, queries: Tensor, count: int = 10) -> tuple[Tensor, Tensor]:
    """(index, cosine), each Q x count, of the rows of ``bank`` (N x D) nearest to ``queries`` (Q x D)."""
    similarity = F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T  # Q x N
    cosine, index = similarity.topk(min(count, len(bank)), dim=1)
    return index, cosine
