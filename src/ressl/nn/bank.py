"""The memory bank: one embedding for every sample of the data."""

from __future__ import annotations

import torch
from torch import Tensor

from ressl.nn.heads import l2_normalize
from ressl.nn.keeping import Keeps
from ressl.nn.processes import all_rows


class MemoryBank(Keeps):
    """N unit vectors, row i the moving average of what sample i was embedded as.

    >>> bank = MemoryBank(4, 2, momentum=0.0)
    >>> bank.update(torch.tensor([2]), torch.tensor([[0.0, 3.0]]))
    >>> bank.vectors[2]
    tensor([0., 1.])
    """

    vectors: Tensor

    def __init__(self, size: int, dim: int, momentum: float = 0.5) -> None:
        super().__init__()
        if size < 1 or dim < 1 or not 0 <= momentum < 1:
            raise ValueError(
                f"a bank needs a positive size and a momentum in [0, 1), not {size} x {dim} and {momentum}"
            )
        self.register_buffer("vectors", l2_normalize(torch.randn(size, dim)))  # N x D
        self.momentum = momentum

    @torch.no_grad()
    def update(self, index: Tensor, z: Tensor) -> None:
        """Move the rows ``index`` (B) towards ``z`` (B x D); the rows of all processes are taken."""
        index, z = all_rows(index), all_rows(z.to(self.vectors.dtype))
        old = self.vectors[index]
        new = l2_normalize(old * self.momentum + z * (1 - self.momentum))
        self.vectors.index_copy_(0, index, torch.where(self.kept, new, old))

    def extra_repr(self) -> str:
        return f"size={self.vectors.shape[0]}, dim={self.vectors.shape[1]}, momentum={self.momentum}"
