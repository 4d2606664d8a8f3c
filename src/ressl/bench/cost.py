"""The paper's cost table (its Table 8) on the card at hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ressl.bench.steps import step_speed
from ressl.environment import environment
from ressl.methods import METHODS
from ressl.recipes import get_recipe
from ressl.recipes.recipe import Recipe, method_options

IMAGENET = 1_281_167  # training pictures


class Row(NamedTuple):
    name: str
    methods: tuple[str, ...]  # what the method may be called
    recipe: str
    hours: float | None  # GPU hours per epoch on V100s, of the paper
    memory_gb: float | None  # of all its GPUs together
    batch: int | None  # the paper's


ROWS = (
    Row("MoCo v2", ("mocov2", "moco-v2", "moco"), "imagenet-r50", 2.25, 40, 256),
    Row("ReSSL", ("ressl",), "imagenet-r50", 2.33, 42, 256),
    Row("SimCLR", ("simclr",), "imagenet-r50", 3.55, 858, 4096),
    Row("BYOL", ("byol",), "imagenet-r50", 3.88, 863, 4096),
    Row("ReSSL (4 crops)", ("ressl",), "imagenet-r50-4crops", 3.62, 80, 256),
    Row("ReSSL (5 crops)", ("ressl",), "imagenet-r50-5crops", None, None, 256),
)
# The two ratios that matter: what ReSSL costs over MoCo v2, and four crops over a method with two backprops.
RATIOS = (("ReSSL", "MoCo v2"), ("ReSSL (4 crops)", "SimCLR"))


def recipe_for(row: Row) -> Recipe | None:
    """The recipe whose step is measured; None where the method is not there."""
    method = next((name for name in row.methods if name in METHODS), None)
    if method is None:
        return None
    base = get_recipe(row.recipe)
    known = method_options(method)
    options = {key: value for key, value in base.options.items() if key in known}
    # Only ReSSL has a weak teacher view; the others see two views of the student's kind.
    views = base.views if method == "ressl" else (base.views[1], base.views[1])
    return replace(base, name=row.name, method=method, options=options, views=views)


def small(recipe: Recipe) -> Recipe:
    """A size that a CPU gets through in seconds; what it says of ratios means little."""
    wanted = {"hidden_dim": 64, "queue_size": 256}
    options = {key: value for key, value in wanted.items() if key in method_options(recipe.method)}
    return recipe.replace(backbone="resnet10", width=8, batch_size=16, bn_groups=4, image_size=32, **options)


def cost(
    device: torch.device, seconds: float = 2.0, engine: str = "auto", say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Images/s, memory and GPU hours per ImageNet epoch of every row, beside the paper's."""
    on_gpu = device.type == "cuda"
    rows = []
    for row in ROWS:
        recipe = recipe_for(row)
        if recipe is None:
            say(f"{row.name}: not in this version, left out")
            continue
        chosen = recipe if on_gpu else small(recipe)
        measured = step_speed(chosen, device, engine, "bf16" if on_gpu else "fp32", seconds)
        measured |= {"name": row.name, "hours_per_epoch": IMAGENET / measured["images_per_second"] / 3600}
        measured |= {"paper": {"hours_per_epoch": row.hours, "memory_gb": row.memory_gb, "batch": row.batch}}
        say(f"{row.name}: {measured['images_per_second']:,.0f} images/s")
        rows.append(measured)
    found: dict[str, Any] = {"schema": 1, "kind": "cost", "name": "imagenet", "small": not on_gpu, "rows": rows}
    found |= {"environment": environment(device), "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    return found | {"ratios": ratios(rows)}


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Time per epoch of one row over another's, ours and the paper's."""
    by = {row["name"]: row for row in rows}
    return [
        {
            "ratio": f"{one} / {two}",
            "ours": round(by[one]["hours_per_epoch"] / by[two]["hours_per_epoch"], 3),
            "paper": round(by[one]["paper"]["hours_per_epoch"] / by[two]["paper"]["hours_per_epoch"], 3),
        }
        for one, two in RATIOS
        if one in by and two in by
    ]
