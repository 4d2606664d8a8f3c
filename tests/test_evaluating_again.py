"""Evaluated again: what is read and what is measured anew; other settings, pictures and precisions beside the first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ressl.errors import ResslError
from ressl.evaluating import BEFORE, evaluate
from ressl.report import sections
from ressl.report.contents import RunPage
from ressl.report.numbers import rows_of
from ressl.reporting import report
from ressl.runs import Run


def test_a_second_evaluation_is_read_and_not_computed(run: Run, memory: Any) -> None:
    first = evaluate(run, "knn", device="cpu")
    shown = memory()
    assert evaluate(run, "knn", device="cpu", display=shown) == first
    assert shown.messages == [BEFORE]
    again = evaluate(run, "knn", device="cpu", again=True)
    assert again["top1"] == first["top1"]
    assert again["seconds"] != first["seconds"]
    assert evaluate(run, "linear", device="cpu")["settings"]["epochs"] == 2
    assert len(evaluate(run, "linear", device="cpu", epochs=3)["curve"]) == 3  # other settings are another result


def test_a_sweep_tells_what_each_rate_comes_to(run: Run) -> None:
    own = evaluate(run, "linear", device="cpu", epochs=3, schedule="step", lr=30.0)
    swept = evaluate(run, "linear-sweep", device="cpu", epochs=3, rates="step:30,cosine:1")
    assert [row["rate"] for row in swept["by_rate"]] == ["step:30", "cosine:1"]
    assert swept["by_rate"][0]["curve"] == own["curve"]
    first, second = rows_of("linear-sweep", swept)
    assert (first.what, first.value) == ("linear, step, lr 30, epochs = 3", f"{own['last']:.2f}")
    assert second.what == "linear, cosine, lr 1, epochs = 3"
    assert second.beside.startswith("best ")
    with pytest.raises(ResslError, match=r"a rate is a schedule and lr, as step:30 or cosine:0\.2, not 'step30'"):
        evaluate(run, "linear-sweep", device="cpu", rates="step30")


def test_a_result_on_other_data_is_not_taken_for_the_run_s_own(tmp_path: Path, run: Run) -> None:
    other = tmp_path / "other.npz"
    with np.load(run.facts["data"]) as arrays:
        np.savez(other, **{name: array[: len(array) // 2] for name, array in arrays.items()})
    assert evaluate(run, "knn", device="cpu")["test_pictures"] == 24
    assert evaluate(run, "knn", device="cpu", data=str(other))["test_pictures"] == 12
    assert evaluate(run, "knn", device="cpu")["test_pictures"] == 24
    assert evaluate(run, "knn", device="cpu", precision="bf16")["precision"] == "bfloat16"


def test_a_longer_list_of_transfers_computes_what_is_new(run: Run, array_file: Path, memory: Any) -> None:
    def transfer(*to: str, **more: Any) -> tuple[list[Any], list[str]]:
        shown = memory()
        found = evaluate(run, "transfer", to=to, device="cpu", display=shown, **{"epochs": 2} | more)
        return [row["data"] for row in found["to"]], [text.split()[-1] for text in shown.messages if text != BEFORE]

    here = str(array_file)
    assert transfer("shapes") == (["shapes"], ["shapes"])
    assert transfer(here) == (["pictures", "shapes"], ["pictures"])  # what was there before stays
    assert transfer("shapes", here) == (["shapes", "pictures"], [])
    assert transfer("shapes") == (["shapes", "pictures"], [])
    rows = evaluate(run, "transfer", to=(here,), epochs=2, device="cpu")["to"]
    assert rows[0]["knn"] == evaluate(run, "knn", device="cpu")["top1"]
    assert transfer("shapes", again=True) == (["shapes", "pictures"], ["shapes"])
    assert transfer(here, epochs=1) == (["pictures"], ["pictures"])  # by other settings they are other results
    before = run.read_evaluation("transfer-epochs=2")
    assert transfer(here, precision="bf16") == (["pictures"], ["pictures"])  # and so by another precision,
    assert transfer("shapes", precision="bf16") == (["shapes", "pictures"], ["shapes"])  # whose list grows by itself
    assert run.read_evaluation("transfer-epochs=2") == before
    assert transfer(here, precision="fp32") == (["pictures", "shapes"], [])


@pytest.mark.parametrize("protocol", ["knn", "transfer"])
def test_pictures_that_changed_are_measured_anew(run: Run, make_folder: Callable[..., Path], protocol: str) -> None:
    """Others under the same names, in the same folder; and none at all are no reason to forget what was measured."""
    photos, other = make_folder(30), make_folder(30, name="other")
    more = {"to": (str(photos), "shapes"), "epochs": 1} if protocol == "transfer" else {"data": str(photos)}
    measure = lambda: evaluate(run, protocol, device="cpu", **more)
    first = measure()
    assert measure() == first
    for a, b in zip(sorted((photos / "a").iterdir()), sorted((other / "b").iterdir()), strict=True):
        shutil.copyfile(b, a)
    second = measure()
    assert second["seconds"] != first["seconds"]
    assert measure() == second
    if protocol == "transfer":
        assert [row["data"] for row in second["to"]] == ["photos", "shapes"]
        assert second["to"][1] == first["to"][1]
    else:
        shutil.rmtree(photos / "b")
        (photos / "b").mkdir()
        assert measure()["test_pictures"] == 4  # of 20
        own = evaluate(run, "knn", device="cpu")
        Path(run.facts["data"]).unlink()
        assert evaluate(run, "knn", device="cpu") == own


def test_by_other_settings_it_is_another_measure(run: Run) -> None:
    usual, short = (evaluate(run, "linear", device="cpu", **more) for more in ({}, {"epochs": 1}))
    assert [row.what for row in rows_of("linear", usual, {"linear": 90.2})] == ["linear"]
    assert rows_of("linear", usual, {"linear": 90.2})[0].paper == "90.20"
    row = rows_of("linear", short, {"linear": 90.2})[0]
    assert (row.what, row.paper) == ("linear, epochs = 1", "")
    shown = sections.numbers([RunPage("", "", "", [], {"linear": short}, {"linear": 90.2}, [], None, {}, {})])
    assert "<td>linear</td>" in str(shown)  # the paper's stands alone
    assert "90.20" in str(shown)
    text = report([run], device="cpu").read_text()
    assert "<td>linear</td>" in text  # each in a file of its own
    assert "<td>linear, epochs = 1</td>" in text
    (run.path / "evaluation" / "linear.json").unlink()
    text = report([run], device="cpu").read_text()
    assert "<td>linear, epochs = 1</td>" in text
    assert "<span>linear, top-1</span>" not in text


@pytest.mark.parametrize("precision", ["auto", "bf16"])
def test_what_a_gpu_measured_is_good_elsewhere_unless_a_precision_is_asked_for(
    precision: str, run: Run, memory: Any
) -> None:
    shown = memory()
    there = evaluate(run, "knn", device="cpu", precision="bf16")
    assert there["precision"] == "bfloat16"
    here = evaluate(run, "knn", device="cpu", precision=precision, display=shown)
    assert (here, shown.messages) == (there, [BEFORE])
    other = evaluate(run, "knn", device="cpu", precision="fp32", display=shown)
    assert (other["precision"], other["changed"]) == ("float32", {"precision": "float32"})
    assert evaluate(run, "knn", device="cpu", precision="fp32", display=shown) == other  # beside the one before
    assert evaluate(run, "knn", device="cpu", precision=precision, display=shown) == there
    assert shown.messages == [BEFORE] * 3
    anew = evaluate(run, "knn", device="cpu", precision="bf16", again=True)
    assert anew | {"seconds": 0} == there | {"seconds": 0}
    assert len(list((run.path / "evaluation").glob("*.json"))) == 2


def test_by_another_precision_a_result_of_other_pictures_is_made_anew(tmp_path: Path, run: Run) -> None:
    there = evaluate(run, "knn", device="cpu", precision="bf16")
    run.write_evaluation("knn", there | {"step": there["step"] - 1})  # of an earlier checkpoint
    here = evaluate(run, "knn", device="cpu", precision="fp32")
    assert (here["precision"], here["changed"]) == ("float32", {})
    assert run.read_evaluation("knn") == here


def test_a_named_set_is_the_same_wherever_it_lies(
    tmp_path: Path, make_run: Callable[..., Run], make_folder: Callable[..., Path], memory: Any
) -> None:
    place = make_folder(30)
    run = make_run("r", data="cifar10")
    found = evaluate(run, "knn", data=f"cifar10={place}", device="cpu")
    assert found["own_data"]
    shown = memory()
    moved = place.rename(tmp_path / "moved")
    assert evaluate(run, "knn", data=f"cifar10={moved}", device="cpu", display=shown) == found
    assert shown.messages == [BEFORE]
    page = report([run], data=f"cifar10={moved}", device="cpu").read_text()
    assert "show pictures of" not in page
    assert run.read_evaluation("classes")["own_data"]
