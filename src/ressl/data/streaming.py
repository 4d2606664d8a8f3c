"""Pictures too many or too different to hold: worker processes decode and crop them, the device does the rest."""

from __future__ import annotations

import contextlib
import math
import re
import signal
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.util import Finalize
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from torch.utils.data._utils import signal_handling

from ressl import rng
from ressl.data.base import Source
from ressl.data.batches import Batch, CropView, Loader
from ressl.data.cutting import cut
from ressl.data.decode import Bitmap, BrokenImage, Picture, shown
from ressl.data.reading import BROKEN_LIMIT
from ressl.errors import ResslError

# The share of broken files is judged once this many were seen (or all, where there are fewer): among a handful, one
# more or less would decide.
_JUDGED_AFTER = 1000
_SOON = 2.0  # seconds
_TOGETHER = 16  # pictures open at once in a worker
_Cut = tuple[int, list[NDArray[np.uint8]]]  # which picture, and its crops


class TooManyBroken(ResslError):
    """More of the pictures are broken than a run should go on with."""


class LostWorker(ResslError):
    """A loader worker died, which is nobody's mistake here: it may go better another time."""


class _Job(NamedTuple):
    step: int  # counted through all epochs
    ids: list[int]


class _Made(NamedTuple):
    ids: Tensor  # as asked for, but for broken files
    crops: list[Tensor]
    broken: dict[str, str]
    error: str | None = None  # an exception from a worker would arrive with its traceback in the message


class _Jobs(Sampler[_Job]):
    def __init__(self, loader: StreamingLoader) -> None:
        self._loader: StreamingLoader = weakref.proxy(loader)  # which has this one
        self.epoch, self.start = 0, 0

    def __iter__(self) -> Iterator[_Job]:
        loader, epoch = self._loader, self.epoch
        order, rows = loader.order(epoch).cpu(), loader.rows.cpu()  # once: asked step by step, the device would wait
        for step in range(self.start, loader.steps_per_epoch):
            ids = order[step * loader.batch_size + rows].tolist()
            yield _Job(epoch * loader.steps_per_epoch + step, ids)


