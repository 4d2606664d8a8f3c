"""The tables of docs/SCALING.md that need records: `python benchmarks/scaling.py [results] [docs/SCALING.md]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from targets import Record, engine, newest_with

from ressl.bench.scaling import Machine, Traffic, efficiency, traffic
from ressl.recipes import get_recipe

RECIPE = "imagenet-r50"
HEADING, NEXT = "## Measured on one GPU\n", "## Arithmetic: bytes per step\n"
PREDICTED, MEANING = "## Arithmetic: predicted efficiency\n", "## What it says\n"
EACH = (8, 64, 512)  # processes that have as many samples each as were measured
TOGETHER = (2, 8, 16)  # ... that have as many together
HEAD = """
Made by `python benchmarks/scaling.py` from the newest records in `results/`; a test fails when the two differ. Idle is
the share of its time in which the GPU waits for the loader: one minus the time of a step whose batch lies on the GPU
over that of a step whose batch the loader brings. The phases are those of the compiled step, by events on the GPU; in
one CUDA graph, which is faster, they overlap and cannot be told apart.

| figure | value | command | made on |
|---|---|---|---|
"""
MODEL = """
The model: time of a step = the step of one process alone + what of the gradients does not hide behind the backward
({hidden:.0f} % of the step, as of the compiled one) + statistics, keys and shuffle, none of which hide. One process
receives {inside:.0f} GB/s from its own node of {node} and {between:.0f} GB/s from other nodes; latency is left out.
**All of these are assumptions; put in your own** (`Machine` in that file). Efficiency is images/s of one process among
N over those of one alone.
"""
UNKNOWN = f"""
The step alone has not been measured yet (`ressl bench {RECIPE} --parts engines:graph`), so nothing is predicted.
"""
CAREFUL = """
The step alone is measured: {milliseconds:.1f} ms for {batch} samples, as one CUDA graph (the first row above). Several
processes run `compile` instead, which is slower. More hides behind a longer step, and what does not is a smaller share
of it, so the efficiency errs on the careful side. It does not tell images/s, though: N processes do not reach N times
those of the graph. One process with `--engine compile`: {compiled}.

