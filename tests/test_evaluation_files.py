"""The files of results: how they are called, and in which order they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ressl.evaluating import BEFORE, evaluate
from ressl.runs import Run


def test_a_protocol_s_measures_stand_together_whatever_their_settings_and_data(make_run: Callable[..., Run]) -> None:
    run = make_run()
    for name in ("geometry", "knn-on-x", "knn", "linear-epochs=5", "linear", "knn-k=5"):
        run.write_evaluation(name, {"protocol": name.split("-")[0]})
    found = list(run.evaluations()[0])
    assert found == ["linear", "linear-epochs=5", "knn", "knn-k=5", "knn-on-x", "geometry"]


def test_a_long_name_of_data_in_other_letters_is_no_reason_to_lose_a_number(
    tmp_path: Path, make_run: Callable[..., Run], make_folder: Callable[..., Path], memory: Any
) -> None:
    """80 letters that take three bytes each; a file's name has room for 255."""
    run = make_run(data="array")
    place, shown = make_folder(30).rename(tmp_path / ("猫" * 80)), memory()
    for change in ({}, {"k": 3, "temperature": 0.5}):
        found = evaluate(run, "knn", data=str(place), device="cpu", **change)
        assert found["data"] == "猫" * 80
        assert evaluate(run, "knn", data=str(place), device="cpu", display=shown, **change) == found
    assert shown.messages == [BEFORE, BEFORE]
    assert (run.path / "evaluation" / f"knn-on-{'猫' * 26}.json").is_file()
