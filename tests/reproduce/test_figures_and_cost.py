"""The paper's figures and its cost table by the same command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invented import cost
from PIL import Image

from ressl import cli, drawing
from ressl.bench import cost as costs
from ressl.commands import reproduce
from ressl.errors import ResslError
from ressl.reproduce import running
from ressl.reproduce.figures import FIGURES, NEIGHBOURS, TSNE
from ressl.reproduce.grid import Ledger, jobs
from ressl.reproduce.tables import TABLE1, TABLES


@pytest.fixture
def words(tmp_path: Path, data: Path) -> list[str]:
    return ["--data", str(data), "--device", "cpu", "--runs", str(tmp_path / "runs"), "--into", str(tmp_path / "led")]


@pytest.fixture
def small(shrunk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for figure in (NEIGHBOURS, TSNE):
        monkeypatch.setitem(FIGURES, figure.name, shrunk(figure))
    monkeypatch.setitem(TABLES, "table1", shrunk(TABLE1))


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was given to the plots."""
    seen: list[Any] = []
    maps, blocks = drawing.plots.maps, drawing.galleries.neighbour_blocks
    monkeypatch.setattr(drawing.plots, "maps", lambda p, *rest: seen.append(p) or maps(p, *rest))
    monkeypatch.setattr(drawing.galleries, "neighbour_blocks", lambda p, *rest: seen.append(p) or blocks(p, *rest))
    return seen


def test_the_figures_default_to_the_papers_runs() -> None:
    shown = lambda figure: [(j.cell.row, j.recipe.data, j.recipe.epochs) for j in jobs(figure, only=figure.only)]
    assert shown(NEIGHBOURS) == [("ReSSL", "stl10", 200)]
    assert shown(TSNE) == [("MoCo v2", "cifar10", 200), ("ReSSL", "cifar10", 200)]
    assert {job.key for job in jobs(TSNE)} < {job.key for job in jobs(TABLE1)}


def test_tsne_takes_the_tables_runs_and_trains_the_rest(tmp_path, words, small, panels, capsys, monkeypatch) -> None:
    assert cli.main(["reproduce", "table1", "--only", "ReSSL | CIFAR-10", *words]) == 0
    capsys.readouterr()
    assert cli.main(["reproduce", "figure-tsne", "--dry-run", *words]) == 0
    assert "2 runs, 1 of them trained, 1 to make" in (shown := capsys.readouterr().out)
    assert "MoCo v2, CIFAR-10, seed 0" in shown
    assert not panels
    assert cli.main(["reproduce", "figure-tsne", *words]) == 0
    path = tmp_path / "runs" / "figure-tsne.png"
    assert capsys.readouterr().out.splitlines()[-1] == str(path)
    assert Image.open(path).format == "PNG"
    assert [(name, len(xy), sorted(set(labels.tolist()))) for name, xy, labels in panels[0]] == [
        ("MoCo v2, CIFAR-10", 16, [0, 1]), ("ReSSL, CIFAR-10", 16, [0, 1]),
    ]  # fmt: skip
    moco = jobs(TABLES["table1"], only="MoCo v2 | CIFAR-10")[0]
    assert Ledger(tmp_path / "led").find(moco) is not None  # what it trained is a number of table 1
    monkeypatch.setattr(running, "make", lambda *a: pytest.fail("made again"))
    other = tmp_path / "deep" / "other.png"
    assert cli.main(["reproduce", "figure-tsne", *words, "-o", str(other)]) == 0
    assert other.is_file()


def test_neighbours_under_both_augmentations(tmp_path, words, small, panels, capsys) -> None:
    assert cli.main(["reproduce", "figure-neighbours", *words]) == 0
    assert Image.open(tmp_path / "runs" / "figure-neighbours.png").format == "PNG"
    ((name, blocks),) = panels[0]
    assert name == "ReSSL, STL-10"
    assert [(kind, len(queries), tuple(found.shape[:2])) for kind, queries, found, _ in blocks] == [
        ("weak", 3, (3, 10)), ("contrastive", 3, (3, 10)),
    ]  # fmt: skip
    (run,) = (tmp_path / "runs").glob("stl10-*")
    assert cli.main(["reproduce", "figure-neighbours", "--from", str(run), "-o", str(tmp_path / "x.png")]) == 0
    assert panels[1][0][0] == run.name


