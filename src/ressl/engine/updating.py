"""What follows a backward in one pass over the weights: gradient norm, SGD and the teacher's moving average (Triton).

Tables say where gradients, weights, momenta and the teacher's weights lie, so that one kernel does them all, whatever
their shapes: some hundred operations otherwise, each of which reads and writes what the one before has just written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ressl.engine.launching import launch
from ressl.nn.ema import EMATeacher

BLOCK = 2048  # weights for each program


@triton.jit
def _address(ptr, DTYPE: tl.constexpr):
    """The address that lies at ``ptr``, of numbers of that type."""
    return tl.multiple_of(tl.load(ptr).to(tl.pointer_type(DTYPE)), 16)


@triton.jit
def _squares(table_ptr, sum_ptr, LOW: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of squares of each row's gradient."""
    row = table_ptr + 5 * tl.program_id(0)
    g_ptr = _address(row, tl.bfloat16 if LOW else tl.float32)
    place = tl.arange(0, BLOCK)
    count = tl.load(row + 4)
    if count == BLOCK:  # noqa: SIM108  (without a mask, whose end could be anywhere, the loads are wide)
        g = tl.load(g_ptr + place)
    else:
        g = tl.load(g_ptr + place, mask=place < count, other=0.0)
    g = g.to(tl.float32)
    tl.store(sum_ptr + tl.program_id(0), tl.sum(g * g))


