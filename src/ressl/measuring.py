"""The protocols by name: what each may be told, and what it does with a frozen backbone and labelled data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ressl import rng
from ressl.benches import Bench, place_of
from ressl.data.sources import label_of, parse_data
from ressl.data.unread import Part, Unread
from ressl.data.views import Views
from ressl.engine.processes import current
from ressl.errors import ResslError
from ressl.evaluation.classes import confusion, mistaken, per_class
from ressl.evaluation.finetune import FinetuneProtocol, finetune_evaluation
from ressl.evaluation.geometry import GeometryProtocol, alignment, effective_rank, uniformity
from ressl.evaluation.knn import KnnProtocol, SweepProtocol, knn_accuracy, knn_predict, knn_sweep
from ressl.evaluation.linear import PROTOCOLS as LINEAR
from ressl.evaluation.linear import LinearProtocol, LinearResult, LinearSweepProtocol, linear_evaluations
from ressl.evaluation.streamed import linear_streamed
from ressl.evaluation.svm import SvmProtocol, svm_evaluation
from ressl.evaluation.viewed import view_features
from ressl.labelled import UnreadData
from ressl.recipes.recipe import Recipe
from ressl.recipes.typed import build, plain

__all__ = ["ALL", "PROTOCOLS", "Bench", "Protocol", "TransferProtocol", "place_of", "settings_of", "workers"]

LARGE = 20  # classes; of more, only the commonest confusions are written down


def workers() -> int:
    """Processes that decode pictures which are too many to hold: as many as for pretraining."""
    from ressl.pretraining import default_workers  # here, because that one measures while it trains

    return default_workers()


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
    top1 = knn_accuracy(fit, labels, held, truth, k=asked.k, temperature=asked.temperature)
    return {"top1": top1, "k": min(asked.k, len(fit))}  # what voted, where there are fewer than asked for


def _sweep(bench: Bench, asked: SweepProtocol) -> dict[str, Any]:
    (fit, held), labels, truth = bench.features(), bench.data.train[1], bench.data.test[1]
    found = knn_sweep(fit, labels, held, truth, ks=asked.ks, temperature=asked.temperature)
    best = max(found, key=found.__getitem__)
    return {"by_k": [[k, value] for k, value in found.items()], "best": found[best], "best_k": best}


def _linear(bench: Bench, asked: LinearProtocol) -> dict[str, Any]:
    return _linears(bench, [asked])[0].as_dict()


def _linear_sweep(bench: Bench, asked: LinearSweepProtocol) -> dict[str, Any]:
    protocols = asked.protocols()
    found = _linears(bench, protocols)
    kept = ("last", "best", "best_epoch", "curve")
    rows = [{key: result.as_dict()[key] for key in kept} for result in found]
    by_rate = [{"rate": protocol.rate} | row for protocol, row in zip(protocols, rows, strict=True)]
    return {"by_rate": by_rate, "start_seconds": found[0].start_seconds}


def _linears(bench: Bench, asked: Sequence[LinearProtocol]) -> list[LinearResult]:
    """Of classifiers that see the same features."""
    r, data, first = bench.recipe, bench.data, asked[0]
    tell = lambda done, total, value: bench.display.progress(done, total, {"epoch": done, "accuracy": value})
    if not first.augment:  # the features are all they see
        fit, held = bench.features(replace(r, linear=first))
        backbone, train, test = None, (fit, bench.data.train[1]), (held, bench.data.test[1])
    elif isinstance(data, UnreadData):
        return _linears_streamed(bench, asked)
    else:
        backbone, train, test = bench.backbone, data.train, data.test
    return linear_evaluations(
        backbone, train, test, protocols=asked, mean=r.mean, std=r.std, image_size=r.image_size,
        seed=r.seed, device=bench.device, precision=bench.precision, progress=tell,
    )  # fmt: skip


def _linears_streamed(bench: Bench, asked: Sequence[LinearProtocol]) -> list[LinearResult]:
    r, (pictures, labels) = bench.recipe, bench.every.train
    assert isinstance(pictures, Unread)
    held = bench.test_features(replace(r, linear=asked[0]))
    train = Part(pictures.source, torch.arange(len(pictures)), labels.cpu())
    found, broken = linear_streamed(
        bench.own, train, (held, bench.data.test[1]), protocols=asked, mean=r.mean, std=r.std, image_size=r.image_size,
        seed=r.seed, device=bench.device, precision=bench.precision, workers=workers(),
        progress=bench.display.progress, team=current(),
    )  # fmt: skip
    bench.leave_out(broken)
    return found


def _svm(bench: Bench, asked: SvmProtocol) -> dict[str, Any]:
    fit, held = bench.features()
    tell = lambda done, total: bench.display.progress(done, total, {})
    train, test = (fit, bench.data.train[1]), (held, bench.data.test[1])
    return svm_evaluation(train, test, protocol=asked, seed=bench.recipe.seed, progress=tell)


def _finetune(bench: Bench, asked: FinetuneProtocol) -> dict[str, Any]:
    r, data = bench.recipe, bench.every if isinstance(bench.data, UnreadData) else bench.data
    tell = lambda done, total: bench.display.progress(done, total, {})
    read = lambda done, total: bench.display.busy("reading pictures", done, total)
    return finetune_evaluation(  # it changes the backbone, so every process has its own and all do the same
        bench.own, data.train, data.test, protocol=asked, mean=r.mean, std=r.std, image_size=r.image_size,
        resize=r.linear.resize, seed=r.seed, device=bench.device, precision=bench.precision, progress=tell,
        reading=read, broken=bench.leave_out,
    )  # fmt: skip


def _geometry(bench: Bench, asked: GeometryProtocol) -> dict[str, Any]:
    r, held = bench.recipe, bench.test_features()
    images = bench.data.test[0]
    if len(images) > asked.pictures:  # the same for every run; in a folder the first ones are of the first classes
        some = rng.permutation(0, 4, len(images), rng.EVALUATION, images.device)[: asked.pictures].sort().values
        images, held = images.take(some) if isinstance(images, Unread) else images[some], held[some]
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
        if there.data.several:
            row |= {"mAP": _svm(there, SvmProtocol(shots=()))["by_shots"][0]["mean"]}
        else:
            found = _linear(there, replace(asked.linear, resize=bench.recipe.linear.resize))
            knn = _knn(there, KnnProtocol(bench.recipe.knn_k, bench.recipe.knn_temperature))
            row |= {"knn": knn["top1"], "linear": found["last"], "linear_best": found["best"]}
        row["train_pictures"] = len(there.data.train[1])
        rows.append(there.counted(row))
    return {"to": rows}


class Protocol(NamedTuple):
    summary: str
    settings: Callable[[Recipe], Any]  # the defaults for a recipe
    numbers: Callable[[Bench, Any], dict[str, Any]]
    several: bool = False  # also where a picture has several labels
    labels: bool = True  # whether it looks at the bench's own labelled data

    def measure(self, bench: Bench, asked: Any) -> dict[str, Any]:
        found = self.numbers(bench, asked)
        return bench.counted(found) if self.labels else found


def _named_linear(name: str) -> Callable[[Recipe], LinearProtocol]:
    return lambda recipe: replace(LINEAR[name], resize=recipe.linear.resize)


PROTOCOLS: dict[str, Protocol] = {
    "knn": Protocol("weighted kNN", lambda r: KnnProtocol(r.knn_k, r.knn_temperature), _knn),
    "knn-sweep": Protocol("kNN over a range of k", lambda r: SweepProtocol(temperature=r.knn_temperature), _sweep),
    "linear": Protocol("linear classifier, the recipe's protocol", lambda r: r.linear, _linear),
    "linear-step": Protocol("linear classifier, the paper's step schedule", _named_linear("step"), _linear),
    "linear-cosine": Protocol("linear classifier, the paper's cosine schedule", _named_linear("cosine"), _linear),
    "linear-imagenet": Protocol("linear classifier, the paper's for ImageNet", _named_linear("imagenet"), _linear),
    "linear-sweep": Protocol(
        "several learning rates at once, on the same features",
        lambda r: LinearSweepProtocol.beside(r.linear),
        _linear_sweep,
    ),
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
