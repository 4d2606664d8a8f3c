"""ressl demo."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from typing import Any

from rich.table import Table

from ressl import console
from ressl.commands.shared import show
from ressl.demo import NAMES
from ressl.demo import demo as run_demo
from ressl.engine.signals import Interrupted


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "Train ReSSL on generated pictures and compare its features with raw pixels and the untrained\n"
        "backbone. Leaves report.html, curves.png and neighbours.png in the run folder. Needs neither data nor GPU."
    )
    parser.add_argument("--out", metavar="RUN", help="run folder (default: runs/demo-<time>)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--epochs", help="train for so many epochs instead")
    parser.add_argument("--seed", help="another seed")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    changes = {key: getattr(options, key) for key in ("epochs", "seed") if getattr(options, key) is not None}
    try:
        with console.display() as shown:
            result = run_demo(options.out, device=options.device, display=shown, **changes)
    except Interrupted as stop:
        return stop.exit_code
    table = Table(title="top-1 accuracy on held-out pictures", title_justify="left")
    table.add_column("features")
    table.add_column("kNN", justify="right")
    table.add_column("linear", justify="right")
    for name, scores in result.scores.items():
        style = "bold" if name == "ressl" else ""
        table.add_row(NAMES[name], f"{scores['knn']:.1f} %", f"{scores['linear']:.1f} %", style=style)
    show(table)
    print(f"{result.seconds:.0f} s in all. Look at:")
    for path in (result.report, *result.figures):
        print(f"  {path}")
    tensorboard = shlex.quote(f"{result.run.path}/tensorboard")
    print(f"  {result.run.path}/metrics.jsonl  (or: tensorboard --logdir {tensorboard})")
    return 0