@triton.jit
def _update(
    table_ptr, lr_ptr, bad_ptr, average_ptr, decay, momentum,
    LOW: tl.constexpr, NESTEROV: tl.constexpr, TEACHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """SGD for one row of the table: gradient, weight, momentum, teacher's weight, how many. A bad step changes none."""
    row = table_ptr + 5 * tl.program_id(0)
    count = tl.load(row + 4)
    if count == BLOCK:
        _sgd(row, BLOCK, lr_ptr, bad_ptr, average_ptr, decay, momentum, LOW, NESTEROV, TEACHER, BLOCK)
    else:
        _sgd(row, count, lr_ptr, bad_ptr, average_ptr, decay, momentum, LOW, NESTEROV, TEACHER, BLOCK)


@triton.jit
def _sgd(
    row, count, lr_ptr, bad_ptr, average_ptr, decay, momentum,
    LOW: tl.constexpr, NESTEROV: tl.constexpr, TEACHER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, BLOCK)
    inside = place < count
    good = tl.load(bad_ptr) == 0.0
    g_ptr = _address(row, tl.bfloat16 if LOW else tl.float32)
    p_ptr, b_ptr = _address(row + 1, tl.float32), _address(row + 2, tl.float32)
    p = tl.load(p_ptr + place, mask=inside)
    b = tl.load(b_ptr + place, mask=inside)
    d = tl.load(g_ptr + place, mask=inside).to(tl.float32) + decay * p
    new_b = momentum * b + d
    new_p = p - tl.load(lr_ptr) * (d + momentum * new_b if NESTEROV else new_b)
    new_p = tl.where(good, new_p, p)
    tl.store(p_ptr + place, new_p, mask=inside)
    tl.store(b_ptr + place, tl.where(good, new_b, b), mask=inside)
    if TEACHER:
        t_ptr = _address(row + 3, tl.float32)
        t = tl.load(t_ptr + place, mask=inside)
        tl.store(t_ptr + place, tl.where(good, t + (1.0 - tl.load(average_ptr)) * (new_p - t), t), mask=inside)


class Update:
    """Stands in for the step's gradient norm, for ``optimiser.step`` and for ``teacher.update``.

    ``gradient`` says where a parameter's gradient is (a bf16 copy has it, or it has its own), ``forget`` lets go of
    them. Which weights a teacher follows is seen when its ``update`` is first called, so the first step is made apart.
    """

    def __init__(
        self,
        optimiser: torch.optim.SGD,
        teachers: Iterable[EMATeacher],
        gradient: Callable[[nn.Parameter], Tensor | None],
        forget: Callable[[], None],
    ) -> None:
        self.optimiser, self.gradient, self.forget = optimiser, gradient, forget
        self.followers: dict[nn.Parameter, tuple[EMATeacher, nn.Parameter]] = {}
        self.updated: set[nn.Parameter] = set()
        self.tables: dict[Any, _Table] = {}
        self.current: list[tuple[_Table, Any]] = []  # those of this step
        self.alive: list[Any] = []  # what they point to
        for teacher in teachers:
            teacher.update = torch.compiler.disable(_Watched(self, teacher))  # type: ignore[method-assign]

    def norm(self) -> Tensor:
        """Of all gradients together. It comes first in a step, and writes the tables down."""
        found: dict[Any, list[tuple[Tensor, ...]]] = {}
        for number, group in enumerate(self.optimiser.param_groups):
            for p in group["params"]:
                g = self.gradient(p)
                if g is None:
                    continue
                teacher, t = self.followers.get(p, (None, None))
                key = (number, g.dtype, teacher)
                g = g if _alike(g, p) else torch.empty_like(p, dtype=g.dtype).copy_(g)
                self.updated.add(p)
                b = self.optimiser.state[p]["momentum_buffer"]
                found.setdefault(key, []).append((g, p, b, p if t is None else t))
        self.current, self.alive, squares = [], list(found.values()), []
        for key, tensors in found.items():
            table = self.tables.setdefault(key, _Table())
            table.write(tensors)
            squares.append(torch.empty(len(table.rows), device=tensors[0][0].device))
            low = key[1] == torch.bfloat16
            launch(_squares, (len(table.rows),), table.tensor, squares[-1], LOW=low, BLOCK=BLOCK)
            self.current.append((table, key))
        return torch.cat(squares).sum().sqrt()

    def step(self) -> None:
        bad: Tensor = self.optimiser.found_inf  # type: ignore[attr-defined]
        for table, (number, dtype, teacher) in self.current:
            group = self.optimiser.param_groups[number]
            average = group["lr"] if teacher is None else teacher.momentum
            launch(
                _update, (len(table.rows),), table.tensor, group["lr"], bad, average, float(group["weight_decay"]),
                float(group["momentum"]), LOW=dtype == torch.bfloat16, NESTEROV=group["nesterov"],
                TEACHER=teacher is not None, BLOCK=BLOCK,
            )  # fmt: skip
        self.alive = []
        self.forget()

    def settle(self) -> None:
        """After a capture, in which nothing can be copied to the card: the tables' contents."""
        for table, _ in self.current:
            table.settle()


class _Watched:
    """``teacher.update``, which the kernel does once it is known whom the teacher follows."""

    def __init__(self, owner: Update, teacher: EMATeacher) -> None:
        self.owner, self.teacher, self.known = owner, teacher, False

    def __call__(self, student: nn.Module) -> None:
        if self.known:
            return
        EMATeacher.update(self.teacher, student)
        pairs = list(zip(student.parameters(), self.teacher.module.parameters(), strict=True))
        # A weight without a gradient has no row in a table, and a row has room for one teacher.
        if all(s in self.owner.updated and s not in self.owner.followers for s, _ in pairs):
            self.owner.followers |= {s: (self.teacher, t) for s, t in pairs}
            self.owner.tables.clear()
            self.known = True


class _Table:
    """Addresses on the card, a row for every BLOCK numbers; always the same rows in the same place."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.tensor = torch.zeros(0)
        self.waiting = False  # for the end of a capture

    def write(self, tensors: list[tuple[Tensor, ...]]) -> None:
        self.rows = [
            (*(x.data_ptr() + x.element_size() * first for x in row), min(BLOCK, row[0].numel() - first))
            for row in tensors
            for first in range(0, row[0].numel(), BLOCK)
        ]
        capturing = tensors[0][0].is_cuda and torch.cuda.is_current_stream_capturing()
        if len(self.tensor) != len(self.rows):
            if capturing:
                raise RuntimeError("a captured step has other gradients than the steps before it")
            self.tensor = torch.zeros(len(self.rows), 5, dtype=torch.int64, device=tensors[0][0].device)
        if self.waiting:
            raise RuntimeError("only one step can be captured at a time")
        self.waiting = capturing
        if not capturing:
            self.settle()

    def settle(self) -> None:
        self.waiting = False
        self.tensor.copy_(torch.tensor(self.rows, dtype=torch.int64))


def _alike(g: Tensor, p: Tensor) -> bool:
    """Two tensors of one shape that lie in memory the same way, the first at an address that the kernel counts on."""
    formats = (torch.contiguous_format, torch.channels_last) if p.ndim == 4 else (torch.contiguous_format,)
    same = any(g.is_contiguous(memory_format=f) and p.is_contiguous(memory_format=f) for f in formats)
    return same and g.data_ptr() % 16 == 0


def can_update(optimiser: torch.optim.Optimizer) -> bool:
    """Whether the kernel does what this optimiser does, with weights that lie as it wants them."""
    return type(optimiser) is torch.optim.SGD and all(
        p.dtype == torch.float32 and _alike(p, p) and not group["maximize"] and not group["dampening"]
        for group in optimiser.param_groups
        for p in group["params"]
    )
