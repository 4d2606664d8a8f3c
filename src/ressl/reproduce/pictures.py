"""The pictures of docs/RESULTS.md, made from the records like its tables: one is there when its records are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ressl.methods import METHODS
from ressl.recipes import get_recipe
from ressl.report.plots import Line, line_panels
from ressl.reproduce.grid import Ledger, jobs_of_length, short_lengths, summaries
from ressl.reproduce.ledger import identity
from ressl.reproduce.tables import SETS, TABLE2, TABLE4, TEMPERATURE, TITLES, Cell, Table

FEWEST = 3  # points of a curve
COMPARED = "cifar10"  # the recipe on which methods are compared
_NETWORK = ("teacher_backbone", "teacher_stem", "teacher_width", "teacher_hidden_dim", "teacher_head")
_TEACHER = ("teacher", *_NETWORK)  # what SEED distils


@dataclass(frozen=True)
class Picture:
    file: str  # in the page's folder images/
    title: str
    panels: list[tuple[str, list[Line]]]
    axes: tuple[str, str]
    log: bool = False

    def draw(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        return line_panels(self.panels, folder / self.file, self.title, self.axes, self.log)


def pictures(ledger: Ledger) -> dict[str, Picture]:
    """What can be drawn, by the section that it stands in."""
    made = {
        "methods": _methods(ledger),
        TABLE4.name: _sweep(
            ledger, "queue.png", "Size of the queue", ("K", "linear top-1, %"), "queue_size", [TABLE4], log=True
        ),
        TEMPERATURE.name: _sweep(
            ledger, "temperature.png", "The teacher's temperature (tau_s 0.1)", ("tau_t", "linear top-1, %"),
            "teacher_temperature", [TABLE2, TEMPERATURE],
        ),
    }  # fmt: skip
    return {name: picture for name, picture in made.items() if picture is not None}


def compared(ledger: Ledger) -> list[dict[str, Any]]:
    """One run per method that differ in nothing else: of the length that most methods have, the longest of those."""
    groups: dict[tuple[int, float], dict[str, dict[str, Any]]] = {}
    found = [(r, key) for key, records in ledger.records.items() for r in records if r["name"] == COMPARED]
    rank = lambda pair: (-pair[0]["seed"], len(pair[0]["curves"].get("knn", ())), pair[0]["finished"])
    for record, key in sorted(found, key=rank):  # the lowest seed's finest curve last
        made = record["recipe"]
        if record["curves"].get("knn") and _as_named(made, key):
            groups.setdefault((made["epochs"], made["warmup_epochs"]), {})[made["method"]] = record
    if not groups:
        return []
    best = groups[max(groups, key=lambda key: (len(groups[key]), key))]
    return [best[method] for method in METHODS if method in best]


def _as_named(made: dict[str, Any], mine: str) -> bool:
    """Whether a recorded recipe, of the identity ``mine``, is the named one but for method, length and seed."""
    free = {key: made[key] for key in ("epochs", "warmup_epochs", "seed")}
    free |= {key: value for key, value in made["options"].items() if key in _TEACHER}
    free |= {"backbone": made["backbone"]} if made["method"] == "seed" else {}  # a smaller one is what it is for
    return mine == identity(get_recipe(COMPARED).replace(method=made["method"], **free))


def last_knn(record: dict[str, Any]) -> float:
    return float(record["curves"]["knn"][-1][1])


def title(record: dict[str, Any]) -> str:
    """The method's; with what was trained, where it is not what the others train."""
    made = record["recipe"]
    other = made["backbone"] != get_recipe(COMPARED).backbone
    return METHODS[made["method"]].title + (f" ({made['backbone']})" if other else "")


def _methods(ledger: Ledger) -> Picture | None:
    records = compared(ledger)
    if len(records) < 2:
        return None
    lines = [
        Line(title(r), [(x, y) for x, y in r["curves"]["knn"]], "main" if r["recipe"]["method"] == "ressl" else "")
        for r in sorted(records, key=last_knn, reverse=True)  # the legend reads like the right edge
    ]
    heading = f"{records[0]['recipe']['epochs']} epochs"
    return Picture("methods-knn.png", "kNN on CIFAR-10 while training", [(heading, lines)], ("epoch", "kNN top-1, %"))


def _sweep(
    ledger: Ledger,
    file: str,
    title: str,
    axes: tuple[str, str],
    field: str,
    tables: Sequence[Table],
    log: bool = False,
) -> Picture | None:
    """One panel per data set with enough measured cells: the paper's numbers and ours over the field they vary."""
    panels = []
    for data in SETS:
        cells = [c for table in tables for c in table.cells if c.recipe == data and _at_tau_s(c)]
        ours = list(_ours(ledger, Table("", title, tuple(cells)), field))
        if ours:
            paper = Line(
                "paper, 200 epochs", [(c.changes[field], c.paper) for c in cells if c.paper is not None], "aside"
            )
            panels.append((TITLES[data], [paper, *ours]))
    return Picture(file, title, panels, axes, log) if panels else None


def _at_tau_s(cell: Cell) -> bool:
    return bool(cell.changes.get("student_temperature", 0.1) == 0.1)


def _ours(ledger: Ledger, table: Table, field: str) -> Iterator[Line]:
    if not any(record["recipe"]["data"] == table.cells[0].recipe for record in ledger):
        return
    for quick in (0, *short_lengths(table, ledger)):
        planned = jobs_of_length(table, ledger, quick)
        points = [(cell.changes[field], s.last) for cell, s in summaries(ledger, planned) if s is not None]
        if len(points) >= FEWEST:
            yield Line(f"ours, {planned[0].recipe.epochs} epochs{', quick' if quick else ''}", sorted(points))
