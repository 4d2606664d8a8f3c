"""Labelled pictures for evaluation, and the frozen features of them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ressl import rng
from ressl.data.base import ArraySource, FileSource, Source
from ressl.data.reading import SizesDiffer, read_all
from ressl.data.sources import open_source, splits
from ressl.data.voc import MultiLabelSource
from ressl.errors import printable, unknown
from ressl.evaluation.cache import fingerprint
from ressl.evaluation.features import extract
from ressl.evaluation.knn import knn_accuracy
from ressl.recipes.recipe import Recipe

HELD_OUT = 5  # without a test split, every fifth labelled picture is held out


@dataclass(frozen=True)
class EvaluationData:
    """Labelled pictures to fit on and to test on, uint8 N x 3 x H x W.

    Labels are class numbers (N), or 1, -1 and 0 (difficult) per class (N x C) where a picture may show several.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: list[str]  # fit to be shown: a folder's name may be bytes that are no text
    note: str  # how the test set came about

    @property
    def several(self) -> bool:
        return self.train[1].ndim == 2

    def fingerprint(self) -> str:
        """Of the pictures; labels change no feature."""
        return fingerprint({"train": self.train[0], "test": self.test[0]})

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
    if isinstance(train, MultiLabelSource):
        return _several(train, recipe, root)
    if train.labels is None or len(train.labels[train.labels >= 0].unique()) < 2:
        return None  # one class cannot be told from another
    fit, classes = _labelled(train, recipe, limit), list(map(printable, train.classes))
    if "test" in splits(recipe.data, root):
        test = open_source(recipe.data, "test", root)
        if test.labels is not None:
            return EvaluationData(fit, _labelled(test, recipe, limit), classes, "the data's own test split")
    images, labels = fit
    place = rng.permutation(0, 0, len(labels), rng.EVALUATION, "cpu")
    held, kept = place[::HELD_OUT], torch.cat([place[i::HELD_OUT] for i in range(1, HELD_OUT)])
    note = f"no test split: one labelled picture in {HELD_OUT} held out"
    return EvaluationData((images[kept], labels[kept]), (images[held], labels[held]), classes, note)


def unlabelled_data(recipe: Recipe, root: str | None, limit: int) -> EvaluationData:
    """Pictures without labels, one in five set aside: to look at, not to measure. Every label is 0."""
    source = open_source(recipe.data, "train", root)
    some = copy(source)  # of whatever kind: pictures in shards are no files
    some.labels = torch.zeros(len(source), dtype=torch.int64)
    images, labels = _labelled(some, recipe, limit)
    cut = len(images) - len(images) // HELD_OUT
    return EvaluationData((images[:cut], labels[:cut]), (images[cut:], labels[cut:]), [], "no labels")


def _several(train: MultiLabelSource, recipe: Recipe, root: str | None) -> EvaluationData:
    """Pictures with several labels each, in the data's own split."""
    parts = []
    for source in (train, open_source(recipe.data, "test", root)):
        assert isinstance(source, MultiLabelSource)
        # Read by number, so that the labels of a broken picture go with it.
        numbered = FileSource(source.name, source.paths, torch.arange(len(source)))
        images, number, _ = read_all(numbered, room_for(recipe), inner=recipe.image_size)
        assert number is not None
        parts.append((images, source.targets[number]))
    return EvaluationData(parts[0], parts[1], train.classes, "the data's own test split")


def room_for(recipe: Recipe) -> int:
    """The side at which pictures are read: the test input's short side, so that they are resized once, as embed does.

    Where a recipe does not tell it, a little more than the input, so that crops have room.
    """
    return recipe.linear.resize or round(recipe.image_size * 256 / 224)


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
    size, inner = room_for(recipe), recipe.image_size
    try:
        images, found, _ = read_all(some, None if as_they_are else size, inner=inner)
    except SizesDiffer:  # size is judged by a sample of the files
        images, found, _ = read_all(some, size, inner=inner)
    assert found is not None
    return images, found


def kept_as_is(source: Source, recipe: Recipe) -> bool:
    """Whether evaluation takes pictures at their own size; much larger ones would show a network another scale."""
    return source.size is not None and max(source.size) <= 2 * recipe.image_size


def features_of(
    backbone: nn.Module,
    data: EvaluationData,
    recipe: Recipe,
    precision: torch.dtype,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Features of both parts, by the recipe's own test input."""
    first, total = len(data.train[0]), len(data.train[0]) + len(data.test[0])

    def take(images: Tensor, before: int) -> Tensor:
        tell = None if progress is None else (lambda done, _: progress(before + done, total))
        return extract(
            backbone, images, mean=recipe.mean, std=recipe.std, size=recipe.image_size, resize=recipe.linear.resize,
            precision=precision, progress=tell,
        )  # fmt: skip

    return take(data.train[0], 0), take(data.test[0], first)


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


def precision_of(name: str, device: torch.device) -> torch.dtype:
    """``auto`` is bf16 on a GPU that has it and float32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    known = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if name not in known:
        raise unknown("precision", name, ["auto", *known])
    return known[name]
