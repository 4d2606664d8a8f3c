"""The demo: train on generated pictures, compare with raw pixels and the untrained backbone, leave pictures."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ressl.data.augment import to_float
from ressl.engine.loop import Display, device_of
from ressl.evaluating import EvaluationData, evaluation_data, features_of
from ressl.evaluation.knn import knn_accuracy
from ressl.evaluation.linear import linear_evaluation
from ressl.evaluation.neighbours import nearest
from ressl.pretraining import pretrain
from ressl.recipes import get_recipe
from ressl.recipes.recipe import Recipe
from ressl.report import figures
from ressl.reporting import report
from ressl.runs import Run, build_method

NAMES = {"pixels": "raw pixels", "untrained": "untrained backbone", "ressl": "ReSSL backbone"}


@dataclass(frozen=True)
class DemoResult:
    run: Run
    scores: dict[str, dict[str, float]]  # pixels | untrained | ressl -> knn, linear (top-1 in percent)
    figures: list[Path]
    report: Path  # the page with all of it
    seconds: float


def demo(
    out: str | Path | None = None, *, device: str = "auto", display: Display | None = None, **changes: Any
) -> DemoResult:
    """Train the ``demo`` recipe and measure three kinds of features by the same two protocols."""
    start = time.monotonic()
    run = pretrain(get_recipe("demo"), out=out, device=device, display=display, **changes)
    recipe, place = run.recipe, device_of(device)
    data = evaluation_data(recipe, None)
    assert data is not None
    data = data.to(place)
    backbones = {"untrained": build_method(recipe).backbone.to(place), "ressl": run.backbone().to(place)}
    features = {"pixels": (_pixels(data.train[0]), _pixels(data.test[0]))}
    features |= {name: features_of(b, data, recipe, torch.float32) for name, b in backbones.items()}
    scores = {name: _score(pair, data, recipe) for name, pair in features.items()}
    run.write_evaluation("demo", {"scores": scores, "protocol": "knn and linear on cached features"})
    drawn = [draw_curves(run), draw_neighbours(run, data, features["ressl"])]
    page = report([run], device=device, display=display)
    return DemoResult(run, scores, drawn, page, time.monotonic() - start)


def _pixels(images: Tensor) -> Tensor:
    return to_float(images).flatten(1)


def _score(features: tuple[Tensor, Tensor], data: EvaluationData, recipe: Recipe) -> dict[str, float]:
    (fit, held), labels, test_labels = features, data.train[1], data.test[1]
    linear = linear_evaluation(
        None, (fit, labels), (held, test_labels), protocol=recipe.linear, seed=recipe.seed, device=fit.device
    )
    knn = knn_accuracy(fit, labels, held, test_labels, k=recipe.knn_k, temperature=recipe.knn_temperature)
    return {"knn": knn, "linear": linear.last, "linear_best": linear.best}


def draw_curves(run: Run) -> Path:
    recipe = run.recipe
    return figures.curves(
        run.metrics(), run.path / "curves.png", f"{recipe.method} on {recipe.data}", recipe.options.get("queue_size")
    )


def draw_neighbours(run: Run, data: EvaluationData, features: tuple[Tensor, Tensor], rows: int = 8) -> Path:
    """One test picture per class and its ten nearest training pictures."""
    fit, held = features
    labels, test_labels = data.train[1], data.test[1]
    first: Callable[[int], int] = lambda c: int(torch.nonzero(test_labels == c)[0, 0])
    chosen = torch.tensor([first(int(c)) for c in test_labels.unique()[:rows]], device=held.device)
    index, _ = nearest(fit, held[chosen], 10)
    right = labels[index] == test_labels[chosen, None]
    names = [data.classes[int(c)] for c in test_labels[chosen]]
    share = 100 * right.float().mean().item()
    title = f"Nearest neighbours by ReSSL features (red: another class; {share:.0f} % right)"
    return figures.neighbours(
        data.test[0][chosen], data.train[0][index], right, run.path / "neighbours.png", title, names
    )
