"""The protocols by name: what each may be told, and what it does with a frozen backbone and labelled data."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ressl import rng
from ressl.data.sources import label_of, parse_data
from ressl.data.views import Views
from ressl.engine.accelerate import lay_out
from ressl.engine.loop import Display
from ressl.engine.processes import current, shared
from ressl.errors import ResslError
from ressl.evaluation.cache import FeatureCache
from ressl.evaluation.classes import confusion, mistaken, per_class
from ressl.evaluation.finetune import FinetuneProtocol, finetune_evaluation
from ressl.evaluation.geometry import alignment, effective_rank, uniformity
from ressl.evaluation.knn import knn_accuracy, knn_predict, knn_sweep
from ressl.evaluation.linear import PROTOCOLS as LINEAR
from ressl.evaluation.linear import LinearProtocol, linear_evaluation
from ressl.evaluation.svm import SvmProtocol, svm_evaluation
from ressl.evaluation.viewed import view_features
from ressl.labelled import EvaluationData, evaluation_data, features_of
from ressl.recipes.recipe import Recipe
from ressl.recipes.typed import build, plain
from ressl.subjects import Subject

LARGE = 20  # classes; of more, only the commonest confusions are written down


class Bench:
    """A backbone on the bench, with data: both are loaded when the first protocol asks, and kept for the next."""

    def __init__(
        self, subject: Subject, data: str, place: str | None, device: torch.device, precision: torch.dtype,
        display: Display, again: bool = False,
    ) -> None:  # fmt: skip
        self.subject, self.device, self.precision, self.display, self.again = subject, device, precision, display, again
        self.recipe = replace(subject.recipe, data=data)
        self.place = place
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
        return lay_out(self.subject.backbone(), self.device).eval()

    @cached_property
    def backbone(self) -> nn.Module:
        """The same; several processes share its work, which is nearly all there is, and each has all results."""
        return shared(self.own, current())

    @cached_property
    def data(self) -> EvaluationData:
        found = evaluation_data(self.recipe, self.place)
        if found is None:
            raise ResslError(
                f"{self.label} has no labels to measure against; add --data FOLDER with one subfolder per class"
            )
        return found.to(self.device)

    @cached_property
    def cache(self) -> FeatureCache:
        return FeatureCache(self.subject.run.path / "evaluation" / "features", self.own)

    def features(self, recipe: Recipe | None = None) -> tuple[Tensor, Tensor]:
        """Train and test features on the device, from the cache if they are there."""
        r = self.recipe if recipe is None else recipe
        asked = {
            "pictures": self.pictures,
            "input": [r.image_size, r.linear.resize, list(r.mean), list(r.std)],
            "precision": str(self.precision),
        }
        tell = lambda done, total: self.display.busy("features", done, total)

        def make() -> dict[str, Tensor]:
            fit, held = features_of(self.backbone, self.data, r, self.precision, tell)
            return {"train": fit, "test": held}

        if (name := str(asked)) not in self._taken:
            # Several processes must all make them or none, so for them there is no file to find or not to find.
            found = self.cache.get(asked, make, self.again) if current().world == 1 else make()
            self._taken[name] = found["train"].to(self.device), found["test"].to(self.device)
        return self._taken[name]

    @cached_property
    def pictures(self) -> str:
        return self.data.fingerprint()

    def other(self, data: str, place: str | None) -> Bench:
        """The same backbone on other data."""
        made = Bench(self.subject, data, place, self.device, self.precision, self.display, self.again)
        made.__dict__ |= {"own": self.own, "backbone": self.backbone, "cache": self.cache}
        return made


@dataclass(frozen=True)
class KnnProtocol:
    k: int = 200
    temperature: float = 0.1

    def check(self) -> None:
        if self.k < 1 or self.temperature <= 0:
            raise ResslError(f"k must be at least 1 and temperature above 0, not {self.k} and {self.temperature}")


@dataclass(frozen=True)
class SweepProtocol:
    ks: tuple[int, ...] = (1, 5, 10, 20, 50, 100, 200)
    temperature: float = 0.1

    def check(self) -> None:
        if min(self.ks, default=0) < 1 or self.temperature <= 0:
            raise ResslError("a kNN sweep needs ks of at least 1 and a temperature above 0")


@dataclass(frozen=True)
class GeometryProtocol:
    pictures: int = 4096  # test pictures at most

    def check(self) -> None:
        if self.pictures < 2:
            raise ResslError(f"pictures must be at least 2, not {self.pictures}")


@dataclass(frozen=True)
class TransferProtocol:
    """kNN and a linear classifier on features that are taken once; an SVM where pictures have several labels."""

    to: tuple[str, ...] = ()  # NAME, NAME=PATH or a folder
    lr: float = 0.1  # per 256 samples, cosine; features have mean 0 and deviation 1
    epochs: int = 100

    def check(self) -> None:
        if not self.to:
            raise ResslError("transfer needs data to go to: --to NAME, NAME=PATH or FOLDER ...")
        self.linear.check()

    @property
    def linear(self) -> LinearProtocol:
        return LinearProtocol(schedule="cosine", lr=self.lr, epochs=self.epochs, augment=False, standardize=True)


def _knn(bench: Bench, asked: KnnProtocol) -> dict[str, Any]:
    (fit, held), labels, truth = bench.features(), bench.data.train[1], bench.data.test[1]
    return {"top1": knn_accuracy(fit, labels, held, truth, k=asked.k, temperature=asked.temperature)}


def _sweep(bench: Bench, asked: SweepProtocol) -> dict[str, Any]:
    (fit, held), labels, truth = bench.features(), bench.data.train[1], bench.data.test[1]
    found = knn_sweep(fit, labels, held, truth, ks=asked.ks, temperature=asked.temperature)
    best = max(found, key=found.__getitem__)
    return {"by_k": [[k, value] for k, value in found.items()], "best": found[best], "best_k": best}


def _linear(bench: Bench, asked: LinearProtocol) -> dict[str, Any]:
    r, data = bench.recipe, bench.data
    tell = lambda done, total, value: bench.display.progress(done, total, {"epoch": done, "accuracy": value})
    train, test, backbone = data.train, data.test, bench.backbone
    once = not asked.augment
    if once:  # the features are all it sees
        fit, held = bench.features(replace(r, linear=asked))
        train, test = (fit, train[1]), (held, test[1])
    return linear_evaluation(
        None if once else backbone, train, test, protocol=asked, mean=r.mean, std=r.std, image_size=r.image_size,
        seed=r.seed, device=bench.device, precision=bench.precision, progress=tell,
    ).as_dict()  # fmt: skip


def _svm(bench: Bench, asked: SvmProtocol) -> dict[str, Any]:
    fit, held = bench.features()
    tell = lambda done, total: bench.display.progress(done, total, {})
    train, test = (fit, bench.data.train[1]), (held, bench.data.test[1])
    return svm_evaluation(train, test, protocol=asked, seed=bench.recipe.seed, progress=tell)


def _finetune(bench: Bench, asked: FinetuneProtocol) -> dict[str, Any]:
    r, data = bench.recipe, bench.data
    tell = lambda done, total: bench.display.progress(done, total, {})
    return finetune_evaluation(  # it changes the backbone, so every process has its own and all do the same
        bench.own, data.train, data.test, protocol=asked, mean=r.mean, std=r.std, image_size=r.image_size,
        resize=r.linear.resize, seed=r.seed, device=bench.device, precision=bench.precision, progress=tell,
    )  # fmt: skip


def _geometry(bench: Bench, asked: GeometryProtocol) -> dict[str, Any]:
    r, images, held = bench.recipe, bench.data.test[0], bench.features()[1]
    if len(images) > asked.pictures:  # the same for every run; in a folder the first ones are of the first classes
        some = rng.permutation(0, 4, len(images), rng.EVALUATION, images.device)[: asked.pictures].sort().values
        images, held = images[some], held[some]
    weak = replace(r.views[0].weakened(), size=r.image_size)  # the first view of some methods is a strong one
    pair = view_features(bench.backbone, Views([weak, weak], r.mean, r.std, r.seed), images, precision=bench.precision)
    return {
        "alignment": alignment(*pair),
        "uniformity": uniformity(held),
        "effective_rank": effective_rank(held),
        "dimensions": held.shape[1],
        "pictures": len(held),
    }


def _classes(bench: Bench, asked: KnnProtocol) -> dict[str, Any]:
    (fit, held), labels, truth = bench.features(), bench.data.train[1], bench.data.test[1]
    C = max(int(max(labels.max(), truth.max())) + 1, len(bench.data.classes))
    counts = confusion(truth, knn_predict(fit, labels, held, k=asked.k, temperature=asked.temperature, classes=C), C)
    names = bench.data.classes or [str(c) for c in range(C)]
    result: dict[str, Any] = {
        "top1": 100.0 * counts.diagonal().sum().item() / len(truth),
        "classes": names,
        "accuracy": per_class(counts),
        "mistaken": [[names[a], names[b], n] for a, b, n in mistaken(counts)],
    }
    return result | ({"confusion": counts.tolist()} if C <= LARGE else {})


def _transfer(bench: Bench, asked: TransferProtocol) -> dict[str, Any]:
    rows = []
    for text in asked.to:
        kind, place = parse_data(text)
        bench.display.message(f"transfer to {label_of(kind, place)}")
        there = bench.other(kind, place)
        row: dict[str, Any] = {"data": label_of(kind, place), "test": there.data.note}
        row |= {"train_pictures": len(there.data.train[0]), "test_pictures": len(there.data.test[0])}
        if there.data.several:
            row |= {"mAP": _svm(there, SvmProtocol(shots=()))["by_shots"][0]["mean"]}
        else:
            found = _linear(there, replace(asked.linear, resize=bench.recipe.linear.resize))
            knn = _knn(there, KnnProtocol(bench.recipe.knn_k, bench.recipe.knn_temperature))
            row |= {"knn": knn["top1"], "linear": found["last"], "linear_best": found["best"]}
        rows.append(row)
    return {"to": rows}


def place_of(kind: str, place: str | None) -> str:
    """A digest of where data lies: tells two places apart and names neither."""
    try:
        where = b"" if place is None else os.fsencode(Path(place).resolve())
    except ValueError:  # a null byte, which no path has
        raise ResslError(f"{place!r} cannot be a path") from None
    return hashlib.sha256(kind.encode() + b"\0" + where).hexdigest()[:12]


class Protocol(NamedTuple):
    summary: str
    settings: Callable[[Recipe], Any]  # the defaults for a recipe
    measure: Callable[[Bench, Any], dict[str, Any]]
    several: bool = False  # also where a picture has several labels
    labels: bool = True  # whether it looks at the bench's own labelled data


def _named_linear(name: str) -> Callable[[Recipe], LinearProtocol]:
    return lambda recipe: replace(LINEAR[name], resize=recipe.linear.resize)


PROTOCOLS: dict[str, Protocol] = {
    "knn": Protocol("weighted kNN", lambda r: KnnProtocol(r.knn_k, r.knn_temperature), _knn),
    "knn-sweep": Protocol("kNN over a range of k", lambda r: SweepProtocol(temperature=r.knn_temperature), _sweep),
    "linear": Protocol("linear classifier, the recipe's protocol", lambda r: r.linear, _linear),
    "linear-step": Protocol("linear classifier, the paper's step schedule", _named_linear("step"), _linear),
    "linear-cosine": Protocol("linear classifier, the paper's cosine schedule", _named_linear("cosine"), _linear),
    "linear-imagenet": Protocol("linear classifier, the paper's for ImageNet", _named_linear("imagenet"), _linear),
    "svm": Protocol("low-shot linear SVM (mAP for voc07)", lambda r: SvmProtocol(), _svm, True),
    "finetune": Protocol("all weights, 1 % and 10 % of the labels", lambda r: FinetuneProtocol(), _finetune),
    "geometry": Protocol("alignment, uniformity, effective rank", lambda r: GeometryProtocol(), _geometry, True),
    "classes": Protocol(
        "per-class accuracy and confusion, by kNN", lambda r: KnnProtocol(r.knn_k, r.knn_temperature), _classes
    ),
    "transfer": Protocol("to other data sets", lambda r: TransferProtocol(), _transfer, labels=False),
}
ALL = ("knn", "knn-sweep", "linear", "svm", "finetune", "geometry", "classes")  # and transfer, where --to says whereto


def settings_of(name: str, recipe: Recipe, changes: Mapping[str, Any]) -> Any:
    """The settings of a protocol with changes; values may be text. An unknown or mistyped key is named."""
    base = PROTOCOLS[name].settings(recipe)
    known = plain(base)
    for key in changes:
        if key not in known:
            raise ResslError(f"{name} has no {key} to change; it has {', '.join(known)}")
    asked = build(type(base), known | dict(changes), f"the protocol {name}")
    asked.check()
    return asked
