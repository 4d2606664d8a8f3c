"""How a run goes on: where, with which recipe, and how often it is noted and saved."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ressl.engine.launchers import launch
from ressl.engine.loop import RHYTHM, Rhythm
from ressl.errors import ResslError
from ressl.recipes import RECIPES, Recipe, get_recipe
from ressl.recipes.recipe import LOOKING_ON
from ressl.recipes.typed import plain
from ressl.runs import Run

LOG_LIMIT = 100_000  # steps between two log points: room is made for as many rows


def restarted(out: str | Path | None, resume: bool, again: int) -> tuple[str | Path | None, bool]:
    """Where to go on when a launcher has started this job again: the run folder it began, if it came to that."""
    if resume or not again:
        return out, resume
    if out is not None:
        return out, (Path(out) / "recipe.json").is_file()
    mine = [run for run in Path("runs").glob("*/run.json") if Run(run.parent).facts.get("launch", "") == launch()]
    newest = max(mine, key=lambda path: path.stat().st_mtime, default=None)
    return (newest.parent, True) if newest is not None else (out, resume)


def paced(run: Run, asked: Rhythm) -> Rhythm:
    """As often as it was begun, but for what is asked for: it bounds what a lost machine costs."""
    kept = run.facts.get("rhythm")
    if not isinstance(kept, dict):
        return asked
    sound = {  # anybody may have written it
        key: type(usual)(kept[key])
        for key, usual in asdict(RHYTHM).items()
        if type(kept.get(key)) in (int, float) and 0 <= kept[key] <= 1e9
    }
    sound["log_steps"] = min(max(1, sound.get("log_steps", RHYTHM.log_steps)), LOG_LIMIT)
    return Rhythm(**(sound | {key: value for key, value in asdict(asked).items() if value != getattr(RHYTHM, key)}))


def named(recipe: str | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if recipe not in RECIPES and Path(recipe).is_dir():
        told = shlex.quote(recipe)
        raise ResslError(f"{recipe!r} is a folder and not a recipe; to learn from its pictures: --data {told}")
    return Recipe.from_file(recipe) if recipe.endswith(".json") else get_recipe(recipe)


def continued(run: Run, recipe: str | Recipe | None, changes: dict[str, Any]) -> Recipe:
    """The recipe a run goes on with: its own, but for what only looks on; else it would be another experiment."""
    old = run.recipe
    whole = isinstance(recipe, Recipe) or (recipe is not None and recipe.endswith(".json"))  # a name says less
    asked = (named(recipe) if recipe is not None and whole else old).replace(**changes)
    was, wanted = plain(old), plain(asked)
    if recipe is not None:
        was["name"], wanted["name"] = old.name, named(recipe).name
    for key, value in was.items():
        if key not in LOOKING_ON and wanted[key] != value:
            raise ResslError(
                f"the checkpoint in {run.path} is of another recipe: its {key} is {value!r}, not {wanted[key]!r}; "
                "resume without that change, or start a new run with another --out"
            )
    return asked
