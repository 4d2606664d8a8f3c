"""A recipe for a user's own pictures, chosen from what is there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ressl.data.views import STRONG, WEAK
from ressl.errors import ResslError
from ressl.evaluation.linear import LinearProtocol
from ressl.nn.backbones import Stem
from ressl.recipes.recipe import Recipe
from ressl.recipes.typed import convert

SMALLEST = 32  # pictures; below that there is nothing to relate to
# Of the linear classifier, by a cosine. On CIFAR-100 and Tiny ImageNet (docs/RESULTS.md, "other linear classifiers")
# 0.2, the paper's for SimCLR and BYOL, is two to four points behind 1, and 5 one ahead: a careful part of the way.
LINEAR_RATE = 1.0


@dataclass(frozen=True)
class Findings:
    """What a look at the data says."""

    count: int
    short_side: int  # the median
    on_gpu: bool
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)


def choose_recipe(kind: str, found: Findings, told: Mapping[str, Any] | None = None) -> tuple[Recipe, list[str]]:
    """A recipe for ``kind`` ("folder" or "array") and the reasons, one line each, for printing.

    ``told`` is what the user will change in it: no reason is given for what is not chosen here.
    """
    told = told or {}
    if found.count < SMALLEST:
        raise ResslError(f"{found.count} pictures are too few to learn from; bring at least {SMALLEST}")
    why = list[str]()

    def because(fields: tuple[str, ...], reason: str) -> None:
        if not told.keys() & set(fields):
            why.append(reason)

    size, stem = _size(found)
    seen = f"pictures have a short side of about {found.short_side} px"
    because(("image_size", "stem"), f"{size} px and the {stem} stem, because {seen}")
    batch = min(256, max(32, _power_of_two(found.count / 8)))
    groups = max(1, min(8, batch // 32))
    split = "one batch-norm group" if groups == 1 else f"{groups} batch-norm groups"
    because(("batch_size", "bn_groups"), f"batch {batch} in {split}, because there are {found.count:,} pictures")
    share = 2 if found.count < 16_384 else 8
    queue = max(batch, min(131072, _power_of_two(found.count / share)))
    reason = "few relations say little" if share == 2 else "as the paper's is a twelfth to a sixth"
    because(("queue_size",), f"queue {queue:,}, up to 1/{share} of the pictures, because {reason}")
    steps = 39_000 if found.on_gpu else 3_000
    epochs = max(10, min(800, round(steps * batch / found.count)))
    because(("epochs",), f"{epochs} epochs, about {epochs * (found.count // batch):,} steps; --epochs changes it")
    width = 64 if found.on_gpu else 32
    backbone = "resnet50" if found.on_gpu and size == 224 and found.count >= 200_000 else "resnet18"
    if not found.on_gpu:
        because(("width",), "width 32 instead of 64, because there is no GPU")
    recipe = Recipe(
        name=kind,
        summary="chosen from the data",
        data=kind,
        image_size=size,
        mean=found.mean,
        std=found.std,
        views=(dataclasses.replace(WEAK, size=size), dataclasses.replace(STRONG, size=size)),
        backbone=backbone,
        stem=stem,
        width=width,
        bn_groups=groups,
        options={
            "queue_size": queue,
            "teacher_momentum": 0.99 if found.count < 80_000 else 0.996 if found.count < 500_000 else 0.999,
            "teacher_temperature": 0.04,
        },
        epochs=epochs,
        batch_size=batch,
        knn_every=max(1, convert(int, told.get("epochs", epochs), "epochs") // 20),  # often enough for a short run too
        knn_k=neighbours(found.count),
        # Told, because evaluation else takes pictures as they are: it must see them as whoever loads the model will.
        linear=LinearProtocol(
            schedule="cosine", lr=LINEAR_RATE, resize=size if size < 128 else round(size * 256 / 224)
        ),
    )
    return recipe, why


def neighbours(count: int) -> int:
    """How many vote in kNN among ``count`` pictures: the usual 200 would be most of a small set, whatever its class."""
    return min(200, max(5, count // 20))


def _size(found: Findings) -> tuple[int, Stem]:
    if found.short_side <= 48:
        return 32, "small"
    if found.short_side <= 128 or not found.on_gpu:
        return 64, "medium"
    return (128, "imagenet") if found.short_side <= 200 else (224, "imagenet")


def _power_of_two(x: float) -> int:
    return 2 ** max(2, math.floor(math.log2(max(x, 4))))
