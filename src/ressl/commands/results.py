"""ressl results."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ressl.data.decode import shown
from ressl.errors import ResslError
from ressl.files import write_atomically
from ressl.reproduce.grid import Ledger
from ressl.reproduce.page import page
from ressl.reproduce.pictures import pictures


def add_options(parser: ArgumentParser) -> None:
    parser.description = "Write the page of all measured results, and its pictures, from the records of the ledger."
    parser.add_argument("--ledger", default="results", metavar="FOLDER", help="default: results")
    parser.add_argument("--into", default="docs/RESULTS.md", metavar="FILE", help="default: docs/RESULTS.md")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    if not any(Path(options.ledger).glob("*.json")):  # a slip of the finger must not empty the page
        raise ResslError(f"there are no records in {shown(options.ledger)}; say with --ledger where they lie")
    path, ledger = Path(options.into), Ledger(options.ledger)
    path.parent.mkdir(parents=True, exist_ok=True)
    for picture in pictures(ledger).values():
        print(picture.draw(path.parent / "images"))
    write_atomically(path, page(ledger).encode())
    print(path)
    return 0
