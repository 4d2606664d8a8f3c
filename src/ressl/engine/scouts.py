"""Other processes of ours that work ahead: what they make is left in a cache, and waited for where it is needed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODULE = "ressl.scouting"
PARTS = ("views", "rest")  # of a step, one for each of them
PATIENCE = 300.0  # seconds, more than a compiler takes for a step; then the step is compiled here
_out: list[subprocess.Popen[str]] = []


def cold() -> bool:
    """Whether no kernel of ours has been built on this machine, as far as the caches tell."""
    cache = os.environ.get("TRITON_CACHE_DIR")
    return cache is not None and not any(Path(cache).glob("built-*"))


def start(module: str, **env: str) -> subprocess.Popen[str]:
    """``python -m module``, which waits for what it is told, and says nothing."""
    words = [sys.executable, "-P", "-m", module]  # -P: a json.py in the user's folder is not ours
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(words, stdin=pipe, stdout=quiet, stderr=quiet, text=True, env=os.environ | env)


def tell(process: subprocess.Popen[str], text: str) -> None:
    """All that it will hear."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it is gone already, which its exit code tells
        process.stdin.write(text)
        process.stdin.close()


def send() -> None:
    """Start them now: before the first task there is time enough to import what they need.

    Not where kernels have been built before: most likely there is nothing to do. Whoever sends must :func:`recall`.
    """
    if not _out and cold():
        _out.extend(start(MODULE, TORCHINDUCTOR_COMPILE_THREADS="4") for _ in PARTS)  # each has helpers of its own


def assign(task: Mapping[str, Any]) -> None:
    """Tell them what to do, each its part of it."""
    for scout, part in zip(_out, PARTS, strict=False):
        tell(scout, json.dumps({**task, "part": part}))


def out() -> bool:
    """Whether any is."""
    return bool(_out)


def wait(part: str) -> None:
    """Until that part is made."""
    for scout in _out[PARTS.index(part) :][:1]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            scout.wait(PATIENCE)


def back() -> bool:
    """Wait for all of them; whether all is done, by them or by others before."""
    for part in PARTS:
        wait(part)
    done = all(scout.returncode == 0 for scout in _out)
    recall()
    return done


def recall() -> None:
    """End those that are still out."""
    for scout in _out:
        scout.kill()
    while _out:
        scout = _out.pop()
        scout.wait()
        assert scout.stdin is not None
        with contextlib.suppress(OSError):
            scout.stdin.close()
