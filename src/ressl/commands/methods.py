"""ressl methods."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from rich.table import Table

from ressl.commands.shared import show
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


def add_options(parser: ArgumentParser) -> None:
    parser.description = "List the methods: what a step costs, and the paper's linear top-1 at 200 epochs."


def run(options: Namespace, changes: dict[str, Any]) -> int:
    title = "methods, and the ReSSL paper's linear top-1 (CIFAR, STL-10, Tiny ImageNet; ImageNet with ResNet-50, -18)"
    table = Table(title=title, title_justify="left")
    for heading in ("method", "backprops", "EMA", "forwards", "views", *COLUMNS, "paper"):
        text = heading in ("method", "paper")
        table.add_column(heading, justify="left" if text else "right", no_wrap=True)
    for name, method in METHODS.items():
        numbers = [(TABLES.get(name, {}).get(recipe), recipe) for recipe in COLUMNS.values()]
        recipe = get_recipe("cifar10").replace(method=name)
        small = sum(view.size < recipe.image_size for view in recipe.views)
        more = f" + {small}" if small else ""
        table.add_row(
            name,
            f"{method.backprops - small}x{more}",
            "yes" if method.ema else "no",
            f"{method.forwards - small}{more}",
            f"{len(recipe.views) - small}{more}",
            *("-" if n is None else f"{n:.{1 if 'imagenet-r' in where else 2}f}" for n, where in numbers),  # as printed
            method.paper,
        )
    show(table)
    print("+ 4: small crops beside the full ones; the numbers above are without. With them (Table 6, R50):")
    print(", ".join(f"{row} {number:.1f}" for row, number in MULTI_CROP.items()))
    print("train one: ressl pretrain cifar10 --method NAME; write your own: docs/METHODS.md")
    return 0
