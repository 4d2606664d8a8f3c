"""docs/RESULTS.md, made from the ledger and from nothing else."""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from ressl.recipes import RECIPES, Recipe
from ressl.recipes.typed import plain
from ressl.reproduce.differences import differences, not_measured
from ressl.reproduce.grid import Job, Ledger, Summary, jobs
from ressl.reproduce.pictures import COMPARED, Picture, compared, last_knn, pictures, title
from ressl.reproduce.sections import folders, four_crops, other_ways, stopped, transfers
from ressl.reproduce.tables import IMAGENET, TABLES, Cell, Table

HEAD = """\
# Results

Made by `ressl results` from the records in `results/`; a test fails when the two differ. Every number is a run of this
program. *Ours* is the **last** epoch of the linear evaluation (mean ± standard deviation over n seeds), with the best
test epoch beside it, which is what the authors' script prints. Where nothing stands, nothing has been measured.
Images/s and minutes (of training, start-up included) are medians over the seeds; runs that `--jobs` made together have
neither. The command makes the number again: it trains and evaluates every seed, into a ledger of your own (`mine`; with
`results` it would show the records that are there).
"""

BASE = "MoCo v2"  # beside whose step those of others are put


def page(ledger: Ledger) -> str:
    parts = [HEAD]
    shown: set[int] = set()
    drawn = pictures(ledger)
    for table in TABLES.values():
        parts += [*_table(table, ledger, False, shown), *_table(table, ledger, True, shown)]
        if table.name in drawn:
            parts += _picture(drawn[table.name])
        if table.name == IMAGENET.name:
            parts += _paper_cost(ledger)
    if "methods" in drawn:
        parts += [*_methods(compared(ledger), drawn["methods"])]
    parts += [*_speeds(ledger), *folders(ledger), *other_ways(ledger), *transfers(ledger), *stopped(ledger)]
    parts += [*not_measured(ledger), *differences(ledger)]
    parts += list(_others([record for record in ledger if id(record) not in shown]))
    return "\n".join(parts).rstrip() + "\n"


def _picture(picture: Picture) -> Iterator[str]:
    yield f"\n![{picture.title}](images/{picture.file})"


def _table(table: Table, ledger: Ledger, quick: bool, shown: set[int]) -> Iterator[str]:
    planned: dict[tuple[str, str], list[Job]] = {}
    for job in jobs(table, seeds=ledger.seeds or [0], quick=quick):
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
        summary = Summary.of(records, cell)
        if summary is not None:
            yield _row(table, cell, summary, records, quick)


def _row(table: Table, cell: Cell, summary: Summary, records: list[dict[str, Any]], quick: bool) -> str:
    paper = "" if cell.paper is None else f"{cell.paper:.2f}"
    difference = "" if cell.paper is None or quick else f"{summary.last - cell.paper:+.2f}"
    alone = [r for r in records if r.get("jobs", 1) == 1]
    speeds = [r["images_per_second"] for r in alone if r["images_per_second"]]
    speed = f"{statistics.median(speeds):,.0f}" if speeds else ""
    minutes = f"{statistics.median(r['seconds'] for r in alone) / 60:.1f}" if alone else ""
    again = command(table, cell, [r["seed"] for r in records], quick)
    return (
        f"| {cell.row} | {cell.column} | {paper} | {summary.text()} | {difference} | {speed} | {minutes} | `{again}` |"
    )


def _paper_cost(ledger: Ledger) -> Iterator[str]:
    """Table 8, if it was measured."""
    yield "\n## Table 8: the cost of an ImageNet epoch\n"
    found = ledger.cost("imagenet")
    if found is None:
        yield "`ressl reproduce cost`, not measured.\n"
        return
    yield f"`ressl reproduce cost`, {_hardware(found)}.\n"
    yield "| | paper, V100 hours | ours, GPU hours | images/s | memory GB |"
    yield "|---|---:|---:|---:|---:|"
    rows = _with_others(ledger, found)
    for name, (row, record) in rows.items():
        hours, memory = row["paper"]["hours_per_epoch"], row.get("peak_memory_gb")
        yield (
            f"| {_marked(name, record, found)} | {'' if hours is None else f'{hours:.2f}'} | "
            f"{row['hours_per_epoch']:.3f} | "
            f"{row['images_per_second']:,.0f} | {'' if memory is None else f'{memory:.1f}'} |"
        )
    yield ""
    if apart := {_hardware(record) for _, record in rows.values() if record is not found}:
        yield f"\\* Measured at another time: {'; '.join(sorted(apart))}.\n"
    for pair in found["ratios"]:
        beside = "" if pair["paper"] is None else f" (paper {pair['paper']:.2f})"
        yield f"- {pair['ratio']}: **{pair['ours']:.2f}** in time{beside}"
    yield from four_crops(found["ratios"])


def _methods(records: list[dict[str, Any]], picture: Picture) -> Iterator[str]:
    epochs, every = records[0]["recipe"]["epochs"], statistics.mode(r["recipe"]["knn_every"] for r in records)
    yield f"\n## Every method on CIFAR-10, {epochs} epochs\n"
    yield (
        f"`ressl pretrain cifar10 --method M --epochs {epochs} --warmup-epochs "
        f"{records[0]['recipe']['warmup_epochs']:g} --knn-every {every}` (SEED: `--teacher RUN --backbone resnet10`, "
        "too), kNN by the frozen student backbone. Short runs: how fast they learn, not how far."
    )
    yield from _picture(picture)
    some = any("linear" in r["evaluations"] for r in records)
    yield f"\n| | kNN, last epoch |{' linear, last epoch |' * some} seed |"
    yield f"|---|---:|{'---:|' * some}---:|"
    for r in sorted(records, key=last_knn, reverse=True):
        linear = r["evaluations"].get("linear", {}).get("last")
        shown = f" {'' if linear is None else f'{linear:.2f}'} |" * some
        yield f"| {title(r)} | {last_knn(r):.2f} |{shown} {r['seed']} |"


