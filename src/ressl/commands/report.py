"""ressl report."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ressl import console
from ressl.commands.shared import positive
from ressl.errors import printable
from ressl.reporting import report


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "Write one self-contained HTML page: numbers beside the paper's, curves, neighbours, a map with pictures, the\n"
        "recipe and its differences from the paper's, versions and hardware. Several runs are compared. What was\n"
        "measured is read from RUN/evaluation; measure first: ressl evaluate RUN --protocol all."
    )
    parser.epilog = "examples:\n  ressl report runs/x\n  ressl report runs/x runs/y -o compare.html"
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("-o", "--out", metavar="FILE", help="default: report.html in the first run's folder")
    parser.add_argument("--data", help="where the data lies, if not where the run found it")
    parser.add_argument("--pictures", default="2000", help="pictures on the map at most (default: 2000)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto (bf16 on a GPU), fp32 or bf16")
    parser.add_argument("--again", action="store_true", help="make the map anew")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    pictures = positive("--pictures", options.pictures)
    with console.display() as shown:
        path = report(
            options.runs, options.out, data=options.data, device=options.device, precision=options.precision,
            pictures=pictures, display=shown, again=options.again,
        )  # fmt: skip
    print(printable(str(path)))
    return 0
