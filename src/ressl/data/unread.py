"""Pictures that are too many to hold: they stay in their files and are read when asked for, a few at a time."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl.data.base import ArraySource, FileSource, Source
from ressl.data.decode import Bitmap, BrokenImage, Picture
from ressl.data.reading import Chunk, Progress, read_all, read_chunks, readers
from ressl.data.shards import ShardSource
from ressl.errors import ResslError
from ressl.files import stamp
from ressl.memory import ram, shown_bytes

CHUNK = 1024  # pictures that are read together: 200 MB at 256 px
_TASK = 256  # headers per task


def may_be_held(device: torch.device) -> int:
    """Bytes of pictures that are held whole: half of the memory here, and half of what is free on the device.

    What PyTorch keeps there of earlier work is free, too: else a share of the pictures would fit until another was
    trained on.
    """
    here = ram() // 2
    if device.type != "cuda":
        return here
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(here, (torch.cuda.mem_get_info(device)[0] + kept) // 2)


class Part(Source):
    """Some pictures of a source by their numbers, with labels of their own; nothing is read or copied for it."""

    def __init__(self, source: Source, ids: Tensor, labels: Tensor | None = None) -> None:
        self.source: Source = source.source if isinstance(source, Part) else source
        self.ids: Tensor = source.ids[ids] if isinstance(source, Part) else ids
        self.name, self.labels, self.classes = source.name, labels, source.classes

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, index: int) -> NDArray[np.uint8]:
        return self.source.read(int(self.ids[index]))

    def open(self, index: int) -> Picture | Bitmap:
        return self.source.open(int(self.ids[index]))

    def identify(self, index: int) -> str:
        return self.source.identify(int(self.ids[index]))

    def files(self) -> list[str]:
        files = self.source.files()
        return [files[i] for i in self.ids.tolist()] if files else []

    @property
    def size(self) -> tuple[int, int] | None:
        return self.source.size


class Unread:
    """N x 3 x H x W uint8 to those who ask for some of them, as a tensor is; the rest stays where it lies.

    With ``side`` they are read at side x side, so that the middle ``inner`` of it is the picture's own; without, as
    they are, and all must share one size.
    """

    def __init__(self, source: Part, side: int | None, inner: int, device: torch.device | str = "cpu") -> None:
        self.source, self.side, self.inner, self.device = source, side, inner, torch.device(device)
        size = source.size if side is None else (side, side)
        assert size is not None
        self.shape = torch.Size((len(source), 3, *size))

    def __len__(self) -> int:
        return len(self.source)

    @property
    def bytes(self) -> int:
        return self.shape.numel()

    def to(self, device: torch.device | str) -> Unread:
        """The same, to be handed out there."""
        return Unread(self.source, self.side, self.inner, device)

    def take(self, index: Tensor) -> Unread:
        """Some of them, unread."""
        return Unread(Part(self.source, index.cpu()), self.side, self.inner, self.device)

    def chunks(self) -> Generator[Chunk]:
        """All of them in order, in memory; a chunk is read while the one before it is worked on."""
        return _ahead(read_chunks(self.source, self.side, inner=self.inner, chunk=CHUNK))

    def read(self, index: Tensor, progress: Progress | None = None) -> tuple[Tensor, Tensor, dict[str, str]]:
        """Some of them on the device, which of ``index`` they are, and what is broken: path and reason."""
        self.check_room(len(index))
        some = Part(self.source, index.cpu(), torch.arange(len(index)))
        images, which, broken = read_all(some, self.side, progress=progress, inner=self.inner)
        assert which is not None
        found = {error.path: error.reason for error in broken}
        return images.to(self.device), which.to(self.device), found

    def check_room(self, count: int, advice: str = "ask for fewer") -> None:
        """Raise where so many cannot be held together."""
        needed, most = count * self.shape[1:].numel(), may_be_held(self.device)
        if needed > most:
            raise ResslError(
                f"{count:,} pictures of {self.shape[2]} x {self.shape[3]} take {shown_bytes(needed)}, and "
                f"{shown_bytes(most)} may be held at once here; {advice}."
            )

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """Those numbers, whatever shape they have. A broken one among them is an error: there is nothing to give."""
        numbers = torch.arange(len(self))[index] if isinstance(index, slice) else index.cpu()
        once, where = numbers.flatten().unique(return_inverse=True)  # a picture may be asked for more than once
        images, _, broken = self.read(once)
        if broken:
            raise BrokenImage(*next(iter(broken.items())))
        return images[where.to(self.device)].reshape(*numbers.shape, *images.shape[1:])


def _ahead(chunks: Generator[Chunk]) -> Generator[Chunk]:
    """The same chunks, the next one being made meanwhile."""
    with closing(chunks), ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, chunks, None)
        while (found := coming.result()) is not None:
            coming = pool.submit(next, chunks, None)
            yield found
            del found  # while the next is waited for, nobody needs it


def share_a_size(source: Source) -> bool:
    """Whether all pictures have one size by their headers: a sample of them may have missed the one that differs."""

    def sizes(first: int) -> set[tuple[int, int]]:
        found = set()
        for index in range(first, min(first + _TASK, len(source))):
            try:
                with source.open(index) as picture:
                    found.add((picture.height, picture.width))
            except BrokenImage:  # whoever reads it will say so
                continue
        return found

    with readers() as pool:
        return len(set().union(*pool.map(sizes, range(0, len(source), _TASK)))) <= 1


def digest(pictures: Unread) -> str:
    """Of what they are, not of their pixels: of names, sizes and times of the files that they lie in."""
    part = pictures.source
    hasher = hashlib.sha256(repr((type(part.source).__name__, pictures.shape, pictures.side, pictures.inner)).encode())
    hasher.update(part.ids.numpy().tobytes())
    for key in _keys(part.source, part.ids):
        hasher.update(key)
    return hasher.hexdigest()


def _keys(source: Source, ids: Tensor) -> Iterator[bytes]:
    if isinstance(source, ArraySource):  # it has no name; but its bytes are read much faster than files are decoded
        yield from (some.contiguous().numpy().tobytes() for some in source.images.split(CHUNK))
        return
    assert isinstance(source, FileSource)
    yield from file_keys(source, ids.tolist())


def file_keys(source: FileSource, ids: Sequence[int]) -> Iterator[bytes]:
    """What tells pictures in files from others: names, sizes and times; of those in shards, the shards' and where."""
    for path in source.shards if isinstance(source, ShardSource) else (source.paths[i] for i in ids):
        yield os.fsencode(f"{path}\0{stamp(path)}")
    if isinstance(source, ShardSource):
        yield source.place[ids].tobytes()
