"""Files: read though anybody may have made them, written whole or not at all.

A pipe must not make us wait, nor a device or a hole fill the memory. Ground floor of the house: every room may import
it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

TEXT_LIMIT = 64 << 20  # bytes; the longest text of ours, a list of a million pictures, has about as many
_LITTER = re.compile(r"\..+\.\d+\.tmp")  # the temporary files of write_atomically


class NotRegular(OSError):
    """A pipe, a device or a folder in the place of a file."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, to read; OSError also where it is a pipe, a device or a folder."""
    # Without O_NONBLOCK, opening a FIFO waits for a writer that may never come.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotRegular(errno.EINVAL, "not a regular file", os.fspath(path))
    return os.fdopen(handle, "rb")


def stamp(path: str | os.PathLike[str]) -> str:
    """Size and time of change, which tell a file from another that takes its place; nothing where there is none."""
    try:
        found = os.stat(path)
    except OSError:  # whoever reads it will say so
        return ""
    return f"{found.st_size}\0{found.st_mtime_ns}\0"


def read_bytes(path: str | os.PathLike[str], limit: int = TEXT_LIMIT) -> bytes:
    """All of a file of at most ``limit`` bytes; OSError where there are more."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit >> 20} MB", os.fspath(path))
        return file.read(limit)


def read_text(path: str | os.PathLike[str]) -> str:
    return read_bytes(path).decode("utf-8")


def read_json(path: str | Path) -> Any:
    """What a JSON file holds. OSError or ValueError, whatever is wrong with it."""
    try:
        return json.loads(read_text(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder: after a crash the old file or the new one is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def obstacle(folder: Path) -> str | None:
    """What keeps ``folder``, which may be there or not, from being made and written to."""
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    if not above.is_dir():
        return f"{above} is no folder"
    return None if os.access(above, os.W_OK | os.X_OK) else f"{above} may not be written to"


def is_litter(name: str) -> bool:
    """Whether a file of this name is what a killed process left of a write."""
    return _LITTER.fullmatch(name) is not None


def sweep(folder: Path) -> None:
    """Remove the litter of killed processes. Only for the one process that writes there."""
    with contextlib.suppress(OSError):
        for path in [path for path in folder.iterdir() if is_litter(path.name)]:
            path.unlink(missing_ok=True)