class _Cutter(Dataset[_Made]):
    """Makes a whole batch; lives in the workers, and knows nothing of which worker it is in."""

    def __init__(self, source: Source, views: Sequence[CropView], seed: int, rows: Tensor) -> None:
        self.source, self.views, self.seed, self.rows = source, views, seed, rows
        self.sizes = [view.size for view in views]

    def __getitem__(self, job: _Job) -> _Made:
        draws = [
            rng.uniform(self.seed, job.step, self.rows, view.COLUMNS, rng.VIEWS + v)
            for v, view in enumerate(self.views)
        ]
        crops = [_empty(len(job.ids), size, size, 3) for size in self.sizes]
        filled, index, broken = [crop.numpy() for crop in crops], list[int](), dict[str, str]()
        try:
            for first in range(0, len(job.ids), _TOGETHER):
                some = slice(first, first + _TOGETHER)
                for found, pieces in self._pieces(job.ids[some], [u[some] for u in draws], broken):
                    for crop, piece in zip(filled, pieces, strict=True):
                        crop[len(index)] = piece
                    index.append(found)
        except ResslError as error:
            return _Made(torch.tensor(index), [], broken, str(error))
        return _Made(torch.tensor(index), [crop.permute(0, 3, 1, 2) for crop in crops], broken)

    def _pieces(self, samples: list[int], draws: list[Tensor], broken: dict[str, str]) -> Iterator[_Cut]:
        """The crops of each sample, or of the next one that can be read, and which it was.

        All are opened first: boxes depend on sizes, and cost as much for one picture as for many.
        """
        opened = deque(self._opened(sample, 0, broken) for sample in samples)
        try:
            height, width = (torch.tensor([getattr(one, side) for _, one in opened]) for side in ("height", "width"))
            boxes = [view.boxes(u, height, width).tolist() for view, u in zip(self.views, draws, strict=True)]
            for j, sample in enumerate(samples):
                offset, picture = opened.popleft()  # and with it, in the end, its pixels
                try:
                    with picture:
                        pieces = cut(picture, [rows[j] for rows in boxes], self.sizes)
                    yield self._index(sample, offset), pieces
                except BrokenImage as error:
                    broken[error.path] = error.reason
                    yield self._next(sample, offset + 1, [u[j : j + 1] for u in draws], broken)
        finally:
            for _, picture in opened:
                picture.__exit__()

    def _next(self, sample: int, offset: int, draws: list[Tensor], broken: dict[str, str]) -> _Cut:
        """The same of one sample, from the ``offset``-th picture behind it on."""
        while True:
            offset, picture = self._opened(sample, offset, broken)
            try:
                with picture:
                    size = picture.height, picture.width
                    boxes = [view.boxes(u, *size)[0].tolist() for view, u in zip(self.views, draws, strict=True)]
                    return self._index(sample, offset), cut(picture, boxes, self.sizes)
            except BrokenImage as error:
                broken[error.path] = error.reason
                offset += 1

    def _opened(self, sample: int, offset: int, broken: dict[str, str]) -> tuple[int, Picture | Bitmap]:
        """The first picture that can be opened, ``offset`` behind the sample or later, and how far behind."""
        most = int(BROKEN_LIMIT * len(self.source))  # a longer run of broken files is beyond the limit for sure
        for behind in range(offset, most + 1):
            try:
                return behind, self.source.open(self._index(sample, behind))
            except BrokenImage as error:
                broken[error.path] = error.reason
        last = self.source.identify(self._index(sample, most))
        raise TooManyBroken(f"{most + 1:,} pictures in a row cannot be read, the last being {last}.")

    def _index(self, sample: int, offset: int) -> int:
        return (sample + offset) % len(self.source)


