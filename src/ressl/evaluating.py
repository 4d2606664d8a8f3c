"""Evaluation of a run: its data, its frozen backbone, a protocol, a JSON file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ressl import rng
from ressl.data.base import ArraySource, FileSource, Source
from ressl.data.reading import SizesDiffer, read_all
from ressl.data.sources import open_source, splits
from ressl.engine.accelerate import lay_out
from ressl.engine.loop import device_of
from ressl.engine.processes import current, device_for, shared
from ressl.environment import environment
from ressl.errors import ResslError, unknown
from ressl.evaluation.features import extract
from ressl.evaluation.knn import knn_accuracy
from ressl.evaluation.linear import PROTOCOLS, LinearProtocol, linear_evaluation
from ressl.recipes.recipe import Recipe
from ressl.recipes.typed import build, plain
from ressl.runs import Run

HELD_OUT = 5  # without a test split, every fifth labelled picture is held out
CHOICES = ("knn", "linear", "linear-step", "linear-cosine")


@dataclass(frozen=True)
class EvaluationData:
    """Labelled pictures to fit on and to test on, uint8 N x 3 x H x W."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: list[str]
    note: str  # how the test set came about

    def to(self, device: torch.device) -> EvaluationData:
        move = lambda pair: (pair[0].to(device), pair[1].to(device))
        return replace(self, train=move(self.train), test=move(self.test))


def evaluation_data(
    recipe: Recipe, root: str | None, limit: int | None = None, train: Source | None = None
) -> EvaluationData | None:
    """The labelled data of a recipe, or None where there are no labels.

    ``limit`` bounds each part; ``train`` is the training split where it is at hand already.
    """
    train = open_source(recipe.data, "train", root) if train is None else train
    if train.labels is None or len(train.labels[train.labels >= 0].unique()) < 2:
        return None  # one class cannot be told from another
    fit = _labelled(train, recipe, limit)
    if "test" in splits(recipe.data, root):
        test = open_source(recipe.data, "test", root)
        if test.labels is not None:
            return EvaluationData(fit, _labelled(test, recipe, limit), train.classes, "the data's own test split")
    images, labels = fit
    place = rng.permutation(0, 0, len(labels), rng.EVALUATION, "cpu")
    held, kept = place[::HELD_OUT], torch.cat([place[i::HELD_OUT] for i in range(1, HELD_OUT)])
    note = f"no test split: one labelled picture in {HELD_OUT} held out"
    return EvaluationData((images[kept], labels[kept]), (images[held], labels[held]), train.classes, note)


def _labelled(source: Source, recipe: Recipe, limit: int | None) -> tuple[Tensor, Tensor]:
    assert source.labels is not None
    keep = torch.nonzero(source.labels >= 0)[:, 0]
    as_they_are = kept_as_is(source, recipe)
    if limit is not None and len(keep) > limit:
        keep = keep[rng.permutation(0, 1, len(keep), rng.EVALUATION, "cpu")[:limit].sort().values]
    some: Source
    if isinstance(source, ArraySource):
        whole = len(keep) == len(source)
        images, labels = (source.images, source.labels) if whole else (source.images[keep], source.labels[keep])
        if as_they_are:
            return images, labels
        some = ArraySource(source.name, images, labels, source.classes)
    else:
        assert isinstance(source, FileSource)  # chosen before they are read: of a million files a few are wanted
        some = source.take(keep)
    size = round(recipe.image_size * 256 / 224)  # a little more than the input, so that crops have room
    try:
        images, found, _ = read_all(some, None if as_they_are else size)
    except SizesDiffer:  # size is judged by a sample of the files
        images, found, _ = read_all(some, size)
    assert found is not None
    return images, found


def kept_as_is(source: Source, recipe: Recipe) -> bool:
    """Whether evaluation takes pictures at their own size; much larger ones would show a network another scale."""
    return source.size is not None and max(source.size) <= 2 * recipe.image_size


def features_of(
    backbone: nn.Module, data: EvaluationData, recipe: Recipe, precision: torch.dtype
) -> tuple[Tensor, Tensor]:
    resize = recipe.linear.resize
    take = lambda images: extract(
        backbone, images, mean=recipe.mean, std=recipe.std, size=recipe.image_size, resize=resize, precision=precision
    )
    return take(data.train[0]), take(data.test[0])


