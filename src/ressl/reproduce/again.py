"""The command lines that make a recorded run again, from how its recipe differs from the one it began with."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

from ressl.data.views import View, parse_view
from ressl.recipes import RECIPES, Findings, Recipe, choose_recipe, method_options
from ressl.recipes.typed import plain

# What is chosen from the pictures, and so must be said for others.
_CHOSEN = (
    *("image_size", "stem", "backbone", "width", "epochs", "batch_size", "bn_groups"),
    *("queue_size", "teacher_momentum"),
)
_ASIDE = ("name", "summary", "data", "options", "paper", "linear", "views", "method", "knn_every")
_FROM_DATA = ("mean", "std", "num_classes", "bank_size")  # which a run takes from its pictures where nobody says them
_FROM_TEACHER = (
    *("mean", "std"),
    *("teacher_backbone", "teacher_stem", "teacher_width", "teacher_hidden_dim", "teacher_head"),
)


def again(record: dict[str, Any]) -> list[str]:
    """The commands, one after the other; a second one where its classifier was not the recipe's."""
    wanted = Recipe.from_json(json.dumps(record["recipe"]))
    begun = begun_with(record)
    changes = differing(begun, wanted)
    place = ["--data", "FILE" if wanted.data in ("array", "list") else "FOLDER"]
    words = ["ressl", "pretrain", *([begun.name] if begun.name in RECIPES else place)]
    for key, value in changes.items():
        words += [f"--{key.replace('_', '-')}", *(value if isinstance(value, list) else [value])]
    made = begun.replace(**changes)
    asked = [name for name in ("knn", "linear") if name in record["evaluations"]]
    own = record["evaluations"].get("linear", {}).get("settings", plain(wanted.linear))  # may have been told others
    settings = _settings(plain(made.linear), own) if "linear" in asked else []
    if not settings:
        return [shlex.join([*words, "--then", *asked] if asked else words)]
    first = [*words, "--out", "RUN", *(["--then", "knn"] if "knn" in asked else [])]
    return [shlex.join(first), shlex.join(["ressl", "evaluate", "RUN", "--protocol", "linear", *settings])]


def begun_with(record: dict[str, Any]) -> Recipe:
    """The recipe that was named, or another of its data, or one that is chosen for such pictures."""
    made = record["recipe"]
    for named in (RECIPES.get(made["name"]), *RECIPES.values()):
        if named is not None and named.data == made["data"]:
            return named
    pictures = record["steps"] * made["batch_size"] // made["epochs"] if made["epochs"] else 10_000
    side = {32: 32, 64: 64, 128: 160}.get(made["image_size"], 300)
    on_gpu = record["environment"]["device"] == "cuda"
    found = Findings(max(pictures, 32), side, on_gpu, tuple(made["mean"]), tuple(made["std"]))
    return choose_recipe(made["data"], found)[0]


def differing(begun: Recipe, wanted: Recipe) -> dict[str, str | list[str]]:
    """What to change in a recipe to train as another does, as words of a command line; linear evaluation left aside."""
    changes: dict[str, Any] = {"method": wanted.method} if wanted.method != begun.method else {}
    named = begun.name in RECIPES
    if not named:
        changes |= {key: _value(wanted, key) for key in _CHOSEN if _has(wanted, key)}
    # What a method brings depends on these.
    changes |= {key: getattr(wanted, key) for key in ("image_size", "stem") if _apart(begun, wanted, key)}
    made = begun.replace(**changes)
    aside = {*_ASIDE, *(() if named else _FROM_DATA), *(_FROM_TEACHER if wanted.method == "seed" else ())}
    every = [*(field.name for field in dataclasses.fields(Recipe)), *method_options(wanted.method)]
    changes |= {key: _value(wanted, key) for key in every if key not in aside and _apart(made, wanted, key)}
    words: dict[str, str | list[str]] = {key: _word(value) for key, value in changes.items()}
    if "teacher" in words:
        words["teacher"] = "RUN"  # wherever it lies
    if made.views != wanted.views:
        words["views"] = [view_words(view, wanted.image_size) for view in wanted.views]
    return words


def view_words(view: View, size: int) -> str:
    """A view as ``--views`` takes it.

    >>> view_words(parse_view("strong", 32), 32), view_words(parse_view("crop+flip+gray", 32), 32)
    ('strong', 'weak,gray=0.2')
    """
    return min((_from(name, view, size) for name in ("weak", "strong", "none")), key=len)


def _from(name: str, view: View, size: int) -> str:
    named, wanted = plain(parse_view(name, size)), plain(view)
    settings = [f"{key}={_word(value, ':')}" for key, value in wanted.items() if value != named[key]]
    return ",".join([name, *settings])


def _settings(made: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Options of 'ressl evaluate' where the classifiers differ."""
    other = {key: value for key, value in wanted.items() if key in made and made[key] != value}
    return [word for key, value in other.items() for word in (f"--{key.replace('_', '-')}", _word(value))]


def _has(recipe: Recipe, key: str) -> bool:
    return key in recipe.options or hasattr(recipe, key)


def _value(recipe: Recipe, key: str) -> Any:
    if hasattr(recipe, key):
        return getattr(recipe, key)
    return recipe.options.get(key, method_options(recipe.method)[key][1])


def _apart(one: Recipe, other: Recipe, key: str) -> bool:
    return bool(_value(one, key) != _value(other, key))


def _word(value: Any, between: str = ",") -> str:
    if isinstance(value, (list, tuple)):
        return between.join(_word(item) for item in value)
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    short = f"{value:.12g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)
