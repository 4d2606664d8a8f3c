"""What a data set is to the rest of the house: so many pictures, perhaps with labels, read one at a time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl.data.decode import Bitmap, BrokenImage, Picture, decode

UNLABELLED = -1  # the label of a sample without one in a set that has labels (STL-10)


class Source:
    """Pictures by index. ``labels`` (N int64, CPU) is None and ``classes`` empty when nothing is labelled."""

    name: str
    labels: Tensor | None
    classes: list[str]

    def __len__(self) -> int:
        raise NotImplementedError

    def read(self, index: int) -> NDArray[np.uint8]:
        """The picture, H x W x 3. Raises BrokenImage where it cannot be read."""
        raise NotImplementedError

    def open(self, index: int) -> Picture | Bitmap:
        """The picture for those who need its size first and perhaps not all its pixels; use it in a ``with``."""
        return Bitmap(self.read(index))

    def identify(self, index: int) -> str:
        """What to call this sample in a list: its path, or ``name[index]``."""
        return f"{self.name}[{index}]"

    def files(self) -> Sequence[str]:
        """The file of each picture; none where they do not have one each."""
        return ()

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) when all pictures share it as far as is known."""
        raise NotImplementedError


class ArraySource(Source):
    """Pictures in one tensor, N x 3 x H x W uint8; it may be a view of a file mapped into memory."""

    def __init__(self, name: str, images: Tensor, labels: Tensor | None = None, classes: Sequence[str] = ()) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be uint8 N x 3 x H x W, not {images.dtype} {tuple(images.shape)}")
        if labels is not None and labels.shape != images.shape[:1]:
            raise ValueError(f"{len(images)} images but labels of shape {tuple(labels.shape)}")
        self.name, self.images, self.labels, self.classes = name, images, labels, list(classes)

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = self.images[index].permute(1, 2, 0).contiguous().numpy()
        return picture

    @property
    def size(self) -> tuple[int, int]:
        return self.images.shape[2], self.images.shape[3]


class Paths(Sequence[str]):
    """Many paths in one buffer.

    A list of 1.3 million strings is copied page by page into every worker process as its reference counts change;
    two arrays are shared by all of them.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        encoded = [os.fsencode(path) for path in paths]
        self._ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self._bytes = np.frombuffer(b"".join(encoded), dtype=np.uint8)

    @classmethod
    def of_arrays(cls, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> Paths:
        """From what ``arrays`` gave; raises ValueError where the two do not fit."""
        if len(ends) < 1 or ends[0] != 0 or ends[-1] != len(data) or (np.diff(ends) < 0).any():
            raise ValueError("the ends do not fit the bytes")
        made = cls(())
        made._bytes, made._ends = data, ends
        return made

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """All names end to end, and where each begins (the last entry: where all end)."""
        return self._bytes, self._ends

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(index)
        return os.fsdecode(self._bytes[self._ends[at] : self._ends[at + 1]].tobytes())

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))


class FileSource(Source):
    """Picture files, opened when asked for and not before."""

    def __init__(
        self, name: str, paths: Iterable[str], labels: Tensor | None = None, classes: Sequence[str] = ()
    ) -> None:
        self.paths = paths if isinstance(paths, Paths) else Paths(paths)
        if labels is not None and len(labels) != len(self.paths):
            raise ValueError(f"{len(self.paths)} paths but {len(labels)} labels")
        self.name, self.labels, self.classes = name, labels, list(classes)
        self._sizes: list[tuple[int, int]] | None = None

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> NDArray[np.uint8]:
        return decode(self.paths[index])

    def open(self, index: int) -> Picture:
        return Picture(self.paths[index])

    def raw(self, index: int) -> bytes:
        """The file as it lies there."""
        with open(self.paths[index], "rb") as file:
            return file.read()

    def identify(self, index: int) -> str:
        return self.paths[index]

    def files(self) -> Sequence[str]:
        return self.paths if type(self) is FileSource else ()  # others may make something else of them

    def take(self, index: Tensor) -> FileSource:
        """Some of the pictures, by their numbers."""
        labels = None if self.labels is None else self.labels[index]
        return FileSource(self.name, [self.paths[i] for i in index.tolist()], labels, self.classes)

    def sample_sizes(self, at_most: int = 256) -> list[tuple[int, int]]:
        """(height, width) of evenly spaced files, in order; broken files are passed over."""
        if self._sizes is None:
            self._sizes = []
            for index in np.linspace(0, len(self) - 1, min(at_most, len(self)), dtype=np.int64):
                with contextlib.suppress(BrokenImage), self.open(int(index)) as picture:
                    self._sizes.append((picture.height, picture.width))
        return self._sizes

    @property
    def size(self) -> tuple[int, int] | None:
        """Decided by looking at a sample of the headers, so a later file may still differ."""
        sizes = set(self.sample_sizes())
        return sizes.pop() if len(sizes) == 1 else None
