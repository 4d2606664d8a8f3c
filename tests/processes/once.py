"""What several tests look at and what takes long to make: made once, also where pytest-xdist shares the tests out."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that ``make`` has filled; a worker that comes while another fills it waits."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        make(folder := factory.mktemp(name))
        return folder
    base = factory.getbasetemp().parent  # of all workers of this run of the tests
    with open(base / f"{name}.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not (made := lock.read()):  # a worker that failed leaves it to the next
            make(folder := factory.mktemp(name))
            lock.write(str(folder))
            return folder
    return Path(made)
