"""Records: enough to trust and repeat a number, nothing of the machine's paths."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ressl.errors import ResslError
from ressl.evaluating import evaluate
from ressl.pretraining import pretrain
from ressl.recipes import Recipe
from ressl.reproduce.ledger import POINTS, record, short, write_record
from ressl.reproduce.schema import read_record
from ressl.runs import Run


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, str):
        yield value


def test_a_record_holds_recipe_results_and_environment_but_no_path(tmp_path: Path, run: Run) -> None:
    for protocol in ("knn", "linear"):
        evaluate(run, protocol, device="cpu")
    path = write_record(run, tmp_path / "results")
    facts = read_record(path)  # it fits the schema
    for text in strings(facts):
        assert str(tmp_path) not in text
        assert str(Path.home()) not in text
        assert not text.startswith("/"), text
    assert Recipe.from_json(json.dumps(facts["recipe"])) == run.recipe
    assert facts["seed"] == 3
    assert facts["steps"] == 8
    assert facts["curves"]["knn"] == [[epoch, round(value, 5)] for epoch, value in run.curve("knn")]
    assert set(facts["evaluations"]) == {"knn", "linear"}
    assert (
        facts["evaluations"]["linear"]["last"] == json.loads((run.path / "evaluation/linear.json").read_text())["last"]
    )
    speeds = [row["images_per_second"] for row in run.metrics() if "images_per_second" in row]
    assert facts["images_per_second"] == round(statistics.median(speeds), 1)
    assert facts["environment"]["device"] == "cpu"


def test_a_record_of_the_same_run_is_replaced(tmp_path: Path, run: Run) -> None:
    assert write_record(run, tmp_path / "results") == write_record(run, tmp_path / "results")
    assert len(list((tmp_path / "results").iterdir())) == 1


def test_an_evaluation_of_an_earlier_step_is_not_recorded(tmp_path: Path, run: Run) -> None:
    run.write_evaluation("knn", evaluate(run, "knn", device="cpu") | {"step": 4})
    with pytest.raises(ResslError, match=r"knn of .* was made after step 4 of 8; evaluate again first"):
        write_record(run, tmp_path / "results")


def test_an_unfinished_run_is_refused(tmp_path: Path, tiny: Callable[..., Recipe]) -> None:
    run = Run.create(tmp_path / "x", tiny(), {"data": None})
    with pytest.raises(ResslError, match=r"is not finished; continue it with --resume"):
        record(run)
    with pytest.raises(ResslError):
        write_record(run, tmp_path / "results")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("n", [0, 1, 59, 60, 61, 120, 121, 1000])
def test_a_curve_is_thinned_evenly_and_keeps_its_end(n: int) -> None:
    points = [(float(i), i / 7) for i in range(n)]
    kept = short(points)
    assert len(kept) <= POINTS
    assert len(kept) >= min(n, POINTS // 2)
    if n:
        assert kept[-1] == [n - 1, round((n - 1) / 7, 5)]
        gaps = {b[0] - a[0] for a, b in itertools.pairwise(kept)}
        assert len(gaps) <= 1


def test_two_experiments_that_end_in_the_same_second_are_two_records(
    tmp_path: Path, tiny: Callable[..., Recipe], array_file: Path, memory: Any
) -> None:
    """Cells of a sweep that run side by side often do."""
    for lr in (0.1, 0.2):
        recipe = tiny(data="array", lr=lr)
        one = pretrain(recipe, data=array_file, out=tmp_path / str(lr), device="cpu", display=memory())
        facts = json.loads((one.path / "run.json").read_text())
        (one.path / "run.json").write_text(json.dumps(facts | {"finished": "2026-01-01T00:00:00Z"}))
        write_record(Run.open(one.path), tmp_path / "results")
    assert len(list((tmp_path / "results").iterdir())) == 2
