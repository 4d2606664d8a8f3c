"""What the evaluations in a record must hold."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Linear(TypedDict):
    last: float
    best: float
    seconds: float
    data: NotRequired[str]


class Rate(TypedDict):
    rate: str
    last: float
    best: float


class LinearSweep(TypedDict):
    precision: str
    settings: dict[str, Any]
    by_rate: list[Rate]


class Knn(TypedDict):
    top1: float


class Shots(TypedDict):
    shots: int | None
    mean: float


class Svm(TypedDict):
    data: str
    place: str
    by_shots: list[Shots]


class Moved(TypedDict):
    data: str
    train_pictures: int
    test_pictures: int


class MovedByLinear(Moved):
    knn: float
    linear: float
    linear_best: float


class MovedBySvm(Moved):
    mAP: float


class Transfer(TypedDict):
    data: str
    to: list[MovedByLinear | MovedBySvm]


# Of a run; others may hold what they like.
EVALUATIONS: dict[str, type] = {
    "linear": Linear,
    "linear-sweep": LinearSweep,
    "knn": Knn,
    "svm": Svm,
    "transfer": Transfer,
}