With {batch} samples for each process:
"""
GATHERED = """
MoCo's way, which gathers every view on every process, would receive N times as much of the shuffle: {few:.2g} GB a step
with {n_few} processes and {many:.2g} GB with {n_many}, where the same model gives {at_few:.0f} % and {at_many:.0f} %.
"""
OWN = """
With the recipe's own {batch} samples for all processes together, and a step in proportion to its samples. A card makes
fewer images/s of few samples than of many, so the true step is longer: again on the careful side for what is sent, but
what half-empty cards lose is not in the table, and has not been measured:
"""
STEP, FILES = f"ressl bench {RECIPE} --parts engines:graph", f"ressl bench {RECIPE} --parts loader --data FOLDER"
COMPILED, PROFILE = f"ressl bench {RECIPE} --parts engines:compile", f"ressl bench {RECIPE} --parts profile"

Way = tuple[str, str, Callable[[Record], Record], str]  # kind of the record, its name, what of it, the command


def _graph(record: Record) -> Record:
    return engine(record, "graph")


def _cost(record: Record) -> Record:
    if record["small"]:
        raise KeyError("a toy")
    return next(row for row in record["rows"] if row["name"] == "ReSSL" and row["engine"] == "graph")


def _fed(record: Record) -> Record:
    return next(row for row in record["loader"] if row["loader"] == "step fed by the loader")


def _profile(record: Record) -> Record:
    return record["profile"]


def of_step(row: Record) -> str:
    return f"{row['images_per_second']:,.0f} images/s, {row.get('step_memory_gb', row['peak_memory_gb']):.1f} GB"


def of_files(row: Record) -> str:
    share = f"{100 * row['share_of_step']:.0f} % of the speed on resident pictures"
    return f"{row['images_per_second']:,.0f} images/s, {share} ({row['files']}, {row['workers']} workers)"


def of_idle(row: Record) -> str:
    return f"{100 * row['idle_share']:.1f} %"


def of_profile(found: Record) -> str:
    shares = ", ".join(f"{row['phase']} {100 * row['share']:.1f} %" for row in found["phases"])
    return f"{shares} (of {found['milliseconds']:.1f} ms, {found['engine']})"


ALONE: list[Way] = [("bench", RECIPE, _graph, STEP), ("cost", "imagenet", _cost, "ressl cost")]
FED: list[Way] = [("bench", RECIPE, _fed, FILES)]
# (figure, where it may be found, how it is shown)
FIGURES: list[tuple[str, list[Way], Callable[[Record], str]]] = [
    ("batch 256, random pictures on the GPU", ALONE, of_step),
    ("the same from picture files", FED, of_files),
    ("GPU idle while training from files", FED, of_idle),
    ("shares of the step's time", [("bench", RECIPE, _profile, PROFILE)], of_profile),
]


def newest_of(folder: Path, ways: Iterable[Way]) -> tuple[Record, Record, str] | None:
    """The newest record that has it, what of it is wanted, and the command that made it."""
    found = [(*pair, command) for kind, name, read, command in ways if (pair := newest_with(folder, kind, name, read))]
    return max(found, key=lambda one: str(one[0]["started"]), default=None)


def measured(folder: Path) -> Iterator[str]:
    for figure, ways, shown in FIGURES:
        found = newest_of(folder, ways)
        if found is None:
            yield f"| {figure} | not measured yet | `{ways[0][3]}` | |"
            continue
        record, row, command = found
        made = record["environment"]
        where = f"{made['gpu']}, torch {made['torch']}, commit {made.get('commit', '?')}"
        yield f"| {figure} | {shown(row)} | `{command}` | {where} |"


def predicted(folder: Path) -> Iterator[str]:
    """What the newest step alone, as one graph, and the assumptions on the network give for many processes."""
    found, assumed = newest_of(folder, ALONE), Machine(step_seconds=0.0)
    inside, between = assumed.inside / 1e9, assumed.between / 1e9
    yield MODEL.format(hidden=100 * assumed.hidden, inside=inside, node=assumed.node, between=between).rstrip()
    if found is None:
        yield UNKNOWN.rstrip()
        return
    row = found[1]
    machine, batch = replace(assumed, step_seconds=row["milliseconds"] / 1e3), row["batch"]
    slower = newest_of(folder, [("bench", RECIPE, lambda record: engine(record, "compile"), COMPILED)])
    compiled = of_step(slower[1]) if slower else f"not measured yet (`{COMPILED}`)"
    yield CAREFUL.format(milliseconds=row["milliseconds"], batch=batch, compiled=compiled)
    recipe = get_recipe(RECIPE)
    sent = {n: traffic(recipe, n, batch) for n in EACH}
    yield from _table([], ([n, *_cells(of, n, machine)] for n, of in sent.items()))
    gathered = {n: replace(of, shuffle=n * of.shuffle) for n, of in sent.items()}
    left = {n: 100 * efficiency(of, n, machine) for n, of in gathered.items()}
    few, many = EACH[1:]
    yield GATHERED.format(
        n_few=few, few=gathered[few].shuffle / 1e9, at_few=left[few],
        n_many=many, many=gathered[many].shuffle / 1e9, at_many=left[many],
    ).rstrip()  # fmt: skip
    yield OWN.format(batch=recipe.batch_size)
    yield from _table(
        ["samples each", "step, ms"], (_shared(n, recipe.batch_size // n, batch, machine) for n in TOGETHER)
    )


def _shared(n: int, each: int, batch: int, machine: Machine) -> list[Any]:
    machine = replace(machine, step_seconds=machine.step_seconds * each / batch)
    sent = traffic(get_recipe(RECIPE), n, each)
    return [n, each, f"{1e3 * machine.step_seconds:.1f}", *_cells(sent, n, machine)]


def _cells(sent: Traffic, n: int, machine: Machine) -> list[str]:
    megabytes = [f"{x / 1e6:,.1f}" for x in (sent.gradients, sent.statistics, sent.keys, sent.shuffle)]
    return [*megabytes, f"{100 * efficiency(sent, n, machine):.0f} %"]


def _table(more: list[str], rows: Iterable[list[Any]]) -> Iterator[str]:
    headings = ["N", *more, "gradients MB", "statistics MB", "keys MB", "shuffle MB", "efficiency"]
    yield f"| {' | '.join(headings)} |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


def page(text: str, folder: Path) -> str:
    """The document with what is measured, and what is predicted from it, made anew."""
    before, rest = text.split(HEADING)
    arithmetic, meaning = rest.split(NEXT)[1].split(PREDICTED)[0], rest.split(MEANING)[1]
    return (
        f"{before}{HEADING}{HEAD}{chr(10).join(measured(folder))}\n\n"
        f"{NEXT}{arithmetic}{PREDICTED}{chr(10).join(predicted(folder))}\n\n{MEANING}{meaning}"
    )


def main() -> None:
    folder, out = Path((sys.argv[1:2] or ["results"])[0]), Path((sys.argv[2:3] or ["docs/SCALING.md"])[0])
    out.write_text(page(out.read_text(encoding="utf-8"), folder), encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
