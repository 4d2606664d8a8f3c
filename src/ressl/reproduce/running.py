"""Making the runs of a table that the ledger does not have, one after the other or several at once."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ressl.engine.loop import Display
from ressl.errors import ResslError
from ressl.evaluating import evaluate
from ressl.pretraining import pretrain
from ressl.reproduce.grid import Job
from ressl.reproduce.ledger import write_record
from ressl.runs import Run


@dataclass(frozen=True)
class Place:
    """Where things lie and run."""

    data: str | None = None  # a folder with a folder per data set; None: as 'ressl pretrain' finds them
    runs: str = "runs/reproduce"
    into: str = "results"
    device: str = "auto"

    def data_of(self, job: Job) -> str | None:
        if self.data is None:
            return None
        own = Path(self.data) / job.recipe.data
        if not own.is_dir():
            raise ResslError(f"{self.data} has no folder '{job.recipe.data}'; put the data set there")
        return str(own)


class Quiet:
    """A display that passes on nothing but messages."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.message = say

    def progress(self, done: int, total: int, values: dict[str, float]) -> None: ...

    def busy(self, what: str, done: int, total: int) -> None: ...


def make(job: Job, place: Place, display: Display) -> dict[str, Any]:
    """Train (or go on where it was interrupted), evaluate and record one job; returns its record."""
    folder = job.folder(place.runs)
    data = place.data_of(job)
    begun = (folder / "recipe.json").exists()
    if not begun or "finished" not in Run.open(folder).facts:
        pretrain(job.recipe, data=data, out=folder, resume=begun, device=place.device, display=display)
    run = Run.open(folder)
    for protocol in ("linear", "knn"):
        evaluate(run, protocol, data=data, device=place.device)
    record: dict[str, Any] = json.loads(write_record(run, place.into).read_text(encoding="utf-8"))
    return record


def _make_quietly(job: Job, place: Place) -> dict[str, Any]:
    return make(job, place, Quiet())


def make_all(
    todo: Sequence[Job], place: Place, at_once: int, display: Callable[[Job], Display]
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Every job with its record, as they are done. A run that is stopped half-way is continued the next time."""
    if at_once == 1:
        for job in todo:
            yield job, make(job, place, display(job))
        return
    # Fresh processes: a forked one would inherit a CUDA context that it cannot use.
    with ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_make_quietly, job, place): job for job in todo}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
