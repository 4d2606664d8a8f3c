"""Processes that make ahead what a first run needs: builders our kernels, scouts what the compiler makes of a step.

What they make is left in caches on disk, and waited for where it is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ressl.engine import building, crew
from ressl.engine.crew import PATIENCE

MODULE = "ressl.scouting"
PARTS = ("views", "rest")  # of a step, one for each of them
SETTINGS = {
    # Each scout has helpers of its own, copies of itself, which need not import anything either.
    "TORCHINDUCTOR_COMPILE_THREADS": "4",
    "TORCHINDUCTOR_WORKER_START": "fork",
    # The compiler asks for a card when it is imported. CUDA, once asked, is of no use to copies; the driver may be.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
_out: list[crew.Member] = []


def cold() -> bool:
    """Whether no kernel of ours has been built on this machine, as far as the caches tell."""
    cache = os.environ.get("TRITON_CACHE_DIR")
    return cache is not None and not any(Path(cache).glob("built-*"))


def send() -> None:
    """Start scouts and builders now: before their first task there is time enough to import what they need.

    Not where kernels have been built before: most likely there is nothing to do. Whoever sends must :func:`recall`.
    """
    if _out or not cold():
        return
    builders = [building.MODULE] * building.fitting()
    members = crew.start([*builders, *(MODULE for _ in PARTS)], **SETTINGS)
    building.hire(members[: len(builders)])
    _out.extend(members[len(builders) :])


def assign(task: Mapping[str, Any]) -> None:
    """Tell the scouts what to do, each its part of it."""
    for scout, part in zip(_out, PARTS, strict=False):
        scout.tell(json.dumps({**task, "part": part}))


def out() -> bool:
    """Whether any is."""
    return bool(_out)


def wait(part: str) -> None:
    """Until that part is made."""
    for scout in _out[PARTS.index(part) :][:1]:
        scout.wait(PATIENCE)


def back() -> bool:
    """Wait for all of them; whether all is done, by them or by others before."""
    done = crew.finished(_out, PATIENCE)
    _out.clear()
    return done


def recall() -> None:
    """End those that are still out."""
    while _out:
        _out.pop().end()
