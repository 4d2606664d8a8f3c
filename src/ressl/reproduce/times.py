"""How long a run will take, by the records of runs like it on a GPU, or by the measured speed of its step."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from ressl.methods import METHODS
from ressl.recipes import RECIPES, Recipe, get_recipe
from ressl.recipes.baselines import SAMPLES

Record = dict[str, Any]
PAPER = "imagenet"  # what a measurement of the paper's own cost table is named
_CROPS = {f"ReSSL ({n} crops)": f"imagenet-r50-{n}crops" for n in (4, 5)}  # its rows of a recipe of their own
_STEP = ("data", "image_size", "views", "backbone", "stem", "width", "bn_groups", "method", "batch_size", "optimiser")


def estimate(records: Iterable[Record], recipe: Recipe) -> float | None:
    """About how many seconds training and linear evaluation take alone on the card; None if nothing like it was made.

    Training goes by images/s, for a run of few epochs is mostly start-up and one among others has not its own speed.
    """
    known = [r for r in records if r["recipe"]["epochs"] and r["environment"].get("device") == "cuda"]
    network = [r for r in known if _shares(r, recipe, "backbone", "width")]
    alike = [r for r in network if _shares(r, recipe, "data", "batch_size")]
    if not alike:
        return None

    # The same method first, then a card of its own: another method's step costs what it costs.
    near = _nearest(alike, lambda r: (_shares(r, recipe, "method"), _alone(r)))
    steps = statistics.median(recipe.epochs * _pictures(r) / _speed(r) for r in near)
    # What is not steps is mostly start-up, long beside others. A longer run may have more of it: kNN, clusters.
    near = _nearest(alike, lambda r: (_alone(r), _shares(r, recipe, "method")))
    rest = statistics.median(_rest(r) * max(1.0, recipe.epochs / r["recipe"]["epochs"]) for r in near)
    return steps + rest + _linear(network, recipe, statistics.median(_pictures(r) for r in alike))


def by_step(costs: Iterable[Record], recipe: Recipe) -> float | None:
    """About how many seconds training takes by the newest measured speed of such a step; None if there is none.

    That step had random pictures on the card. What it takes to read others, to start and to evaluate is not in it.
    """
    for record in sorted(costs, key=lambda r: str(r["started"]), reverse=True):
        for row in () if record["small"] else record["rows"]:
            measured = _measured(record["name"], row)
            alike = measured is not None and all(getattr(measured, key) == getattr(recipe, key) for key in _STEP)
            if alike and recipe.epochs:  # else there is nothing to train
                return float(recipe.epochs * SAMPLES[recipe.data] / row["images_per_second"])
    return None


def _measured(name: str, row: Record) -> Recipe | None:
    """The recipe whose step a row of a cost record is; None where this version has no such."""
    named = name if name != PAPER else _CROPS.get(row["name"], "imagenet-r50")
    known = named in RECIPES and row.get("method") in METHODS
    return get_recipe(named).replace(method=row["method"]) if known else None


def _linear(network: Iterable[Record], recipe: Recipe, pictures: float) -> float:
    """Of the linear evaluation, by records that timed one; 0 without such."""
    timed = [r for r in network if "seconds" in r["evaluations"].get("linear", {}) and _shares(r, recipe, "image_size")]
    near = _nearest(timed, lambda r: (_shares(r, recipe, "data"), _alone(r)))
    found = []
    for record in near:
        linear = record["evaluations"]["linear"]
        epochs = (linear.get("changed") or {}).get("epochs", record["recipe"]["linear"]["epochs"])
        start = linear.get("start_seconds", 0.0)
        ratio = recipe.linear.epochs / epochs * pictures / _pictures(record)
        found.append(start + ratio * (linear["seconds"] - start))
    return statistics.median(found) if found else 0.0


def _nearest(records: Iterable[Record], like: Callable[[Record], tuple[bool, bool]]) -> list[Record]:
    """Those that are most ``like`` what is wanted, all of them."""
    rated = [(like(record), record) for record in records]
    best = max((rate for rate, _ in rated), default=None)
    return [record for rate, record in rated if rate == best]


def _shares(record: Record, recipe: Recipe, *keys: str) -> bool:
    return all(record["recipe"][key] == getattr(recipe, key) for key in keys)


def _alone(record: Record) -> bool:
    return bool(record.get("jobs", 1) == 1)


def _pictures(record: Record) -> float:
    """Of an epoch."""
    made = record["recipe"]
    return float(record["steps"] * made["batch_size"] / made["epochs"])


def _speed(record: Record) -> float:
    """Images/s on a card of its own; of one among others its part of what all made, which is the most it could be."""
    whole = record["steps"] * record["recipe"]["batch_size"] / record["seconds"]
    return float((record["images_per_second"] or whole) * record.get("jobs", 1))


def _rest(record: Record) -> float:
    """Seconds of a training that no step explains; none in a run that went on, whose seconds are of its last part."""
    pictures, speed = record["steps"] * record["recipe"]["batch_size"], record["images_per_second"]
    return max(0.0, record["seconds"] - pictures / speed) if speed else 0.0
