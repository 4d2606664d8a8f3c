"""Pictures read once and asked for again: a run is evaluated after its training, a table has many runs on one set."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from torch import Tensor

from ressl.memory import local_processes, ram

FEW = 1000  # pictures that are read again in no time
SHARE = 8  # of the memory, an eighth for all that is remembered


class Remembered:
    """Decoded pictures by the names of their files and how they were read; the last used ones, as many as have room.

    They count as long as every file is the one that it was, by its place on the disk, size and times. Whoever gets them
    must not write into them.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, Tensor]] = OrderedDict()

    def find(self, files: Sequence[str], how: object) -> Tensor | None:
        """Pictures of those files, read in that way; None where they are not known or have changed."""
        if len(files) < FEW:
            return None
        known = self._kept.pop(name := _named(files, how), None)
        if known is None or known[0] != _stamped(files):
            return None
        self._kept[name] = known  # as the last one used
        return known[1]

    def keep(self, files: Sequence[str], how: object, images: Tensor, stamps: str) -> None:
        """Remember what was read after the files were ``stamps`` (see :meth:`stamps`)."""
        room = ram() // SHARE // local_processes()
        if not stamps or images.nbytes > room:
            return
        self._kept[_named(files, how)] = stamps, images
        while sum(kept.nbytes for _, kept in self._kept.values()) > room:
            self._kept.popitem(last=False)

    def stamps(self, files: Sequence[str]) -> str:
        """What tells these files from changed ones, to be asked for before they are read; nothing for a few."""
        return _stamped(files) if len(files) >= FEW else ""

    def forget(self) -> None:
        self._kept.clear()


def _named(files: Sequence[str], how: object) -> str:
    return _digest((repr(how), *map(os.path.abspath, files)))


def _stamped(files: Sequence[str]) -> str:
    """Nothing where one of them is not there."""
    found = []
    for file in files:
        try:
            at = os.stat(file)
        except OSError:  # whoever reads it will say so
            return ""
        found.append(f"{at.st_dev} {at.st_ino} {at.st_size} {at.st_mtime_ns} {at.st_ctime_ns}")
    return _digest(found)


def _digest(texts: Iterable[str]) -> str:
    hasher = hashlib.sha256()
    for text in texts:
        hasher.update(os.fsencode(text) + b"\0")
    return hasher.hexdigest()


REMEMBERED = Remembered()
