"""Features of any number of pictures, with bounded memory, resumable.

>>> import numpy as np, ressl
>>> from ressl.nn import build_backbone
>>> from ressl.transform import Transform
>>> model = build_backbone("resnet10", "small", width=4).eval()  # or the path of a run
>>> transform = Transform(size=16, resize=16, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
>>> ressl.embed((model, transform), np.zeros((3, 16, 16, 3), np.uint8), device="cpu").features.shape
(3, 32)
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl import console
from ressl.data.arrays import FloatSource
from ressl.data.base import ArraySource, FileSource, Source
from ressl.data.cutting import centre
from ressl.data.decode import BrokenImage, shown
from ressl.data.unread import file_keys
from ressl.encoder import Encoder, Images, Model, open_images
from ressl.engine.loop import Display
from ressl.errors import ResslError
from ressl.featurefiles import (
    Floats,
    Part,
    Parts,
    broken_list,
    check_ending,
    no_part,
    open_features,
    read_broken,
    read_facts,
    write_broken,
    write_features,
)
from ressl.files import stamp
from ressl.pretraining import default_workers

PART = 1024  # samples, rounded up to whole batches; the most that a stopped process loses
_TASK = 16  # pictures a worker decodes in one go
_AHEAD = 3  # batches decoded while the device works


@dataclass(frozen=True)
class Embeddings:
    """What :func:`embed` found."""

    paths: Sequence[str]  # the name of each row
    broken: dict[str, str]  # pictures that could not be read, with the reason
    dim: int
    out: Path | None = None
    seconds: float = 0.0  # from the first picture on, when the model was ready
    rows: Floats | None = None  # where they were not written to a file

    @cached_property
    def features(self) -> Floats:
        """N x D float32; of an .npy mapped from the file, of a .parquet read when first asked for."""
        if self.rows is not None:
            return self.rows
        assert self.out is not None
        return open_features(self.out).read()


def embed(
    model: Model | Encoder,
    images: Images,
    out: str | Path | None = None,
    *,
    device: str = "auto",
    precision: str = "auto",
    workers: int | None = None,
    batch_size: int = 256,
    display: Display | None = None,
) -> Embeddings:
    """The features of ``images``, row by row, in the order of their paths.

    Args:
        model: what :func:`ressl.load` takes, or what it gives.
        images: a folder, a picture, a .txt with a path per line, an .npy or .npz, a list of paths, or an array
            (N x H x W x 3 uint8; a tensor may be N x 3 x H x W, too).
        out: ``.npy`` or ``.parquet``. A call that was stopped goes on where it was when it is made again. Without it,
            the features are kept in memory only.
        device: the GPU when there is one, unless told.
        precision: bf16 on a GPU, else fp32, unless told.
        workers: threads that decode; they change the speed and nothing else.
        batch_size: pictures per forward.
        display: where progress goes.
    """
    if batch_size < 1 or (workers is not None and workers < 0):
        raise ResslError(f"batch_size must be at least 1 and workers at least 0, not {batch_size} and {workers}")
    place = None if out is None else Path(out)
    if place is not None:
        check_ending(place)
    source = open_images(images)
    encoder = model if isinstance(model, Encoder) else Encoder(model, device, precision)
    workers = default_workers() if workers is None else workers
    file = Path(images) if isinstance(images, (str, os.PathLike)) and Path(images).is_file() else None
    job = _Job(source, file, encoder, workers, batch_size, display or console.Silent())
    start = time.monotonic()
    found = _in_memory(job) if place is None else _to_file(job, place)
    return replace(found, seconds=time.monotonic() - start)


@dataclass(frozen=True)
class _Job:
    source: Source
    file: Path | None  # that the pictures are in or listed in
    encoder: Encoder
    workers: int
    batch_size: int
    display: Display

    def digest(self) -> str:
        """Two jobs with the same digest give the same rows. Files are told by size and time of change."""
        encoder, source = self.encoder, self.source
        facts = [encoder.weights, encoder.device.type, str(encoder.dtype), repr(encoder.transform), self.batch_size]
        hasher = hashlib.sha256(json.dumps([*facts, self.step, len(source), type(source).__name__]).encode())
        for key in _keys(source, self.file):
            hasher.update(key)
        return hasher.hexdigest()

    @property
    def step(self) -> int:
        """Samples of a part: whole batches, so that what is in a batch depends on the sample numbers alone."""
        return -(-PART // self.batch_size) * self.batch_size

    @property
    def numbers(self) -> range:
        return range(-(-len(self.source) // self.step))

    def parts(self, numbers: Sequence[int]) -> Generator[Part]:
        """The features of these parts in turn; pictures of the next are decoded while one is put away."""
        with closing(self._batches(bounds for number in numbers for bounds in self._bounds(number))) as batches:
            for number in numbers:
                yield self._part(number, batches)

    def _part(self, number: int, batches: Iterator[_Batch]) -> Part:
        ids, features, broken = list[Tensor](), list[Tensor](), dict[str, str]()
        for (_, last), (found, images, bad) in zip(self._bounds(number), batches, strict=False):  # its own, no more
            if len(found):
                features.append(self.encoder(images))
                ids.append(found)
            broken |= bad
            self.display.busy("embedding", last, len(self.source))
        return Part(torch.cat(ids), torch.cat(features).cpu(), broken) if ids else no_part()._replace(broken=broken)

    def _bounds(self, number: int) -> list[tuple[int, int]]:
        """First sample and end of each batch of a part."""
        first = number * self.step
        end = min(first + self.step, len(self.source))
        return [(b, min(b + self.batch_size, end)) for b in range(first, end, self.batch_size)]

    def _batches(self, bounds: Iterator[tuple[int, int]]) -> Generator[_Batch]:
        size, resize = self.encoder.transform.size, self.encoder.transform.resize
        if isinstance(self.source, ArraySource | FloatSource) and self.source.size == (size, size) and resize == size:
            for first, last in bounds:
                yield torch.arange(first, last), _rows(self.source, first, last), {}
            return
        pool, waiting = ThreadPoolExecutor(max(self.workers, 1)), deque[list[Future[list[_Read]]]]()
        try:
            for first, last in bounds:
                waiting.append([pool.submit(self._read, i, min(i + _TASK, last)) for i in range(first, last, _TASK)])
                if len(waiting) >= _AHEAD:
                    yield _collect(waiting.popleft())
            while waiting:
                yield _collect(waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)  # who is stopped does not wait for what is still to be decoded

    def _read(self, first: int, last: int) -> list[_Read]:
        transform, found = self.encoder.transform, list[_Read]()
        for index in range(first, last):
            try:
                with self.source.open(index) as picture:
                    found.append((index, centre(picture, transform.size, transform.resize)))
            except BrokenImage as error:
                found.append((index, error))
        return found


_Read = tuple[int, "NDArray[np.uint8] | BrokenImage"]
_Batch = tuple[Tensor, Tensor, dict[str, str]]  # sample numbers, pixels, what could not be read


def _collect(tasks: list[Future[list[_Read]]]) -> _Batch:
    found = [item for task in tasks for item in task.result()]
    good = [(i, pixels) for i, pixels in found if not isinstance(pixels, BrokenImage)]
    broken = {error.path: error.reason for _, error in found if isinstance(error, BrokenImage)}
    ids = torch.tensor([i for i, _ in good], dtype=torch.int64)
    if not good:
        return ids, torch.empty(0, 3, 0, 0, dtype=torch.uint8), broken
    return ids, torch.from_numpy(np.stack([pixels for _, pixels in good])).permute(0, 3, 1, 2), broken


def _rows(source: ArraySource | FloatSource, first: int, last: int) -> Tensor:
    return source.images[first:last] if isinstance(source, ArraySource) else source.block(first, last)


def _keys(source: Source, file: Path | None) -> Iterator[bytes | memoryview]:
    """What tells these pictures from others."""
    if isinstance(source, FileSource):
        yield from file_keys(source, range(len(source)))
    elif file is not None:  # an array: it may be larger than the memory, and long to read
        yield stamp(file).encode()
    elif isinstance(source, ArraySource):
        yield str(source.size).encode()
        for first in range(0, len(source), PART):
            yield source.images[first : first + PART].permute(0, 2, 3, 1).contiguous().numpy().data
    else:
        for index in range(len(source)):
            with suppress(BrokenImage):
                yield b"%d\0" % index + source.read(index).tobytes()


def _in_memory(job: _Job) -> Embeddings:
    parts = list(job.parts(job.numbers))
    broken = {name: reason for part in parts for name, reason in part.broken.items()}
    if not any(len(part.ids) for part in parts):
        raise _none_read(job, broken)
    features = torch.cat([part.features for part in parts if len(part.ids)]).numpy()
    paths = [job.source.identify(int(i)) for part in parts for i in part.ids]
    return Embeddings(paths, broken, features.shape[1], rows=features)


def _none_read(job: _Job, broken: dict[str, str]) -> ResslError:
    name, reason = next(iter(broken.items()))
    if len(job.source) == 1:
        return ResslError(f"{shown(name)} cannot be read: {reason}")
    return ResslError(f"none of the {len(job.source):,} pictures can be read (the first: {shown(name)}: {reason})")


def _to_file(job: _Job, out: Path) -> Embeddings:
    digest = job.digest()
    parts = Parts(out, digest)
    if out.exists():
        if read_facts(out).get("job") != digest:
            raise ResslError(
                f"{shown(out)} exists already, and was made from other pictures, by another model or with other "
                "settings; choose another -o"
            )
        job.display.message(f"{shown(out)} is there already and up to date")
        parts.remove()
        return _found(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        done = {n: (len(part.ids), part.broken) for n in job.numbers if (part := parts.get(n)) is not None}
        missing = [number for number in job.numbers if number not in done]
        if done:
            job.display.message(f"{len(done):,} of {len(job.numbers):,} parts are there already; going on")
        with closing(job.parts(missing)) as made:
            for number, part in zip(missing, made, strict=True):
                parts.put(number, part)
                done[number] = len(part.ids), part.broken
        broken = {name: reason for number in job.numbers for name, reason in done[number][1].items()}
        if not any(rows for rows, _ in done.values()):
            parts.remove()
            raise _none_read(job, broken)
        facts: dict[str, Any] = {"job": digest, "model": job.encoder.name, "weights": job.encoder.weights}
        facts |= {"broken": len(broken), "folder": os.getcwd()}  # paths may be relative to it
        write_broken(out, broken)
        if broken:
            job.display.message(f"{len(broken):,} broken files left out, listed in {shown(broken_list(out))}")
        write_features(out, lambda: map(parts.require, job.numbers), job.source.identify, facts)
        parts.remove()
    except OSError as error:
        raise ResslError(f"cannot write {shown(out)}: {error.strerror}") from error
    return _found(out)


def _found(out: Path) -> Embeddings:
    file = open_features(out)
    return Embeddings(file.paths, read_broken(out) if file.facts.get("broken") else {}, file.dim, out)
