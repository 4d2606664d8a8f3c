"""The teacher's batch shuffle.

With batch norm per group, a student and a teacher that see the same groups can solve the task by the groups'
statistics. Shuffling the teacher's batch breaks that (He et al., MoCo, 2020).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ressl import rng
from ressl.nn.processes import all_rows, my_rows, world


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
        shuffle = rng.permutation(self.key, self.count, n, rng.SHUFFLE, self.key.device)
        self.count.add_(1)
        return shuffle, torch.argsort(shuffle)

    @torch.no_grad()
    def apart(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``network(x)``, but each sample in company drawn at random from the batch of all processes."""
        shuffle, restore = self(x.shape[0] * world())
        dealt = all_rows(x)[my_rows(shuffle)]  # this process's hand of the shuffled batch
        return all_rows(network(dealt))[my_rows(restore)]
