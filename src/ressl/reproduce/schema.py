"""What a record must hold, one type per kind. More may be in it; what is declared here is what others read."""

from __future__ import annotations

import json
import math
import types
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from ressl.errors import ResslError
from ressl.files import read_json
from ressl.recipes import Recipe
from ressl.reproduce.evaluations import EVALUATIONS, Linear

Point = tuple[float, float]


class Environment(TypedDict):
    python: str
    torch: str
    system: str
    cpu: str
    cores: int | None
    threads: int
    device: str
    torchvision: str | None
    gpu: NotRequired[str]  # on one
    commit: NotRequired[str]  # in a checkout


class Head(TypedDict):
    """What every record begins with."""

    schema: Literal[1]
    kind: str
    name: str
    environment: Environment


class Pretrain(Head):
    recipe: dict[str, Any]
    seed: int
    commit: str | None  # None: not made in a checkout
    finished: str
    seconds: float
    jobs: NotRequired[int]
    steps: int
    lacking: NotRequired[int]
    precision: str
    engine: str
    peak_memory_gb: float | None
    images_per_second: float | None  # None: too short to have a log point
    evaluations: dict[str, dict[str, Any]]
    curves: dict[str, list[Point]]


class Speed(TypedDict):
    images_per_second: float
    steady: NotRequired[bool]  # workers were not started anew in between; of earlier ones: they were
    peak_memory_gb: NotRequired[float | None]


class Step(Speed):
    engine: str
    precision: str
    batch: int
    spread: NotRequired[float]  # of the stretches that were timed, as a share of their median
    of_matrix_ceiling: NotRequired[float]
    of_copy_ceiling: NotRequired[float]  # of the least that convolutions must read and write


class View(Speed):
    views: str


class Fed(Speed):
    loader: str
    workers: int
    share_of_step: float
    files: NotRequired[str]  # what was read, in words
    data: NotRequired[str]  # its name, or its folder's
    pictures: NotRequired[int]  # files in it
    median_height: NotRequired[int]  # of a sample of them
    median_width: NotRequired[int]
    mean_bytes: NotRequired[int]
    idle_share: NotRequired[float]  # of the step fed by the loader


class Way(Step):
    way: str


class Idea(Step):
    ideas: str
    dropped: NotRequired[bool]
    against: NotRequired[str]


class Loss(TypedDict):
    batch: int
    queue_size: int
    milliseconds: float
    share_of_step: float
    peak_memory_gb: float | None


class Embedding(TypedDict):
    data: NotRequired[str]  # of earlier ones: random
    pictures: int
    side: int
    dim: int
    seconds: float
    images_per_second: float


class Epochs(Speed):
    linear: str  # as it is, or with one idea changed
    hundred_epochs_seconds: float
    pictures: int


class Phase(TypedDict):
    phase: str
    milliseconds: float
    share: float


class Profile(TypedDict):
    engine: str
    precision: str
    batch: int
    milliseconds: float
    phases: list[Phase]


class Bench(Head):
    recipe: dict[str, Any]
    started: str
    ceilings: NotRequired[dict[str, float]]
    gflops_per_image: NotRequired[float]
    engines: NotRequired[list[Step]]
    loss: NotRequired[Loss]
    profile: NotRequired[Profile]
    ideas: NotRequired[list[Idea]]
    ways: NotRequired[list[Way]]
    views: NotRequired[list[View]]
    loader: NotRequired[list[Fed]]
    embed: NotRequired[Embedding]
    linear: NotRequired[list[Epochs]]
    sweeps: NotRequired[dict[str, list[Step]]]


class ColdLinear(Linear):
    start_seconds: float


class Cold(Head):
    recipe: dict[str, Any]
    seed: int
    started: str
    seconds: float
    training_seconds: float
    pictures: int
    images_per_second: float
    linear: ColdLinear


class Stop(TypedDict):
    logged: int  # the last step in the log when it was stopped
    resumed: int  # the step after which it went on
    seconds: float


class Twin(TypedDict):
    losses: int
    equal: int
    largest_difference: float


class Kills(Head):
    recipe: dict[str, Any]
    seed: int
    started: str
    signal: Literal["KILL", "TERM"]
    exact: bool
    steps: int
    stops: list[Stop]
    lost: int
    knn: float | None
    twin: NotRequired[Twin]
    evaluations: dict[str, dict[str, Any]]


