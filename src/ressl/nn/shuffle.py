"""The teacher's batch shuffle.

With batch norm per group, a student and a teacher that see the same groups can solve the task by the groups'
statistics. Shuffling the teacher's batch breaks that (He et al., MoCo, 2020).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ressl import rng


class BatchShuffle(nn.Module):
    """Draws a fresh permutation on every call; its place in the sequence survives a restart."""

    key: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.randint(2**62, (), dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, n: int) -> tuple[Tensor, Tensor]:
        """``(shuffle, restore)``: ``x[shuffle][restore]`` is ``x``."""
        both = rng.small_permutation(self.key, self.count, n, rng.SHUFFLE, self.key.device)
        self.count.add_(1)
        return both
