"""`ressl reproduce`: what it makes, shows and answers, and the command that the page prints beside a cell."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path

import pytest
from invented import SMALL, record_of, write

from ressl import cli
from ressl.commands import reproduce
from ressl.engine.signals import Interrupted
from ressl.reproduce import grid, running
from ressl.reproduce.grid import Job, Ledger, jobs
from ressl.reproduce.page import command, page
from ressl.reproduce.tables import TABLES

ROOT = Path(__file__).parents[2]


class Stopping(running.Quiet):
    def progress(self, done: int, total: int, values: dict[str, float]) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupted_table_goes_on_and_ends_like_an_undisturbed_one(tmp_path, array_file, monkeypatch) -> None:
    monkeypatch.setattr(running.Place, "data_of", lambda self, job: str(array_file))
    job = jobs(SMALL)[0]
    place = lambda name: running.Place(runs=str(tmp_path / name), into=str(tmp_path / f"{name}-results"), device="cpu")
    whole = running.make(job, place("whole"), running.Quiet())
    with pytest.raises(Interrupted):
        running.make(job, place("cut"), Stopping())
    assert not (tmp_path / "cut-results").exists()
    cut = running.make(job, place("cut"), running.Quiet())
    assert cut["evaluations"]["linear"]["curve"] == whole["evaluations"]["linear"]["curve"]
    assert cut["curves"]["loss"][-1] == whole["curves"]["loss"][-1]
    assert Ledger(tmp_path / "cut-results").find(job) is not None


def test_the_command_makes_what_is_missing_once(tmp_path, array_file, monkeypatch, capsys) -> None:
    monkeypatch.setitem(TABLES, "small", SMALL)
    monkeypatch.setattr(running.Place, "data_of", lambda self, job: str(array_file))
    made = []
    make = running.make
    monkeypatch.setattr(running, "make", lambda job, *rest: made.append(job) or make(job, *rest))
    words = ["reproduce", "small", "--device", "cpu", "--runs", str(tmp_path / "runs"), "--into", str(tmp_path / "led")]
    assert cli.main([*words, "--only", "a"]) == 0
    assert cli.main([*words, "--dry-run"]) == 0
    assert "2 runs, 1 of them in the ledger, 1 to make" in capsys.readouterr().out
    assert len(made) == 1
    assert cli.main(words) == 0
    assert cli.main(words) == 0
    assert [job.cell.row for job in made] == ["a", "b"]
    shown = capsys.readouterr().out
    assert "50.00" in shown
    assert shown.count("(n 1, best") == 4


def test_what_is_not_made_stands_in_the_table_and_says_so_when_it_is_asked_for(tmp_path, capsys) -> None:
    words = ["reproduce", "imagenet", "--dry-run", "--into", str(tmp_path / "led")]
    for only in ("SEED", "seed, resnet-18", "AdCo, multi-crop", "adco multi-crop"):
        assert cli.main([*words, "--only", only]) == 2
        shown = capsys.readouterr()
        assert shown.err.startswith(f"ressl: {'SEED' if 'eed' in only.lower() else 'AdCo, multi-crop'} is not made by")
        assert shown.err.count("\n") == 1
        assert not shown.out
    assert cli.main([*words, "--only", "resnet-18"]) == 0
    shown = capsys.readouterr().out
    assert "2 runs, 0 of them" in shown
    row = next(line for line in shown.splitlines() if line.startswith("│ SEED"))
    assert [word.strip() for word in row.split("│")[1:-1]] == [
        "SEED",
        "ResNet-18",
        "57.60",
        "not made by this command",
        "",
    ]
    assert "AdCo" not in shown
    assert cli.main([*words, "--only", "AdCo"]) == 0  # and the row that is made
    shown = capsys.readouterr().out
    assert "1 run, 0 of them" in shown
    assert "73.20" in shown
    text = page(write(tmp_path / "some", record_of(jobs(TABLES["imagenet"])[0], 76.0)))
    section = text.split("## Tables 5 to 7")[1].split("\n## ")[0]
    assert "- SEED, ResNet-18, paper 57.60: first its teacher" in section
    assert section.index("| supervised |") < section.index("Not made by this command")
    assert "Not made by this command" in page(Ledger(tmp_path / "none"))


def test_the_command_for_seed_can_be_given() -> None:
    (seed,) = grid.elsewhere(TABLES["imagenet"], "SEED")
    words = shlex.split(seed.how.split("'")[-2])
    options = cli.build_parser(words[1]).parse_args(words[1:])
    told = {key: value for key, value in vars(options).items() if key.startswith("change:") and value}
    assert (options.recipe, options.then) == ("imagenet-r18", ["linear"])
    assert told == {"change:method": "seed", "change:teacher": "RUN"}
    assert [job.recipe.method for job in jobs(TABLES["imagenet"], only="MoCo v2, ResNet-50")] == ["moco-v2"]


def test_random_weights_are_a_backbone_of_no_epochs_however_long_the_others_are(tmp_path: Path) -> None:
    table = TABLES["lowshot"]
    plain = jobs(table, only="Random")
    assert [job.paper for job in plain] == [10.10, 11.34, 11.96, 12.42]
    assert {job.recipe.epochs for job in plain} == {0}
    for how in ({"quick": True}, {"epochs": 3}):
        short = jobs(table, **how)
        assert [job.key for job in short[:4]] == [job.key for job in plain]
        assert [job.shortened for job in short] == [False] * 4 + [True] * 16
    found = record_of(plain[0], 0.0)
    rows = [{"shots": shots, "mean": 10.5} for shots in (16, 32, 64, None)]
    found["evaluations"] = {"svm-on-voc07": {"protocol": "svm", "data": "voc07", "place": "x", "by_shots": rows}}
    text = page(write(tmp_path, found))
    assert text.count("| Random | K 16 | 10.10 | 10.50 (n 1) | +0.40 |") == 1
    assert "Table 9: low-shot SVMs on VOC07 (mAP), backbones of ImageNet, quick" not in text


@pytest.mark.parametrize(
    ("alias", "name"),
    [("table5", "imagenet"), ("table6", "imagenet"), ("table7", "imagenet"), ("table8", "cost"), ("table9", "lowshot"),
     ("table10", "table-temperature"), ("table11", "table-augmentation"), ("figure2", "figure-neighbours"),
     ("figure3", "figure-tsne")],
)  # fmt: skip
def test_the_papers_numbers_are_names_too(alias, name, tmp_path, capsys) -> None:
    """As its tables and figures are counted; and our titles say the same."""
    asked = lambda what: cli.main(["reproduce", *what, "--dry-run", "--into", str(tmp_path)])
    assert asked([name]) == 0
    whole = capsys.readouterr().out
    for what in ([alias], [alias, name]):
        assert asked(what) == 0
        assert capsys.readouterr().out == whole
    counted = f"{alias[:-1].capitalize()} {alias[-1]}" if alias[-2:] not in ("10", "11") else f"Table {alias[-2:]}"
    assert reproduce.titles()[name].startswith("Tables 5 to 7:" if name == "imagenet" else f"{counted}:")
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "--help"])
    assert any(alias in line and line.endswith(f" {name}") for line in capsys.readouterr().out.splitlines())


def test_seeds_may_stand_with_commas(tmp_path, capsys) -> None:
    words = ["reproduce", "table1", "--only", "ReSSL, CIFAR-10", "--dry-run", "--into", str(tmp_path), "--seeds"]
    for seeds in (["0,1,2"], ["0,", "1,", "2"], ["0", "1", "2"], ["0,1", "2"]):
        assert cli.main([*words, *seeds]) == 0
        assert "3 runs, 0 of them" in capsys.readouterr().out
    for wrong in ("0..2", "0,x", ","):
        assert cli.main([*words, wrong]) == 2
        assert "--seeds wants a whole number, not" in capsys.readouterr().err


def test_an_unknown_table_offers_the_nearest(capsys) -> None:
    assert cli.main(["reproduce", "tabel1"]) == 2
    assert "did you mean 'table1'" in capsys.readouterr().err
    assert cli.main(["reproduce", "figure4"]) == 2
    assert "did you mean 'figure" in capsys.readouterr().err


def test_the_page_is_what_the_ledger_says() -> None:
    """docs/RESULTS.md is generated: run 'ressl results' after a new record."""
    assert (ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8") == page(Ledger(ROOT / "results"))


def test_a_cell_on_the_page_has_its_number_and_its_command(tmp_path: Path) -> None:
    made = jobs(TABLES["table3"], only="contrastive teacher, CIFAR-10", seeds=(2, 0))
    text = page(write(tmp_path, *[record_of(job, 86.0 + i) for i, job in enumerate(made)]))
    line = next(line for line in text.splitlines() if line.startswith("| contrastive teacher"))
    assert "| 86.17 | 86.50 ± 0.71 (n 2, best 87.00) | +0.33 |" in line
    again = "ressl reproduce table3 --only 'contrastive teacher, CIFAR-10' --seeds 0 2 --into mine"
    assert line.endswith(f"| `{again}` |")


@pytest.mark.parametrize("quick", [0, 20, 50])
def test_the_command_of_a_cell_makes_its_runs_and_no_others(quick, tmp_path, monkeypatch, capsys) -> None:
    """Pasted as it is, into an empty place: every seed's run is what the ledger knows as that cell."""
    monkeypatch.chdir(tmp_path)
    planned: list[Job] = []
    monkeypatch.setattr(reproduce, "_make", lambda options, jobs, *rest: planned.extend(jobs))
    for table in TABLES.values():
        for cell in (table.cells[0], table.cells[-1]):
            words = shlex.split(command(table, cell, [1, 0], quick))
            assert words[0] == "ressl"
            planned.clear()
            assert cli.main(words[1:]) == 0
            how = {"quick": True, "epochs": quick} if quick else {}
            wanted = jobs(table, only=f"{cell.row}, {cell.column}", seeds=(0, 1), **how)
            assert [(job.cell, job.key) for job in planned] == [(job.cell, job.key) for job in wanted]
    assert grid.LINEAR == "linear"
