"""ressl record."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ressl.reproduce.ledger import write_record
from ressl.runs import Run


def add_options(parser: ArgumentParser) -> None:
    parser.description = "Write a finished run and its evaluations as one JSON record (no machine paths in it)."
    parser.add_argument("run", help="run folder")
    parser.add_argument("--into", default="results", metavar="FOLDER", help="default: results")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    print(write_record(Run.open(options.run), options.into))
    return 0
