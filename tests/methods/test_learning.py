"""Every method learns: on the generated pictures it beats its own untrained backbone by ten points of kNN.

Short runs of small networks on small pictures, one core and about ten seconds each. The table in docs/METHODS.md comes
from here: ``python tests/methods/test_learning.py 1 2 3`` (seeds).
"""

from __future__ import annotations

import functools
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from ressl.checkpoints import Checkpoint
from ressl.data.base import ArraySource
from ressl.data.loaders import ResidentLoader
from ressl.data.shapes import CLASSES, make_shapes
from ressl.evaluation.features import extract
from ressl.evaluation.knn import knn_accuracy
from ressl.methods import METHODS, Method
from ressl.recipes import Recipe, get_recipe, method_options
from ressl.runs import Run, build_method
from ressl.training import Settings, build_step

POINTS = 10.0
PICTURES, HELD_OUT = 2048, 512

# What makes a short run out of the demo: a figure is 5 px wide, so nothing is pooled away at once and nothing blurred.
SHORT: dict[str, Any] = {
    **{"image_size": 16, "stem": "small", "width": 8, "batch_size": 32, "bn_groups": 1},
    **{"epochs": 6, "warmup_epochs": 0.3, "lr": 0.4},
}
OWN: dict[str, dict[str, Any]] = {
    "simclr": {"optimiser": "sgd"},  # by LARS some seeds do not start in so few steps
    "byol": {"lr": 8.0, "teacher_momentum": 0.9},
    "simsiam": {"lr": 1.5},
    "supervised": {"epochs": 3, "lr": 0.1},
    "swav": {"epochs": 4, "lr": 10.0},
    "instdisc": {"epochs": 7, "lr": 0.25},
    "localagg": {"epochs": 7, "lr": 0.2, "cluster_from": 0.3},
    "cpc-v2": {"image_size": 24, "stem": "medium", "epochs": 5, "lr": 1.0},  # patches must show a figure
    "pcl-v2": {"cluster_from": 0.6},  # in so few steps, earlier prototypes hold it back with some seeds
    "clsa": {"epochs": 5},
    "clsa-multi": {"epochs": 4},
    "seed": {"epochs": 4, "teacher_width": 12, "teacher_stem": "small"},
}


class Learned(NamedTuple):
    before: float
    after: float
    method: Method
    steps: int


@functools.cache
def data(size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *make_shapes(PICTURES, size, 1), *make_shapes(HELD_OUT, size, 2)


def short(name: str, **changes: Any) -> Recipe:
    demo = get_recipe("demo")
    weak, strong = demo.views
    demo = demo.replace(views=(weak, replace(strong, blur=0.0, gray=0.7)))
    bank = {"bank_size": PICTURES} if "bank_size" in method_options(name) else {}
    recipe = demo.replace(method=name, **(SHORT | bank | OWN.get(name, {}) | changes))
    # Five operations of RandAugment leave nothing of 16 pixels.
    return recipe.replace(views=[replace(view, randaugment=min(view.randaugment, 2)) for view in recipe.views])


def knn(backbone: nn.Module, recipe: Recipe) -> float:
    images, labels, held, truth = data(recipe.image_size)
    fit, test = (extract(backbone, x, mean=recipe.mean, std=recipe.std) for x in (images, held))
    return knn_accuracy(fit, labels, test, truth, k=20, temperature=0.1)


def learn(recipe: Recipe) -> Learned:
    """Train, and measure before and after."""
    images, labels, *_ = data(recipe.image_size)
    method = build_method(recipe)
    before = knn(method.backbone, recipe)
    loader = ResidentLoader(ArraySource("shapes", images, labels, CLASSES), recipe.batch_size, "cpu", recipe.seed)
    step = build_step(recipe, method, loader, Settings(device="cpu"), torch.device("cpu"))
    for epoch in range(recipe.epochs):
        step.begin_epoch(epoch)
        for _ in range(loader.steps_per_epoch):
            step.advance()
    assert step.bad_step() is None
    return Learned(before, knn(method.backbone, recipe), method, step.done)


def teach(folder: Path, seed: int = 0) -> Run:
    """A short run of MoCo v2 that is wider than SEED's student, kept as a run keeps it."""
    recipe = short("moco-v2", width=OWN["seed"]["teacher_width"], epochs=OWN["seed"]["epochs"], seed=seed)
    learned = learn(recipe)
    run = Run.create(folder, recipe, {})
    state = {f"method.{key}": t for key, t in learned.method.state_dict().items()}
    run.checkpoints.save(learned.steps, Checkpoint(state, {"step": learned.steps}))
    return run


@pytest.mark.parametrize("name", METHODS)
def test_it_learns(name: str, tmp_path: Path) -> None:
    teacher = {"teacher": str(teach(tmp_path / "teacher").path)} if name == "seed" else {}
    learned = learn(short(name, **teacher))
    assert learned.after - learned.before >= POINTS


def table(seeds: list[int]) -> None:
    """Gains in points of kNN, as rows of Markdown."""
    print(f"| method | steps | {' | '.join(f'seed {seed}' for seed in seeds)} |")
    print("|---|---|" + "---|" * len(seeds))
    for name in METHODS:
        gains = []
        for seed in seeds:
            with tempfile.TemporaryDirectory() as folder:
                teacher = {"teacher": str(teach(Path(folder, "teacher"), seed).path)} if name == "seed" else {}
                learned = learn(short(name, seed=seed, **teacher))
            gains.append(f"{learned.before:.1f} -> {learned.after:.1f} ({learned.after - learned.before:+.1f})")
        print(f"| `{name}` | {learned.steps} | {' | '.join(gains)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    table([int(seed) for seed in sys.argv[1:]])