def _empty(*shape: int) -> Tensor:
    """uint8; in a worker in memory that it shares with the main process, where else a copy would have to be put."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    # share_memory_() would copy what is not there yet; torch's own collate asks for such a storage, too.
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(math.prod(shape))).view(shape)


def _as_it_is(made: Any) -> Any:
    return made


def _obey_the_next(signum: int) -> None:
    signal.signal(signum, signal.SIG_DFL)


def _start_worker(worker: int) -> None:
    # Ctrl-C, and what a scheduler sends before it ends a job, reach every process. The main one decides when to stop,
    # and until then it needs its workers. A second SIGTERM is its own, to a worker that is stuck.
    for name in ("SIGINT", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda signum, frame: _obey_the_next(signum))


def lost_worker(error: BaseException) -> LostWorker | None:
    """The sentence for a loader worker that died, None for any other error.

    torch raises that RuntimeError from a signal handler, so it may come up anywhere in the main thread.
    """
    text = str(error)
    if not isinstance(error, RuntimeError) or not re.search(r"DataLoader worker.*(killed|exited unexpectedly)", text):
        return None
    number = re.search(r"pid\D*(\d+)", text)
    cause = re.search(r"killed by signal: ([^.]*)", text)
    return LostWorker(
        f"loader worker {number.group(1) if number else '?'} died"
        f"{f' ({shown(cause.group(1)).strip()})' if cause else ''}, often for want of memory: resume the run, with "
        "fewer workers if it happens again."
    )


def _ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """The same batches, each on its way to the device while the step before it runs."""
    side, main = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    waiting: Batch | None = None
    while True:
        with torch.cuda.stream(side):  # only the copy is asked for here: nothing of ours runs between two yields
            coming = next(batches, None)
        if waiting is not None:
            for tensor in (waiting.index, *(waiting.crops or ()), waiting.labels):
                if tensor is not None:
                    tensor.record_stream(main)
            yield waiting
        if coming is None:
            return
        main.wait_stream(side)
        waiting = coming


class StreamingLoader(Loader):
    """Batches of crops from worker processes; the result does not depend on how many there are."""

    def __init__(
        self,
        source: Source,
        views: Sequence[CropView],
        batch_size: int,
        device: torch.device | str,
        seed: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(source, batch_size, device, seed, rank, world)
        self.source = source
        self.broken: dict[str, str] = {}  # path -> reason, of all files met so far
        self._seen = 0
        self._jobs = _Jobs(self)
        self._loader = DataLoader(
            _Cutter(source, list(views), seed, self.rows.cpu()),
            batch_size=None,
            sampler=self._jobs,
            collate_fn=_as_it_is,
            num_workers=workers,
            persistent_workers=workers > 0,
            worker_init_fn=_start_worker if workers else None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # else each epoch would draw from the global one
        )
        # Also when nobody closes it. At the end of Python a worker is sent SIGTERM, once, and waited for; but one is
        # what workers pass over. Before the queues' own ends (10), by which they are told.
        Finalize(self, _end_workers, (self._loader,), exitpriority=100)

    def iterate(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        self._jobs.epoch, self._jobs.start = epoch, start_step
        try:
            batches = (self._batch(made) for made in self._loader)
            yield from _ahead(batches, self.device) if self.device.type == "cuda" else batches
        except (RuntimeError, ConnectionError, FileNotFoundError, EOFError) as error:
            if (sentence := lost_worker(error if isinstance(error, RuntimeError) else self._end_of_one(error))) is None:
                raise
            self.close()
            raise sentence from None

    def _end_of_one(self, error: BaseException) -> BaseException:
        """For a connection that broke while a batch was fetched: the end of the worker it came from, as torch tells."""
        iterator = self._loader._iterator
        try:
            for worker in getattr(iterator, "_workers", ()):
                worker.join(_SOON / self._loader.num_workers)  # here its signal comes, if it has not come yet
                if worker.exitcode:
                    return RuntimeError(f"DataLoader worker (pid {worker.pid}) exited unexpectedly")
        except RuntimeError as told:
            return told
        return error

    def _batch(self, made: _Made) -> Batch:
        self.broken.update(made.broken)
        self._seen = min(self.samples, self._seen + len(made.ids) + len(made.broken))
        if made.error is not None:
            raise TooManyBroken(made.error)
        if len(self.broken) > BROKEN_LIMIT * max(self._seen, min(self.samples, _JUDGED_AFTER)):
            path, reason = next(iter(self.broken.items()))
            raise TooManyBroken(
                f"{len(self.broken):,} of the first {self._seen:,} pictures are broken, more than {BROKEN_LIMIT:.0%} "
                f"(the first: {BrokenImage(path, reason)})."
            )
        labels = None if self.source.labels is None else self.source.labels[made.ids]
        return Batch(
            made.ids.to(self.device, non_blocking=True),
            None,
            [crop.to(self.device, non_blocking=True) for crop in made.crops],
            None if labels is None else labels.to(self.device, non_blocking=True),
        )

    def close(self) -> None:
        """End the workers, whoever still holds an iterator."""
        _end_workers(self._loader)


def _end_workers(loader: DataLoader[_Made]) -> None:
    iterator, loader._iterator = loader._iterator, None
    if iterator is None or not loader.num_workers:
        return
    with contextlib.suppress(RuntimeError):  # of a signal that comes only now
        iterator._shutdown_workers()  # type: ignore[attr-defined]  # which at the end of Python may do nothing
    if getattr(iterator, "_worker_pids_set", False):  # else torch would take an end by us for an accident
        signal_handling._remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False  # type: ignore[attr-defined]
    left = [worker for worker in iterator._workers if worker.is_alive()]  # type: ignore[attr-defined]
    for worker in left:
        worker.kill()
    for worker in left:
        worker.join()
