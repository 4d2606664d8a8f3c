"""Our kernels compiled in processes of their own, which leave them in Triton's cache.

A kernel is compiled when it is first launched, one after the other, in Python; threads would take turns with the rest
of the start-up. A process needs no card for it, only its name: it says what it is given as the current one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ressl.engine.scouts import cold, start, tell

if TYPE_CHECKING:
    from ressl.engine.launching import Launch

PROCESSES = 8
_hired: list[subprocess.Popen[str]] = []


def hire() -> None:
    """Start the builders now: before the first order there is time enough to import what they need.

    Not where kernels have been built before: most likely there is nothing to do. Whoever hires must :func:`build` or
    :func:`dismiss`.
    """
    if not _hired and cold():
        _hired.extend(_builders(_fitting()))


def dismiss() -> None:
    """Send hired builders home."""
    while _hired:
        tell(_hired.pop(), "")


def build(launches: list[Launch], target: tuple[str, int | str, int]) -> None:
    """Wait until every kernel that ``launches`` need is in the cache for ``target`` (backend, architecture, warp).

    What goes wrong here goes wrong again, and is said, when the kernel is launched.
    """
    orders = [_order(launch) for launch in launches]
    done = _mark(launches, [orders, target])
    if not orders or (done is not None and done.exists()):
        return dismiss()
    builders, _hired[:] = [*_hired] or _builders(min(_fitting(), len(orders))), []
    for i, builder in enumerate(builders):
        tell(builder, json.dumps([target, orders[i :: len(builders)]]))
    codes = [builder.wait() for builder in builders]
    if done is not None and not any(codes):
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()


def _fitting() -> int:
    return min(PROCESSES, max(1, (os.cpu_count() or 1) // 2))


def _builders(count: int) -> list[subprocess.Popen[str]]:
    return [start("ressl.engine.building") for _ in range(count)]


def _order(launch: Launch) -> dict[str, Any]:
    """What decides how a kernel is compiled: of a tensor its type, of a number its value."""
    arguments = [arg if isinstance(arg, (bool, int, float)) else str(arg.dtype) for arg in launch.args]
    kernel = f"{launch.kernel.fn.__module__}:{launch.kernel.__name__}"
    return {"kernel": kernel, "arguments": arguments, "constants": launch.constants}


def _mark(launches: list[Launch], what: list[Any]) -> Path | None:
    """The file that says that all this has been built before."""
    cache = os.environ.get("TRITON_CACHE_DIR")
    if cache is None:
        return None
    import triton

    sources = sorted({launch.kernel.cache_key for launch in launches})
    digest = hashlib.sha256(json.dumps([what, sources, triton.__version__]).encode()).hexdigest()
    return Path(cache) / f"built-{digest[:16]}"


class _Named:
    """Stands in for Triton's driver, with a card that is known by name."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0


def main() -> None:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    import ressl.engine.kernels  # noqa: F401  (while nothing has been asked for yet)

    if not (asked := sys.stdin.read()):
        return
    target, orders = json.loads(asked)
    triton.runtime.driver.set_active(_Named(GPUTarget(*target)))
    for order in orders:
        arguments = [getattr(torch, a.split(".")[1]) if isinstance(a, str) else a for a in order["arguments"]]
        module, name = order["kernel"].split(":")
        getattr(importlib.import_module(module), name).warmup(*arguments, grid=(1,), **order["constants"])


if __name__ == "__main__":
    main()
