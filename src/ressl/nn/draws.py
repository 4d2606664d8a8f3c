"""Random numbers inside a method, as a pure function of (key, call, row of the global batch)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ressl import rng
from ressl.nn.processes import rank, world


class Draws(nn.Module):
    """Fresh numbers on every call; its place in the sequence survives a restart.

    Rows are numbered as in the global batch, so that a sample gets the same numbers however many processes share it.
    """

    key: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.randint(2**62, (), dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, rows: int, columns: int) -> Tensor:
        """rows x columns uniform numbers in [0, 1) for the ``rows`` samples of this process."""
        place = torch.arange(rows, dtype=torch.int64, device=self.key.device) * world() + rank()
        drawn = rng.uniform(self.key, self.count, place, columns, rng.METHOD)
        self.count.add_(1)
        return drawn
