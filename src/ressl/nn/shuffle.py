"""The teacher's batch shuffle.

With batch norm per group, a student and a teacher that see the same groups can solve the task by the groups'
statistics. Shuffling the teacher's batch breaks that (He et al., MoCo, 2020).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ressl import rng
from ressl.nn.processes import Trade, rank, trade, world
from ressl.uncompiled import uncompiled


class BatchShuffle(nn.Module):
    """Draws a fresh permutation on every call; its place in the sequence survives a restart."""

    key: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.randint(2**62, (), dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self._known: tuple[int, int] | None = None  # both, as the host knows them; None: it has to ask

    def forward(self, n: int) -> tuple[Tensor, Tensor]:
        """``(shuffle, restore)``: ``x[shuffle][restore]`` is ``x``."""
        both = rng.small_permutation(self.key, self.count, n, rng.SHUFFLE, self.key.device)
        self.count.add_(1)
        return both

    @torch.no_grad()
    def apart(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """``network(x)``, but each sample in company drawn at random from the batch of all processes."""
        if world() > 1:
            dealt = self._dealt(x.shape[0] * world())
            return dealt.back(network(dealt.there(x)))
        shuffle, restore = self(x.shape[0])
        return network(x[shuffle])[restore]

    @uncompiled
    def _dealt(self, n: int) -> Trade:
        """The next permutation as what this process sends and gets.

        How many rows go to whom must be known to the host. It draws the same numbers as a device, so it need not wait
        for one, but for the first time.
        """
        key, count = self._known or (int(self.key), int(self.count))
        self._known = key, count + 1
        self.count.add_(1)
        return trade(rng.permutation(key, count, n, rng.SHUFFLE, "cpu"), rank(), world(), self.key.device)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._known = None
        super()._load_from_state_dict(*args, **kwargs)
