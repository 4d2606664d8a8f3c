"""A list of the pictures below a folder, kept between runs: 1.3 million files are walked once, then found in seconds.

The list lies in ``$RESSL_CACHE`` or ``~/.cache/ressl`` as plain arrays. A folder's own times change with every file
that comes, goes or is renamed in it, so a list is good as long as every folder it visited has the times it had.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ressl.data.base import Paths

FORMAT = 2
SMALLEST = 10_000  # pictures; a shorter walk is not worth a file
SETTLED = 2.0  # seconds: a folder that changed a moment ago may change again within the same tick of its clock

Walk = Callable[[str, list[str]], list[str]]  # (root, where to note the folders visited) -> sorted paths


class Listing(NamedTuple):
    paths: Paths
    first: NDArray[np.int32]  # of each path: which of ``folders`` it lies in, or -1 when directly in the root
    folders: list[str]  # the first folders below the root, sorted


def cache_folder() -> Path:
    place = os.environ.get("RESSL_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "ressl")
    return Path(place).expanduser()


def listing(root: str, walk: Walk) -> Listing:
    """The pictures below ``root``: from the cache while nothing there has changed, else by ``walk``."""
    where = cache_file(root)
    if (found := _load(where, root)) is not None:
        return found
    folders: list[str] = []
    made = _make(root, walk(root, folders))
    if len(made.paths) >= SMALLEST:
        _save(where, root, made, folders)
    return made


def cache_file(root: str) -> Path:
    # By both: a folder that was given relative to another has paths that lead nowhere from here.
    name = hashlib.sha256(os.fsencode(f"{root}\0{os.path.abspath(root)}")).hexdigest()[:32]
    return cache_folder() / "index" / f"{name}.npz"


def _make(root: str, paths: list[str]) -> Listing:
    start = len(os.path.join(root, ""))
    known: dict[str, int] = {}
    first = np.empty(len(paths), dtype=np.int32)
    for i, path in enumerate(paths):  # sorted, so folders come in order
        folder, separator, _ = path[start:].partition(os.sep)
        first[i] = known.setdefault(folder, len(known)) if separator else -1
    return Listing(Paths(paths), first, list(known))


def _times(folders: list[str]) -> NDArray[np.int64] | None:
    try:
        found = [os.stat(folder) for folder in folders]
    except OSError:
        return None
    return np.array([(status.st_mtime_ns, status.st_ctime_ns) for status in found], dtype=np.int64)


def _save(where: Path, root: str, made: Listing, folders: list[str]) -> None:
    times = _times(folders)
    if times is None or time.time_ns() - int(times.max(initial=0)) < SETTLED * 1e9:
        return
    about = {"format": FORMAT, "root": [root, os.path.abspath(root)], "folders": made.folders, "visited": folders}
    data, ends = made.paths.arrays
    with contextlib.suppress(OSError):  # a home without room or permission costs only time
        where.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=where.parent, prefix=".index-")
        try:
            with os.fdopen(handle, "wb") as file:
                said = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
                np.savez(file, about=said, times=times, bytes=data, ends=ends, first=made.first)
            os.replace(temporary, where)
        except BaseException:
            os.unlink(temporary)
            raise


def _load(where: Path, root: str) -> Listing | None:
    """None when there is no list, it is damaged, or a folder has changed."""
    try:
        with np.load(where, allow_pickle=False) as held:
            about = json.loads(held["about"].tobytes())
            if about["format"] != FORMAT or about["root"] != [root, os.path.abspath(root)]:
                return None
            times = _times(about["visited"])
            if times is None or not np.array_equal(times, held["times"]):
                return None
            paths = Paths.of_arrays(held["bytes"], held["ends"])
            first, folders = held["first"], about["folders"]
            whole = first.shape == (len(paths),) and ((first >= -1) & (first < len(folders))).all()
            whole = whole and first.dtype == np.int32 and all(isinstance(folder, str) for folder in folders)
            return Listing(paths, first, folders) if whole else None
    except Exception:  # a damaged one can raise anything, and is only made again
        return None
