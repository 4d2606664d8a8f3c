"""One way to launch a Triton kernel, so that launches can be noted down instead of made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


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
