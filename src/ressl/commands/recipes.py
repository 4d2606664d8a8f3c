"""ressl recipes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from ressl.commands.shared import show, table
from ressl.recipes import RECIPES, get_recipe


def add_options(parser: ArgumentParser) -> None:
    parser.description = "List the recipes, or print one whole."
    parser.add_argument("name", nargs="?", help="print this recipe as JSON")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    if options.name:
        print(get_recipe(options.name).to_json(), end="")
        return 0
    # Two tables, for one of all columns leaves no room for words in a terminal of 80.
    words = ("name", "what")
    what = table("recipes (paper: linear evaluation, top-1)", *words, "paper", left=words, wrapped=("what",))
    how = table("how they train", "name", "epochs", "batch", "queue", "tau_t / tau_s", left=words)
    for recipe in RECIPES.values():
        o = recipe.options
        taus = f"{o.get('teacher_temperature', 0.04)} / {o.get('student_temperature', 0.1)}"
        paper = f"{recipe.paper['linear']:.2f}" if "linear" in recipe.paper else "-"
        what.add_row(recipe.name, recipe.summary, paper)
        how.add_row(recipe.name, str(recipe.epochs), str(recipe.batch_size), f"{o['queue_size']:,}", taus)
    show(what)
    print()
    show(how)
    print("train one: ressl pretrain NAME; see all of it: ressl recipes NAME")
    return 0
