"""ressl bench."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from ressl.bench import suite
from ressl.commands.shared import above_zero, natural, show
from ressl.engine.loop import device_of
from ressl.engine.streams import on_device
from ressl.pretraining import default_workers


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "Speed and memory of the training step, side by side in one run on this machine: our engines, the plain\n"
        "PIL-and-workers way, the views alone, sweeps, and the machine's ceilings. Without a GPU a small version runs."
    )
    parser.epilog = (
        "examples:\n  ressl bench\n  ressl bench tiny-imagenet --parts engines\n"
        "  ressl bench imagenet-r50 --parts ceilings engines:graph loss sweeps:batch_size\n"
        "  ressl bench imagenet-r50 --parts loader profile --data imagenet=/data/imagenet --seconds 30"
    )
    parser.add_argument("recipe", nargs="?", default="cifar10", help="whose step to measure (default: cifar10)")
    pieces = "; ".join(f"{part}:{', '.join(names)}" for part, names in suite.OF_PARTS.items())
    parser.add_argument(
        "--parts", nargs="+", default=list(suite.PARTS), metavar="P",
        help=f"{', '.join(suite.PARTS)} (default: all), or one piece of a part ({pieces})",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--data",
        metavar="PLACE",
        help="the loader's pictures: folder, list.txt, shards or NAME=PATH (default: random)",
    )
    parser.add_argument("--workers", metavar="N", help="loader processes (default: one per core)")
    parser.add_argument("--seconds", metavar="S", help="to spend on each measurement (default: 2)")
    parser.add_argument("--into", default="results", metavar="FOLDER", help="where JSON and plot go (default: results)")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    workers = default_workers() if options.workers is None else natural("--workers", options.workers)
    seconds = None if options.seconds is None else above_zero("--seconds", options.seconds)
    place, found = device_of(options.device), dict[str, Any]()

    def keep(more: dict[str, Any]) -> None:
        found.update(more)
        suite.write(found, options.into)

    try:
        with on_device(place):
            suite.bench(
                options.recipe,
                parts=options.parts,
                device=place,
                workers=workers,
                seconds=seconds,
                data=options.data,
                say=_note,
                keep=keep,
            )
    except BaseException:
        with contextlib.suppress(Exception):  # what stopped it is what should be told
            if suite.tables(found):
                _draw(found, options)
        raise
    for title, label, rows in suite.tables(found):
        show(_table(title, label, rows))
    print(f"written to {suite.write(found, options.into)} and {_draw(found, options)}")
    return 0


def _draw(found: dict[str, Any], options: Namespace) -> Path:
    from ressl.report.figures import bars  # here: a plot that cannot be drawn loses no figures

    path = suite.place_of(found, options.into).with_suffix(".png")
    return bars(suite.tables(found), path, f"ressl bench {options.recipe}")


COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "speed": ("images/s", "{:,.0f}".format),
    "ratio": ("ratio", "{:.2f}x".format),
    "memory": ("memory GB", "{:.2f}".format),
    "start": ("ready after s", "{:.1f}".format),
    "matrix": ("of matrix", "{:.1%}".format),
    "copy": ("of copy", "{:.1%}".format),
    "note": ("", str),
}


def _table(title: str, label: str, rows: list[suite.Row]) -> Table:
    """With the columns in which there is something."""
    table = Table(title=title, title_justify="left")
    table.add_column(label)
    names = [name for name in COLUMNS if any(getattr(row, name) is not None for row in rows)]
    for name in names:
        table.add_column(COLUMNS[name][0], justify="left" if name == "note" else "right")
    for row in rows:
        values = [(COLUMNS[name][1], getattr(row, name)) for name in names]
        table.add_row(row.name, *("" if value is None else shown(value) for shown, value in values))
    return table


def _note(text: str) -> None:
    print(text, flush=True)
