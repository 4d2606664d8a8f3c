"""The page's sections on what no table of the paper has: folders, transfers, other classifiers, stopped runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from invented import a_kills, record, write

from ressl.errors import ResslError
from ressl.recipes import choose_recipe, get_recipe
from ressl.recipes.folder import Findings
from ressl.recipes.typed import plain
from ressl.reproduce.grid import jobs
from ressl.reproduce.page import page
from ressl.reproduce.tables import TABLES
from ressl.reproduce.times import estimate


def test_runs_on_folders_stand_by_name_and_size_the_untrained_backbone_among_them(tmp_path: Path) -> None:
    recipe, _ = choose_recipe("folder", Findings(count=4000, short_side=160, on_gpu=True))

    def on(name: str, linear: float, finished: str = "2026-01-01T00:00:00Z", **changes: Any) -> dict[str, Any]:
        made = record(recipe.replace(**changes), linear, 40.0, finished=finished)
        made["evaluations"]["linear"] |= {"data": name, "own_data": True}
        made["evaluations"]["knn"] = {"top1": linear - 3}
        return made

    elsewhere = on("birds", 99.0)
    elsewhere["evaluations"]["linear"]["own_data"] = False
    ledger = write(
        tmp_path / "led",
        on("pets", 44.0), on("pets", 45.0, "2026-02-01T00:00:00Z"), on("pets", 20.0, epochs=0),
        on("pets", 60.0, method="supervised", num_classes=37), elsewhere, record(get_recipe("cifar10"), 90.0),
    )  # fmt: skip
    text = page(ledger)
    assert "| pets | 128 | ReSSL | 800 | 42.00 | 45.00 |" in text  # the newer one
    assert "| pets | 128 | untrained | 0 | 17.00 | 20.00 |" in text
    assert "| pets | 128 | supervised | 800 | 57.00 | 60.00 |" in text
    section = text.split("## Folders of photographs")[1].split("## ")[0]
    assert section.count("| pets |") == 3
    assert "birds" not in section
    job = jobs(TABLES["table1"], only="ReSSL, CIFAR-10")[0]
    untrained = write(tmp_path / "none", record(get_recipe("cifar10").replace(epochs=0), 40.0))
    assert estimate(untrained, job.recipe) is None  # no epochs say nothing of how long one takes


def test_transfers_stand_by_both_data_sets(tmp_path: Path) -> None:
    def moved(linear: float, finished: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
        made = record(get_recipe("cifar10"), 90.0, finished=finished)
        there = {"data": "birds", "train_pictures": 1200, "test_pictures": 300, "knn": 20.0, "linear": linear}
        made["evaluations"]["transfer"] = {"data": "cifar10", "to": [there | {"linear_best": linear + 1}]}
        return made

    text = page(write(tmp_path / "led", moved(30.0), moved(31.0, "2026-02-01T00:00:00Z")))
    assert "| cifar10 | 200 | 0 | ReSSL | birds | 1,200 | 300 | 20.00 | 31.00 | 32.00 |" in text  # the newer one
    assert text.count("| birds |") == 1
    several = moved(30.0)
    there = {"data": "voc07", "train_pictures": 60, "test_pictures": 40, "mAP": 14.789}
    several["evaluations"]["transfer"]["to"].append(there)
    assert "| voc07 | 60 | 40 |  | 14.79 (mAP of an SVM) |  |" in page(write(tmp_path / "several", several))
    assert "## Transfer" not in page(write(tmp_path / "other", record(get_recipe("cifar10"), 90.0)))


def test_other_linear_classifiers_stand_beside_the_recipe_s_own(tmp_path: Path) -> None:
    recipe = get_recipe("tiny-imagenet")

    def found(last: float, precision: str = "bfloat16", **settings: Any) -> dict[str, Any]:
        made = {"settings": plain(recipe.linear) | settings, "precision": precision, "own_data": True}
        return made | {"protocol": "linear", "last": last, "best": last + 0.5, "seconds": 10.0}

    made = record(recipe, 45.2)
    assert "other linear classifiers" not in page(write(tmp_path / "one", made))
    made["evaluations"] = {
        "linear": found(45.2),
        "linear-precision=float32": found(45.3, "float32"),
        "linear-cosine-lr=1.0": found(46.0, schedule="cosine", lr=1.0, nesterov=False) | {"protocol": "linear-cosine"},
        "linear-on-birds": found(30.0) | {"own_data": False},
        "knn": {"top1": 36.9},
    }
    sweep = found(0.0, rates=["step:30", "cosine:5"]) | {"protocol": "linear-sweep"}
    sweep["by_rate"] = [
        {"rate": "step:30", "last": 45.2, "best": 45.7},
        {"rate": "cosine:5", "last": 46.1, "best": 46.2},
    ]
    del sweep["last"], sweep["best"], sweep["settings"]["schedule"], sweep["settings"]["lr"]
    made["evaluations"]["linear-sweep"] = sweep
    text = (
        page(write(tmp_path / "led", made)).split("## The same backbone, other linear classifiers")[1].split("## ")[0]
    )
    sweep["by_rate"][1]["rate"] = "stairs:5"
    with pytest.raises(ResslError, match="a rate is a schedule and lr"):
        page(write(tmp_path / "odd", made))
    rows = [line.split(" | ")[3:8] for line in text.splitlines() if "ReSSL, tiny-imagenet" in line]
    step = "step, lr 30, 100 epochs, crops from 0.08 on, Nesterov"
    assert rows == [
        [step, "bfloat16", "45.20", "45.70", "+0.00"],
        ["cosine, lr 1, 100 epochs, crops from 0.08 on", "bfloat16", "46.00", "46.50", "+0.80"],
        [step, "float32", "45.30", "45.80", "+0.10"],
        [step, "bfloat16", "45.20", "45.70", "+0.00"],
        ["cosine, lr 5, 100 epochs, crops from 0.08 on, Nesterov", "bfloat16", "46.10", "46.20", "+0.90"],
    ]


def test_stopped_runs_stand_beside_their_twins(tmp_path: Path) -> None:
    alone = a_kills() | {"signal": "TERM", "exact": True, "knn": None}
    del alone["twin"]
    text = page(write(tmp_path / "led", a_kills(), alone | {"started": "2026-01-02T00:00:00Z"}))
    rows = text.split("## Stopped on purpose")[1].split("## ")[0].strip().splitlines()[-2:]
    killed = "| cifar10 | 200 | 0 | SIGKILL | 2 | 250 of 39,000 | 2 of 780 | 2.0e-02 | 88.00 (88.50) | 90.00 |"
    assert rows[0].startswith(killed)
    assert rows[1].startswith("| cifar10 | 200 | 0 | SIGTERM, `--exact` | 2 | 250 of 39,000 |  |  |  | 90.00 |")
    assert "Stopped on purpose" not in page(write(tmp_path / "other", record(get_recipe("cifar10"), 90.0)))
