"""ressl methods."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ressl.commands.shared import show, table
from ressl.methods import METHODS
from ressl.recipes import get_recipe
from ressl.recipes.baselines import MULTI_CROP, TABLES

COLUMNS = {  # heading -> recipe
    "C-10": "cifar10",
    "C-100": "cifar100",
    "STL": "stl10",
    "Tiny": "tiny-imagenet",
    "R50": "imagenet-r50",
    "R18": "imagenet-r18",
}
COSTS, TEXT = ("backprops", "EMA", "forwards", "views", "paper"), ("method", "paper")


def add_options(parser: ArgumentParser) -> None:
    parser.description = "List the methods: what a step costs, and the paper's linear top-1 at 200 epochs."


def run(options: Namespace, changes: dict[str, Any]) -> int:
    # Two tables, for one of all columns is wider than a terminal of 80.
    costs = table("what a step of each method costs", "method", *COSTS, left=TEXT)
    title = "the ReSSL paper's linear top-1 at 200 epochs (R50, R18: ImageNet)"
    reached = table(title, "method", *COLUMNS, left=TEXT)
    for name, method in METHODS.items():
        numbers = [(TABLES.get(name, {}).get(recipe), recipe) for recipe in COLUMNS.values()]
        recipe = get_recipe("cifar10").replace(method=name)
        small = sum(view.size < recipe.image_size for view in recipe.views)
        more = f" + {small}" if small else ""
        costs.add_row(
            name,
            f"{method.backprops - small}x{more}",
            "yes" if method.ema else "no",
            f"{method.forwards - small}{more}",
            f"{len(recipe.views) - small}{more}",
            method.paper,
        )
        as_printed = (f"{n:.{1 if 'imagenet-r' in where else 2}f}" if n is not None else "-" for n, where in numbers)
        reached.add_row(name, *as_printed)
    show(costs)
    print("+ 4: small crops beside the full ones\n")
    show(reached)
    print("without small crops; with them (Table 6, R50):")
    print(", ".join(f"{row} {number:.1f}" for row, number in MULTI_CROP.items()))
    print("\ntrain one: ressl pretrain cifar10 --method NAME; write your own: docs/METHODS.md")
    return 0
