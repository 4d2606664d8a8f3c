"""What the evaluations in a record must hold."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Linear(TypedDict):
    last: float
    best: float
    seconds: float
    data: NotRequired[str]


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
EVALUATIONS: dict[str, type] = {"linear": Linear, "knn": Knn, "svm": Svm, "transfer": Transfer}
