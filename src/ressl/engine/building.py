"""Our kernels compiled in processes of their own, which leave them in Triton's cache.

A kernel is compiled when it is first launched, one after the other, in Python; threads would take turns with the rest
of the start-up. A process needs no card for it, only its name: it says what it is given as the current one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ressl.engine.launching import Launch

PROCESSES = 8


def build(launches: list[Launch], target: tuple[str, int | str, int]) -> None:
    """Wait until every kernel that ``launches`` need is in the cache for ``target`` (backend, architecture, warp).

    What goes wrong here goes wrong again, and is said, when the kernel is launched.
    """
    orders = [_order(launch) for launch in launches]
    done = _mark(launches, [orders, target])
    if not orders or (done is not None and done.exists()):
        return
    count = min(PROCESSES, max(1, (os.cpu_count() or 1) // 2), len(orders))
    shares = [json.dumps([target, orders[i::count]]) for i in range(count)]
    command = [sys.executable, "-P", "-m", "ressl.engine.building"]  # -P: a json.py in the user's folder is not ours
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    builders = [subprocess.Popen(command, stdin=pipe, stdout=quiet, stderr=quiet, text=True) for _ in shares]
    for builder, share in zip(builders, shares, strict=True):
        assert builder.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone already, which its exit code tells
            builder.stdin.write(share)
            builder.stdin.close()
    codes = [builder.wait() for builder in builders]
    if done is not None and not any(codes):
        done.parent.mkdir(parents=True, exist_ok=True)
        done.touch()


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

    target, orders = json.load(sys.stdin)
    triton.runtime.driver.set_active(_Named(GPUTarget(*target)))
    for order in orders:
        arguments = [getattr(torch, a.split(".")[1]) if isinstance(a, str) else a for a in order["arguments"]]
        module, name = order["kernel"].split(":")
        getattr(importlib.import_module(module), name).warmup(*arguments, grid=(1,), **order["constants"])


if __name__ == "__main__":
    main()
