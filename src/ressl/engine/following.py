"""The moving average of a whole network in one kernel (Triton).

A compiler makes the same of it, but out of a hundred operations, and takes seconds for that; here a table says where
the weights lie, and the kernel is the same for every network.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ressl.engine.launching import launch
from ressl.nn.ema import EMATeacher

BLOCK = 4096  # weights for each program


@triton.jit
def _follow(table_ptr, momentum_ptr, kept_ptr, BLOCK: tl.constexpr):
    """t + (1 - m)(s - t) for one row of the table: address of t, address of s, how many."""
    row = table_ptr + 3 * tl.program_id(0)
    t_ptr = tl.multiple_of(tl.load(row).to(tl.pointer_type(tl.float32)), 16)
    s_ptr = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(tl.float32)), 16)
    place = tl.arange(0, BLOCK)
    inside = place < tl.load(row + 2)
    t = tl.load(t_ptr + place, mask=inside)
    s = tl.load(s_ptr + place, mask=inside)
    rate = (1.0 - tl.load(momentum_ptr)) * tl.load(kept_ptr).to(tl.float32)
    tl.store(t_ptr + place, t + rate * (s - t), mask=inside)


class Following:
    """Stands in for ``teacher.update``. Weights must stay where they are, as those of a captured step do."""

    def __init__(self, teacher: EMATeacher) -> None:
        self.teacher = teacher
        self.tables: dict[tuple[int, ...], Tensor] = {}

    def __call__(self, student: nn.Module) -> None:
        teacher = self.teacher
        pairs = list(zip(teacher.module.parameters(), student.parameters(), strict=True))
        if not all(_alike(t, s) for t, s in pairs):
            return EMATeacher.update(teacher, student)
        places = tuple(x.data_ptr() for pair in pairs for x in pair)
        if places not in self.tables:
            self.tables = {places: _table(pairs)}
        table = self.tables[places]
        return launch(_follow, (len(table),), table, teacher.momentum, teacher.kept, BLOCK=BLOCK)


def _alike(t: Tensor, s: Tensor) -> bool:
    """Two weights that lie in memory the same way, without gaps, at addresses that the kernel may count on."""
    dense = t.is_contiguous() or t.is_contiguous(memory_format=torch.channels_last)
    placed = t.data_ptr() % 16 == 0 and s.data_ptr() % 16 == 0
    return t.dtype == s.dtype == torch.float32 and t.stride() == s.stride() and dense and placed


def _table(pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> Tensor:
    rows = [
        (t.data_ptr() + 4 * first, s.data_ptr() + 4 * first, min(BLOCK, t.numel() - first))
        for t, s in pairs
        for first in range(0, t.numel(), BLOCK)
    ]
    return torch.tensor(rows, dtype=torch.int64).to(pairs[0][0].device)


def follow(method: nn.Module) -> None:
    """Let every moving average below ``method`` be made by the kernel."""
    for part in method.modules():
        if isinstance(part, EMATeacher):
            part.update = torch.compiler.disable(Following(part).__call__)  # type: ignore[method-assign]
