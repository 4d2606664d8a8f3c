"""docs/PERFORMANCE.md from the newest records: `python benchmarks/performance.py [results] [docs/PERFORMANCE.md]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path

from ideas import of_ideas, of_linear
from layout import number, percent, prose, table
from starts import of_cold
from targets import Record, newest_first, newest_with, of_kind, verdicts

from ressl.bench.suite import SWEPT, tables
from ressl.engine.accelerate import LONG
from ressl.report.figures import bars

PICTURE, PICTURED = "bench-cifar10.png", "The CIFAR-10 step on one H200, each row from the newest record that has it"
RECIPES = ("cifar10", "tiny-imagenet", "imagenet-r50")
Read = Callable[[Record], Iterator[str]]
UNSTEADY = "PIL workers: over short epochs, of which each started its workers. Now `ressl bench` measures without these"
UNSTEADY_STEP = prose(UNSTEADY, "starts, and the products of the step in float32, which were in TF32.") + "\n"
UNSTEADY_VIEWS = prose(UNSTEADY, "starts.") + "\n"
DROPPED = {
    "launch": "the kernels of the graph, launched one by one, as several processes could have them; slower, so dropped."
}
HEAD = """# Performance

Made by `python benchmarks/performance.py` from the records in `results/`: those of `ressl bench`, of `ressl cost`, of
`benchmarks/cold.py` and of whole runs. Ratios are taken within one run on one machine. Where a table says which commit
made it, an older part was not measured again since."""


def speeds(rows: list[Record], name: str, base: Record) -> Iterator[list[object]]:
    for row in rows:
        speed = row["images_per_second"]
        yield [
            row[name],
            number(speed),
            f"{speed / base['images_per_second']:.2f}",
            number(row.get("step_memory_gb", row.get("peak_memory_gb")), 2),
        ]


def newest_parts(folder: Path, name: str) -> Record:
    """Each part as it was last measured, and each engine."""
    found: Record = {}
    for record in newest_first(folder, "bench", name):
        shown = {row["engine"] + row["precision"] for row in found.get("engines", [])}
        more = [row for row in record.get("engines", []) if row["engine"] + row["precision"] not in shown]
        sweeps = record.get("sweeps", {}) | found.get("sweeps", {})
        found = record | found | {"engines": found.get("engines", []) + more, "sweeps": sweeps}
    return found


def picture(folder: Path, out: Path) -> Path | None:
    """Of the CIFAR-10 step."""
    found = newest_parts(folder, "cifar10")
    if not found.get("engines"):
        return None
    found["engines"] = sorted(found["engines"], key=lambda row: -float(row["images_per_second"]))
    out.parent.mkdir(parents=True, exist_ok=True)
    return bars(tables({key: found[key] for key in ("engines", "views", "sweeps") if key in found}), out, PICTURED)


def page(folder: Path) -> str:
    return "\n".join(lines(folder)).replace("\n\n\n", "\n\n").rstrip() + "\n"


def lines(folder: Path) -> Iterator[str]:
    yield HEAD
    yield "\n## Targets for one H200"
    yield from table(("", "measured", "target", "", "commit"), verdicts(folder))
    yield f"![{PICTURED}](images/{PICTURE})"
    cold, others = ([*newest_first(folder, "cold", name)] for name in ("cifar10", "cifar100"))
    yield from of_cold(cold, others, of_kind(folder, "pretrain"))
    for name in RECIPES:
        yield from of_bench(name, folder)
    yield from of_cpu(folder)


def of_bench(name: str, folder: Path) -> Iterator[str]:
    """Every part from the newest record that has it; those of one record stand below one line that names it."""
    parts: dict[str, list[str]] = {}

    def add(record: Record, text: Iterable[str]) -> None:
        made = record["environment"]
        where = f"{made['gpu']}, torch {made['torch']}, commit {made.get('commit', '?')}"
        parts.setdefault(f"{where}; batch {record['recipe']['batch_size']}.", []).extend(text)

    shown: set[str] = set()
    for record in newest_first(folder, "bench", name):  # engines that the newest did not measure, from one before
        names = {row["engine"] for row in record.get("engines", [])} - DROPPED.keys()
        if names - shown:
            add(record, of_step(record))
        shown |= names
    sweeps = [partial(of_sweep, field) for field in SWEPT]
    for read in (of_loss, of_embedding, of_ideas, of_linear, of_views, *sweeps):
        found = newest_with(folder, "bench", name, lambda record, read=read: list(read(record)))
        if found is not None:
            add(*found)
    if parts:
        yield f"\n## {name} on a GPU"
    for where, text in parts.items():
        yield f"\n{where}"
        yield from text


def of_step(record: Record) -> Iterator[str]:
    rows = [row | {"name": f"{row['engine']}, {row['precision']}"} for row in record["engines"]]
    if "ceilings" in record:
        matrix, copy = record["ceilings"]["matrix_tflops"], record["ceilings"]["copy_tb_per_s"]
        yield f"\nCeilings: {matrix:.3g} TFLOP/s (a large matrix product), {copy:.3g} TB/s (a large copy)."
    shown = zip(speeds(rows, "name", rows[-1]), rows, strict=True)
    reached = {"of the matrix ceiling": "of_matrix_ceiling", "of the copy ceiling": "of_copy_ceiling"}
    reached = {heading: key for heading, key in reached.items() if any(key in row for row in rows)}
    headings = ("engine", "images/s", "times the last", "GB", "start, s", *reached)
    percents = ([percent(row.get(key)) for key in reached.values()] for row in rows)
    full = [[*r, number(row.get("start_seconds"), 1), *each] for (r, row), each in zip(shown, percents, strict=True)]
    yield from table(headings, full)
    for row in rows:
        if row["engine"] in DROPPED:
            yield f"{row['name']}: {DROPPED[row['engine']]}\n"
        if "note" in row:
            yield f"{row['name']}: {row['note']}.\n"
        if row["engine"].startswith("PIL") and not row.get("steady"):
            yield UNSTEADY_STEP
    if timed := [row for row in rows if "spread" in row]:
        widest = max(timed, key=itemgetter("spread"))
        but = " (but one of PIL's)" if any(row["engine"].startswith("PIL") for row in rows) else ""
        yield f"Five stretches each{but}, which lie {percent(widest['spread'])} apart at most ({widest['name']}).\n"
    if "of_copy_ceiling" in reached.values():
        yield "Of the copy ceiling: what the convolutions must read and write at the least, each number once.\n"


def of_loss(record: Record) -> Iterator[str]:
    cost = record["loss"]
    how = "" if cost.get("in_graph") else " if the host launches it, kernel by kernel"
    yield (
        f"\nThe loss alone (K {cost['queue_size']:,}): {cost['milliseconds']} ms, "
        f"{percent(cost['share_of_step'])} of the step{how}, {cost['peak_memory_gb']} GB at its peak.\n"
    )


def of_embedding(record: Record) -> Iterator[str]:
    row = record["embed"]
    what = f"{row['pictures']:,} pictures of {row['side']} px ({row.get('data', 'random')})"
    yield f"\n{what} to a file of features: {row['seconds']:.2f} s.\n"


def of_views(record: Record) -> Iterator[str]:
    rows = record["views"]
    yield from table(("both views alone", "images/s", "times the last", "GB"), speeds(rows, "views", rows[-1]))
    if not rows[-1].get("steady"):
        yield UNSTEADY_VIEWS


def of_sweep(field: str, record: Record) -> Iterator[str]:
    rows = record["sweeps"][field]
    yield from table((field, "images/s", "times the first", "GB"), speeds(rows, field, rows[0]))


def of_cpu(folder: Path) -> Iterator[str]:
    found = [on_cpu(folder, read, "demo") for read in (of_step, of_profile)]
    found.insert(1, on_cpu(folder, of_ways, "demo", "cifar10"))
    if any(found):
        yield "\n## The demo's step on a CPU"
    for record, text in filter(None, found):
        made = record["environment"]
        yield f"\n{made['cpu']}, {made['cores']} cores, torch {made['torch']}, commit {made.get('commit', '?')}."
        yield from text


def on_cpu(folder: Path, read: Read, *names: str) -> tuple[Record, list[str]] | None:
    """Of the first recipe whose records have it: some measure the demo's step beside their own."""
    each = (newest_with(folder, "bench", name, lambda record: list(read(record)), "cpu") for name in names)
    return next(filter(None, each), None)


