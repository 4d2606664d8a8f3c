"""docs/RESULTS.md, made from the ledger and from nothing else."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ressl.reproduce.again import again
from ressl.reproduce.differences import differences, not_measured
from ressl.reproduce.grid import Job, Ledger, Summary, jobs_of_length, short_lengths
from ressl.reproduce.pictures import COMPARED, Picture, compared, last_knn, pictures, title
from ressl.reproduce.sections import folders, four_crops, in_code, other_ways, stopped, transfers
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

COLUMNS = ["", "", "paper", "ours", "difference", "images/s", "minutes", "command"]
ALIGNED = dict.fromkeys(COLUMNS, "---:") | {"": "---", "command": "---"}
BASE = "MoCo v2"  # beside whose step those of others are put


def page(ledger: Ledger) -> str:
    parts = [HEAD]
    drawn = pictures(ledger)
    whole = {table.name: _measured(table, ledger) for table in TABLES.values()}
    short = _told_once([_measured(t, ledger, n) for t in TABLES.values() for n in short_lengths(t, ledger)])
    shown = {number for found in (*whole.values(), *short) for number in found.numbers}
    for table in TABLES.values():
        parts += _table(whole[table.name])
        for found in short:
            parts += _table(found) if found.table is table else []
        if table.name in drawn:
            parts += _picture(drawn[table.name])
        if table.name == IMAGENET.name:
            parts += _paper_cost(ledger)
    if "methods" in drawn:
        parts += [*_methods(compared(ledger), drawn["methods"])]
    parts += [*_speeds(ledger), *folders(ledger, shown), *other_ways(ledger), *transfers(ledger), *stopped(ledger)]
    parts += [*not_measured(ledger), *differences(ledger)]
    parts += list(_others(ledger, [record for record in ledger if id(record) not in shown]))
    return "\n".join(parts).rstrip() + "\n"


def _picture(picture: Picture) -> Iterator[str]:
    yield f"\n![{picture.title}](images/{picture.file})"


class Measured(NamedTuple):
    """What the ledger has of a table, of whole runs or of quick ones of so many epochs."""

    table: Table
    quick: int  # 0: whole runs
    cells: dict[tuple[str, str], list[dict[str, Any]]]

    @property
    def numbers(self) -> set[int]:
        return {id(record) for records in self.cells.values() for record in records}


def _measured(table: Table, ledger: Ledger, quick: int = 0) -> Measured:
    planned: dict[tuple[str, str], list[Job]] = {}
    for job in jobs_of_length(table, ledger, quick):
        planned.setdefault((job.cell.row, job.cell.column), []).append(job)
    if quick:  # what is as long as ever stands in the whole table
        planned = {place: some for place, some in planned.items() if some[0].shortened}
    records = {place: [ledger.find(job) for job in some] for place, some in planned.items()}
    return Measured(table, quick, {place: [r for r in some if r is not None] for place, some in records.items()})


def _told_once(short: list[Measured]) -> list[Measured]:
    """Of quick tables those that have something, and not only what another one has: a run may be in many tables."""
    once: list[Measured] = []
    for found in sorted(short, key=lambda found: -len(found.numbers)):
        once += [] if any(found.numbers <= other.numbers for other in once) or not found.numbers else [found]
    return [found for found in short if any(found is other for other in once)]


def _table(found: Measured) -> Iterator[str]:
    table, quick, cells = found
    measured = sum(bool(records) for records in cells.values())
    short = f", quick: {quick} epochs, for the trend only" if quick else ""
    whole = " ".join(["ressl reproduce", table.name, *_how(table, quick)])
    yield f"\n## {table.title}{short}\n"
    yield f"`{whole}`, {measured} of {len(cells)} cells measured.\n"
    rows = [
        _row(table, cell, summary, records, quick)
        for cell in table.cells
        if (summary := Summary.of(records := cells.get((cell.row, cell.column), []), cell)) is not None
    ]
    kept = [i for i, name in enumerate(COLUMNS) if not name or any(row[i] for row in rows)]
    for row in ([COLUMNS, [ALIGNED[name] for name in COLUMNS]] if rows else []) + rows:
        yield f"| {' | '.join(row[i] for i in kept)} |"
    if table.elsewhere and not quick:
        yield "\n" * bool(measured) + "Not made by this command:\n"
        yield from (f"- {cell.row}, {cell.column}, paper {cell.paper:.2f}: {cell.how}" for cell in table.elsewhere)


def _row(table: Table, cell: Cell, summary: Summary, records: list[dict[str, Any]], quick: int) -> list[str]:
    paper = "" if cell.paper is None else f"{cell.paper:.2f}"
    difference = "" if cell.paper is None or quick else f"{summary.last - cell.paper:+.2f}"
    alone = [r for r in records if r.get("jobs", 1) == 1]
    speeds = [r["images_per_second"] for r in alone if r["images_per_second"]]
    speed = f"{statistics.median(speeds):,.0f}" if speeds else ""
    words = command(table, cell, [r["seed"] for r in records], quick)
    minutes = f"{statistics.median(r['seconds'] for r in alone) / 60:.1f}" if alone else ""
    return [cell.row, cell.column, paper, summary.text(), difference, speed, minutes, f"`{words}`"]


def _paper_cost(ledger: Ledger) -> Iterator[str]:
    """Table 8, if it was measured."""
    yield "\n## Table 8: the cost of an ImageNet epoch\n"
    found = ledger.cost("imagenet")
    if found is None:
        yield "`ressl reproduce cost`, not measured.\n"
        return
    yield f"`ressl reproduce cost`, {_hardware(found)}.\n"
    yield "| | paper, V100 hours | ours, GPU hours | images/s | memory GB | paper, GB on all GPUs |"
    yield "|---|---:|---:|---:|---:|---:|"
    rows = _with_others(ledger, found)
    for name, (row, record) in rows.items():
        hours, theirs, memory = row["paper"]["hours_per_epoch"], row["paper"]["memory_gb"], _memory(row)
        yield (
            f"| {_marked(name, record, found)} | {'' if hours is None else f'{hours:.2f}'} | "
            f"{row['hours_per_epoch']:.3f} | {row['images_per_second']:,.0f} | "
            f"{'' if memory is None else f'{memory:.1f}'} | {'' if theirs is None else f'{theirs:.0f}'} |"
        )
    yield _memory_in_words([row for row, _ in rows.values()])
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
        memory = _memory(row)
        numbers = f"{pair['ours']:.2f} | {paper} | {'' if memory is None else f'{memory:.2f}'}"
        yield f"| {_marked(name, record, found)} | {row['images_per_second']:,.0f} | {numbers} |"
        if record is not found:
            base = next(row for row in record["rows"] if row["name"] == BASE)
            apart[record["started"]] = f"{base['images_per_second']:,.0f} images/s{_commit(record)}"
    yield _memory_in_words([row for row, _ in rows.values()])
    if apart:
        yield f"\\* Measured at another time, beside MoCo v2 with {'; '.join(apart.values())}."


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


def _memory(row: dict[str, Any]) -> float | None:
    """What a step holds once it runs; of an earlier record, the most that was allocated at once."""
    found: float | None = row.get("step_memory_gb", row.get("peak_memory_gb"))
    return found


def _memory_in_words(rows: Sequence[dict[str, Any]]) -> str:
    held = [row for row in rows if "step_memory_gb" in row]
    if not held:
        return ""
    data = max(row.get("data_memory_gb") or 0.0 for row in held)
    apart = "" if len(held) == len(rows) else " Where that was not recorded, it is the most that was allocated."
    return (
        f"\nMemory is what a step holds once it runs, the whole pool of its CUDA graph and the random pictures of the\n"
        f"measurement ({data:.1f} GB) included.{apart}\n"
    )


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


def command(table: Table, cell: Cell, seeds: Sequence[int], quick: int = 0) -> str:
    """The command line that makes one cell's number again, evaluation and all seeds included."""
    words = ["ressl", "reproduce", table.name, "--only", f"{cell.row}, {cell.column}", *_how(table, quick)]
    return shlex.join([*words, "--seeds", *map(str, sorted(seeds)), "--into", "mine"])


