"""The paper's cost table (its Table 8) on the card at hand, and the same of any recipe and methods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ressl.bench.steps import step_speed
from ressl.environment import environment
from ressl.errors import unknown
from ressl.methods import METHODS
from ressl.recipes import get_recipe
from ressl.recipes.baselines import SAMPLES
from ressl.recipes.recipe import Recipe, method_options

PAPER = "imagenet"  # the name of the paper's own table
BASE = "MoCo v2"  # whose time the others are compared with


class Row(NamedTuple):
    name: str
    methods: tuple[str, ...]  # what the method may be called
    recipe: str
    hours: float | None  # GPU hours per epoch on V100s, of the paper
    memory_gb: float | None  # of all its GPUs together
    batch: int | None  # the paper's


ROWS: tuple[Row, ...] = (
    Row("MoCo v2", ("mocov2", "moco-v2", "moco"), "imagenet-r50", 2.25, 40, 256),
    Row("ReSSL", ("ressl",), "imagenet-r50", 2.33, 42, 256),
    Row("SimCLR", ("simclr",), "imagenet-r50", 3.55, 858, 4096),
    Row("BYOL", ("byol",), "imagenet-r50", 3.88, 863, 4096),
    Row("ReSSL (4 crops)", ("ressl",), "imagenet-r50-4crops", 3.62, 80, 256),
    Row("ReSSL (5 crops)", ("ressl",), "imagenet-r50-5crops", None, None, 256),
)
# The two ratios that matter: what ReSSL costs over MoCo v2, and four crops over a method with two backprops.
RATIOS = (("ReSSL", BASE), ("ReSSL (4 crops)", "SimCLR"))


def rows_of(name: str, methods: Sequence[str] = (), only: str = "") -> tuple[Row, ...]:
    """The paper's rows, or one per method on a recipe (all methods where none is named).

    >>> [row.name for row in rows_of("imagenet", only="5 crops")]
    ['ReSSL (5 crops)']
    """
    for method in methods:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
    recipe = "imagenet-r50" if name == PAPER else get_recipe(name).name
    rows = ROWS
    if name != PAPER or methods:
        rows = tuple(Row(METHODS[m].title, (m,), recipe, None, None, None) for m in methods or METHODS)
    chosen = tuple(row for row in rows if only.lower() in row.name.lower())
    if not chosen:
        raise unknown("row", only, [row.name for row in rows])
    return chosen


def recipe_for(row: Row) -> Recipe | None:
    """The recipe whose step is measured; None where the method is not there."""
    method = next((name for name in row.methods if name in METHODS), None)
    return None if method is None else get_recipe(row.recipe).replace(method=method)


def small(recipe: Recipe) -> Recipe:
    """A size that a CPU gets through in seconds; what it says of ratios means little."""
    wanted = {"hidden_dim": 64, "queue_size": 256, "bank_size": 4096, "patch": 16, "stride": 8}
    wanted |= {"teacher_width": 8}  # of another network, which has its own
    options = {key: value for key, value in wanted.items() if key in method_options(recipe.method)}
    groups = min(recipe.bn_groups, 4)
    return recipe.replace(backbone="resnet10", width=8, batch_size=16, bn_groups=groups, image_size=32, **options)


def cost(
    device: torch.device,
    seconds: float = 2.0,
    engine: str = "auto",
    say: Callable[[str], None] = print,
    name: str = PAPER,
    methods: Sequence[str] = (),
    only: str = "",
    keep: Callable[[dict[str, Any]], object] = lambda found: None,
) -> dict[str, Any]:
    """Images/s, memory and hours per epoch of every row, beside the paper's; clustering between epochs not counted.

    ``keep`` gets what there is after every row.
    """
    on_gpu, start, wanted = device.type == "cuda", time.monotonic(), rows_of(name, methods, only)
    rows: list[dict[str, Any]] = []
    papers = name == PAPER and not methods
    name = PAPER if papers else wanted[0].recipe
    found: dict[str, Any] = {"schema": 1, "kind": "cost", "name": name, "small": not on_gpu, "seconds": seconds}
    found |= {"rows": rows, "took": 0.0, "ratios": []}
    found |= {"environment": environment(device), "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    for row in wanted:
        recipe = recipe_for(row)
        if recipe is None:
            say(f"{row.name}: not in this version, left out")
            continue
        chosen = recipe if on_gpu else small(recipe)
        how = "eager" if engine == "auto" and not on_gpu else engine  # compiling would take longer than measuring
        measured = step_speed(chosen, device, how, "bf16" if on_gpu else "fp32", seconds)
        hours = SAMPLES[recipe.data] / measured["images_per_second"] / 3600
        measured |= {"name": row.name, "method": recipe.method, "hours_per_epoch": hours}
        measured |= {"paper": {"hours_per_epoch": row.hours, "memory_gb": row.memory_gb, "batch": row.batch}}
        say(f"{row.name}: {measured['images_per_second']:,.0f} images/s")
        rows.append(measured)
        pairs = RATIOS if papers else [(r["name"], BASE) for r in rows if r["name"] != BASE]
        found |= {"took": round(time.monotonic() - start, 1), "ratios": ratios(rows, pairs)}
        keep(found)
    return found


def ratios(rows: list[dict[str, Any]], pairs: Iterable[tuple[str, str]] = RATIOS) -> list[dict[str, Any]]:
    """Time per epoch of one row over another's, ours and the paper's on ImageNet (None where it has none)."""
    by, hours = {row["name"]: row for row in rows}, {row.name: row.hours for row in ROWS}
    made = []
    for one, two in pairs:
        if one in by and two in by:
            ours = by[one]["hours_per_epoch"] / by[two]["hours_per_epoch"]
            above, below = hours.get(one), hours.get(two)
            paper = round(above / below, 3) if above and below else None
            made.append({"ratio": f"{one} / {two}", "ours": round(ours, 3), "paper": paper})
    return made
