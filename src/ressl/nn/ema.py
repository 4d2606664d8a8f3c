"""The momentum teacher (equation 6)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from ressl.nn.keeping import Keeps


class EMATeacher(Keeps):
    """A copy of the student that follows it: F_t <- m F_t + (1 - m) F_s.

    Parameters only. Buffers (batch norm's running statistics) are the teacher's own, gathered from its own forwards,
    and it stays in the mode its parent is in, as in the authors' code.
    """

    momentum: Tensor

    def __init__(self, student: nn.Module, momentum: float = 0.99) -> None:
        super().__init__()
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"the teacher's momentum lies in [0, 1], not {momentum}")
        self.module = copy.deepcopy(student).requires_grad_(False)
        # A device tensor, so that a schedule can change it without a host sync (BYOL's does).
        self.register_buffer("momentum", torch.tensor(float(momentum), dtype=torch.float32))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.module(*args, **kwargs)

    @torch.no_grad()
    def update(self, student: nn.Module) -> None:
        """One step of the moving average."""
        mine: list[Tensor] = list(self.module.parameters())
        theirs: list[Tensor] = list(student.parameters())
        # t + (1 - m)(s - t): one rounding fewer than m t + (1 - m) s, and exact where s == t.
        change = list(torch._foreach_sub(theirs, mine))
        torch._foreach_mul_(change, (1.0 - self.momentum) * self.kept)  # a bad step changed no student weight
        torch._foreach_add_(mine, change)
