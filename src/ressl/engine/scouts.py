"""Other processes of ours that work ahead: what they make is left in a cache, and waited for where it is needed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MODULE = "ressl.scouting"
COUNT = 2
PATIENCE = 60.0  # seconds, more than a compiler takes for a step; then the step is compiled here
_out: list[subprocess.Popen[str]] = []


def cold() -> bool:
    """Whether no kernel of ours has been built on this machine, as far as the caches tell."""
    cache = os.environ.get("TRITON_CACHE_DIR")
    return cache is not None and not any(Path(cache).glob("built-*"))


def send() -> None:
    """Start them now: before the first task there is time enough to import what they need.

    Not where kernels have been built before: most likely there is nothing to do. Whoever sends must :func:`recall`.
    """
    if not _out and cold():
        words = [sys.executable, "-P", "-m", MODULE]  # -P: a json.py in the user's folder is not ours
        pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
        _out.extend(subprocess.Popen(words, stdin=pipe, stdout=quiet, stderr=quiet, text=True) for _ in range(COUNT))


def assign(tasks: Sequence[str]) -> None:
    """Tell them what to do, each its own."""
    for scout, text in zip(_out, tasks, strict=False):
        assert scout.stdin is not None
        with contextlib.suppress(OSError):  # it is gone already
            scout.stdin.write(text)
            scout.stdin.close()


def out() -> bool:
    """Whether any is."""
    return bool(_out)


def back() -> None:
    """Wait for them."""
    for scout in _out:
        with contextlib.suppress(subprocess.TimeoutExpired):
            scout.wait(PATIENCE)
    recall()


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
