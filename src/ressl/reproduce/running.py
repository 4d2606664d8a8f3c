"""Making the runs of a table that the ledger does not have, one after the other or several at once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ressl.data.sources import parse_data
from ressl.engine.loop import Display
from ressl.errors import ResslError
from ressl.evaluating import evaluate
from ressl.pretraining import pretrain
from ressl.reproduce.grid import Job
from ressl.reproduce.ledger import write_record
from ressl.reproduce.workers import at_once
from ressl.runs import Run


@dataclass(frozen=True)
class Place:
    """Where things lie and run."""

    data: str | None = None  # a folder with a folder per data set; None: as 'ressl pretrain' finds them
    runs: str = "runs/reproduce"
    into: str = "results"
    device: str = "auto"
    jobs: int = 1  # at once

    def data_of(self, job: Job) -> str | None:
        """Where a job's own data lies; None leaves it to the data set, or to the run that has been there."""
        return None if job.at else self._folder(job.recipe.data)

    def own_data(self, job: Job) -> str | None:
        """The same as ``NAME=PATH``, for an evaluation: it is told which set lies there."""
        place = self.data_of(job)
        return None if place is None else f"{job.recipe.data}={place}"

    def other_data(self, job: Job) -> str:
        """The other data that a job's number is measured on, as ``NAME=PATH``."""
        kind, place = parse_data(job.cell.on)
        place = place or self._folder(kind)
        return kind if place is None else f"{kind}={place}"

    def check(self, job: Job) -> None:
        """Say what is missing before hours have passed."""
        if not job.trained(self.runs) or not job.cell.on:
            self.data_of(job)
        if job.cell.on:
            self.other_data(job)

    def _folder(self, name: str) -> str | None:
        if self.data is None:
            return None
        own = Path(self.data) / name
        if not own.is_dir():
            raise ResslError(f"{self.data} has no folder '{name}'; put the data set there")
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
    if not job.trained(place.runs):
        begun = (folder / "recipe.json").exists()
        data = place.data_of(job)
        try:
            pretrain(job.recipe, data=data, out=folder, resume=begun, device=place.device, display=display)
        finally:
            _note_company(Run(folder), place.jobs)
    run = Run.open(folder)
    if job.cell.on:
        evaluate(run, "svm", data=place.other_data(job), device=place.device, display=display)
    else:
        for protocol in ("linear", "knn"):
            evaluate(run, protocol, data=place.own_data(job), device=place.device, display=display)
    record: dict[str, Any] = json.loads(write_record(run, place.into).read_text(encoding="utf-8"))
    return record


def _note_company(run: Run, jobs: int) -> None:
    """How many runs had the machine at once, at the most: the speed of one among others is not its speed."""
    if (run.path / "recipe.json").exists():
        run.note({"jobs": max(jobs, run.facts.get("jobs", 1))})


def _make_quietly(place: Place, job: Job) -> dict[str, Any]:
    return make(job, place, Quiet())


def make_all(
    todo: Iterable[Job], place: Place, display: Callable[[Job], Display]
) -> Iterator[tuple[Job, dict[str, Any] | ResslError]]:
    """Every job with its record or what went wrong, as they are done: one that fails does not keep the others waiting.

    A run that is stopped half-way is continued the next time.
    """
    if place.jobs > 1:
        yield from at_once(partial(_make_quietly, place), todo, place.jobs)
        return
    for job in todo:
        try:
            found: dict[str, Any] | ResslError = make(job, place, display(job))
        except (ResslError, OSError) as error:
            found = ResslError(str(error))
        yield job, found


def in_time(todo: Iterable[Job], seconds: float, takes: Callable[[Job], float]) -> Iterator[Job]:
    """Those that will be done within ``seconds``, going by what each ``takes``; what does not fit is passed over."""
    end = time.monotonic() + seconds
    for job in todo:
        if time.monotonic() + takes(job) < end:
            yield job
