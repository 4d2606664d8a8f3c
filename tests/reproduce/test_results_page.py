"""The page's pictures and sections, from records made up for it."""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invented import MACHINE, a_kills, cost, record, write
from PIL import Image

from ressl import cli
from ressl.errors import ResslError
from ressl.recipes import Recipe, choose_recipe, get_recipe
from ressl.recipes.folder import Findings
from ressl.recipes.typed import plain
from ressl.reproduce.grid import Ledger, jobs
from ressl.reproduce.page import page
from ressl.reproduce.pictures import compared, pictures
from ressl.reproduce.tables import TABLES
from ressl.reproduce.times import estimate

ROOT = Path(__file__).parents[2]


def short(method: str, **changes: Any) -> Recipe:
    return get_recipe("cifar10").replace(method=method, **{"epochs": 20, "warmup_epochs": 2.0} | changes)


def test_methods_are_compared_at_the_length_that_most_of_them_have(tmp_path: Path) -> None:
    ledger = write(
        tmp_path / "led",
        record(get_recipe("cifar10"), 90.0, 89.0),  # 200 epochs: alone
        record(short("ressl"), knn=70.0),
        record(short("ressl", seed=1), knn=99.0),  # another seed
        record(short("ressl"), knn=71.0, finished="2026-02-01T00:00:00Z"),  # the newer one
        record(short("byol"), knn=60.0),
        record(short("moco-v2", lr=0.5), knn=98.0),  # another experiment
        record(short("seed", teacher="runs/x", teacher_backbone="resnet18"), knn=65.0),
    )
    assert [(r["recipe"]["method"], r["curves"]["knn"][-1][1]) for r in compared(ledger)] == [
        ("ressl", 71.0), ("byol", 60.0), ("seed", 65.0),
    ]  # fmt: skip
    picture = pictures(ledger)["methods"]
    ((heading, lines),) = picture.panels
    assert heading == "20 epochs"
    assert [line.name for line in lines] == ["ReSSL", "SEED", "BYOL"]  # as they end
    assert lines[0].points == [(1, 35.5), (2, 71.0)]
    text = page(ledger)
    assert "## Every method on CIFAR-10, 20 epochs" in text
    assert "![kNN on CIFAR-10 while training](images/methods-knn.png)" in text
    assert "| BYOL | 60.00 | 0 |" in text
    linear = write(tmp_path / "linear", record(short("ressl"), 80.0, 71.0), record(short("byol"), knn=60.0))
    assert "| ReSSL | 71.00 | 80.00 | 0 |\n| BYOL | 60.00 |  | 0 |" in page(linear)


def test_one_method_is_no_comparison(tmp_path: Path) -> None:
    ledger = write(tmp_path / "led", record(short("ressl")))
    assert "methods" not in pictures(ledger)
    assert "Every method" not in page(ledger)


def planned(name: str, only: str, value: Callable[[Any], float], **how: Any) -> list[dict[str, Any]]:
    return [record(job.recipe, value(job.cell)) for job in jobs(TABLES[name], only=only, **how)]


