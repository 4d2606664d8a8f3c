"""Evaluation of runs: what is measured, on which pictures, and when a result is computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ressl.data.base import ArraySource
from ressl.errors import ResslError
from ressl.evaluating import evaluate, evaluation_data
from ressl.pretraining import pretrain
from ressl.recipes import Recipe
from ressl.runs import Run


@pytest.fixture
def run(tmp_path: Path, tiny: Callable[..., Recipe], array_file: Path, memory: Any) -> Run:
    return pretrain(tiny(data="array", seed=3), data=array_file, out=tmp_path / "run", device="cpu", display=memory())


def test_a_second_evaluation_is_read_and_not_computed(run: Run) -> None:
    first = evaluate(run, "knn", device="cpu")
    assert evaluate(run, "knn", device="cpu") == first
    again = evaluate(run, "knn", device="cpu", again=True)
    assert again["top1"] == first["top1"]
    assert again["seconds"] != first["seconds"]
    assert evaluate(run, "linear", device="cpu")["settings"]["epochs"] == 2
    assert len(evaluate(run, "linear", device="cpu", epochs=3)["curve"]) == 3  # other settings are another result


def test_a_result_on_other_data_is_not_taken_for_the_run_s_own(tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other.npz"
    with np.load(run.facts["data"]) as arrays:
        np.savez(other, **{name: array[: len(array) // 2] for name, array in arrays.items()})
    assert evaluate(run, "knn", device="cpu")["test_pictures"] == 24
    assert evaluate(run, "knn", device="cpu", data=str(other))["test_pictures"] == 12
    assert evaluate(run, "knn", device="cpu")["test_pictures"] == 24
    assert evaluate(run, "knn", device="cpu", precision="bf16")["precision"] == "bfloat16"


def test_the_test_input_is_the_one_that_was_used(run: Run) -> None:
    assert evaluate(run, "linear", device="cpu")["test_input"] == "16 x 16 px, as is"
    changed = evaluate(run, "linear", device="cpu", resize=18)
    assert changed["test_input"] == "16 x 16 px, short side 18, centre 16"


def test_large_pictures_are_measured_alike_while_training_and_after(
    tmp_path: Path, tiny: Callable[..., Recipe], make_folder: Callable[..., Path], memory: Any
) -> None:
    photos = make_folder(n=48, side=40)  # of one size, so resident, and more than twice the input
    run = pretrain(tiny(data="folder"), data=photos, out=tmp_path / "a", device="cpu", display=memory())
    measured = evaluate(run, "knn", device="cpu")
    assert measured["test_input"] == "18 x 18 px, as is"
    assert run.curve("knn")[-1][1] == measured["top1"]


def test_large_pictures_of_an_array_are_made_smaller_too(tiny: Callable[..., Recipe], array_file: Path) -> None:
    large = ArraySource("array", torch.zeros(10, 3, 40, 48, dtype=torch.uint8), torch.arange(10) % 2)
    data = evaluation_data(tiny(data="array"), str(array_file), train=large)
    assert data is not None
    assert data.train[0].shape == (10, 3, 18, 18)
    assert data.test[0].shape == (24, 3, 16, 16)  # those are small enough to stay


def test_a_change_that_nothing_reads_is_an_error(run: Run) -> None:
    with pytest.raises(ResslError, match="knn has no epochs to change"):
        evaluate(run, "knn", device="cpu", epochs=3)
