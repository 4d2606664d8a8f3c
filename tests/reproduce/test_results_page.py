"""The page as a whole, and the rows of its tables, from records made up for it."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from invented import record, write

from ressl import cli
from ressl.recipes import get_recipe
from ressl.reproduce.grid import Ledger
from ressl.reproduce.page import page

ROOT = Path(__file__).parents[2]


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
