"""Our kernels compiled in processes of their own, which leave them in Triton's cache.

A kernel is compiled when it is first launched, one after the other, in Python; threads would take turns with the rest
of the start-up. A process needs no card for it, only its name: it says what it is given as the current one.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ressl.engine.crew import Member, finished, start

if TYPE_CHECKING:
    from ressl.engine.launching import Launch

MODULE = "ressl.engine.building"
PROCESSES = 8
_hired: list[Member] = []


def hire(builders: Sequence[Member]) -> None:
    """Keep these for the next order. Whoever hires must :func:`build` or :func:`dismiss`."""
    _hired.extend(builders)


def dismiss() -> None:
    """Send hired builders home."""
    while _hired:
        _hired.pop().tell("")


def build(launches: list[Launch], target: tuple[str, int | str, int]) -> None:
    """Wait until every kernel that ``launches`` need is in the cache for ``target`` (backend, architecture, warp).

    What goes wrong here goes wrong again, and is said, when the kernel is launched.
    """
    orders = [_order(launch) for launch in launches]
    done = _mark(launches, [orders, target])
    if not orders or (done is not None and done.exists()):
        return dismiss()
    builders, _hired[:] = [*_hired] or start([MODULE] * min(fitting(), len(orders))), []
    for i, builder in enumerate(builders):
        builder.tell(json.dumps([target, orders[i :: len(builders)]]))
    if finished(builders) and done is not None:
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()


def fitting() -> int:
    """How many builders this machine has room for."""
    return min(PROCESSES, max(1, (os.cpu_count() or 1) // 2))


def _order(launch: Launch) -> dict[str, Any]:
    kernel = f"{launch.kernel.fn.__module__}:{launch.kernel.__name__}"
    return {"kernel": kernel, "arguments": launch.kinds(), "constants": launch.constants}


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


def ready() -> None:
    """Import what a builder needs."""
    for name in ("torch", "triton.backends.compiler", "ressl.engine.kernels", "ressl.engine.updating"):
        importlib.import_module(name)


def _argument(kind: Any) -> Any:
    """What stands for an argument of that kind (see :meth:`ressl.engine.launching.Launch.kinds`)."""
    import torch

    from ressl.engine.launching import described

    typed = lambda name: getattr(torch, name.split(".")[1])
    if isinstance(kind, list):
        name, *size = kind
        return described(torch.empty(size, dtype=typed(name)), (size[0], size[1]))
    return typed(kind) if isinstance(kind, str) else kind


def main() -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    from ressl.engine.launching import OPTIONS

    if not (asked := sys.stdin.read()):
        return
    target, orders = json.loads(asked)
    triton.runtime.driver.set_active(_Named(GPUTarget(*target)))
    for order in orders:
        arguments = [_argument(kind) for kind in order["arguments"]]
        module, name = order["kernel"].split(":")
        getattr(importlib.import_module(module), name).warmup(*arguments, grid=(1,), **order["constants"], **OPTIONS)
