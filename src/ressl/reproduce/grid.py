"""From a table to its numbers: which runs it needs, which of them the ledger has, and how the rest are made."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ressl.data.sources import DATA_SETS, label_of, parse_data
from ressl.errors import ResslError
from ressl.measuring import place_of
from ressl.recipes import Recipe, get_recipe
from ressl.reproduce.figures import Figure
from ressl.reproduce.ledger import identity
from ressl.reproduce.schema import read_record
from ressl.reproduce.tables import Cell, Elsewhere, Table
from ressl.runs import Run

Named = TypeVar("Named", Cell, Elsewhere)
LINEAR = "linear"
QUICK_LINEAR = 20  # epochs of a quick run's linear evaluation


@dataclass(frozen=True)
class Job:
    """One run of one cell."""

    cell: Cell
    recipe: Recipe
    at: str = ""  # a run that is there already, wherever it lies

    @cached_property
    def key(self) -> str:
        return identity(self.recipe)

    @property
    def name(self) -> str:
        place = self.recipe.name if self.cell.on else self.cell.column  # one run has all columns of low-shot SVMs
        return f"{self.cell.row}, {place}, seed {self.recipe.seed}"

    @cached_property
    def lengths(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """(epochs, epochs of the linear evaluation) of this run and of the cell's own; a given run is as it is."""
        own = self.recipe if self.at else get_recipe(self.cell.recipe).replace(**self.cell.changes)
        return (self.recipe.epochs, self.recipe.linear.epochs), (own.epochs, own.linear.epochs)

    @property
    def shortened(self) -> bool:
        run, own = self.lengths
        return any(made < wanted for made, wanted in zip(run, own, strict=True))

    @property
    def paper(self) -> float | None:
        """The paper's number, if this run may be measured by it: one of other epochs is another experiment."""
        run, own = self.lengths
        return self.cell.paper if run == own else None

    def folder(self, root: str | Path) -> Path:
        """Where its run lies: the same place every time, so that an interrupted one is found again."""
        if self.at:
            return Path(self.at)
        return Path(root) / f"{self.recipe.name}-{self.recipe.method}-s{self.recipe.seed}-{self.key[:10]}"

    def trained(self, root: str | Path) -> bool:
        return "finished" in Run(self.folder(root)).facts


def _plain(words: str) -> str:
    """In small letters, equal numbers spelt alike: 0.10 is 0.1."""
    number = lambda found: f"{float(found[0]):.12g}"
    return re.sub(r"(?<![\w.])\d*\.\d+(?![\w.])", number, words.lower())


def _says(name: str, words: str) -> bool:
    """Whether ``words`` stand in a name as whole words and numbers: CIFAR-10 is not CIFAR-100, nor 1 a 0.1."""
    found = re.compile(rf"(?<!\w)(?<!\d\.){re.escape(_plain(words))}(?!\w|\.\d)")
    return found.search(_plain(name)) is not None


def _chosen(cells: Sequence[Named], only: str) -> list[Named]:
    """Those of this name, else those that ``only`` stands in, else those that have each of its words."""
    found = [c for c in cells if _plain(f"{c.row}, {c.column}") == _plain(only)]
    name = lambda c: " | ".join((c.row, c.column, *([c.recipe] if isinstance(c, Cell) else [])))
    found = found or [c for c in cells if _says(name(c), only)]
    if not found and (words := only.replace(",", " ").split()):  # a word of the row and one of the column
        found = [c for c in cells if all(_says(name(c), word) for word in words)]
    return found


def elsewhere(table: Table | Figure, only: str = "") -> list[Elsewhere]:
    """The paper's numbers in a table that no run of it makes, of what ``only`` chooses."""
    return _chosen(table.elsewhere, only) if isinstance(table, Table) else []


