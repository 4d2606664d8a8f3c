"""docs/PERFORMANCE.md from the newest records: `python benchmarks/performance.py [results] [docs/PERFORMANCE.md]`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from targets import Record, newest, newest_first, newest_with, verdicts

from ressl.bench.suite import SWEPT
from ressl.engine.accelerate import LONG

# Why each idea should help; what it is worth is measured.
REASONS = {
    "fused norms": "norm, residual add and ReLU in one pass over the activations, which the compiler makes in several",
    "shared results": "the two gradients of a block's result meet inside a kernel that reads them anyway",
    "stem product": "three colours fill three of eight places of a tensor core; 27 of 32, or 12 of 16, are better",
    "fused pool": "the activation before the max-pool is the largest of all, and nobody else reads it",
    "paired pixels": "64 channels fill half of a wide tile of the tensor cores; two neighbouring pixels fill all of it",
    "inside pixels": "of the products of a 3 x 3 convolution on 4 x 4 pixels 44 in 144 are with the zeros around them",
    "teacher stream": "the teacher is a third of the work and fills the gaps of the student",
    "gradient stream": "weight gradients multiply while norms wait for memory",
    "bf16 copies": "two kernels instead of a cast of every weight and one of every gradient",
    "fused update": "gradient norm, SGD and the teacher's average in two passes over the weights instead of six",
    "look ahead": "views are many small kernels, none of which fills the card; the networks leave room beside them",
    "tried convolutions": "what is fastest depends on what runs beside it, and the library can only guess",
    "our kernel": "plain operations write a view down several times on the way, and the columns of the stem",
    "four steps per replay": "fewer replays, in the hope of fewer gaps",
}
WORDS = {"why"}  # columns that are read, not compared
HEAD = """# Performance

Made by `python benchmarks/performance.py` from the records in `results/`; every number is one of `ressl bench`, the
ratios taken within one run on one machine."""


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    headings = list(headings)
    yield ""
    yield "| " + " | ".join(headings) + " |"
    yield "|" + "|".join("---" if i == 0 or name in WORDS else "---:" for i, name in enumerate(headings)) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def speeds(rows: list[Record], name: str, base: Record) -> Iterator[list[object]]:
    for row in rows:
        speed = row["images_per_second"]
        yield [
            row[name],
            number(speed),
            f"{speed / base['images_per_second']:.2f}",
            number(row.get("step_memory_gb", row.get("peak_memory_gb")), 2),
        ]


def ideas(rows: list[Record]) -> Iterator[list[object]]:
    speeds = {row["ideas"]: row["images_per_second"] for row in rows}
    whole = rows[0]["images_per_second"]
    for row in rows[1:]:
        if row["ideas"] == "without tried convolutions" and not row.get("apart"):
            continue  # in one process with the others it has what they tried
        speed, dropped = row["images_per_second"], row.get("dropped", False)
        name, off = _idea(row["ideas"])
        beside = speeds[row["against"]] if "against" in row else whole  # what was dropped may have gone without another
        worth = (speed / beside if dropped else whole / speed) - 1
        verdict = "off" if off else "dropped" if dropped else "kept"
        yield [name, REASONS.get(name, ""), number(speed), f"{100 * worth:+.1f} %", verdict]


def _idea(shown: str) -> tuple[str, bool]:
    """An idea's name, and whether it is measured as one that is off."""
    off = shown.startswith("with ")
    return shown.removeprefix("with " if off else "without "), off


def page(folder: Path) -> str:
    return "\n".join(lines(folder)).replace("\n\n\n", "\n\n").rstrip() + "\n"


def lines(folder: Path) -> Iterator[str]:
    yield HEAD
    yield "\n## Targets for one H200"
    yield from table(("", "measured", "target", ""), verdicts(folder))
    yield from of_cold([*newest_first(folder, "cold", "cifar10")])
    for name in ("cifar10", "tiny-imagenet", "imagenet-r50"):
        yield from of_bench(name, folder)
    yield from of_cpu(newest(folder, "bench", "cifar10", "cpu"))


def of_cold(records: list[Record]) -> Iterator[str]:
    if not records:
        return
    record = records[0]
    linear, made, speed = record["linear"], record["environment"], record["images_per_second"]
    where = f"{made['gpu']}, torch {made['torch']}, commit {made.get('commit', '?')}"
    yield "\n## From nothing to a number\n"
    yield f"`ressl pretrain cifar10 --then linear` with all its kernels made anew ({where}):"
    yield from table(
        ("", "seconds"),
        [
            ["from the start of the process to its end", number(record["seconds"], 1)],
            ["training, start-up and kNN included", number(record["training_seconds"], 1)],
            [f"- of which at {speed:,.0f} images/s", number(record["pictures"] / speed, 1)],
            ["linear evaluation, 100 epochs", number(linear["seconds"], 1)],
            ["- of which until the first epoch was done", number(linear["start_seconds"], 1)],
        ],
    )
    yield f"The linear accuracy is then {linear['last']:.2f} % (last epoch)."
    if len(records) > 1:
        yield "\nAll such runs, the newest first; not all cards are equally fast:"
        yield from table(
            ("commit", "all, s", "images/s", "start-up and kNN, s", "linear, s", "its start, s"), map(cold_row, records)
        )


