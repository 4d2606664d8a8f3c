"""What is told of the time before anything begins: by the ledger's own records, else by the checkout's, marked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invented import MACHINE, cost, record, write

from ressl import cli
from ressl.recipes import get_recipe
from ressl.reproduce import plans, running
from ressl.reproduce.grid import Ledger, jobs
from ressl.reproduce.plans import Time, Times
from ressl.reproduce.tables import TABLES
from ressl.reproduce.times import by_step

IMAGES = 1_281_167  # of ImageNet
RESSL = jobs(TABLES["table1"], only="ReSSL, CIFAR-10")[0]


def measured(speeds: dict[str, float], **changes: Any) -> dict[str, Any]:
    """A cost record of ImageNet whose rows name their methods."""
    found = cost("imagenet", speeds, **changes)
    for row in found["rows"]:
        row["method"] = {"MoCo v2": "moco-v2", "SimCLR": "simclr"}.get(row["name"], "ressl")
    return found


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """The ledger of a checkout, with these records."""

    def prepare(*records: dict[str, Any]) -> Path:
        folder = tmp_path / "checkout" / "results"
        folder.mkdir(parents=True)
        write(folder, *records)
        monkeypatch.setattr(plans, "CHECKOUT", folder)
        return folder

    return prepare


def a_run(seconds: float, **changes: Any) -> dict[str, Any]:
    """Of CIFAR-10, of so many seconds and no evaluation that was timed."""
    steps = 200 * 195
    return record(RESSL.recipe, steps=steps, images_per_second=steps * 256 / seconds, seconds=seconds, **changes)


def test_an_own_ledger_comes_first_and_the_checkouts_second(tmp_path, checkout) -> None:
    checkout(a_run(300.0))
    assert Times(write(tmp_path / "mine", a_run(900.0))).of(RESSL) == Time(pytest.approx(900.0), plans.OWN)
    assert Times(Ledger(tmp_path / "none")).of(RESSL) == Time(pytest.approx(300.0), plans.OTHERS)
    assert Times(Ledger(tmp_path / "none")).of(jobs(TABLES["table1"], only="STL-10")[0]) is None


def test_it_is_the_checkout_that_the_program_lies_in() -> None:
    assert Path(__file__).parents[2] / "results" == plans.CHECKOUT
    assert Times(Ledger(plans.CHECKOUT)).others is None  # the same one twice


def test_the_plan_says_where_its_times_are_from(tmp_path, checkout, capsys) -> None:
    folder = checkout(a_run(300.0), measured({"ReSSL": 1000.0, "MoCo v2": 500.0}))
    words = ["reproduce", "--dry-run", "--into", str(tmp_path / "mine")]
    assert cli.main([*words, "table1", "--only", "CIFAR-10"]) == 0
    shown = capsys.readouterr().out
    assert "  ReSSL, CIFAR-10, seed 0: about 5 min *\n" in shown
    assert f"* about 30 min by the runs in {folder}, made on some GPU\n" in shown
    assert "6 runs, 0 of them in the ledger, 6 to make" in shown  # they are good for nothing but the time
    assert cli.main([*words, "table5", "--only", "ReSSL, ResNet-50"]) == 0
    shown = capsys.readouterr().out
    assert f"  ReSSL, ResNet-50, seed 0: about {200 * IMAGES / 1000 / 3600:.1f} h **\n" in shown
    assert f"by 'ressl cost' in {folder}, made on some GPU: training alone, on random pictures\n" in shown
    write(tmp_path / "mine", a_run(600.0), measured({"ReSSL (4 crops)": 100.0}))
    assert cli.main([*words, "table1", "--only", "CIFAR-10"]) == 0
    shown = capsys.readouterr().out
    assert "*" not in shown
    assert "by the ledger's own runs on a GPU" in shown
    assert cli.main([*words, "imagenet", "--only", "4 crops"]) == 0
    shown = capsys.readouterr().out
    assert f"  ReSSL, 4 crops, ResNet-50, seed 0: about {200 * IMAGES / 100 / 3600:,.1f} h +\n" in shown
    assert "h by 'ressl cost': training alone, on random pictures\n" in shown


def test_minutes_go_by_the_checkouts_times_as_well(tmp_path, checkout, monkeypatch, capsys) -> None:
    checkout(a_run(300.0))
    begun: list[str] = []
    monkeypatch.setattr(running, "make", lambda job, *rest: begun.append(job.name) or record(job.recipe, 50.0))
    words = ["reproduce", "table3", "--only", "weak teacher, CIFAR-10", "--seeds", "0,1", "--minutes"]
    place = ["--into", str(tmp_path / "mine"), "--runs", str(tmp_path / "runs")]
    assert cli.main([*words, "4", *place]) == 0
    assert "2 left for another time: 4 minutes were too short for them" in capsys.readouterr().out
    assert not begun
    assert cli.main([*words, "6", *place]) == 0
    assert len(begun) == 2  # nothing was trained, so no time passed


def test_a_checkout_that_is_damaged_or_not_there_tells_nothing(tmp_path, checkout, monkeypatch) -> None:
    folder = checkout(a_run(300.0))
    (folder / "x.json").write_text("{broken")
    assert Times(Ledger(tmp_path / "none")).of(RESSL) is None
    monkeypatch.setattr(plans, "CHECKOUT", tmp_path / "nowhere")
    times = Times(Ledger(tmp_path / "none"))
    assert times.of(RESSL) is None
    assert times.cost("imagenet") == "?"


def test_the_step_of_a_recipe_is_told_by_the_newest_measurement_of_the_same_step() -> None:
    old, new = measured({"ReSSL": 100.0, "MoCo v2": 90.0}), measured({"ReSSL": 200.0}, started="2026-02-01T00:00:00Z")
    toy = measured({"ReSSL": 1.0}, started="2026-03-01T00:00:00Z", small=True)
    told = lambda **changes: by_step([old, new, toy], get_recipe("imagenet-r50").replace(**changes))
    assert told() == pytest.approx(200 * IMAGES / 200)
    assert told(epochs=5, seed=3) == pytest.approx(5 * IMAGES / 200)
    assert told(method="moco-v2") == pytest.approx(200 * IMAGES / 90)
    other = ({"method": "byol"}, {"batch_size": 512}, {"backbone": "resnet18"}, {"views": ["strong", "strong"]})
    for changes in (*other, {"epochs": 0}):  # of which there is nothing to train
        assert told(**changes) is None, changes
    assert by_step([old], get_recipe("imagenet-r50-4crops")) is None
    crops = measured({"ReSSL (4 crops)": 50.0, "ReSSL (5 crops)": 40.0})
    assert by_step([crops], get_recipe("imagenet-r50-4crops")) == pytest.approx(200 * IMAGES / 50)
    assert by_step([crops], get_recipe("imagenet-r50-5crops")) == pytest.approx(200 * IMAGES / 40)
    assert by_step([cost("imagenet", {"ReSSL": 100.0}), cost("dreams", {"ReSSL": 1.0})], get_recipe("cifar10")) is None


def test_the_cost_table_is_told_by_the_checkouts_too(tmp_path, checkout, capsys) -> None:
    folder = checkout(cost("imagenet", {"ReSSL": 4321.0}, took=240.0, environment=MACHINE | {"gpu": "another GPU"}))
    assert cli.main(["reproduce", "table8", "--device", "cpu", "--dry-run", "--into", str(tmp_path / "mine")]) == 0
    told = f"6 rows, to measure on this machine: about 4 min by the one in {folder}, made on another GPU"
    assert told in capsys.readouterr().out


def test_the_ledgers_own_records_know_the_papers_imagenet_rows() -> None:
    """ReSSL, MoCo v2, SimCLR, BYOL and both multi-crops have been measured."""
    times = Times(Ledger(plans.CHECKOUT))
    found = {job.cell.row for job in jobs(TABLES["imagenet"], only="ResNet-50") if times.of(job)}
    assert {"ReSSL", "MoCo v2", "SimCLR", "BYOL", "ReSSL, 4 crops", "ReSSL, 5 crops"} <= found