def jobs(
    table: Table | Figure,
    *,
    seeds: Sequence[int] = (0,),
    epochs: int | None = None,
    quick: bool = False,
    only: str = "",
) -> list[Job]:
    """All runs of a table; ``only`` keeps the cells whose row or column contains those words, ``quick`` shortens."""
    chosen = _chosen(table.cells, only)
    if not chosen and (left := elsewhere(table, only)):
        raise ResslError(f"{left[0].row} is not made by this command: {left[0].how}")
    if not chosen:
        raise ResslError(
            f"no cell of {table.name} has '{only}' in its row or column; 'ressl reproduce {table.name} --dry-run' "
            "lists them"
        )
    made = []
    for seed in dict.fromkeys(seeds):  # one that is named twice is still one run
        for cell in chosen:
            changes: dict[str, Any] = dict(cell.changes) | {"seed": seed}
            recipe, trained = get_recipe(cell.recipe), changes.get("epochs") != 0  # what is not, is as long as it was
            if trained and (quick or epochs is not None):
                changes["epochs"] = table.quick_epochs if epochs is None else epochs
                changes["warmup_epochs"] = min(recipe.warmup_epochs, changes["epochs"] / 10)
            recipe = recipe.replace(**changes)
            if trained and quick:
                linear = replace(recipe.linear, epochs=min(recipe.linear.epochs, QUICK_LINEAR))
                recipe = recipe.replace(linear=linear)
            made.append(Job(cell, recipe))
    return made


def jobs_of_runs(runs: Sequence[str], cells: Sequence[Cell]) -> list[Job]:
    """The same numbers or pictures from runs that are there already, by the names of their folders."""
    made = []
    for path in runs:
        run = Run.open(path)
        if "finished" not in run.facts:
            raise ResslError(f"the run {path} is not finished; continue it with --resume first")
        columns = {cell.column: cell for cell in cells}.values()
        made += [Job(replace(cell, row=run.path.name, paper=None), run.recipe, str(run.path)) for cell in columns]
    return made


def each_once(planned: Sequence[Job]) -> list[Job]:
    """One job per run: several cells may be numbers of the same one."""
    return list({(job.key, job.at): job for job in reversed(planned)}.values())[::-1]


def read(record: dict[str, Any], cell: Cell) -> tuple[float, float | None] | None:
    """(last, best) of a cell in a record of its run; None where that has not been evaluated as its recipe says."""
    evaluations = {name: found for name, found in record["evaluations"].items() if not found.get("changed")}
    if not cell.on:
        found = evaluations.get(LINEAR)
        return None if found is None else (found["last"], found["best"])
    kind, place = parse_data(cell.on)
    wanted = {"protocol": "svm", "data": label_of(kind, place)}
    if DATA_SETS[kind].needs_root:  # of two folders of one name, one
        wanted["place"] = place_of(kind, place)
    for found in evaluations.values():
        if all(found.get(key) == value for key, value in wanted.items()):
            return next(((row["mean"], None) for row in found["by_shots"] if row["shots"] == cell.shots), None)
    return None


