"""How our kernels are launched: in one way, so that launches can be noted down instead of made, and in which pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

OPTIONS = {"enable_fp_fusion": True}  # a product and its sum at once; from 3.9 on Triton wants to be told
TILE = 4096  # elements that a program does at a time, chosen by timing on an H200


class Tile(NamedTuple):
    """A matrix, of which a kernel takes tiles of that size by the card's copy engine."""

    matrix: Tensor
    size: tuple[int, int]


class Launch(NamedTuple):
    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: dict[str, Any]

    def kinds(self) -> list[Any]:
        """What of the arguments decides how the kernel is compiled: of tensors the type, of numbers the value."""
        return [_kind(arg) for arg in self.args]


def _kind(arg: Any) -> Any:
    if isinstance(arg, Tile):
        return (str(arg.matrix.dtype), *arg.size)
    return arg if isinstance(arg, (bool, int, float)) else str(arg.dtype)


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
        kernel[grid](*(described(*arg) if isinstance(arg, Tile) else arg for arg in args), **constants, **OPTIONS)
    else:
        _notes.append(Launch(kernel, grid, args, constants))


def described(matrix: Tensor, size: tuple[int, int]) -> Any:
    """What Triton wants to know of a :class:`Tile`."""
    from triton.tools.tensor_descriptor import TensorDescriptor  # here, because Triton is not on every machine

    return TensorDescriptor.from_tensor(matrix, list(size))


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