def test_sweeps_are_drawn_beside_the_papers(tmp_path: Path) -> None:
    quick = lambda cell: (cell.paper or 0) - 20
    ledger = write(
        tmp_path / "led",
        *planned("table2", "CIFAR-10, tau_s 0.1", quick, quick=True),
        *planned("table2", "CIFAR-10, tau_s 0.2", quick, quick=True),  # not in the picture
        *planned("table-temperature", "CIFAR-10", lambda cell: 10.0, quick=True),
        *planned("table4", "Tiny ImageNet", quick, quick=True),
        *planned("table4", "CIFAR-10", quick)[:2],  # too few for a curve
    )
    drawn = pictures(ledger)
    assert set(drawn) == {"table-temperature", "table4"}
    ((heading, (paper, ours)),) = drawn["table-temperature"].panels
    assert heading == "CIFAR-10"
    assert (paper.name, ours.name) == ("paper, 200 epochs", "ours, 20 epochs, quick")
    assert paper.points[:2] == [(0.01, 89.35), (0.02, 89.74)]
    assert [x for x, _ in paper.points] == [x for x, _ in ours.points] == [i / 100 for i in range(1, 11)]
    assert ours.points[6:] == [(0.07, pytest.approx(68.67)), (0.08, 10.0), (0.09, 10.0), (0.1, 10.0)]
    ((heading, (paper, ours)),) = drawn["table4"].panels
    assert heading == "Tiny ImageNet"
    assert [x for x, _ in ours.points] == [256, 1024, 4096, 8192, 16384, 32768]
    lines = page(ledger).splitlines()
    places = [
        lines.index(f"![{drawn[name].title}](images/{drawn[name].file})") for name in ("table4", "table-temperature")
    ]
    heads = [next(i for i, line in enumerate(lines) if line.startswith(f"## Table {n}:")) for n in (4, 10, 11)]
    assert heads[0] < places[0] < heads[1] < places[1] < heads[2]


def test_quick_runs_of_any_length_stand_in_their_table_once(tmp_path: Path) -> None:
    quick = lambda cell: (cell.paper or 0) - 20
    older = record(get_recipe("cifar10").replace(seed=9), knn=50.0)
    del older["recipe"]["linear"]  # from before there was such a field
    ledger = write(
        tmp_path / "led",
        *planned("table2", "CIFAR-10, tau_s 0.1", quick, quick=True),  # one of them is Table 1's as well
        *planned("table4", "CIFAR-10", lambda cell: 50.0, quick=True, epochs=60),
        *planned("table4", "CIFAR-10", lambda cell: 90.0),
        older,
    )
    text = page(ledger)
    heads = [line for line in text.splitlines() if ", quick: " in line]
    assert [(line.split(":")[0], line.split("quick: ")[1].split(",")[0]) for line in heads] == [
        ("## Table 2", "20 epochs"), ("## Table 4", "60 epochs"),
    ]  # fmt: skip
    assert "`ressl reproduce table4 --quick --epochs 60`, 6 of 24 cells measured." in text
    assert "--only 'CIFAR-10, K 256' --quick --epochs 60 --seeds 0 --into mine`" in text
    assert text.split("## Other runs")[1].count("| `ressl ") == 1
    ((_, lines),) = pictures(ledger)["table4"].panels
    assert [line.name for line in lines] == ["paper, 200 epochs", "ours, 200 epochs", "ours, 60 epochs, quick"]


