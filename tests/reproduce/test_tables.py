"""What the cells of the paper's tables change, and what they leave as it is."""

from __future__ import annotations

from dataclasses import fields

import pytest

from ressl.recipes import Recipe, get_recipe
from ressl.reproduce.grid import jobs
from ressl.reproduce.ledger import identity
from ressl.reproduce.tables import TABLES


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("table2", {"student_temperature", "teacher_temperature"}),
        ("table-temperature", {"teacher_temperature"}),
        ("table3", {"views"}),
        ("table4", {"queue_size", "teacher_temperature"}),
        ("table-augmentation", {"views", "teacher_temperature"}),
    ],
)
def test_an_ablation_changes_what_its_table_varies_and_nothing_else(name: str, may: set[str]) -> None:
    for job in jobs(TABLES[name]):
        made, named = job.recipe, get_recipe(job.cell.recipe)
        changed = {f.name for f in fields(Recipe) if getattr(made, f.name) != getattr(named, f.name)} - {"options"}
        changed |= {key for key in (*made.options, *named.options) if made.options.get(key) != named.options.get(key)}
        assert changed <= may, job.name
        assert made.views[1:] == named.views[1:], job.name  # the student's stays as it is
        # What the paper fixes for small and for medium sets
        small = job.cell.recipe.startswith("cifar")
        assert made.options["teacher_momentum"] == (0.99 if small else 0.996)
        assert named.options["queue_size"] == (4096 if small else 16384)


def test_a_run_that_somebody_else_launched_is_the_cell_s_too() -> None:
    """As docs/CLUSTER.md has it: trained by its recipe's name, on any number of processes, and recorded."""
    for table, only, name, method in (
        ("imagenet", "ReSSL, ResNet-50", "imagenet-r50", "ressl"),
        ("imagenet", "ReSSL, 4 crops, ResNet-50", "imagenet-r50-4crops", "ressl"),
        ("imagenet", "BYOL, ResNet-50", "imagenet-r50", "byol"),
        ("table1", "supervised, Tiny ImageNet", "tiny-imagenet", "supervised"),
    ):
        (job,) = jobs(TABLES[table], only=only)
        assert identity(get_recipe(name).replace(method=method)) == job.key


def test_what_the_page_says_of_other_methods_is_what_their_rows_train_with() -> None:
    """Under 'How this differs', of Tables 1, 3 and 5 to 7."""
    named = {job.cell.row: job.recipe for job in jobs(TABLES["table1"], only="CIFAR-10")}
    whole = {row for row, recipe in named.items() if recipe.bn_groups == 1}
    assert whole == {"SimCLR", "BYOL", "SimSiam", "supervised"}
    weak, strong = (jobs(TABLES["table3"], only=only) for only in ("weak teacher", "contrastive teacher"))
    assert [job.recipe.options for job in weak] == [job.recipe.options for job in strong]
    shared = ("hidden_dim", "output_dim", "teacher_momentum")
    rows = {job.cell.row: job.recipe for job in jobs(TABLES["imagenet"], only="ResNet-50")}
    for row in ("MoCo v2", "MoCHi", "PCL v2", "AdCo", "CLSA-Single", "CLSA-Multi"):
        assert rows[row].lr == rows["ReSSL"].lr
        assert {k: rows[row].options[k] for k in shared} == {k: rows["ReSSL"].options[k] for k in shared}
        assert rows[row].options.get("queue_size", 131072) == 131072
