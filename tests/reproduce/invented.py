"""Records as the program writes them, with invented numbers; and invented pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ressl.recipes import Recipe, get_recipe
from ressl.recipes.typed import plain
from ressl.reproduce.grid import Job, Ledger
from ressl.reproduce.ledger import SCHEMA
from ressl.reproduce.tables import Cell, Table

MACHINE = {
    "ressl": "1.0", "python": "3.12.1", "torch": "2.11", "torchvision": "0.26", "system": "Linux", "cpu": "some CPU",
    "cores": 16, "threads": 16, "device": "cuda", "gpu": "some GPU", "commit": "abc",
}  # fmt: skip
TINY = {
    "width": 4, "backbone": "resnet10", "image_size": 16, "batch_size": 32, "bn_groups": 2, "queue_size": 64,
    "hidden_dim": 16, "output_dim": 8, "epochs": 1, "knn_every": 0, "warmup_epochs": 0.1,
    "linear": {"epochs": 1, "augment": False}, "data": "array",
}  # fmt: skip
SMALL = Table(
    "small", "A small table", (Cell("a", "x", "demo", TINY, 50.0), Cell("b", "x", "demo", {**TINY, "lr": 0.1}))
)


def record(recipe: Recipe, linear: float | None = None, knn: float = 40.0, **changes: Any) -> dict[str, Any]:
    """Of a run, and of its linear evaluation if ``linear`` is its last accuracy."""
    evaluations = {} if linear is None else {"linear": {"last": linear, "best": linear + 0.5, "seconds": 10.0}}
    made = json.loads(recipe.to_json())
    return {
        "schema": SCHEMA, "kind": "pretrain", "name": made["name"], "recipe": made, "seed": made["seed"],
        "commit": "abc", "environment": MACHINE, "finished": "2026-01-01T00:00:00Z", "seconds": 120.0, "jobs": 1,
        "steps": 1, "precision": "bfloat16", "engine": "graph", "peak_memory_gb": 1.5, "images_per_second": 1000.0,
        "evaluations": evaluations, "curves": {"knn": [[1, knn / 2], [2, knn]]},
    } | changes  # fmt: skip


def cost(name: str, speeds: dict[str, float], **changes: Any) -> dict[str, Any]:
    rows = [
        {"name": n, "images_per_second": s, "hours_per_epoch": 1 / s, "peak_memory_gb": 1.0,
         "engine": "graph", "precision": "bf16", "batch": 256,
         "paper": {"hours_per_epoch": None, "memory_gb": None}}
        for n, s in speeds.items()
    ]  # fmt: skip
    base = speeds.get("MoCo v2", 1.0)
    ratios = [{"ratio": f"{n} / MoCo v2", "ours": base / s, "paper": 1.036 if n == "ReSSL" else None}
              for n, s in speeds.items() if n != "MoCo v2"]  # fmt: skip
    return {
        "schema": SCHEMA, "kind": "cost", "name": name, "small": False, "seconds": 2.0, "took": 90.0,
        "started": "2026-01-01T00:00:00Z", "environment": MACHINE, "rows": rows, "ratios": ratios,
    } | changes  # fmt: skip


def write(folder: Path, *records: dict[str, Any]) -> Ledger:
    folder.mkdir(exist_ok=True)
    for number, one in enumerate(records):
        (folder / f"{number}.json").write_text(json.dumps(one))
    return Ledger(folder)


def a_kills() -> dict[str, Any]:
    return {
        "schema": 1, "kind": "kills", "name": "cifar10", "recipe": plain(get_recipe("cifar10")), "seed": 0,
        "environment": MACHINE, "started": "2026-01-01T00:00:00Z", "signal": "KILL", "exact": False, "steps": 39_000,
        "stops": [{"logged": 700, "resumed": 500, "seconds": 9.5}, {"logged": 900, "resumed": 850, "seconds": 4}],
        "lost": 250, "knn": 88.0, "twin": {"losses": 780, "equal": 2, "largest_difference": 0.02, "knn": 88.5},
        "evaluations": {"linear": {"last": 90.0, "best": 90.1, "seconds": 15.0}},
    }  # fmt: skip


def pictures(n: int, side: int, seed: int) -> np.ndarray:
    """n pictures of two classes by turns, which differ in colour: N x side x side x 3."""
    images = np.random.default_rng(seed).integers(0, 120, (n, side, side, 3), dtype=np.uint8)
    images[::2, ..., 0] += 130
    images[1::2, ..., 2] += 130
    return images


def record_of(job: Job, last: float, finished: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return record(job.recipe, last, finished=finished)
