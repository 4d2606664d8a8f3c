"""What lies at a place, without opening it: enough to notice that somebody's own pictures have changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from ressl.data.folders import pictures
from ressl.data.lists import listed
from ressl.errors import ResslError

LOOKED_AT = 100_000  # files whose size and time are asked for; of more, the names must do


def contents(data: str, place: str | None) -> str | None:
    """A digest of the names, sizes and times of the files there; None for a named set, and where nothing lies."""
    if place is None or data not in ("folder", "array", "list", "shards"):
        return None
    hasher = hashlib.sha256()
    try:
        files = _files(data, place)
        for file in files:
            hasher.update(os.fsencode(os.path.relpath(file, place)) + b"\0")
            # A list may name what is not there; it is counted as broken, and the rest may change.
            if len(files) <= LOOKED_AT and (data != "list" or os.path.exists(file)):
                found = os.stat(file)
                hasher.update(f"{found.st_size} {found.st_mtime_ns}\n".encode())
    except (OSError, ResslError):  # whoever opens it will say so
        return None
    return hasher.hexdigest()[:12]


def _files(data: str, place: str) -> list[str]:
    if data == "list":
        return listed(Path(place))
    if not os.path.isdir(place):
        return [place]
    return sorted(pictures(place) if data == "folder" else map(str, Path(place).rglob("*.tar")))