def test_a_quick_figure_says_so(tmp_path, words, small, panels) -> None:
    assert cli.main(["reproduce", "figure-tsne", "--only", "ReSSL | CIFAR-10", "--epochs", "2", *words]) == 0
    assert [panel[0] for panel in panels[0]] == ["ReSSL, CIFAR-10, 2 epochs"]
    assert cli.main(["reproduce", "figure-tsne", "--only", "ReSSL | CIFAR-10", "--epochs", "1", *words]) == 0
    assert [panel[0] for panel in panels[1]] == ["ReSSL, CIFAR-10"]  # its own number of epochs


def test_options_that_nothing_reads_are_mistakes(tmp_path, capsys) -> None:
    for asked, says in (
        (["table1", "--on", "photos"], "table1 has no use for --on"),
        (["cost", "--epochs", "3"], "cost has no use for --epochs"),
        (["table1", "--from", "runs/x"], "table1 has no use for --from"),
        (["lowshot", "-o", "x.png"], "lowshot has no use for --out"),
        (["lowshot", "--from", "runs/x", "--quick"], "--from takes runs as they are"),
        (["figure-tsne", "--from", str(tmp_path)], "is not a run folder"),
    ):
        assert cli.main(["reproduce", *asked]) == 2
        assert says in capsys.readouterr().err


@pytest.fixture
def two_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "ROWS", costs.ROWS[:2])


def test_the_cost_table_is_measured_and_written(tmp_path, two_rows, capsys) -> None:
    words = ["reproduce", "cost", "--quick", "--device", "cpu", "--into", str(tmp_path)]
    assert cli.main([*words, "--dry-run"]) == 0
    assert not list(tmp_path.iterdir())
    assert "2 rows, to measure on this machine" in capsys.readouterr().out
    assert cli.main(words) == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert (found["kind"], found["small"], found["seconds"]) == ("cost", True, 0.4)
    assert "ReSSL / MoCo v2" in capsys.readouterr().out
    assert Ledger(tmp_path).cost("imagenet") is None  # a toy


def test_a_card_that_was_measured_is_not_measured_again(tmp_path, monkeypatch, capsys) -> None:
    found = cost("imagenet", {"ReSSL": 4321.0})
    (tmp_path / "cost.json").write_text(json.dumps(found))
    monkeypatch.setattr(reproduce, "cost", lambda *a, **k: pytest.fail("measured again"))
    monkeypatch.setattr(reproduce, "environment", lambda device: {"gpu": "some GPU"})
    words = ["reproduce", "cost", "--device", "cpu", "--into", str(tmp_path)]
    assert cli.main(words) == 0
    assert "4,321" in (shown := capsys.readouterr().out)
    assert "1 of 6 rows in the ledger" in shown
    (tmp_path / "cost.json").write_text(json.dumps(found | {"seconds": 0.4}))  # a quick one is enough for --quick only
    assert cli.main([*words, "--quick"]) == 0
    assert cli.main([*words, "--dry-run"]) == 0
    assert "to measure on this machine" in capsys.readouterr().out
    monkeypatch.setattr(reproduce, "environment", lambda device: {"gpu": "another GPU"})
    assert cli.main([*words, "--dry-run"]) == 0
    assert "to measure on this machine: about 2 min" in capsys.readouterr().out


def test_a_row_is_measured_alone(tmp_path, capsys) -> None:
    words = ["cost", "--device", "cpu", "--seconds", "0.02", "--into", str(tmp_path), "--only"]
    assert cli.main([*words, "moco"]) == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert (found["name"], [row["name"] for row in found["rows"]]) == ("imagenet", ["MoCo v2"])
    assert cli.main([*words, "9 crops"]) == 2
    assert "row" in capsys.readouterr().err


def test_methods_are_measured_on_any_recipe(tmp_path) -> None:
    words = ["cost", "cifar10", "--device", "cpu", "--seconds", "0.02", "--into", str(tmp_path)]
    assert cli.main([*words, "--methods", "moco-v2", "supervised", "instdisc", "seed"]) == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert found["name"] == "cifar10"
    assert [row["method"] for row in found["rows"]] == ["moco-v2", "supervised", "instdisc", "seed"]
    for pair, row in zip(found["ratios"], found["rows"][1:], strict=True):
        assert pair["ours"] == pytest.approx(found["rows"][0]["images_per_second"] / row["images_per_second"], abs=1e-3)
    with pytest.raises(ResslError, match="did you mean 'byol'"):
        costs.rows_of("cifar10", ["biol"])