def test_the_command_draws_what_the_page_shows_and_the_same_bytes_again(tmp_path: Path) -> None:
    write(tmp_path / "led", record(short("ressl"), knn=70.0), record(short("byol"), knn=60.0))
    for name in ("one", "two"):
        asked = ["results", "--ledger", str(tmp_path / "led"), "--into", str(tmp_path / name / "RESULTS.md")]
        assert cli.main(asked) == 0
    one, two = (sorted((tmp_path / name).rglob("*.*")) for name in ("one", "two"))
    assert [path.name for path in one] == ["RESULTS.md", "methods-knn.png"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    assert Image.open(one[1]).format == "PNG"
    assert (tmp_path / "one" / "RESULTS.md").read_text(encoding="utf-8") == page(Ledger(tmp_path / "led"))


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


def test_speeds_are_those_of_the_fullest_and_newest_measurement(tmp_path: Path) -> None:
    fake = record(get_recipe("cifar10"), 90.0)
    ledger = write(
        tmp_path / "led",
        fake | {"images_per_second": 1.0},
        cost("cifar10", {"MoCo v2": 500.0, "ReSSL": 100.0}),
        cost("cifar10", {"MoCo v2": 500.0, "ReSSL": 400.0, "BYOL": 250.0}, started="2026-01-02T00:00:00Z"),
        cost("cifar10", {"MoCo v2": 5.0, "ReSSL": 4.0, "BYOL": 2.0}, started="2026-01-03T00:00:00Z", small=True),  # toy
        cost("cifar10", {"MoCo v2": 6.0}, started="2026-01-04T00:00:00Z"),  # one of them alone
        cost("cifar10", {"MoCo v2": 50.0, "SwAV": 10.0}, started="2026-01-05T00:00:00Z"),  # one that was left out
        cost("cifar10", {"MoCo v2": 90.0, "SwAV": 10.0}, started="2026-01-04T00:00:00Z"),
        cost("cifar10", {"AdCo": 10.0}, started="2026-01-06T00:00:00Z"),  # beside nothing
    )
    text = page(ledger)
    assert "| MoCo v2 | 500 | 1.00 | 1.00 | 1.00 |" in text
    assert "| ReSSL | 400 | 1.25 | 1.04 | 1.00 |" in text
    assert "| BYOL | 250 | 2.00 |  | 1.00 |" in text
    assert "| SwAV \\* | 10 | 5.00 |  | 1.00 |" in text
    assert "\\* Measured at another time, beside MoCo v2 with 50 images/s, commit abc." in text
    assert "AdCo" not in text.split("## What a step")[1].split("## ")[0]
    assert "`ressl cost cifar10`, some GPU, graph engine, bf16, batch 256, torch 2.11, commit abc." in text
    assert "`ressl reproduce cost`, not measured." in text
    assert "- ReSSL / MoCo v2: **1.25** in time (paper 1.04)" in page(
        write(tmp_path / "other", cost("imagenet", {"MoCo v2": 500.0, "ReSSL": 400.0}))
    )


def test_rows_of_the_cost_table_that_were_measured_apart_are_marked(tmp_path: Path) -> None:
    both = cost("imagenet", {"MoCo v2": 500.0, "ReSSL": 400.0})
    later = cost("imagenet", {"ReSSL (5 crops)": 100.0}, started="2026-01-02T00:00:00Z")
    text = page(write(tmp_path, both, later)).split("## Table 8")[1].split("## ")[0]
    assert "| ReSSL |  | 0.003 | 400 | 1.0 |  |" in text
    assert "| ReSSL (5 crops) \\* |  | 0.010 | 100 | 1.0 |  |" in text
    assert "\\* Measured at another time: some GPU, graph engine, bf16, batch 256, torch 2.11, commit abc." in text
    assert "\\*" not in page(write(tmp_path / "alone", both)).split("## Table 8")[1].split("## ")[0]


def test_memory_is_that_of_the_step_once_it_runs_beside_the_papers(tmp_path: Path, monkeypatch) -> None:
    """As docs/SCALING.md has it of the same record."""
    found = cost("imagenet", {"MoCo v2": 500.0, "ReSSL": 400.0})
    found["rows"][0] |= {"step_memory_gb": 14.946, "data_memory_gb": 0.155, "peak_memory_gb": 13.9}
    found["rows"][0]["paper"] = {"hours_per_epoch": 2.25, "memory_gb": 40}
    text = page(write(tmp_path / "some", found)).split("## Table 8")[1].split("\n## ")[0]
    assert "| images/s | memory GB | paper, GB on all GPUs |" in text
    assert "| MoCo v2 | 2.25 | 0.002 | 500 | 14.9 | 40 |" in text
    assert "| ReSSL |  | 0.003 | 400 | 1.0 |  |" in text
    assert "random pictures of the\nmeasurement (0.2 GB) included." in text
    assert "Where that was not recorded, it is the most that was allocated." in text
    found["rows"][1] |= {"step_memory_gb": 15.0, "data_memory_gb": 0.2}
    text = page(write(tmp_path / "all", found | {"name": "cifar10"}))
    assert "| ReSSL | 400 | 1.25 | 1.04 | 15.00 |" in text
    assert "Where that was not recorded" not in text
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    assert importlib.import_module("scaling").of_step(found["rows"][0]) == "500 images/s, 14.9 GB"


def test_of_four_crops_beside_simclr_the_page_says_what_is_arithmetic(tmp_path: Path) -> None:
    ratio = {"ratio": "ReSSL (4 crops) / SimCLR", "ours": 1.25, "paper": 1.02}
    both = cost("imagenet", {"SimCLR": 500.0, "ReSSL (4 crops)": 400.0}, ratios=[ratio])
    text = page(write(tmp_path, both)).split("## Table 8")[1].split("## ")[0]
    crops = (224**2 + 160**2 + 128**2 + 96**2) / 224**2
    assert text.index("**1.25** in time (paper 1.02)\n\nBy pixels alone") < text.index("would be 1.18.")
    assert f"{(3 * crops + 1) / 6:.2f}" == "1.18"
    assert "3 x 2.02 + 1 = 7.06 of a view, and SimCLR's 3 x 2 = 6." in text
    other = cost("imagenet", {"MoCo v2": 500.0, "ReSSL": 400.0})
    assert "By pixels alone" not in page(write(tmp_path / "other", other))


def test_records_of_an_installed_program_name_no_commit(tmp_path: Path) -> None:
    """It has none; and a measurement need not know its memory."""
    machine = {key: value for key, value in MACHINE.items() if key != "commit"}
    made = [cost(name, {"MoCo v2": 500.0, "ReSSL": 400.0}, environment=machine) for name in ("cifar10", "imagenet")]
    other = cost("cifar10", {"MoCo v2": 50.0, "SwAV": 10.0}, environment=machine, started="2025-01-01T00:00:00Z")
    for row in (row for measured in (*made, other) for row in measured["rows"]):
        del row["peak_memory_gb"]
    empty = cost("imagenet", {}, environment=machine, started="2027-01-01T00:00:00Z")
    run = record(get_recipe("cifar10").replace(epochs=3), 50.0, commit=None, environment=machine)
    text = page(write(tmp_path, *made, other, empty, run))
    assert "`ressl cost cifar10`, some GPU, graph engine, bf16, batch 256, torch 2.11. Time" in text
    assert "beside MoCo v2 with 50 images/s." in text
    assert "| ReSSL |  | 0.003 | 400 |  |" in text
    assert "None" not in text


def test_speed_and_minutes_are_medians_over_the_seeds(tmp_path: Path) -> None:
    seconds, speeds = (120.0, 180.0, 600.0), (900.0, 1000.0, 5000.0)
    made = [
        record(get_recipe("cifar10").replace(seed=i), 90.0, seconds=s, images_per_second=v)
        for i, (s, v) in enumerate(zip(seconds, speeds, strict=True))
    ]
    row = next(line for line in page(write(tmp_path / "led", *made)).splitlines() if line.startswith("| ReSSL | CIFAR"))
    assert f"| {statistics.median(speeds):,.0f} | {statistics.median(seconds) / 60:.1f} |" in row


def test_runs_that_were_made_together_have_no_speed(tmp_path: Path) -> None:
    together = record(get_recipe("cifar10"), 90.0, jobs=4)
    text = page(write(tmp_path / "led", together))
    assert "| paper | ours | difference | command |" in text  # a column that nobody fills is none
    assert "| 90.00 (n 1, best 90.50) | -0.20 | `ressl" in text
    text = page(write(tmp_path / "two", together, record(get_recipe("cifar100"), 60.0)))
    assert "| 90.00 (n 1, best 90.50) | -0.20 |  |  | `ressl" in text


def test_the_page_says_what_differs_and_what_is_not_measured() -> None:
    text = page(Ledger(ROOT / "results"))
    for heading in ("How this differs from the paper", "Not measured"):
        assert f"\n## {heading}\n" in text
    for word in ("bf16", "CUDA graph", "jitter", "kNN", "queue", "Supervised", "Figures 2 and 3"):
        assert word in text.split("## How this differs")[1], word


def test_a_ledger_without_records_does_not_empty_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "RESULTS.md"
    there.write_text("measured for weeks")
    assert cli.main(["results", "--ledger", str(tmp_path / "reslts"), "--into", str(there)]) == 2
    assert "say with --ledger where they lie" in capsys.readouterr().err
    assert there.read_text() == "measured for weeks"
