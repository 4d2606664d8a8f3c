"""From a table to its numbers: which runs it needs, which of them the ledger has, and how the rest are made."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ressl.errors import ResslError
from ressl.recipes import Recipe, get_recipe
from ressl.reproduce.ledger import identity
from ressl.reproduce.tables import Cell, Table

LINEAR = "linear"


@dataclass(frozen=True)
class Job:
    """One run of one cell."""

    cell: Cell
    recipe: Recipe

    @property
    def key(self) -> str:
        return identity(self.recipe)

    def folder(self, root: str | Path) -> Path:
        """Where its run lies: the same place every time, so that an interrupted one is found again."""
        return Path(root) / f"{self.recipe.name}-{self.recipe.method}-s{self.recipe.seed}-{self.key[:10]}"


def jobs(
    table: Table, *, seeds: Sequence[int] = (0,), epochs: int | None = None, quick: bool = False, only: str = ""
) -> list[Job]:
    """All runs of a table; ``only`` keeps the cells whose row or column contains those words, ``quick`` shortens."""
    chosen = [c for c in table.cells if only.lower() in f"{c.row} | {c.column} | {c.recipe}".lower()]
    if not chosen:
        raise ResslError(
            f"no cell of {table.name} has '{only}' in its row or column; see 'ressl reproduce {table.name}'"
        )
    made = []
    for seed in seeds:
        for cell in chosen:
            changes: dict[str, Any] = dict(cell.changes) | {"seed": seed}
            recipe = get_recipe(cell.recipe)
            if quick or epochs is not None:
                changes["epochs"] = table.quick_epochs if epochs is None else epochs
                changes["warmup_epochs"] = min(recipe.warmup_epochs, changes["epochs"] / 10)
            made.append(Job(cell, recipe.replace(**changes)))
    return made


class Ledger:
    """The records of a folder, by experiment."""

    def __init__(self, folder: str | Path = "results") -> None:
        self.records: dict[str, list[dict[str, Any]]] = {}
        for path in sorted(Path(folder).glob("*.json")):
            record = _read(path)
            if record.get("kind") != "pretrain":
                continue
            recipe = Recipe.from_json(json.dumps(record["recipe"]), str(path))  # an older record lacks newer fields
            self.records.setdefault(identity(recipe), []).append(record)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record for records in self.records.values() for record in records)

    def find(self, job: Job) -> dict[str, Any] | None:
        """The newest record of a job that has been evaluated."""
        found = [r for r in self.records.get(job.key, ()) if LINEAR in r["evaluations"]]
        return max(found, key=lambda r: r["finished"]) if found else None

    def add(self, job: Job, record: dict[str, Any]) -> None:
        self.records.setdefault(job.key, []).append(record)

    def seconds(self, job: Job) -> float | None:
        """About how long a job takes, by the runs of the same data (and method, if there are any) so far."""
        per_epoch: dict[bool, list[float]] = {True: [], False: []}
        for records in self.records.values():
            for record in records:
                made = record["recipe"]
                alike = all(made[key] == getattr(job.recipe, key) for key in ("data", "backbone", "width"))
                if alike and record["environment"].get("device") == "cuda":
                    per_epoch[made["method"] == job.recipe.method].append(record["seconds"] / made["epochs"])
        known = per_epoch[True] or per_epoch[False]
        return statistics.median(known) * job.recipe.epochs if known else None


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResslError(f"cannot read the record {path}: {error}") from error
    if not isinstance(record, dict):
        raise ResslError(f"{path} is no record of ours; move it out of the ledger")
    return record


@dataclass(frozen=True)
class Summary:
    """What the runs of one cell came to."""

    last: float
    best: float
    spread: float | None  # standard deviation over seeds
    n: int
    knn: float | None

    @classmethod
    def of(cls, records: Sequence[dict[str, Any]]) -> Summary | None:
        if not records:
            return None
        last = [record["evaluations"][LINEAR]["last"] for record in records]
        best = [record["evaluations"][LINEAR]["best"] for record in records]
        curves = [record["curves"]["knn"][-1][1] for record in records if record["curves"].get("knn")]
        return cls(
            statistics.fmean(last),
            statistics.fmean(best),
            statistics.stdev(last) if len(last) > 1 else None,
            len(last),
            statistics.fmean(curves) if curves else None,
        )

    def text(self) -> str:
        """``90.02 +- 0.11 (n 3, best 90.15)``"""
        spread = "" if self.spread is None or math.isnan(self.spread) else f" ± {self.spread:.2f}"
        return f"{self.last:.2f}{spread} (n {self.n}, best {self.best:.2f})"


def summaries(table: Table, ledger: Ledger, planned: Sequence[Job]) -> dict[tuple[str, str], Summary | None]:
    """(row, column) -> what the ledger has of the planned jobs."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for job in planned:
        place = found.setdefault((job.cell.row, job.cell.column), [])
        if (record := ledger.find(job)) is not None:
            place.append(record)
    return {place: Summary.of(records) for place, records in found.items()}