class PaperCost(TypedDict):
    hours_per_epoch: float | None
    memory_gb: float | None


class CostRow(Step):
    name: str
    method: NotRequired[str]
    step_memory_gb: NotRequired[float]  # once it runs, data included
    data_memory_gb: NotRequired[float | None]
    hours_per_epoch: float
    paper: PaperCost


class Ratio(TypedDict):
    ratio: str
    ours: float
    paper: float | None


class Cost(Head):
    small: bool
    seconds: float
    started: str
    took: float
    rows: list[CostRow]
    ratios: list[Ratio]


KINDS: dict[str, type] = {"pretrain": Pretrain, "bench": Bench, "cold": Cold, "kills": Kills, "cost": Cost}


def read_record(path: Path) -> dict[str, Any]:
    """A record from its file. One of a kind that this version does not know is taken as it is."""
    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        raise ResslError(f"cannot read the record {path}: {error}") from error
    if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
        raise ResslError(f"{path} is no record of ours; move it out of the ledger")
    problem = misfit(record)
    if problem:
        raise ResslError(f"{path} is no whole record: {problem}; move it out of the ledger, or make it again")
    return record


def misfit(record: dict[str, Any]) -> str | None:
    """What keeps a record from its kind's schema, in words; None where it fits."""
    kind = record["kind"]
    if kind not in KINDS:
        return None
    problem = wrong(KINDS[kind], record, "")
    if problem is None and "recipe" in record:
        try:
            recipe = Recipe.from_json(json.dumps(record["recipe"]))  # an older record lacks newer fields
        except ResslError as error:
            return str(error)
        if record.get("seed", recipe.seed) != recipe.seed:
            return f"its seed is {record['seed']}, its recipe's {recipe.seed}"
    if problem is None and record["environment"]["device"] == "cuda" and "gpu" not in record["environment"]:
        problem = "environment lacks gpu"
    for name, found in record.get("evaluations", {}).items() if problem is None else ():
        of = EVALUATIONS.get(name) or EVALUATIONS.get(found.get("protocol", ""))
        problem = problem or (wrong(of, found, f"evaluations.{name}") if of else None)
    return problem


def wrong(kind: Any, value: Any, where: str) -> str | None:
    """What is wrong with a value of JSON for a declared type, the first thing; None where nothing is.

    >>> wrong(Linear, {"last": 90.0, "best": "x", "seconds": 1}, "linear")
    "linear.best must be a number, not 'x'"
    """
    origin, args = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return _wrong_fields(kind, value, where)
    if origin in (Union, types.UnionType):
        problems = [wrong(arg, value, where) for arg in args]
        return None if None in problems else problems[0]
    if origin is Literal:
        return None if value in args else f"{where} must be {' or '.join(map(repr, args))}, not {_shown(value)}"
    if origin is dict:
        if not isinstance(value, dict):
            return f"{where} must be a set of named values, not {_shown(value)}"
        return next(filter(None, (wrong(args[1], item, f"{where}.{key}") for key, item in value.items())), None)
    if origin in (list, tuple):
        if not isinstance(value, list) or (origin is tuple and len(value) != len(args)):
            return f"{where} must be a list{f' of {len(args)}' if origin is tuple else ''}, not {_shown(value)}"
        of = args if origin is tuple else args * len(value)
        each = zip(of, value, strict=True)
        return next(filter(None, (wrong(one, item, f"{where}[{i}]") for i, (one, item) in enumerate(each))), None)
    words = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
    return None if kind is Any or _is(kind, value) else f"{where} must be {words[kind]}, not {_shown(value)}"


def _wrong_fields(kind: Any, value: Any, where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where or 'it'} must be a set of named values, not {_shown(value)}"
    for name, of in get_type_hints(kind, include_extras=True).items():
        place = f"{where}.{name}" if where else name
        optional = get_origin(of) is NotRequired
        if name in value:
            problem = wrong(get_args(of)[0] if optional else of, value[name], place)
            if problem:
                return problem
        elif not optional:
            return f"{where or 'it'} lacks {name}"
    return None


def _is(kind: type, value: Any) -> bool:
    if kind is float:
        return type(value) is int or (type(value) is float and math.isfinite(value))
    return isinstance(value, str) if kind is str else type(value) is kind


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
