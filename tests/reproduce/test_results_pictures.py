"""The page's pictures, and the tables of methods, sweeps and quick runs that they stand beside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invented import record, write
from PIL import Image

from ressl import cli
from ressl.recipes import Recipe, get_recipe
from ressl.reproduce.grid import Ledger, jobs
from ressl.reproduce.page import page
from ressl.reproduce.pictures import compared, pictures
from ressl.reproduce.tables import TABLES


def short(method: str, **changes: Any) -> Recipe:
    return get_recipe("cifar10").replace(method=method, **{"epochs": 20, "warmup_epochs": 2.0} | changes)


def planned(name: str, only: str, value: Callable[[Any], float], **how: Any) -> list[dict[str, Any]]:
    return [record(job.recipe, value(job.cell)) for job in jobs(TABLES[name], only=only, **how)]


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