def _how(table: Table, quick: int) -> list[str]:
    """Options of quick runs of so many epochs; of whole runs none."""
    return ["--quick", *(["--epochs", str(quick)] if quick != table.quick_epochs else [])] if quick else []


def _others(ledger: Ledger, records: list[dict[str, Any]]) -> Iterator[str]:
    if not records:
        return
    yield "\n## Other runs in the ledger\n"
    yield (
        "Each with the command that makes it again; `RUN` and `FOLDER` are places of your own. kNN is the last of its\n"
        "training. *Replaced* is a run of which there is a newer one with the same settings and seed."
        + "\nWhere a second command has `--resize`, kNN had such test pictures, too, which no option gives it."
        * any("--resize" in command for r in records for command in again(r))
        + "\n"
    )
    yield "| command | linear (last) | kNN | images/s | seconds | hardware | commit | replaced by that of |"
    yield "|---|---:|---:|---:|---:|---|---|---|"
    for r in sorted(records, key=lambda r: (r["name"], r["recipe"]["method"], r["recipe"]["epochs"], r["seed"])):
        linear = r["evaluations"].get("linear", {}).get("last")
        knn = r["curves"]["knn"][-1][1] if r["curves"].get("knn") else None
        number = lambda value: "" if value is None else f"{value:.2f}"
        hardware = r["environment"].get("gpu") or f"{r['environment'].get('cores')} CPU cores"
        alone = r.get("jobs", 1) == 1  # else what shared the machine counts as well
        speed = f"{r['images_per_second']:,.0f}" if r["images_per_second"] and alone else ""
        seconds = f"{r['seconds']:.0f}" if alone else ""
        newer = ledger.newer(r)
        yield (
            f"| {in_code(again(r))} | {number(linear)} | {number(knn)} | {speed} | {seconds} | {hardware} | "
            f"{r['commit'] or ''} | {'' if newer is None else newer['commit'] or newer['finished']} |"
        )