def of_ways(record: Record) -> Iterator[str]:
    first = record["ways"][0]["images_per_second"]
    rows = [
        [row["way"], number(row["images_per_second"]), f"{row['images_per_second'] / first:.2f}",
         number(row["start_seconds"], 1)] for row in record["ways"]
    ]  # fmt: skip
    yield "\n" + prose(
        "The first row is the plainest way. `auto` is eager, and compiled (channels last) where all pictures of a run",
        f"have {LONG:,.0f} pixels and more: what compiling takes, if no kernels are kept of an earlier run, is then a",
        "fraction of what it saves.",
    )
    yield from table(("way", "images/s", "times the first", "ready after, s"), rows)


def of_profile(record: Record) -> Iterator[str]:
    found = record["profile"]
    what = f"{found['engine']}, {found['milliseconds']:.1f} ms for {found['batch']} pictures"
    yield f"\nWhere the time of a step goes ({what}):"
    rows = [[row["phase"], f"{row['milliseconds']:.1f}", percent(row["share"])] for row in found["phases"]]
    yield from table(("phase", "ms", "share"), rows)


def main() -> None:
    folder, out = (Path(*word) for word in ((sys.argv[1:2] or ["results"]), (sys.argv[2:3] or ["docs/PERFORMANCE.md"])))
    out.write_text(page(folder), encoding="utf-8")
    print(out, picture(folder, out.parent / "images" / PICTURE))


if __name__ == "__main__":
    main()
