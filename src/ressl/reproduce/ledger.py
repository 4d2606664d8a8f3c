"""One JSON record per measured run, written by the program and never by hand.

A record holds what is needed to trust and to repeat a number, and no path of the machine it was made on.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from pathlib import Path
from typing import Any

from ressl.errors import ResslError
from ressl.files import write_atomically
from ressl.recipes import Recipe
from ressl.recipes.typed import plain
from ressl.runs import Run, safe_name

SCHEMA = 1
POINTS = 60  # of a curve that a record keeps
_COUNTED_ON = ("environment", "seconds", "steps", "precision", "engine")
# What says nothing about the weights or the classifier: two runs that differ in these alone are the same experiment.
_ASIDE = ("name", "summary", "paper", "knn_every", "knn_k", "knn_temperature")


def identity(recipe: Recipe) -> str:
    """A name for the experiment: a hash of everything in the recipe that decides the result."""
    values = {key: value for key, value in plain(recipe).items() if key not in _ASIDE}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def record(run: Run) -> dict[str, Any]:
    """The record of a finished run and of the evaluations made of it."""
    facts, recipe, rows = run.facts, run.recipe, run.metrics()
    if "finished" not in facts:
        raise ResslError(f"the run {run.path} is not finished; continue it with --resume first")
    if lacking := [key for key in _COUNTED_ON if key not in facts]:
        raise ResslError(f"{run.path / 'run.json'} says nothing sound of {', '.join(lacking)}; train it again")
    speeds = [row["images_per_second"] for row in rows if "images_per_second" in row]
    evaluations = {}
    for path in sorted((run.path / "evaluation").glob("*.json")):
        found = run.read_evaluation(path.stem)
        if found is None:
            raise ResslError(f"the evaluation {path} cannot be read; remove it and evaluate again")
        evaluations[path.stem] = found
        if found.get("step", facts["steps"]) != facts["steps"]:
            raise ResslError(
                f"the evaluation {path.stem} of {run.path} was made after step {found['step']} of {facts['steps']}; "
                "evaluate again first"
            )
    curves = {name: short(run.curve(name)) for name in ("loss", "knn", "teacher_entropy", "spread", "agreement")}
    return {
        "schema": SCHEMA,
        "kind": "pretrain",
        "name": recipe.name,
        "recipe": plain(recipe),
        "seed": recipe.seed,
        "commit": facts["environment"].get("commit"),
        "environment": facts["environment"],
        "finished": facts["finished"],
        "seconds": facts["seconds"],
        "jobs": facts.get("jobs", 1),  # runs that shared the machine; of more than one the speed says little
        "steps": facts["steps"],
        "lacking": facts.get("lacking", 0),  # pictures of a named data set; without them it is another experiment
        "precision": facts["precision"],
        "engine": facts["engine"],
        "peak_memory_gb": facts.get("peak_memory_gb"),
        # The median: a log point that holds a compilation says nothing about the speed of training.
        "images_per_second": round(statistics.median(speeds), 1) if speeds else None,
        "evaluations": evaluations,
        "curves": {name: points for name, points in curves.items() if points},
    }


def write_record(run: Run, folder: str | Path = "results") -> Path:
    """Write the record and say where; a record of the same run is replaced."""
    facts = record(run)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = run.recipe
    when = re.sub(r"\W", "", facts["finished"])
    # The experiment is part of the name: two runs of a sweep may well end in the same second.
    words = (safe_name(recipe), recipe.method, f"e{recipe.epochs}", f"s{recipe.seed}", identity(recipe)[:8], when)
    path = folder / ("-".join(words) + ".json")
    write_atomically(path, (json.dumps(facts, indent=1) + "\n").encode())
    return path


def short(points: list[tuple[float, float]]) -> list[list[float]]:
    """At most ``POINTS`` of a curve, evenly spaced, the last one always among them."""
    every = max(1, -(-len(points) // POINTS))
    kept = points[::-1][::every][::-1]
    return [[round(x, 3), round(y, 5)] for x, y in kept]
