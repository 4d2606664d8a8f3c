"""ressl cost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from rich.table import Table

from ressl.bench import suite
from ressl.bench.cost import PAPER, cost
from ressl.commands.shared import above_zero, show
from ressl.engine.accelerate import ENGINES
from ressl.engine.loop import device_of
from ressl.engine.streams import on_device
from ressl.errors import unknown


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "The paper's cost table (Table 8) on this machine: images/s, memory and GPU hours per ImageNet epoch of each\n"
        "method's whole training step on random pictures, beside the paper's V100 hours. With a recipe's name:\n"
        "the same of every method on it. Without a GPU a toy size runs."
    )
    parser.epilog = (
        "examples:\n  ressl cost\n  ressl cost --only '5 crops'\n  ressl cost cifar10\n"
        "  ressl cost cifar10 --methods ressl moco-v2 byol"
    )
    parser.add_argument("recipe", nargs="?", default=PAPER, help=f"a recipe; {PAPER} (default): the paper's table")
    parser.add_argument("--methods", nargs="+", default=[], metavar="M", help="see 'ressl methods' (default: all)")
    parser.add_argument("--only", default="", metavar="WORDS", help="rows whose name has these words: '5 crops'")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--engine", default="auto", help=f"{', '.join(ENGINES)} (default: auto)")
    parser.add_argument("--seconds", metavar="S", default="2", help="to spend on each measurement (default: 2)")
    parser.add_argument("--into", default="results", metavar="FOLDER", help="where the JSON goes (default: results)")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    if options.engine not in ENGINES:
        raise unknown("engine", options.engine, ENGINES)
    seconds = above_zero("--seconds", options.seconds)
    say = lambda text: print(text, flush=True)
    keep = lambda found: suite.write(found, options.into)
    place = device_of(options.device)
    with on_device(place):
        found = cost(place, seconds, options.engine, say, options.recipe, options.methods, options.only, keep)
    show_cost(found)
    print(f"written to {suite.write(found, options.into)}")
    return 0


def show_cost(found: dict[str, Any]) -> None:
    """The table of one measurement."""
    title = f"cost of an epoch, {found['name']}" + (" (toy size)" if found["small"] else "")
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    headings = ["images/s", "memory GB", "hours" if found["small"] else "GPU hours"]  # small: there is no GPU
    paper = any(row["paper"]["hours_per_epoch"] for row in found["rows"])
    for heading in headings + (["paper, V100 hours", "paper, GB on all GPUs"] if paper else []):
        table.add_column(heading, justify="right")
    for row in found["rows"]:
        cells = [row.get("step_memory_gb", row["peak_memory_gb"]), row["hours_per_epoch"]]
        cells += [row["paper"]["hours_per_epoch"], row["paper"]["memory_gb"]] if paper else []
        shown = ["" if cell is None else f"{cell:,.2f}" if cell >= 0.1 else f"{cell:.4f}" for cell in cells]
        table.add_row(row["name"], f"{row['images_per_second']:,.0f}", *shown)
    show(table)
    for pair in found["ratios"]:
        beside = "" if pair["paper"] is None else f" (paper, ImageNet: {pair['paper']:.3f})"
        print(f"{pair['ratio']}: {pair['ours']:.3f}{beside}")
