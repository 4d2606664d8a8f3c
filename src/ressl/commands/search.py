"""ressl search."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ressl.commands.shared import positive
from ressl.data.decode import shown
from ressl.errors import ResslError
from ressl.searching import INDEXES, draw_sheet, search


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "The pictures nearest to a picture over a file that 'ressl embed' made, and a contact sheet of them.\n"
        "Exact up to half a million rows; an index beyond (pip install 'ressl[search]')."
    )
    parser.epilog = "example:\n  ressl search features.npy cat.jpg --model runs/x -k 12 -o sheet.png"
    parser.add_argument("features", help=".npy or .parquet of 'ressl embed'")
    parser.add_argument("picture", help="the picture to look for")
    parser.add_argument("--model", help="what made the features (default: what they say)")
    parser.add_argument("-k", default="12", metavar="N", help="how many (default: 12)")
    parser.add_argument("-o", "--out", metavar="FILE", help="contact sheet, e.g. sheet.png")
    parser.add_argument("--images", help="where the pictures are, if not where they were: a folder, or their array")
    parser.add_argument("--index", default="auto", help=", ".join(INDEXES))
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    out = None if options.out is None else Path(options.out)
    if out is not None and out.suffix.lower() != ".png":
        raise ResslError(f"the contact sheet is a .png, not {shown(out.name)}")
    found = search(
        options.features,
        options.picture,
        options.model,
        positive("-k", options.k),
        index=options.index,
        device=options.device,
        message=print,
    )
    for place, item in enumerate(found, 1):
        print(f"{place:3}  {item.cosine:.4f}  {shown(item.path)}")
    if out is not None:
        print(f"contact sheet: {shown(draw_sheet(options.picture, found, out, options.images, print))}")
    return 0
