"""The measured table of docs/SCALING.md: `python benchmarks/scaling.py [results] [docs/SCALING.md]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from targets import Record, engine, newest_with

RECIPE = "imagenet-r50"
HEADING, NEXT = "## Measured on one GPU\n", "## Arithmetic: bytes per step\n"
HEAD = """
Made by `python benchmarks/scaling.py` from the newest records in `results/`; a test fails when the two differ. Idle is
the share of its time in which the GPU waits for the loader: one minus the time of a step whose batch lies on the GPU
over that of a step whose batch the loader brings. The phases are those of the compiled step, by events on the GPU; in
one CUDA graph, which is faster, they overlap and cannot be told apart.

| figure | value | command | made on |
|---|---|---|---|
"""
STEP, FILES = f"ressl bench {RECIPE} --parts engines:graph", f"ressl bench {RECIPE} --parts loader --data FOLDER"


def of_engine(record: Record) -> str:
    row = engine(record, "graph")
    return f"{row['images_per_second']:,.0f} images/s, {row.get('step_memory_gb', row['peak_memory_gb']):.1f} GB"


def of_cost(record: Record) -> str:
    if record["small"]:
        raise KeyError("a toy")
    row = next(row for row in record["rows"] if row["name"] == "ReSSL")
    return f"{row['images_per_second']:,.0f} images/s, {row['peak_memory_gb']:.1f} GB"


def _fed(record: Record) -> Record:
    return next(row for row in record["loader"] if row["loader"] == "step fed by the loader")


def of_files(record: Record) -> str:
    row = _fed(record)
    share = f"{100 * row['share_of_step']:.0f} % of the speed on resident pictures"
    return f"{row['images_per_second']:,.0f} images/s, {share} ({row['files']}, {row['workers']} workers)"


def of_idle(record: Record) -> str:
    return f"{100 * _fed(record)['idle_share']:.1f} %"


def of_profile(record: Record) -> str:
    found = record["profile"]
    shares = ", ".join(f"{row['phase']} {100 * row['share']:.1f} %" for row in found["phases"])
    return f"{shares} (of {found['milliseconds']:.1f} ms, {found['engine']})"


# (figure, [(kind of the record, its name, how to read it, the command)]); of several the newest
FIGURES = [
    (
        "batch 256, random pictures on the GPU",
        [("bench", RECIPE, of_engine, STEP), ("cost", "imagenet", of_cost, "ressl cost")],
    ),
    ("the same from picture files", [("bench", RECIPE, of_files, FILES)]),
    ("GPU idle while training from files", [("bench", RECIPE, of_idle, FILES)]),
    ("shares of the step's time", [("bench", RECIPE, of_profile, f"ressl bench {RECIPE} --parts profile")]),
]


def rows(folder: Path) -> Iterator[str]:
    for figure, ways in FIGURES:
        found = [
            (pair, command) for kind, name, read, command in ways if (pair := newest_with(folder, kind, name, read))
        ]
        if not found:
            yield f"| {figure} | not measured yet | `{ways[0][3]}` | |"
            continue
        (record, value), command = max(found, key=lambda one: str(one[0][0]["started"]))
        made = record["environment"]
        where = f"{made['gpu']}, torch {made['torch']}, commit {made.get('commit', '?')}"
        yield f"| {figure} | {value} | `{command}` | {where} |"


def page(text: str, folder: Path) -> str:
    """The document with its table of measured figures made anew."""
    before, rest = text.split(HEADING)
    return before + HEADING + HEAD + "\n".join(rows(folder)) + "\n\n" + NEXT + rest.split(NEXT)[1]


def main() -> None:
    folder, out = Path((sys.argv[1:2] or ["results"])[0]), Path((sys.argv[2:3] or ["docs/SCALING.md"])[0])
    out.write_text(page(out.read_text(encoding="utf-8"), folder), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
