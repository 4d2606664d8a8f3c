"""A backbone on the bench: its data and its features, made when somebody asks for them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ressl.data.decode import BrokenImage
from ressl.data.sources import is_named, label_of
from ressl.engine.accelerate import lay_out
from ressl.engine.loop import Display
from ressl.engine.processes import Team, current, shared
from ressl.errors import ResslError
from ressl.evaluation.cache import FeatureCache, fingerprint
from ressl.evaluation.streamed import extract_unread
from ressl.labelled import (
    EvaluationData,
    UnreadData,
    data_to_measure,
    features_of,
    has_labels,
    no_labels,
    unlabelled_data,
)
from ressl.memory import shown_bytes
from ressl.recipes.recipe import Recipe
from ressl.subjects import Subject


class Bench:
    """A backbone on the bench, with data: both are loaded when the first protocol asks, and kept for the next."""

    def __init__(
        self, subject: Subject, data: str, place: str | None, device: torch.device, precision: torch.dtype,
        display: Display, again: bool = False,
    ) -> None:  # fmt: skip
        self.subject, self.device, self.precision, self.display, self.again = subject, device, precision, display, again
        self.recipe = replace(subject.recipe, data=data)
        self.place = place
        self.broken: dict[str, str] = {}  # files that were left out: path and reason
        self._taken: dict[str, tuple[Tensor, Tensor]] = {}

    @property
    def label(self) -> str:
        """What its data is called."""
        return label_of(self.recipe.data, self.place)

    @property
    def own_data(self) -> bool:
        """Whether it is the data of the subject itself."""
        return place_of(self.recipe.data, self.place) == place_of(self.subject.recipe.data, self.subject.place)

    @cached_property
    def own(self) -> nn.Module:
        backbone = lay_out(self.subject.backbone(), self.device).eval()
        check_weights(backbone, current())
        return backbone

    @cached_property
    def backbone(self) -> nn.Module:
        """The same; several processes share its work, which is nearly all there is, and each has all results."""
        return shared(self.own, current())

    @cached_property
    def data(self) -> EvaluationData | UnreadData:
        """Pictures and labels. Of pictures in their files, the broken ones go with the first look at the features."""
        found = self.every
        self.leave_out(found.broken)
        return found

    def look(self, limit: int) -> None:
        """Take pictures without labels, too, up to ``limit`` of them: to be looked at they need none."""
        if not has_labels(self.recipe, self.place):
            self.__dict__["data"] = unlabelled_data(self.recipe, self.place, limit).to(self.device)

    @cached_property
    def every(self) -> EvaluationData | UnreadData:
        """The same with those, so that what is drawn from it does not depend on what was measured before."""
        tell = lambda done, total: self.display.busy("reading pictures", done, total)
        found = data_to_measure(self.recipe, self.place, self.device, tell)
        if found is None:
            raise no_labels(self.recipe, self.place, "add --data FOLDER with one subfolder per class")
        if isinstance(found, UnreadData):
            size = shown_bytes(found.train[0].bytes + found.test[0].bytes)
            self.display.message(f"{self.label}: {size} of pictures are too many to hold, so they are read as needed")
        return found

    def leave_out(self, broken: Mapping[str, str]) -> None:
        """Count files that cannot be read, and say so once."""
        new = {path: reason for path, reason in broken.items() if path not in self.broken}
        if new:
            self.broken |= new
            first = BrokenImage(*next(iter(new.items())))
            self.display.message(f"broken files left out: {len(new):,} (the first: {first})")

    def counted(self, found: dict[str, Any]) -> dict[str, Any]:
        """A result with what is known now: how many pictures were tested on, and how many files could not be read."""
        streamed = {"streamed": True} if isinstance(self.data, UnreadData) else {}
        return {**found, "test_pictures": len(self.data.test[1]), "broken": len(self.broken), **streamed}

    @cached_property
    def cache(self) -> FeatureCache:
        return FeatureCache(self.subject.run.path / "evaluation" / "features", self.own)

    def features(self, recipe: Recipe | None = None) -> tuple[Tensor, Tensor]:
        """Train and test features on the device, from the cache if they are there."""
        if isinstance(self.data, UnreadData):
            return self._part("train", recipe), self._part("test", recipe)
        r, data = recipe or self.recipe, self.data

        def make() -> dict[str, Tensor]:
            fit, held = features_of(self.backbone, data, r, self.precision, self._tell)
            return {"train": fit, "test": held}

        return self._kept(self._asked(r), make, ("train", "test"))

    def test_features(self, recipe: Recipe | None = None) -> Tensor:
        """Those of the test pictures; to take the others, too, may be hours of reading."""
        return self._part("test", recipe) if isinstance(self.data, UnreadData) else self.features(recipe)[1]

    def _part(self, name: str, recipe: Recipe | None) -> Tensor:
        """Features of one part of the pictures in their files; from now on, ``data`` is without its broken ones."""
        r, every, data = recipe or self.recipe, self.every, self.data
        assert isinstance(every, UnreadData)
        assert isinstance(data, UnreadData)
        pictures, labels = every.parts[name]

        def make() -> dict[str, Tensor]:
            found = extract_unread(
                self.own, pictures, mean=r.mean, std=r.std, size=r.image_size, resize=r.linear.resize,
                precision=self.precision, progress=self._tell, team=current(),
            )  # fmt: skip
            self.leave_out(found.broken)
            return {"features": found.features, "kept": found.kept}

        features, kept = self._kept(self._asked(r) | {"part": name}, make, ("features", "kept"))
        if len(kept) < len(pictures):  # where features were at hand, the reasons are not
            missing = sorted(set(range(len(pictures))).difference(kept.tolist()))
            self.leave_out({pictures.source.identify(i): "it could not be read before" for i in missing})
            pictures, labels = pictures.take(kept), labels[kept]
        self.__dict__["data"] = data.having(name, pictures, labels)
        return features

    def _tell(self, done: int, total: int) -> None:
        self.display.busy("features", done, total)

    def _asked(self, r: Recipe) -> dict[str, Any]:
        return {
            "pictures": self.pictures,
            "input": [r.image_size, r.linear.resize, list(r.mean), list(r.std)],
            "precision": str(self.precision),
        }

    def _kept(
        self, asked: dict[str, Any], make: Callable[[], dict[str, Tensor]], names: tuple[str, str]
    ) -> tuple[Tensor, Tensor]:
        """What ``make`` gives under two names, on the device, from the cache if it is there."""
        if (name := str(asked)) not in self._taken:
            # Several processes must all make them or none, so for them there is no file to find or not to find.
            found = self.cache.get(asked, make, self.again) if current().world == 1 else make()
            self._taken[name] = found[names[0]].to(self.device), found[names[1]].to(self.device)
        return self._taken[name]

    @cached_property
    def pictures(self) -> str:
        # Of pictures in their files before any was found to be broken: else it would be another one afterwards.
        return (self.every if isinstance(self.data, UnreadData) else self.data).fingerprint()

    def other(self, data: str, place: str | None) -> Bench:
        """The same backbone on other data."""
        made = Bench(self.subject, data, place, self.device, self.precision, self.display, self.again)
        made.__dict__ |= {"own": self.own, "backbone": self.backbone, "cache": self.cache}
        return made


def check_weights(backbone: nn.Module, team: Team) -> None:
    """Raise where a process has others than rank 0: each would make some of the features by its own."""
    first, *others = team.gather(fingerprint(backbone.state_dict()) if team.world > 1 else None)
    for rank, found in enumerate(others, 1):
        if found != first:
            raise ResslError(
                f"rank {rank} has other weights than rank 0; see that the run is the same for every process, and that "
                "it is not being trained"
            )


def place_of(kind: str, place: str | None) -> str:
    """A digest of where data lies: tells two places apart and names neither. A set of a name is the same anywhere."""
    try:
        where = b"" if place is None or is_named(kind) else os.fsencode(Path(place).resolve())
    except ValueError:  # a null byte, which no path has
        raise ResslError(f"{place!r} cannot be a path") from None
    return hashlib.sha256(kind.encode() + b"\0" + where).hexdigest()[:12]
