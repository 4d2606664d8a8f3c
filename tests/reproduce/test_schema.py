"""What a record must hold: all of ours do, and what lacks something is named."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invented import MACHINE, a_kills, cost, record

from ressl import cli
from ressl.methods import METHODS
from ressl.recipes import Recipe, get_recipe
from ressl.recipes.typed import plain
from ressl.reproduce.grid import Ledger
from ressl.reproduce.schema import KINDS, misfit, read_record

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda p: p.name)
def test_every_record_fits_the_schema(path: Path) -> None:
    found = read_record(path)
    assert found["kind"] in KINDS
    assert found["environment"]["commit"], "a number of the ledger must name its commit"
    if found["kind"] == "pretrain":
        assert found["commit"] == found["environment"]["commit"]
        if found["steps"]:
            assert found["images_per_second"] > 0
        else:  # an untrained backbone, to compare with
            assert (found["images_per_second"], found["recipe"]["epochs"]) == (None, 0)
        recipe = Recipe.from_json(json.dumps(found["recipe"]))
        recipe.check()
        assert recipe.method in METHODS
    assert not re.search(r"/(root|home|Users|tmp)/", path.read_text(encoding="utf-8"))  # a folder that nobody else has


def a_bench() -> dict[str, Any]:
    step = {"engine": "graph", "precision": "bf16", "batch": 256, "images_per_second": 5e4, "peak_memory_gb": None}
    fed = {"loader": "step fed by the loader", "workers": 4, "images_per_second": 4e4, "share_of_step": 0.8}
    return {
        "schema": 1, "kind": "bench", "name": "cifar10", "recipe": plain(get_recipe("cifar10")),
        "environment": MACHINE, "started": "2026-01-01T00:00:00Z", "engines": [step], "loader": [fed],
    }  # fmt: skip


def a_cold() -> dict[str, Any]:
    return {
        "schema": 1, "kind": "cold", "name": "cifar10", "recipe": plain(get_recipe("cifar10")), "seed": 0,
        "environment": MACHINE, "started": "2026-01-01T00:00:00Z", "seconds": 220, "training_seconds": 190.0,
        "pictures": 10**7, "images_per_second": 6e4,
        "linear": {"last": 90.0, "best": 90.1, "seconds": 15.0, "start_seconds": 5.0},
    }  # fmt: skip


MADE: dict[str, Callable[[], dict[str, Any]]] = {
    "pretrain": lambda: record(get_recipe("cifar10"), 90.0),
    "bench": a_bench,
    "cold": a_cold,
    "kills": a_kills,
    "cost": lambda: cost("imagenet", {"MoCo v2": 5e3, "ReSSL": 4e3}),
}
MOVED = {"protocol": "transfer", "data": "cifar10"}
THERE = {"data": "voc07", "train_pictures": 5, "test_pictures": 4}
SPARE = {"jobs", "engines", "loader", "twin"}  # what a record of another day may lack


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_may_be_missing_or_of_another_type(kind: str) -> None:
    whole = MADE[kind]()
    assert misfit(whole) is None
    for key in whole.keys() - SPARE - {"kind"}:
        assert misfit({k: v for k, v in whole.items() if k != key}) == f"it lacks {key}"
    for key in whole.keys() - {"kind"}:
        assert str(misfit(whole | {key: object()})).startswith(f"{key} must be"), key
    assert misfit(whole | {"another": 1}) is None


@pytest.mark.parametrize(
    ("kind", "path", "value", "says"),
    [
        ("pretrain", "evaluations.linear", {}, "evaluations.linear lacks last"),
        ("pretrain", "evaluations.linear.last", "x", "evaluations.linear.last must be a number, not 'x'"),
        ("pretrain", "evaluations.linear.best", float("nan"), "evaluations.linear.best must be a number, not nan"),
        ("pretrain", "evaluations.svm-on-x", {"protocol": "svm"}, "evaluations.svm-on-x lacks data"),
        ("pretrain", "evaluations.transfer", {"to": []}, "evaluations.transfer lacks data"),
        ("pretrain", "evaluations.transfer", MOVED | {"to": [{}]}, "evaluations.transfer.to[0] lacks data"),
        ("pretrain", "evaluations.transfer", MOVED | {"to": [THERE]}, "evaluations.transfer.to[0] lacks knn"),
        ("pretrain", "evaluations.transfer", MOVED | {"to": [THERE | {"mAP": 1.0}]}, None),
        ("pretrain", "environment", {}, "environment lacks python"),
        ("pretrain", "environment", {k: v for k, v in MACHINE.items() if k != "gpu"}, "environment lacks gpu"),
        ("pretrain", "recipe.lr", "much", "lr wants a number, not 'much'"),
        ("pretrain", "seed", 4, "its seed is 4, its recipe's 0"),
        ("pretrain", "curves.knn", [[1, 2, 3]], "curves.knn[0] must be a list of 2, not [1, 2, 3]"),
        ("pretrain", "steps", True, "steps must be a whole number, not True"),
        ("bench", "engines", [{}], "engines[0] lacks images_per_second"),
        ("bench", "schema", 2, "schema must be 1, not 2"),
        ("cold", "linear.start_seconds", None, "linear.start_seconds must be a number, not None"),
        ("kills", "signal", "HUP", "signal must be 'KILL' or 'TERM', not 'HUP'"),
        ("kills", "stops", [{"logged": 1}], "stops[0] lacks resumed"),
        ("cost", "rows", {"a": 1}, "rows must be a list, not {'a': 1}"),
    ],
)
def test_what_does_not_fit_is_said(kind: str, path: str, value: Any, says: str | None) -> None:
    made = copy.deepcopy(MADE[kind]())
    *above, last = path.split(".")
    place = made
    for key in above:
        place = place[key]
    place[last] = value
    assert misfit(made) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"kind": "pretrain"}', "is no whole record: it lacks schema; move it out of the ledger"),
        ('{"schema": 1, "kind": "cost"}', "is no whole record: it lacks name; move it"),
        ("{}", "is no record of ours; move it"),
        ("[1]", "is no record of ours; move it"),
        ("{broken", "cannot read the record"),
    ],
)
def test_a_file_that_does_not_fit_is_named_and_ends_the_command(tmp_path, capsys, text: str, says: str) -> None:
    (tmp_path / "x.json").write_text(text)
    for command in (["reproduce", "table1", "--dry-run", "--into"], ["results", "--into", "unused.md", "--ledger"]):
        assert cli.main([*command, str(tmp_path)]) == 2
        shown = capsys.readouterr().err
        assert str(tmp_path / "x.json") in shown
        assert says in shown
        assert shown.count("\n") == 1


def test_a_kind_of_another_version_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"schema": 7, "kind": "dreams"}))
    assert not list(Ledger(tmp_path))
