"""The paper's tables as grids, and the ledger that knows which of their runs are there."""

from __future__ import annotations

import copy
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from invented import record, write

from ressl import cli
from ressl.commands import reproduce
from ressl.engine.signals import Interrupted
from ressl.errors import ResslError
from ressl.recipes import get_recipe
from ressl.reproduce import grid, running
from ressl.reproduce.grid import Job, Ledger, Summary, each_once, identity, jobs, summaries
from ressl.reproduce.page import command, page
from ressl.reproduce.tables import TABLES, Cell, Table

ROOT = Path(__file__).parents[2]
TINY = {
    "width": 4, "backbone": "resnet10", "image_size": 16, "batch_size": 32, "bn_groups": 2, "queue_size": 64,
    "hidden_dim": 16, "output_dim": 8, "epochs": 1, "knn_every": 0, "warmup_epochs": 0.1,
    "linear": {"epochs": 1, "augment": False}, "data": "array",
}  # fmt: skip
SMALL = Table(
    "small", "A small table", (Cell("a", "x", "demo", TINY, 50.0), Cell("b", "x", "demo", {**TINY, "lr": 0.1}))
)


@pytest.mark.parametrize(
    ("name", "cells"),
    [("table1", 24), ("table2", 56), ("table3", 8), ("table4", 24), ("table-temperature", 12),
     ("table-augmentation", 26), ("imagenet", 20), ("lowshot", 20)],
)  # fmt: skip
def test_every_cell_is_a_recipe_that_can_run(name: str, cells: int) -> None:
    planned = jobs(TABLES[name])
    assert len(planned) == cells
    assert len({(job.cell.row, job.cell.column) for job in planned}) == cells
    runs = cells // 4 if name == "lowshot" else cells  # elsewhere no two cells are the same experiment
    assert len({job.key for job in planned}) == len(each_once(planned)) == runs
    for job in planned:
        job.recipe.check()


TABLES_5_TO_7 = """
Supervised 76.5, InstDisc 58.5, LocalAgg 58.8, MoCo v2 67.5, MoCHi 68.0, CPC v2 63.8, PCL v2 67.6, AdCo 68.6, ReSSL 69.9
CLSA-Single 69.4, SimCLR 66.8, SwAV 69.1, SimSiam 70.0, BYOL 70.6
SwAV 72.7, CLSA-Multi 73.3, ReSSL 73.8, ReSSL 74.7
MoCo v2 52.2, ReSSL 58.1
AdCo 73.2, SEED 57.6
"""  # as the paper prints them, but for the last two, which stand in Tables 6 and 7


def test_the_numbers_of_imagenet_are_the_papers() -> None:
    written = [entry.rsplit(" ", 1) for line in TABLES_5_TO_7.strip().splitlines() for entry in line.split(", ")]
    cells = [*TABLES["imagenet"].cells, *TABLES["imagenet"].elsewhere]
    assert [(cell.row.split(",")[0].lower(), cell.paper) for cell in cells] == [
        (row.lower(), float(number)) for row, number in written
    ]
    for job in jobs(TABLES["imagenet"]):
        if job.cell.row != "SwAV":  # whose recipe is the one with multi-crop
            assert job.recipe.paper["linear"] == job.cell.paper, job.name
    sizes = {job.cell.row: [view.size for view in job.recipe.views] for job in jobs(TABLES["imagenet"])}
    assert sizes["SwAV"] == [224, 224]
    assert sizes["SwAV, multi-crop"] == [224, 224, 112, 112, 112, 112]
    assert {job.recipe.epochs for job in jobs(TABLES["imagenet"]) if job.cell.row != "supervised"} == {200}


def test_the_best_cells_of_the_ablations_are_the_recipes_themselves() -> None:
    """The paper reports one number for what several of its tables contain; so does our ledger."""
    plain = identity(get_recipe("cifar10"))
    for name in ("table1", "table2", "table3"):
        assert plain in {job.key for job in jobs(TABLES[name])}
    assert identity(get_recipe("tiny-imagenet")) in {job.key for job in jobs(TABLES["table-augmentation"])}


def test_an_experiment_is_what_decides_the_result() -> None:
    recipe = get_recipe("cifar10")
    assert identity(recipe.replace(knn_every=3, summary="other words")) == identity(recipe)
    for change in ({"seed": 1}, {"teacher_temperature": 0.04}, {"epochs": 100}, {"lr": 0.05}):
        assert identity(recipe.replace(**change)) != identity(recipe)


def test_quick_is_shorter_and_another_experiment() -> None:
    quick = jobs(TABLES["table4"], quick=True)
    assert {(job.recipe.epochs, job.recipe.linear.epochs) for job in quick} == {(20, 20)}
    simclr = jobs(TABLES["table1"], quick=True, only="SimCLR")[0].recipe.linear
    assert (simclr.schedule, simclr.epochs) == ("cosine", 20)  # otherwise the method's own
    assert {job.recipe.linear.epochs for job in jobs(TABLES["table4"], epochs=20)} == {100}
    assert not {job.key for job in quick} & {job.key for job in jobs(TABLES["table4"])}


