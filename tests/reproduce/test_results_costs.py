"""What a step costs, as the page has it: the paper's Table 8, and every method beside MoCo v2."""

from __future__ import annotations

import importlib
from pathlib import Path

from invented import MACHINE, cost, record, write

from ressl.recipes import get_recipe
from ressl.reproduce.page import page

ROOT = Path(__file__).parents[2]


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