def knn_of(backbone: nn.Module, data: EvaluationData, recipe: Recipe, precision: torch.dtype) -> float:
    """Weighted kNN top-1 of the frozen backbone, in percent."""
    fit, held = features_of(backbone, data, recipe, precision)
    return knn_accuracy(
        fit,
        data.train[1].to(fit.device),
        held,
        data.test[1].to(fit.device),
        k=recipe.knn_k,
        temperature=recipe.knn_temperature,
    )


def protocol_of(recipe: Recipe, name: str) -> LinearProtocol:
    """The recipe's own protocol for ``linear``, the paper's named ones otherwise."""
    if name == "linear":
        return recipe.linear
    return replace(PROTOCOLS[name.removeprefix("linear-")], resize=recipe.linear.resize)


def with_changes(protocol: LinearProtocol, changes: Mapping[str, Any]) -> LinearProtocol:
    """A changed copy; values may be text. An unknown or mistyped key is named."""
    changed: LinearProtocol = build(LinearProtocol, plain(protocol) | dict(changes), "the linear protocol")
    return changed


def evaluate(
    run: Run | str,
    protocol: str = "linear",
    *,
    data: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    again: bool = False,
    progress: Callable[[int, int, float], None] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Evaluate a run by ``knn``, ``linear`` (the recipe's protocol), ``linear-step`` or ``linear-cosine``.

    The result is written to ``RUN/evaluation/<protocol>.json`` and is not computed again unless asked. ``changes``
    override fields of the linear protocol.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    if protocol not in CHOICES:
        raise unknown("protocol", protocol, CHOICES)
    if protocol == "knn" and changes:
        raise ResslError(f"knn has no {next(iter(changes))} to change; knn_k and knn_temperature are the recipe's")
    recipe, team = run.recipe, current()
    place = device_for(device_of(device), team)
    dtype = precision_of(precision, place)
    chosen = None if protocol == "knn" else with_changes(protocol_of(recipe, protocol), changes)
    asked = {"k": recipe.knn_k, "temperature": recipe.knn_temperature} if chosen is None else plain(chosen)
    checkpoint = run.checkpoint()
    step = checkpoint.facts["step"]
    known = team.tell(run.read_evaluation(protocol) if team.leads else None)
    own = data is None or str(Path(data).resolve()) == run.facts.get("data")
    made = {"step": step, "settings": asked, "precision": str(dtype).removeprefix("torch."), "own_data": own}
    # A result on other data is never taken for this one, nor kept for the next: its place is not written down.
    if known is not None and not again and own and all(known.get(key) == value for key, value in made.items()):
        return known
    labelled = evaluation_data(recipe, data or run.facts.get("data"))
    if labelled is None:
        raise ResslError(f"{recipe.data} has no labels, so there is nothing to measure {protocol} against")
    # Every process has the data; the backbone's work on it, which is nearly all of it, is shared.
    backbone, start = shared(lay_out(run.backbone(), place), team), time.monotonic()
    labelled = labelled.to(place)
    if chosen is None:
        result: dict[str, Any] = {"top1": knn_of(backbone, labelled, recipe, dtype)}
    else:
        result = linear_evaluation(
            backbone,
            labelled.train,
            labelled.test,
            protocol=chosen,
            mean=recipe.mean,
            std=recipe.std,
            image_size=recipe.image_size,
            seed=recipe.seed,
            device=place,
            precision=dtype,
            progress=progress,
        ).as_dict()
    resize = recipe.linear.resize if chosen is None else chosen.resize
    result |= {
        "protocol": protocol,
        **made,
        "test": labelled.note,
        "test_pictures": len(labelled.test[1]),
        "test_input": f"{labelled.test[0].shape[-2]} x {labelled.test[0].shape[-1]} px"
        + (f", short side {resize}, centre {recipe.image_size}" if resize else ", as is"),
        "seconds": time.monotonic() - start,
        "environment": environment(place),
    }
    if team.leads:
        run.write_evaluation(protocol, result)
    return result


def precision_of(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is bf16 on a GPU that has it and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    known = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if name not in known:
        raise unknown("precision", name, ["auto", *known])
    return known[name]
