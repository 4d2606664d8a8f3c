"""The start of a run: compiled kernels that are kept, and a compiler that is awake when it is needed."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path


def keep_compiled() -> bool:
    """Let compiled kernels outlive a reboot, so that a second run starts in seconds; whether there are any yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ressl"
    folder = Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor")))
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))
    return folder.exists()


def wake_compiler() -> None:
    """Start the compiler's worker processes now, while data are read and the model is built.

    Until they are there the compiler makes one kernel after the other in this process. This is a head start and no
    more, by names that PyTorch does not promise: without them compilation is slower, and nothing else changes.
    """

    def start() -> None:
        with contextlib.suppress(Exception):
            from torch._inductor.async_compile import AsyncCompile

            AsyncCompile.warm_pool()
            AsyncCompile.wakeup()
            AsyncCompile.use_process_pool()

    global _much_to_compile
    _much_to_compile = not keep_compiled()
    threading.Thread(target=start, daemon=True).start()


_much_to_compile = False


def wait_for_workers(seconds: float = 15.0) -> None:
    """Before the first compilation of a cold start: one kernel after the other would take longer than this."""
    if not _much_to_compile:
        return
    with contextlib.suppress(Exception):
        from torch._inductor.async_compile import AsyncCompile, get_compile_threads

        end = time.monotonic() + seconds
        while get_compile_threads() > 1 and not AsyncCompile.use_process_pool() and time.monotonic() < end:
            time.sleep(0.05)
