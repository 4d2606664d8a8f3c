"""Reading many pictures at once: to hold them in memory, or to evaluate on them. Broken ones are dropped and listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl.data.base import ArraySource, Source
from ressl.data.cutting import centre
from ressl.data.decode import BrokenImage, shown
from ressl.data.remembered import REMEMBERED
from ressl.errors import ResslError
from ressl.memory import ram

BROKEN_LIMIT = 0.10

Progress = Callable[[int, int], None]  # how many of how many

# Threads, not processes: Pillow decodes without the interpreter lock, so large pictures use all of them, and 50,000
# small ones (where Python's part dominates) take 8 s on one core either way, with no copy between processes.
_THREADS = min(8, os.cpu_count() or 1)
_TASK = 64  # pictures per task; one by one, handing them out costs a quarter more


class SizesDiffer(ResslError):
    """Pictures that were to share one size do not."""


class Chunk(NamedTuple):
    ids: Tensor  # which samples were readable, int64
    images: Tensor  # those, n x 3 x H x W uint8
    broken: list[BrokenImage]


def check_broken(broken: Sized, total: int, where: str | Path) -> None:
    """Stop when more than a tenth of the pictures is broken. ``where`` is the file that lists them."""
    if len(broken) > BROKEN_LIMIT * total:
        raise ResslError(
            f"{len(broken):,} of {total:,} pictures are broken ({len(broken) / total:.0%}; at most {BROKEN_LIMIT:.0%} "
            f"are skipped); they are listed in {shown(where)}."
        )


def readers() -> ThreadPoolExecutor:
    """The threads that pictures are read by."""
    return ThreadPoolExecutor(_THREADS)


def in_order(
    pool: ThreadPoolExecutor, one: Callable[[int], NDArray[np.uint8]], start: int, end: int
) -> Iterator[tuple[int, NDArray[np.uint8] | BrokenImage]]:
    """Number and pixels of each picture from ``start`` to ``end``, as ``one`` reads it; in order, whoever is first."""

    def attempt(index: int) -> NDArray[np.uint8] | BrokenImage:
        try:
            return one(index)
        except BrokenImage as error:
            return error

    def some(first: int) -> list[NDArray[np.uint8] | BrokenImage]:
        return [attempt(i) for i in range(first, min(first + _TASK, end))]

    firsts = range(start, end, _TASK)
    for first, task in zip(firsts, pool.map(some, firsts), strict=True):
        yield from enumerate(task, first)


def read_chunks(
    source: Source,
    size: int | None = None,
    short_side: int | None = None,
    inner: int | None = None,
    chunk: int = 1024,
) -> Generator[Chunk]:
    """All pictures in order, a chunk at a time.

    With ``size``, pictures of another size are resized to ``short_side`` (default: ``size``) and their centre is cut
    out; ``inner`` is what will be cut out of that. Without, all must share one size.
    """
    expected = None if size is None else (size, size)

    def one(index: int) -> NDArray[np.uint8]:
        if size is None:
            return source.read(index)
        with source.open(index) as picture:
            if (picture.height, picture.width) == expected:
                return np.asarray(picture.load())
            return centre(picture, size, short_side or size, inner)

    with readers() as pool:
        for start in range(0, len(source), chunk):
            end = min(start + chunk, len(source))
            if isinstance(source, ArraySource) and expected in (None, source.size):
                yield Chunk(torch.arange(start, end), source.images[start:end], [])
                continue
            index, pixels, broken = [], [], []
            for i, found in in_order(pool, one, start, end):
                if isinstance(found, BrokenImage):
                    broken.append(found)
                    continue
                expected = expected or (found.shape[0], found.shape[1])
                if found.shape[:2] != expected:
                    raise SizesDiffer(
                        f"pictures differ in size (e.g. {_by(expected)}, and {_by(found.shape)} in "
                        f"{shown(source.identify(i))})."
                    )
                index.append(i)
                pixels.append(found)
            height, width = expected or (0, 0)
            images = torch.from_numpy(np.stack(pixels) if pixels else np.empty((0, height, width, 3), np.uint8))
            yield Chunk(torch.tensor(index, dtype=torch.int64), images.permute(0, 3, 1, 2), broken)


def _by(size: tuple[int, ...]) -> str:
    return f"{size[0]} x {size[1]}"


def _gather(
    source: Source, size: int | None, short_side: int | None, progress: Progress | None, inner: int | None = None
) -> tuple[Tensor, Tensor, list[BrokenImage]]:
    """(images, index of each, broken)."""
    files, how = source.files(), None if size is None else (size, short_side, inner)
    if (known := REMEMBERED.find(files, how)) is not None:
        return known, torch.arange(len(known)), []
    stamps = REMEMBERED.stamps(files)
    images = torch.empty(0, 3, 0, 0, dtype=torch.uint8)
    kept, parts, broken = 0, [], list[BrokenImage]()
    for part in read_chunks(source, size, short_side, inner):
        if not kept and len(part.ids):
            needed = len(source) * part.images[0].numel()
            if needed > ram() // 2:
                raise ResslError(
                    f"{len(source):,} pictures of {_by(part.images.shape[2:])} take {needed / 1e9:,.1f} GB, "
                    "more than half of the memory here; give fewer or smaller ones."
                )
            images = torch.empty(len(source), *part.images.shape[1:], dtype=torch.uint8)
        if len(part.ids):  # until then nobody knows how large they are
            images[kept : kept + len(part.ids)] = part.images
        kept += len(part.ids)
        parts.append(part.ids)
        broken += part.broken
        if progress is not None:
            progress(kept + len(broken), len(source))
    if not kept:
        raise unreadable(source, broken)
    if not broken:
        REMEMBERED.keep(files, how, images, stamps)
    return images[:kept], torch.cat(parts), broken


def unreadable(source: Source, broken: Sequence[BrokenImage]) -> ResslError:
    """The sentence for a source of which no picture can be read."""
    first = f" (the first: {broken[0]})" if broken else ""
    return ResslError(f"none of the {len(source):,} pictures of {source.name} can be read{first}.")


def pack(source: Source, progress: Progress | None = None) -> tuple[ArraySource, list[BrokenImage]]:
    """All pictures in one array, without the broken ones. Raises SizesDiffer where they do not share one size."""
    if isinstance(source, ArraySource):
        return source, []
    images, index, broken = _gather(source, None, None, progress)
    labels = None if source.labels is None else source.labels[index]
    return ArraySource(source.name, images, labels, source.classes), broken


def read_all(
    source: Source,
    size: int | None = None,
    short_side: int | None = None,
    progress: Progress | None = None,
    inner: int | None = None,
) -> tuple[Tensor, Tensor | None, list[BrokenImage]]:
    """For evaluation: images (N x 3 x H x W uint8), their labels, and the broken ones that were left out."""
    images, index, broken = _gather(source, size, short_side, progress, inner)
    return images, None if source.labels is None else source.labels[index], broken
