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

from ressl.engine.launching import Launch, launch
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
        self.current: list[tuple[Tensor, Any]] = []  # this step's tables
        self.alive: list[Any] = []  # what they point to
        self.unwritten: list[tuple[Tensor, list[tuple[int, ...]]]] = []  # tables of a step that is being captured
        self.tables: dict[Any, Tensor] = {}  # one of each kind, the same in every step
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
            device, rows = tensors[0][0].device, _rows(tensors)
            table = self._table(key, len(rows), device)
            self.unwritten.append((table, rows))
            squares.append(torch.empty(len(rows), device=device))
            self.current.append((table, key))
        if not _capturing():
            self.settle()
        for (table, key), sums in zip(self.current, squares, strict=True):
            launch(_squares, (len(table),), table, sums, LOW=key[1] == torch.bfloat16, BLOCK=BLOCK)
        return torch.cat(squares).sum().sqrt()

    def _table(self, key: Any, count: int, device: torch.device) -> Tensor:
        """Room for so many rows, which a step before the capture has made.

        A graph's own memory is written to by every replay, before and after a tensor's time, and any stream may come to
        be one that is captured: there are only 32, and who asks for one more shares one of them.
        """
        table = self.tables.get(key)
        if table is None or len(table) != count:
            if _capturing():
                raise RuntimeError("its update is not that of the steps before the capture")
            table = self.tables[key] = torch.empty(count, 5, dtype=torch.int64, device=device)
        return table

    def step(self) -> None:
        bad: Tensor = self.optimiser.found_inf  # type: ignore[attr-defined]
        for table, (number, dtype, teacher) in self.current:
            group = self.optimiser.param_groups[number]
            average = group["lr"] if teacher is None else teacher.momentum
            launch(
                _update, (len(table),), table, group["lr"], bad, average, float(group["weight_decay"]),
                float(group["momentum"]), LOW=dtype == torch.bfloat16, NESTEROV=group["nesterov"],
                TEACHER=teacher is not None, BLOCK=BLOCK,
            )  # fmt: skip
        self.alive = []
        self.forget()

    def settle(self) -> None:
        """Fill in the tables; after a capture, within which nothing can be copied to the card."""
        for table, rows in self.unwritten:
            table.copy_(torch.tensor(rows, dtype=torch.int64))
        self.unwritten = []


def _capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def kernels_of(optimiser: torch.optim.SGD) -> list[Launch]:
    """Every kernel that its :class:`Update` may launch, to be built ahead: with gradients of either kind, and for
    weights that a teacher follows and others."""
    found, sums = [], torch.empty(1, device="meta")
    table, number = torch.empty(1, 5, dtype=torch.int64, device="meta"), torch.empty((), device="meta")
    group = optimiser.param_groups[0]
    rates = (float(group["weight_decay"]), float(group["momentum"]))
    for low in (False, True):
        found.append(Launch(_squares, (1,), (table, sums), {"LOW": low, "BLOCK": BLOCK}))
        for follows in (False, True):
            how = {"LOW": low, "NESTEROV": group["nesterov"], "TEACHER": follows, "BLOCK": BLOCK}
            found.append(Launch(_update, (1,), (table, number, number, number, *rates), how))
    return found


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
            self.known = True


def _rows(tensors: list[tuple[Tensor, ...]]) -> list[tuple[int, ...]]:
    """A row for every BLOCK numbers: where each tensor's begin, and how many there are."""
    return [
        (*(x.data_ptr() + x.element_size() * first for x in row), min(BLOCK, row[0].numel() - first))
        for row in tensors
        for first in range(0, row[0].numel(), BLOCK)
    ]


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