class Ledger:
    """The records of a folder, by experiment."""

    def __init__(self, folder: str | Path = "results") -> None:
        self.folder = Path(folder)
        self.records: dict[str, list[dict[str, Any]]] = {}
        self.costs: list[dict[str, Any]] = []  # measurements of speed
        self.kills: list[dict[str, Any]] = []  # runs that were stopped on purpose
        for path in sorted(self.folder.glob("*.json")):
            record = read_record(path)
            if record["kind"] == "cost":
                self.costs.append(record)
            if record["kind"] == "kills":
                self.kills.append(record)
            if record["kind"] != "pretrain":
                continue
            recipe = Recipe.from_json(json.dumps(record["recipe"]), str(path))  # an older record lacks newer fields
            self.records.setdefault(identity(recipe), []).append(record)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record for records in self.records.values() for record in records)

    def find(self, job: Job) -> dict[str, Any] | None:
        """The newest record of a job that has been evaluated, one of the whole data set before others."""
        found = [r for r in self.records.get(job.key, ()) if read(r, job.cell) is not None]
        return max(found, key=lambda r: (not r.get("lacking"), r["finished"])) if found else None

    def cost(self, name: str, gpu: str | None = None, seconds: float = 0.0) -> dict[str, Any] | None:
        """The fullest measurement of that name, on that card or on any, the longest and newest of such; no toys."""
        spent = lambda record: record.get("seconds", 0.0)  # on each row
        there = lambda r: r["name"] == name and r["rows"] and not r["small"]
        fit = lambda r: there(r) and gpu in (None, r["environment"].get("gpu"))
        found = [record for record in self.costs if fit(record) and spent(record) >= seconds]
        return max(found, key=lambda r: (len(r["rows"]), spent(r), r["started"]), default=None)

    @property
    def seeds(self) -> list[int]:
        return sorted({record["seed"] for record in self})

    def add(self, job: Job, record: dict[str, Any]) -> None:
        self.records.setdefault(job.key, []).append(record)

    def newer(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The newest run of the same settings and seed that has all evaluations of this one, if there is one."""
        recipe = Recipe.from_json(json.dumps(record["recipe"]))
        whole = lambda r: record["evaluations"].keys() <= r["evaluations"].keys() and not r.get("lacking")
        after = [r for r in self.records[identity(recipe)] if r["finished"] > record["finished"] and whole(r)]
        return max(after, key=lambda r: str(r["finished"]), default=None)


@dataclass(frozen=True)
class Summary:
    """What the runs of one cell came to."""

    last: float
    best: float | None  # of the linear evaluation
    spread: float | None  # standard deviation over seeds
    n: int
    partial: bool = False  # whether pictures were lacking: no number to put beside the paper's

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]], cell: Cell) -> Summary | None:
        found = [pair for record in records if (pair := read(record, cell)) is not None]
        if not found:
            return None
        last = [value for value, _ in found]
        best = [value for _, value in found if value is not None]
        return cls(
            statistics.fmean(last),
            statistics.fmean(best) if best else None,
            statistics.stdev(last) if len(last) > 1 else None,
            len(last),
            any(record.get("lacking") for record in records),
        )

    def text(self) -> str:
        """``90.02 ± 0.11 (n 3, best 90.15)``"""
        spread = "" if self.spread is None or math.isnan(self.spread) else f" ± {self.spread:.2f}"
        best = "" if self.best is None else f", best {self.best:.2f}"
        part = ", on part of the data" if self.partial else ""
        return f"{self.last:.2f}{spread} (n {self.n}{best}{part})"


def short_lengths(table: Table, ledger: Ledger) -> list[int]:
    """Epochs of the quick runs that a ledger may have of a table: the table's own, and what somebody chose."""
    names = {cell.recipe for cell in table.cells}
    made = [Recipe.from_json(json.dumps(record["recipe"])) for record in ledger if record["name"] in names]
    short = [recipe.epochs for recipe in made if recipe.linear.epochs == QUICK_LINEAR and recipe.epochs]
    return sorted({table.quick_epochs, *short})


def jobs_of_length(table: Table, ledger: Ledger, quick: int) -> list[Job]:
    """A table's jobs for all seeds of a ledger: quick ones of so many epochs, or with 0 whole ones."""
    return jobs(table, seeds=ledger.seeds or [0], quick=bool(quick), epochs=quick or None)


def summaries(ledger: Ledger, planned: Sequence[Job]) -> list[tuple[Cell, Summary | None]]:
    """Every planned cell, and what the ledger has of its jobs."""
    of_cell: dict[tuple[str, str], list[Job]] = {}
    for job in planned:
        of_cell.setdefault((job.cell.row, job.cell.column), []).append(job)
    found = []
    for some in of_cell.values():
        records = [record for job in some if (record := ledger.find(job)) is not None]
        found.append((some[0].cell, Summary.of(records, some[0].cell)))
    return found
