"""ressl cost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from rich.table import Table

from ressl.bench import suite
from ressl.bench.cost import cost
from ressl.commands.shared import show
from ressl.engine.accelerate import ENGINES
from ressl.engine.loop import device_of
from ressl.errors import unknown
from ressl.recipes.typed import convert


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "The paper's cost table (Table 8) on this machine: images/s, memory and GPU hours per ImageNet epoch of each\n"
        "method's whole training step on random pictures, beside the paper's V100 hours. Without a GPU a toy size runs."
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--engine", default="auto", help=f"{', '.join(ENGINES)} (default: auto)")
    parser.add_argument("--seconds", metavar="S", default="2", help="to spend on each measurement (default: 2)")
    parser.add_argument("--into", default="results", metavar="FOLDER", help="where the JSON goes (default: results)")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    if options.engine not in ENGINES:
        raise unknown("engine", options.engine, ENGINES)
    seconds: float = convert(float, options.seconds, "--seconds")
    found = cost(device_of(options.device), seconds, options.engine, lambda text: print(text, flush=True))
    table = Table(title="cost of an ImageNet epoch" + (" (toy size)" if found["small"] else ""), title_justify="left")
    table.add_column("method")
    for heading in ("images/s", "memory GB", "GPU hours", "paper, V100 hours", "paper, GB on all GPUs"):
        table.add_column(heading, justify="right")
    for row in found["rows"]:
        paper = row["paper"]
        cells = (row["peak_memory_gb"], row["hours_per_epoch"], paper["hours_per_epoch"], paper["memory_gb"])
        shown = ["" if cell is None else f"{cell:,.2f}" for cell in cells]
        table.add_row(row["name"], f"{row['images_per_second']:,.0f}", *shown)
    show(table)
    for pair in found["ratios"]:
        print(f"{pair['ratio']}: {pair['ours']:.3f} (paper {pair['paper']:.3f})")
    print(f"written to {suite.write(found, options.into)}")
    return 0
