"""ressl recipes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from rich.table import Table

from ressl.commands.shared import show
from ressl.recipes import RECIPES, get_recipe


def add_options(parser: ArgumentParser) -> None:
    parser.description = "List the recipes, or print one whole."
    parser.add_argument("name", nargs="?", help="print this recipe as JSON")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    if options.name:
        print(get_recipe(options.name).to_json(), end="")
        return 0
    table = Table(title="recipes (paper: linear evaluation, top-1)", title_justify="left")
    for heading in ("name", "what", "epochs", "batch", "queue", "tau_t / tau_s", "paper"):
        table.add_column(heading, justify="left" if heading in ("name", "what") else "right", no_wrap=heading == "name")
    for recipe in RECIPES.values():
        o = recipe.options
        taus = f"{o.get('teacher_temperature', 0.04)} / {o.get('student_temperature', 0.1)}"
        paper = f"{recipe.paper['linear']:.2f}" if "linear" in recipe.paper else "-"
        row = (recipe.name, recipe.summary, recipe.epochs, recipe.batch_size, f"{o['queue_size']:,}", taus, paper)
        table.add_row(*map(str, row))
    show(table)
    print("train one: ressl pretrain NAME; see all of it: ressl recipes NAME")
    return 0