def cold_row(record: Record) -> list[str]:
    linear, speed = record["linear"], record["images_per_second"]
    start = record["training_seconds"] - record["pictures"] / speed
    seconds = [number(value, 1) for value in (start, linear["seconds"], linear["start_seconds"])]
    return [record["environment"].get("commit", "?"), number(record["seconds"], 1), number(speed), *seconds]


def of_bench(name: str, folder: Path) -> Iterator[str]:
    """Every part from the newest record that has it; those of one record stand below one line that names it."""
    parts: dict[str, list[str]] = {}

    def add(record: Record, text: Iterable[str]) -> None:
        made = record["environment"]
        where = f"{made['gpu']}, torch {made['torch']}, commit {made.get('commit', '?')}"
        parts.setdefault(f"{where}; batch {record['recipe']['batch_size']}.", []).extend(text)

    shown: set[str] = set()
    for record in newest_first(folder, "bench", name):  # engines that the newest did not measure, from one before
        names = {row["engine"] for row in record.get("engines", [])}
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
        yield f"\nCeilings of the card: {', '.join(f'{k} {v:,.1f}' for k, v in record['ceilings'].items())}."
    shown = zip(speeds(rows, "name", rows[-1]), rows, strict=True)
    headings = ("engine", "images/s", "times the last", "GB", "start, s", "of the matrix ceiling")
    full = [[*r, number(row.get("start_seconds"), 1), _percent(row.get("of_matrix_ceiling"))] for r, row in shown]
    yield from table(headings, full)


def of_loss(record: Record) -> Iterator[str]:
    cost = record["loss"]
    how = "" if cost.get("in_graph") else " if the host launches it, kernel by kernel"
    yield (
        f"\nThe loss alone (K {cost['queue_size']:,}): {cost['milliseconds']} ms, "
        f"{_percent(cost['share_of_step'])} of the step{how}, {cost['peak_memory_gb']} GB at its peak.\n"
    )


def of_embedding(record: Record) -> Iterator[str]:
    row = record["embed"]
    what = f"{row['pictures']:,} pictures of {row['side']} px ({row.get('data', 'random')})"
    yield f"\n{what} to a file of features: {row['seconds']:.2f} s.\n"


def of_ideas(record: Record) -> Iterator[str]:
    whole = number(record["ideas"][0]["images_per_second"])
    yield f"\nAll ideas together: {whole} images/s. One of them changed at a time:"
    yield from table(("idea", "why", "images/s", "worth", ""), ideas(record["ideas"]))


def of_linear(record: Record) -> Iterator[str]:
    rows = record["linear"]
    whole = rows[0]["hundred_epochs_seconds"]
    yield f"\n100 epochs of linear evaluation on {rows[0]['pictures']:,} random pictures: {whole:.2f} s."
    changed = []
    for row in rows[1:]:
        (name, off), seconds = _idea(row["linear"]), row["hundred_epochs_seconds"]
        worth = (whole / seconds if off else seconds / whole) - 1
        verdict = "off" if off else "kept"
        changed.append([name, REASONS.get(name, ""), number(seconds, 2), f"{100 * worth:+.1f} %", verdict])
    if changed:
        yield from table(("idea", "why", "s if changed", "worth", ""), changed)


def of_views(record: Record) -> Iterator[str]:
    rows = record["views"]
    yield from table(("both views alone", "images/s", "times the last", "GB"), speeds(rows, "views", rows[-1]))


def of_sweep(field: str, record: Record) -> Iterator[str]:
    rows = record["sweeps"][field]
    yield from table((field, "images/s", "times the first", "GB"), speeds(rows, field, rows[0]))


def of_cpu(record: Record | None) -> Iterator[str]:
    if record is not None and "ways" in record:
        yield "\n## The demo's step on a CPU\n"
        first = record["ways"][0]["images_per_second"]
        rows = [[row["way"], number(row["images_per_second"]), f"{row['images_per_second'] / first:.2f}",
                 number(row["start_seconds"], 1)] for row in record["ways"]]  # fmt: skip
        where = f"{record['environment']['cpu']}, {record['environment']['cores']} cores"
        yield f"{where}. The first row is the plainest way. `auto` is eager, and compiled (channels last) where all"
        yield f"pictures of a run have {LONG:,.0f} pixels and more: what compiling takes, if no kernels are kept of an"
        yield "earlier run, is then a fraction of what it saves."
        yield from table(("way", "images/s", "times the first", "ready after, s"), rows)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def main() -> None:
    folder, out = (Path(*word) for word in ((sys.argv[1:2] or ["results"]), (sys.argv[2:3] or ["docs/PERFORMANCE.md"])))
    out.write_text(page(folder), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
