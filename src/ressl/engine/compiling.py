"""The start of a run: compiled kernels that are kept, and a compiler that is awake when it is needed."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

NVIDIA = Path("/dev/nvidiactl")  # there where a driver is
ON_A_CARD = ("pretrain", "evaluate", "embed")  # commands that certainly want one, if there is one


def keep_compiled() -> None:
    """Let compiled kernels outlive a reboot, so that a second run starts in seconds.

    To be called before torch's compiler is imported, which decides then.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "ressl"
    nearest = next(folder for folder in (cache, *cache.parents) if folder.exists())
    if not cache.is_absolute() or not os.access(nearest, os.W_OK):
        return  # no home, or not ours to write in: torch has its own place
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache / "inductor"))
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled for each size it meets, of which a run has few.

    For a second size PyTorch would make a program for any size: minutes of algebra for a network, and slower kernels.
    """
    import torch

    made: Callable[..., Any] = torch.compile(function, dynamic=False)
    return made


def missing_compiler() -> str | None:
    """Why nothing can be compiled for a CPU here, if so."""
    name = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    return None if shutil.which(name) else f"there is no C++ compiler here ({name})"


def quieten() -> None:
    """The compiler has nothing to say about CUDA to somebody who trains on a CPU."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)


def small_workspaces() -> None:
    """Let matrix products work in 8 MB each: a CUDA graph keeps such a piece for each of its streams, of 32 MB unless
    told otherwise.

    To be called before the first product on the card.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")


def wait_briefly() -> None:
    """Let a processor's threads wait actively for each other for some microseconds, not for a millisecond.

    Each operation of a step ends with such a wait. Where other programs want the same cores, the thread that is waited
    for is often not running, and the one that waits keeps the core from it: single steps then took very long. Where
    nobody else is, the step is as fast either way, but slower without any active waiting. GNU's OpenMP reads this when
    torch is imported.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


def wants_card(arguments: Sequence[str]) -> bool:
    """Whether a command line will use the first NVIDIA card of this machine, as far as can be told before all imports.

    Not a process among several, which has a card of its own to choose, nor where another one is asked for.
    """
    several = {"WORLD_SIZE", "SLURM_NTASKS"} & os.environ.keys()
    if several or not arguments or arguments[0] not in ON_A_CARD or {"-h", "--help"} & set(arguments):
        return False
    asked = [
        b.removeprefix("--device=") for a, b in pairwise(arguments) if a == "--device" or b.startswith("--device=")
    ]
    return set(asked) <= {"auto", "cuda"} and NVIDIA.exists()


def wake_card() -> None:
    """Begin the first use of a card, which takes seconds, while Python still imports what a command needs."""

    def start() -> None:
        with contextlib.suppress(Exception):
            import torch

            if torch.cuda.is_available():
                torch.zeros(1, device="cuda")

    threading.Thread(target=start, daemon=True).start()


def wake_compiler(device: torch.device, helpers: bool = True) -> None:
    """:func:`awaken` beside whatever comes next: while data are read and the model is built."""
    keep_compiled()
    # Its own import of the compiler comes first: of two threads that import the same modules one may meet half of them.
    importlib.import_module("torchvision.models.resnet")
    threading.Thread(target=awaken, args=(device, helpers), daemon=True).start()


def awaken(device: torch.device, helpers: bool = True) -> None:
    """Start the compiler's worker processes, and the card as well.

    Until they are there the compiler makes one kernel after the other in this process; with a head start they are there
    when it has traced the first function. The names are none that PyTorch promises: without them compilation is slower,
    and nothing else changes. Without ``helpers``, because others compile, it is only imported.
    """
    with contextlib.suppress(Exception):
        import torch

        torch.zeros(1, device=device)  # the first use of a card takes seconds
    with contextlib.suppress(Exception):
        import ressl.engine.kernels  # noqa: F401  (and Triton with it)
    with contextlib.suppress(Exception):
        from torch._inductor.async_compile import AsyncCompile

        if helpers:
            AsyncCompile.warm_pool()
            AsyncCompile.wakeup()
            AsyncCompile.use_process_pool()
