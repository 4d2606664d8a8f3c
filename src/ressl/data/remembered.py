"""Pictures read once and asked for again: a run is evaluated after its training, a table has many runs on one set."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from torch import Tensor

from ressl.files import stamp
from ressl.memory import local_processes, ram

FEW = 1000  # pictures that are read again in no time
SHARE = 8  # of the memory, an eighth for all that is remembered


class Remembered:
    """Decoded pictures by the names of their files and how they were read; the last used ones, as many as have room.

    They count as long as every file has the size and time that it had. Whoever gets them must not write into them.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[str, Tensor]] = OrderedDict()

    def find(self, files: Sequence[str], how: object) -> Tensor | None:
        """Pictures of those files, read in that way; None where they are not known or have changed."""
        if len(files) < FEW:
            return None
        name = _digest(repr(how), files)
        if name not in self._kept:
            return None
        stamps, images = self._kept.pop(name)
        if stamps != _digest("", map(stamp, files)):
            return None
        self._kept[name] = stamps, images  # as the last one used
        return images

    def keep(self, files: Sequence[str], how: object, images: Tensor, began: int) -> None:
        """Remember what was read since ``began`` (ns since 1970); files that changed after it may have been either."""
        room = ram() // SHARE // local_processes()
        if len(files) < FEW or images.nbytes > room:
            return
        stamps = [stamp(file) for file in files]
        if not all(stamps) or max(int(one.split("\0")[1]) for one in stamps) >= began:
            return
        self._kept[_digest(repr(how), files)] = _digest("", stamps), images
        while sum(kept.nbytes for _, kept in self._kept.values()) > room:
            self._kept.popitem(last=False)

    def forget(self) -> None:
        self._kept.clear()


def _digest(first: str, texts: Iterable[str]) -> str:
    hasher = hashlib.sha256(first.encode())
    for text in texts:
        hasher.update(b"\0\0" + os.fsencode(text))
    return hasher.hexdigest()


REMEMBERED = Remembered()
