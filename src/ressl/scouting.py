"""What the compiler makes of a training step, made by other processes while the first readies its networks.

The compiler is Python, and takes half of a cold start. It leaves its work in a cache on disk, so that others can do it,
one for the views, one for the rest: with networks that give zeros of the right shape and an optimiser at rest.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ressl.data.base import ArraySource
from ressl.data.loaders import ResidentLoader
from ressl.engine.accelerate import ALL_IDEAS, accelerate
from ressl.engine.compiling import awaken, compiled
from ressl.engine.convolutions import stem, stem_columns, stem_pixels
from ressl.engine.graphs import GraphedBody
from ressl.engine.lookahead import LookAhead
from ressl.engine.loop import Rhythm
from ressl.engine.step import TrainStep
from ressl.engine.streams import on_device
from ressl.recipes import Recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

LARGEST = 2 << 30  # bytes of pictures: each of them has as much memory on the card


def task(recipe: Recipe, loader: ResidentLoader, settings: Settings, place: torch.device) -> dict[str, Any]:
    """All that decides what is compiled."""
    return {
        "recipe": recipe.to_json(),
        "pictures": list(loader.images.shape),
        "classes": loader.classes if loader.labels is not None else None,
        "settings": asdict(settings),
        "place": str(place),
    }


def worth_it(loader: object) -> TypeGuard[ResidentLoader]:
    """Whether others can compile its step: on pictures of one size that are on the card, and not too many."""
    return type(loader) is ResidentLoader and loader.images.nbytes <= LARGEST


def scout(task: dict[str, Any]) -> None:
    """Compile a part of the step that the task tells of."""
    recipe, place = Recipe.from_json(task["recipe"]), torch.device(task["place"])
    settings = Settings(**{**task["settings"], "rhythm": Rhythm(**task["settings"]["rhythm"])})
    labels = None if task["classes"] is None else torch.zeros(task["pictures"][0], dtype=torch.int64)
    pictures = torch.zeros(task["pictures"], dtype=torch.uint8, device=place)
    source = ArraySource("", pictures, labels, [str(i) for i in range(task["classes"] or 0)])
    loader = ResidentLoader(source, recipe.batch_size, place, recipe.seed)
    with on_device(place):  # kernels of ours and a card's name in the caches are those of the current one
        step = build_step(recipe, build_method(recipe), loader, settings, place)
        shown = hollow(step)
        accelerate(step, settings.engine, ideas=replace(ALL_IDEAS, fused_norms=False), exact=settings.exact)
        take(step, task["part"] == "rest", shown)


def hollow(step: TrainStep) -> list[Tensor]:
    """Let the networks of ``step`` give zeros of the shape they would give; returns what they will be shown."""
    shown: list[Tensor] = []
    for child in step.method.children():
        if any(True for _ in child.parameters()):
            child.forward = _zeros(child, shown)
    return shown


def take(step: TrainStep, whole: bool, shown: Sequence[Tensor] = ()) -> None:
    """The first step, without an optimiser and with black views; or the views alone.

    ``shown``: as :func:`hollow` returned it.
    """
    step.grad_norm = lambda: torch.zeros((), device=step.device)  # type: ignore[method-assign]
    step.optimiser.step = lambda: None  # type: ignore[method-assign, assignment]
    step.begin_epoch(0)
    if not whole:
        with torch.no_grad():
            step.prepare(None)
        return
    body = step.body.plain if isinstance(step.body, GraphedBody) else step.body
    if isinstance(step.prepare, LookAhead):
        with step.prepare.in_the_dark():
            body(None)
            first_layers(step, shown)
    else:
        body(None)


def first_layers(step: TrainStep, shown: Sequence[Tensor]) -> None:
    """Of networks that our kernels run; what their first layer reads is compiled, too: of views one by one or several
    together, as the method shows them."""
    from torchvision.models.resnet import ResNet  # here, because it takes seconds

    seen = compiled(stem_columns), compiled(stem_pixels)
    with torch.no_grad(), torch.autocast(step.device.type, dtype=step.precision):
        for view in {(view.shape, view.stride()): view for view in shown if view.ndim == 4}.values():
            for part in step.method.modules():
                if isinstance(part, ResNet):
                    stem(part.conv1, view, *seen)


def _zeros(network: nn.Module, shown: list[Tensor]) -> Callable[..., Any]:
    """A network's outputs by shape alone: a copy without memory tells it."""
    sketch = copy.deepcopy(network).to("meta")

    def forward(*args: Any, **named: Any) -> Any:
        given = _tensors(args)
        shown.extend(given)
        made = sketch.to(given[0].dtype)(*_on(args, "meta"), **named)
        return _on(made, given[0].device)

    return forward


def _tensors(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    return [x for part in tree for x in _tensors(part)] if isinstance(tree, (list, tuple)) else []


def _on(tree: Any, where: Any) -> Any:
    if isinstance(tree, Tensor):
        return torch.zeros_like(tree, device=where).requires_grad_(tree.requires_grad)
    return type(tree)(_on(part, where) for part in tree) if isinstance(tree, (list, tuple)) else tree


def ready() -> None:
    """Import what the compiler needs, as far as no card is needed for it."""
    inside = ("compile_fx", "codegen.triton", "runtime.triton_heuristics")
    for name in ("torchvision.models.resnet", *(f"torch._inductor.{name}" for name in inside)):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def main() -> None:
    awaken(torch.device("cuda" if torch.cuda.is_available() else "cpu"))  # while nothing has been asked for yet
    if asked := sys.stdin.read():
        scout(json.loads(asked))