def _speeds(ledger: Ledger) -> Iterator[str]:
    """What a step of each method costs on a card of its own; what the fullest measurement lacks, from others."""
    found = ledger.cost(COMPARED)
    if found is None:
        return
    yield "\n## What a step of each method costs, CIFAR-10\n"
    yield f"`ressl cost {COMPARED}`, {_hardware(found)}. Time beside MoCo v2's; the paper's is of ImageNet."
    yield "Clustering between epochs (LocalAgg, PCL v2) is not counted; SEED has a ResNet-50 for its teacher.\n"
    yield "| | images/s | time / MoCo v2 | paper | memory GB |"
    yield "|---|---:|---:|---:|---:|"
    rows = _with_others(ledger, found, beside=BASE)
    apart = dict[str, str]()
    for name, (row, record) in sorted(rows.items(), key=lambda item: -item[1][0]["images_per_second"]):
        ratios = {pair["ratio"].removesuffix(f" / {BASE}"): pair for pair in record["ratios"]}
        pair = ratios.get(name, {"ours": 1.0, "paper": 1.0})
        paper = "" if pair["paper"] is None else f"{pair['paper']:.2f}"
        memory = "" if row.get("peak_memory_gb") is None else f"{row['peak_memory_gb']:.2f}"
        shown = _marked(name, record, found)
        yield f"| {shown} | {row['images_per_second']:,.0f} | {pair['ours']:.2f} | {paper} | {memory} |"
        if record is not found:
            base = next(row for row in record["rows"] if row["name"] == BASE)
            apart[record["started"]] = f"{base['images_per_second']:,.0f} images/s{_commit(record)}"
    if apart:
        yield f"\n\\* Measured at another time, beside MoCo v2 with {'; '.join(apart.values())}."


def _with_others(
    ledger: Ledger, found: dict[str, Any], beside: str = ""
) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Rows by name, each with its measurement: those of ``found``, and what it lacks from the newest others on such a
    card, if they measured ``beside`` as well."""
    rows = {row["name"]: (row, found) for row in found["rows"]}
    alike = [r for r in ledger.costs if r["name"] == found["name"] and not r["small"] and _card(r) == _card(found)]
    for other in sorted(alike, key=lambda r: str(r["started"]), reverse=True):
        if not beside or beside in [row["name"] for row in other["rows"]]:
            rows |= {row["name"]: (row, other) for row in other["rows"] if row["name"] not in rows}
    return rows


def _marked(name: str, record: dict[str, Any], found: dict[str, Any]) -> str:
    return name if record is found else f"{name} \\*"


def _card(record: dict[str, Any]) -> object:
    return record["environment"].get("gpu")


def _hardware(record: dict[str, Any]) -> str:
    made, row = record["environment"], record["rows"][0]
    engine = f"{row['engine']} engine, {row['precision']}, batch {row['batch']}"
    return f"{made.get('gpu') or 'CPU'}, {engine}, torch {made['torch']}{_commit(record)}"


def _commit(record: dict[str, Any]) -> str:
    commit = record["environment"].get("commit")  # an installed program knows none
    return "" if commit is None else f", commit {commit}"


def command(table: Table, cell: Cell, seeds: Sequence[int], quick: bool = False) -> str:
    """The command line that makes one cell's number again, evaluation and all seeds included."""
    words = ["ressl", "reproduce", table.name, "--only", f"{cell.row}, {cell.column}"]
    words += ["--quick"] if quick else []
    return shlex.join([*words, "--seeds", *map(str, sorted(seeds)), "--into", "mine"])


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
        alone = r.get("jobs", 1) == 1  # else what shared the machine counts as well
        speed = f"{r['images_per_second']:,.0f}" if r["images_per_second"] and alone else ""
        seconds = f"{r['seconds']:.0f}" if alone else ""
        yield (
            f"| {r['name']} | {changes(r['recipe'])} | {r['recipe']['epochs']} | {r['seed']} | {number(linear)} | "
            f"{number(knn)} | {speed} | {seconds} | {hardware} | {r['commit'] or ''} |"
        )


def changes(recipe: dict[str, Any]) -> str:
    """What a recorded recipe changes in the named one, in words."""
    if recipe["name"] not in RECIPES:
        return f"method {recipe['method']}, image_size {recipe['image_size']}"  # chosen from the data
    named = plain(RECIPES[recipe["name"]])
    flat = lambda values: {k: v for k, v in values.items() if k != "options"} | dict(values["options"])
    was, now = flat(named), flat(plain(Recipe.from_json(json.dumps(recipe))))  # an older record lacks newer fields
    aside = ("epochs", "seed", "knn_every", "summary", "paper", "name")
    changed = [key for key in now if key not in aside and now[key] != was.get(key)]
    return ", ".join(f"other {key}" if isinstance(now[key], (list, dict)) else f"{key} {now[key]}" for key in changed)
