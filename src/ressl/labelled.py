"""Labelled pictures for evaluation, and the frozen features of them."""

from __future__ import annotations

import hashlib
import os
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn

from ressl import alike, rng
from ressl.data import folders
from ressl.data.base import ArraySource, Source
from ressl.data.reading import Progress, SizesDiffer, read_all
from ressl.data.sources import label_of, open_source, splits
from ressl.data.unread import Part, Unread, digest, share_a_size
from ressl.data.voc import MultiLabelSource
from ressl.engine.processes import ALONE, Team, current
from ressl.errors import ResslError, printable, unknown
from ressl.evaluation.cache import fingerprint
from ressl.evaluation.features import extract
from ressl.evaluation.knn import knn_accuracy
from ressl.recipes.recipe import Recipe

HELD_OUT = 5  # without a test split, every fifth labelled picture is held out
NO_LABELS = "no labels"
OWN_SPLIT, NO_SPLIT = "the data's own test split", f"no test split: one labelled picture in {HELD_OUT} held out"


Pictures = TypeVar("Pictures", Tensor, Unread)


@dataclass(frozen=True)
class _Data(Generic[Pictures]):
    """Labelled pictures to fit on and to test on, uint8 N x 3 x H x W.

    Labels are class numbers (N), or 1, -1 and 0 (difficult) per class (N x C) where a picture may show several.
    """

    train: tuple[Pictures, Tensor]
    test: tuple[Pictures, Tensor]
    classes: list[str]  # fit to be shown: a folder's name may be bytes that are no text
    note: str  # how the test set came about
    broken: dict[str, str] = field(default_factory=dict)  # files that were left out so far: path and reason

    @property
    def several(self) -> bool:
        return self.train[1].ndim == 2

    @property
    def labelled(self) -> bool:
        return self.note != NO_LABELS

    def to(self, device: torch.device) -> Self:
        move = lambda pair: (pair[0].to(device), pair[1].to(device))
        return replace(self, train=move(self.train), test=move(self.test))


class EvaluationData(_Data[Tensor]):
    """The usual kind: all pictures are at hand."""

    def fingerprint(self) -> str:
        """Of the pictures; labels change no feature."""
        return fingerprint({"train": self.train[0], "test": self.test[0]})


class UnreadData(_Data[Unread]):
    """Pictures that are too many to hold. Which are broken is known when they were read, so labels may be too many."""

    def fingerprint(self) -> str:
        """Of the files' names, sizes and times: to read them all for it would take as long as their features do."""
        return hashlib.sha256("".join(digest(part[0]) for part in (self.train, self.test)).encode()).hexdigest()

    def having(self, part: str, pictures: Unread, labels: Tensor) -> UnreadData:
        """The same with other pictures to fit on or to test on."""
        train, test = ((pictures, labels) if part == name else old for name, old in self.parts.items())
        return UnreadData(train, test, self.classes, self.note, self.broken)

    @property
    def parts(self) -> dict[str, tuple[Unread, Tensor]]:
        return {"train": self.train, "test": self.test}


class _Wanted(NamedTuple):
    """Labelled pictures of a source, before any is read."""

    source: Source
    keep: Tensor  # their numbers
    labels: Tensor  # of those
    side: int | None  # at which they are read; None: as they are
    else_side: int  # where it turns out that they do not share one size

    @property
    def bytes(self) -> int:
        height, width = (self.side, self.side) if self.side else self.source.size or (0, 0)
        return 3 * height * width * len(self.keep)


def evaluation_data(
    recipe: Recipe,
    root: str | None,
    limit: int | None = None,
    train: Source | None = None,
    progress: Progress | None = None,
) -> EvaluationData | None:
    """The labelled data of a recipe, all of it in memory, or None where there are no labels.

    ``limit`` bounds each part; ``train`` is the training split where it is at hand already.
    """
    opened = _open(recipe, root, limit, train, current())
    return None if opened is None else _read(*opened, recipe, progress)


def data_to_measure(
    recipe: Recipe, root: str | None, device: torch.device, progress: Progress | None = None
) -> EvaluationData | UnreadData | None:
    """The same on a device, or left in its files where it is more than may be held here or there."""
    opened = _open(recipe, root, team=current())
    if opened is None:
        return None
    parts, classes = opened
    if sum(part.bytes for part in parts) <= alike.may_all_hold(device, current()):
        return _read(parts, classes, recipe, progress).to(device)
    fit, *test = [(_unread(part, recipe), part.labels) for part in parts]
    if test:
        return UnreadData(fit, test[0], classes, OWN_SPLIT).to(device)
    held, kept = _held_out(len(fit[1]))
    some = lambda index: (fit[0].take(index), fit[1][index])
    return UnreadData(some(kept), some(held), classes, NO_SPLIT).to(device)


def labelling(source: Source, root: str) -> str:
    """In words: how many classes somebody's own pictures have, or why none."""
    if source.name == "folder":
        return folders.labelling(Path(root))
    found = 0 if source.labels is None else len(source.labels[source.labels >= 0].unique())
    return f"{found:,} classes" if found > 1 else "unlabelled, because no two classes are told"


def no_labels(recipe: Recipe, root: str | None, hint: str) -> ResslError:
    """The error where there is nothing to measure against, with the picture that is to blame if one is."""
    stray = folders.stray_picture(Path(root)) if recipe.data == "folder" and root is not None else None
    cure = "" if stray is None else f"move {stray} away, which lies beside the class folders, or "
    label = label_of(recipe.data, root)
    return ResslError(f"{label} has no labels of two classes or more to measure against; {cure}{hint}")


def has_labels(recipe: Recipe, root: str | None) -> bool:
    """Whether there is anything to measure; no picture is read for it."""
    return _open(recipe, root) is not None