def test_words_choose_cells() -> None:
    chosen = jobs(TABLES["table2"], only="cifar-10, tau_s 0.1", seeds=(0, 1))
    assert len(chosen) == 14
    both = jobs(TABLES["table1"], only="ressl cifar-10")  # a word of the row, one of the column
    assert [(job.cell.row, job.cell.column) for job in both] == [("ReSSL", "CIFAR-10")]
    for nothing in ("resnet", "ressl voc07", ","):
        with pytest.raises(ResslError, match="--dry-run' lists them"):
            jobs(TABLES["table1"], only=nothing)
    assert {job.recipe.data for job in jobs(TABLES["table1"], only="cifar-10")} == {"cifar10"}  # and not CIFAR-100
    with pytest.raises(ResslError, match="no cell of table2"):
        jobs(TABLES["table2"], only="svhn")


def test_numbers_that_are_equal_choose_the_same_cells() -> None:
    """The paper writes 0.10, our rows 0.1."""
    chosen = lambda table, only: [job.cell for job in jobs(TABLES[table], only=only)]
    rows = [cell for cell in TABLES["table-temperature"].cells if cell.row == "tau_t 0.1"]
    assert len(rows) == 4
    for only in ("0.10", "tau_t 0.10", ".1", "0.1"):
        assert chosen("table-temperature", only) == rows, only
    assert chosen("table-temperature", "TAU_T 0.100, CIFAR-10") == rows[:1]
    assert chosen("table2", "cifar-10, tau_s 0.10, tau_t 0.050") == chosen("table2", "cifar-10, tau_s 0.1, tau_t 0.05")
    for nothing in ("1.0", "0.0", "1"):  # 0.1 is neither of them, though its digits are
        with pytest.raises(ResslError, match="no cell of table-temperature"):
            chosen("table-temperature", nothing)


def test_a_cell_by_its_whole_name_is_that_cell_alone() -> None:
    assert len(jobs(TABLES["table-augmentation"], only="jitter | Tiny ImageNet")) == 3  # words are in others, too
    for table in TABLES.values():
        for cell in table.cells:
            assert [job.cell for job in jobs(table, only=f"{cell.row}, {cell.column}")] == [cell]


def record_of(job: Job, last: float, finished: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return record(job.recipe, last, finished=finished)


def test_the_newest_evaluated_record_of_the_experiment_is_found(tmp_path: Path) -> None:
    job = jobs(TABLES["table3"])[0]
    old, new = record_of(job, 80.0), record_of(job, 81.0, "2026-02-01T00:00:00Z")
    bare = record_of(job, 82.0, "2026-03-01T00:00:00Z") | {"evaluations": {}}
    other = record_of(jobs(TABLES["table3"], seeds=(1,))[0], 83.0)
    ledger = write(tmp_path, old, new, bare, other)
    found = ledger.find(job)
    assert found is not None
    assert found["evaluations"]["linear"]["last"] == 81.0


def test_an_evaluation_with_other_settings_is_not_the_cell_s(tmp_path: Path) -> None:
    """As 'ressl evaluate RUN --protocol linear --epochs 5' leaves it; the record of a run has one of a name."""
    job, shot = jobs(TABLES["table3"])[0], jobs(TABLES["lowshot"])[0]
    told, svm = record_of(job, 82.0), record_of(shot, 0.0)
    told["evaluations"]["linear"] |= {"changed": {"epochs": 5}}
    rows = [{"shots": shots, "mean": 70.0} for shots in (16, 32, 64, None)]
    svm["evaluations"] = {"svm-on-voc07": {"protocol": "svm", "data": "voc07", "place": "x", "by_shots": rows}}
    assert write(tmp_path / "one", told, svm).find(job) is None
    found = write(tmp_path / "two", told, record_of(job, 81.0), svm).find(job)
    assert found is not None
    assert found["evaluations"]["linear"]["last"] == 81.0
    assert Ledger(tmp_path / "two").find(shot) is not None
    svm["evaluations"]["svm-on-voc07"]["changed"] = {"C": 8.0}
    assert write(tmp_path / "three", svm).find(shot) is None


def test_a_seed_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    planned = jobs(TABLES["table3"], only="weak teacher, CIFAR-10", seeds=(0, 0, 1))
    ledger = write(tmp_path, *[record_of(job, 80.0 + job.recipe.seed) for job in planned])
    ((_, summary),) = summaries(ledger, planned)
    assert summary is not None
    assert (summary.n, summary.last) == (2, 80.5)


def test_a_record_from_before_a_field_existed_is_still_its_experiment(tmp_path: Path) -> None:
    job = jobs(TABLES["table3"])[0]
    old = copy.deepcopy(record_of(job, 80.0))
    del old["recipe"]["knn_temperature"]
    del old["recipe"]["views"][0]["solarize_threshold"]
    assert write(tmp_path, old).find(job) is not None


def test_seeds_become_mean_and_spread() -> None:
    planned = jobs(TABLES["table3"])[:3]
    records = [record_of(job, last) for job, last in zip(planned, (80.0, 81.0, 82.0), strict=True)]
    summary = Summary.of(records, planned[0].cell)
    assert summary is not None
    assert (summary.last, summary.spread, summary.n, summary.best) == (81.0, 1.0, 3, 81.5)
    assert summary.text() == "81.00 ± 1.00 (n 3, best 81.50)"
    assert Summary.of([], planned[0].cell) is None


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


@pytest.mark.parametrize("quick", [False, True])
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
            wanted = jobs(table, only=f"{cell.row}, {cell.column}", seeds=(0, 1), quick=quick)
            assert [(job.cell, job.key) for job in planned] == [(job.cell, job.key) for job in wanted]
    assert grid.LINEAR == "linear"
