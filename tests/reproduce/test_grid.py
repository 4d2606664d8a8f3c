"""The paper's tables as grids, and the ledger that knows which of their runs are there."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from invented import record_of, write

from ressl.errors import ResslError
from ressl.recipes import get_recipe
from ressl.reproduce.grid import Ledger, Summary, each_once, identity, jobs, summaries
from ressl.reproduce.tables import TABLES


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
