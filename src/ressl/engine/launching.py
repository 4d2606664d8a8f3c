"""How our kernels are launched: in one way, so that launches can be noted down instead of made, and in which pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

TILE = 4096  # elements that a program does at a time, chosen by timing on an H200


class Launch(NamedTuple):
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]


_notes: list[Launch] | None = None  # where launches go instead of to the device


@contextmanager
def noted() -> Iterator[list[Launch]]:
    """Within, nothing is launched but noted down: for networks on the meta device."""
    global _notes
    _notes = []
    try:
        yield _notes
    finally:
        _notes = None


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    if _notes is None:
        kernel[grid](*args, **constants)
    else:
        _notes.append(Launch(kernel, grid, args, constants))


def mapping(
    N: int, rows: int, C: int, elements: int = TILE, widest: int = 256
) -> tuple[tuple[int, int], dict[str, int]]:
    """The grid and the tile of a kernel that goes over N x rows x C, some rows of one sample at a time."""
    wide = min(_power_of_two(C), widest)
    tall = min(_power_of_two(rows), elements // wide)
    return (N * -(-rows // tall), -(-C // wide)), {"ROWS": tall, "COLS": wide}


def _power_of_two(n: int) -> int:
    """The first that is not below n."""
    return 1 << (n - 1).bit_length()


def twice(y: Tensor) -> tuple[Tensor, Tensor]:
    """The same memory as two results, not one a view of the other, so that each brings its own gradient."""
    return y, y.new_empty(0).set_(y.untyped_storage(), 0, y.shape, y.stride())
