"""docs/RESULTS.md, made from the ledger and from nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ressl.recipes import RECIPES, Recipe
from ressl.recipes.typed import plain
from ressl.reproduce.grid import Job, Ledger, Summary, jobs
from ressl.reproduce.tables import TABLES, Cell, Table

SEEDS = tuple(range(10))  # whose runs the page looks for

HEAD = """\
# Results

Made by `ressl results` from the records in `results/`; a test fails when the two differ. Every number is a run of this
program. *Ours* is the **last** epoch of the linear evaluation (mean ± standard deviation over n seeds), with the best
test epoch beside it, which is what the authors' script prints. Where nothing stands, nothing has been measured.
"""


def page(ledger: Ledger) -> str:
    parts = [HEAD]
    shown: set[int] = set()
    for table in TABLES.values():
        parts += [*_table(table, ledger, False, shown), *_table(table, ledger, True, shown)]
    parts += list(_others([record for record in ledger if id(record) not in shown]))
    return "\n".join(parts).rstrip() + "\n"


def _table(table: Table, ledger: Ledger, quick: bool, shown: set[int]) -> Iterator[str]:
    planned: dict[tuple[str, str], list[Job]] = {}
    for job in jobs(table, seeds=SEEDS, quick=quick):
        planned.setdefault((job.cell.row, job.cell.column), []).append(job)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for place, some in planned.items():
        found[place] = [record for job in some if (record := ledger.find(job)) is not None]
        shown |= {id(record) for record in found[place]}
    measured = sum(bool(records) for records in found.values())
    if quick and not measured:
        return
    short = f", quick: {table.quick_epochs} epochs, for the trend only" if quick else ""
    yield f"\n## {table.title}{short}\n"
    yield f"`ressl reproduce {table.name}{' --quick' if quick else ''}`, {measured} of {len(found)} cells measured.\n"
    if not measured:
        return
    yield "| | | paper | ours | difference | images/s | minutes | command |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    for cell in table.cells:
        records = found[cell.row, cell.column]
        summary = Summary.of(records)
        if summary is not None:
            yield _row(cell, summary, records, planned[cell.row, cell.column][0], quick)


def _row(cell: Cell, summary: Summary, records: list[dict[str, Any]], job: Job, quick: bool) -> str:
    paper = "" if cell.paper is None else f"{cell.paper:.2f}"
    difference = "" if cell.paper is None or quick else f"{summary.last - cell.paper:+.2f}"
    speed = max((r["images_per_second"] or 0 for r in records), default=0)
    minutes = min(r["seconds"] for r in records) / 60
    return (
        f"| {cell.row} | {cell.column} | {paper} | {summary.text()} | {difference} | {speed:,.0f} | {minutes:.1f} | "
        f"`{command(cell, job.recipe.epochs if quick else None)}` |"
    )


def command(cell: Cell, epochs: int | None = None) -> str:
    """The command line that makes one cell's run."""
    words = [f"ressl pretrain {cell.recipe}"]
    for key, value in cell.changes.items():
        shown = " ".join(value) if isinstance(value, list) else str(value)
        words.append(f"--{key.replace('_', '-')} {shown}")
    if epochs is not None:
        words.append(f"--epochs {epochs} --warmup-epochs {min(5.0, epochs / 10):g}")
    return " ".join(words)


def _others(records: list[dict[str, Any]]) -> Iterator[str]:
    if not records:
        return
    yield "\n## Other runs in the ledger\n"
    yield "| run | changes | epochs | seed | linear (last) | kNN | images/s | seconds | hardware | commit |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|---|---|"
    for r in sorted(records, key=lambda r: (r["name"], r["recipe"]["method"], r["recipe"]["epochs"], r["seed"])):
        linear = r["evaluations"].get("linear", {}).get("last")
        knn = r["curves"]["knn"][-1][1] if r["curves"].get("knn") else None
        number = lambda value: "" if value is None else f"{value:.2f}"
        hardware = r["environment"].get("gpu") or f"{r['environment'].get('cores')} CPU cores"
        speed = f"{r['images_per_second']:,.0f}" if r["images_per_second"] else ""
        yield (
            f"| {r['name']} | {changes(r['recipe'])} | {r['recipe']['epochs']} | {r['seed']} | {number(linear)} | "
            f"{number(knn)} | {speed} | {r['seconds']:.0f} | {hardware} | {r['commit']} |"
        )


def changes(recipe: dict[str, Any]) -> str:
    """What a recorded recipe changes in the named one, in words."""
    if recipe["name"] not in RECIPES:
        return ""
    named = plain(RECIPES[recipe["name"]])
    flat = lambda values: {k: v for k, v in values.items() if k != "options"} | dict(values["options"])
    was, now = flat(named), flat(plain(Recipe.from_json(json.dumps(recipe))))  # an older record lacks newer fields
    aside = ("epochs", "seed", "knn_every", "summary", "paper", "name")
    changed = [key for key in now if key not in aside and now[key] != was.get(key)]
    return ", ".join(f"other {key}" if isinstance(now[key], (list, dict)) else f"{key} {now[key]}" for key in changed)
