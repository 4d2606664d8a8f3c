"""What is evaluated: a frozen backbone, what its input looks like, and where its results go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import nn

from ressl.data.sources import is_named, label_of, open_source, parse_data
from ressl.errors import ResslError
from ressl.evaluation.linear import COSINE
from ressl.nn.foreign import is_foreign, open_foreign, require_input
from ressl.recipes.folder import neighbours
from ressl.recipes.recipe import Recipe
from ressl.runs import Run


@dataclass(frozen=True)
class Subject:
    recipe: Recipe  # of a run its own; of a foreign backbone one that says only what evaluation needs
    run: Run  # the folder; of a foreign backbone there is nothing in it but results
    place: str | None  # where the subject's own data lies
    backbone: Callable[[], nn.Module]
    trained: bool = True  # by us, so that there is a checkpoint

    @cached_property
    def step(self) -> int:
        """The training step of the weights; of a foreign backbone 0."""
        return int(self.run.checkpoint().facts["step"]) if self.trained else 0


def subject_of_run(run: Run) -> Subject:
    return Subject(run.recipe, run, run.facts.get("data"), run.backbone)


def subject_of_name(
    name: str, data: str | None, weights: str = "none", image_size: int | None = None, out: str | Path | None = None
) -> Subject:
    """A backbone of timm or torchvision on a data set; results go to ``out`` or ``runs/<name>-<weights>-<data>``."""
    if data is None:
        raise ResslError(f"{name} has no data of its own: add --data NAME, NAME=PATH or a folder of pictures")
    kind, place = parse_data(data)
    found = open_foreign(name, weights)
    size = found.size if image_size is None else image_size
    if size < 1:
        raise ResslError(f"image_size must be at least 1, not {size}")
    if size != found.size:
        require_input(found.backbone, name, size)
    # Small pictures are enlarged to what the network was made for, large ones are cut from a little more.
    resize = round(found.resize * size / found.size)
    recipe = Recipe(
        name=name.replace("/", "-"),
        summary=f"{name}, weights: {weights if weights in ('none', 'default') else 'a file'}",
        data=kind,
        image_size=size,
        mean=found.mean,
        std=found.std,
        backbone=name,
        bn_groups=1,
        method="none",
        # As many as vote in a run on the same pictures, so that the two can be compared.
        knn_k=Recipe.knn_k if is_named(kind) else neighbours(len(open_source(kind, "train", place))),
        linear=replace(COSINE, resize=resize),
    )
    label = Path(weights).stem if weights not in ("none", "default") else weights
    folder = Path(out) if out is not None else Path("runs") / f"{recipe.name}-{label}-{label_of(kind, place)[:80]}"
    return Subject(recipe, Run(folder), place, lambda: found.backbone, trained=False)


def subject_of(
    what: Subject | Run | str | Path,
    data: str | None = None,
    weights: str = "none",
    image_size: int | None = None,
    out: str | Path | None = None,
) -> Subject:
    """A run, a run folder, ``timm/<model>`` or ``torchvision/<model>``."""
    if isinstance(what, Subject):
        return what
    if isinstance(what, str) and is_foreign(what) and not Path(what).is_dir():
        return subject_of_name(what, data, weights, image_size, out)
    if image_size is not None or weights != "none" or out is not None:
        raise ResslError("--weights, --image-size and --out belong to a timm/ or torchvision/ backbone, not to a run")
    return subject_of_run(what if isinstance(what, Run) else Run.open(what))