def unlabelled_data(recipe: Recipe, root: str | None, limit: int) -> EvaluationData:
    """Pictures without labels, one in five set aside: to look at, not to measure. Every label is 0."""
    source = open_source(recipe.data, "train", root)
    some = copy(source)  # of whatever kind: pictures in shards are no files
    some.labels = torch.zeros(len(source), dtype=torch.int64)
    images, labels, broken = _in_memory(_wanted(some, recipe, limit), recipe)
    cut = len(images) - len(images) // HELD_OUT
    return EvaluationData((images[:cut], labels[:cut]), (images[cut:], labels[cut:]), [], NO_LABELS, broken)


def _open(
    recipe: Recipe, root: str | None, limit: int | None = None, train: Source | None = None, team: Team = ALONE
) -> tuple[list[_Wanted], list[str]] | None:
    """What to fit on and, where the data has a split for it, what to test on; and the names of the classes.

    The processes of ``team`` are held to see the same, and what must be unpacked is unpacked by the first.
    """

    def opened(split: str) -> Source:
        with team.first():
            source = open_source(recipe.data, split, root)
        alike.check_source(source, team)
        return source

    train = opened("train") if train is None else train
    if isinstance(train, MultiLabelSource):
        parts = []
        for source in (train, opened("test")):
            assert isinstance(source, MultiLabelSource)
            side = room_for(recipe)
            parts.append(_Wanted(source, torch.arange(len(source)), source.targets, side, side))
        return parts, train.classes
    if train.labels is None or len(train.labels[train.labels >= 0].unique()) < 2:
        return None  # one class cannot be told from another
    parts, classes = [_wanted(train, recipe, limit)], list(map(printable, train.classes))
    if "test" in team.tell(sorted(splits(recipe.data, root))):
        test = opened("test")
        if test.labels is not None:
            parts.append(_wanted(test, recipe, limit))
    return parts, classes


def _wanted(source: Source, recipe: Recipe, limit: int | None) -> _Wanted:
    assert source.labels is not None
    keep = torch.nonzero(source.labels >= 0)[:, 0]
    if limit is not None and len(keep) > limit:  # before they are read: of a million files a few are wanted
        keep = keep[rng.permutation(0, 1, len(keep), rng.EVALUATION, "cpu")[:limit].sort().values]
    side = room_for(recipe)
    return _Wanted(source, keep, source.labels[keep], None if kept_as_is(source, recipe) else side, side)


def _read(parts: list[_Wanted], classes: list[str], recipe: Recipe, progress: Progress | None) -> EvaluationData:
    images, labels, broken = _in_memory(parts[0], recipe, progress)
    if len(parts) == 2:
        more, truth, others = _in_memory(parts[1], recipe, progress)
        return EvaluationData((images, labels), (more, truth), classes, OWN_SPLIT, broken | others)
    held, kept = _held_out(len(labels))
    return EvaluationData((images[kept], labels[kept]), (images[held], labels[held]), classes, NO_SPLIT, broken)


def _held_out(count: int) -> tuple[Tensor, Tensor]:
    """The numbers to test on and those to fit on, where there is no test split."""
    place = rng.permutation(0, 0, count, rng.EVALUATION, "cpu")
    return place[::HELD_OUT], torch.cat([place[i::HELD_OUT] for i in range(1, HELD_OUT)])


def _in_memory(
    wanted: _Wanted, recipe: Recipe, progress: Progress | None = None
) -> tuple[Tensor, Tensor, dict[str, str]]:
    """Pictures, labels, and the files that were left out."""
    source, keep, labels = wanted.source, wanted.keep, wanted.labels
    if isinstance(source, ArraySource) and wanted.side is None:
        return source.images if len(keep) == len(source) else source.images[keep], labels, {}
    some = Part(source, keep, torch.arange(len(keep)))  # read by number, so that the label of a broken one goes with it
    try:
        images, number, broken = read_all(some, wanted.side, progress=progress, inner=recipe.image_size)
    except SizesDiffer:  # size is judged by a sample of the files
        images, number, broken = read_all(some, wanted.else_side, progress=progress, inner=recipe.image_size)
    assert number is not None
    missed = {error.path: error.reason for error in broken}
    _check_read(missed, current())
    return images, labels[number], missed


def _check_read(broken: dict[str, str], team: Team) -> None:
    """Raise where only some of the processes could read a file: their shares of a batch would not fit together."""
    first, *others = team.gather(sorted(map(os.path.basename, broken)))
    for rank, missed in enumerate(others, 1):
        if only := {*missed} ^ {*first}:
            unable, able = (rank, 0) if min(only) in missed else (0, rank)
            raise alike.Unread(
                f"rank {unable} could not read {min(only)}, rank {able} could; start again, or look at that machine's "
                "disk"
            )


def _unread(wanted: _Wanted, recipe: Recipe) -> Unread:
    some, side = Part(wanted.source, wanted.keep), wanted.side
    if side is None and not isinstance(wanted.source, ArraySource) and not share_a_size(some):
        side = wanted.else_side
    return Unread(some, side, recipe.image_size)


def room_for(recipe: Recipe) -> int:
    """The side at which pictures are read: the test input's short side, so that they are resized once, as embed does.

    Where a recipe does not tell it, a little more than the input, so that crops have room.
    """
    return recipe.linear.resize or round(recipe.image_size * 256 / 224)


def kept_as_is(source: Source, recipe: Recipe) -> bool:
    """Whether evaluation takes pictures at their own size; much larger ones would show a network another scale."""
    return source.size is not None and max(source.size) <= 2 * recipe.image_size


def features_of(
    backbone: nn.Module,
    data: EvaluationData,
    recipe: Recipe,
    precision: torch.dtype,
    progress: Progress | None = None,
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
