"""The command beside a run that stands in no table makes that run again, and not something near it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from invented import record, write

from ressl import cli
from ressl.commands import pretrain
from ressl.data.views import parse_view
from ressl.recipes import Recipe, choose_recipe, get_recipe
from ressl.recipes.folder import Findings
from ressl.recipes.typed import build, plain
from ressl.reproduce.again import again, begun_with, view_words
from ressl.reproduce.grid import Ledger
from ressl.reproduce.page import page

ROOT = Path(__file__).parents[2]
RECORDS = list(Ledger(ROOT / "results"))


def given(words: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Any]]:
    """What 'ressl pretrain' is asked to train: a recipe's name and what to change in it."""
    asked: list[tuple[Any, dict[str, Any]]] = []

    class Stop(Exception):
        pass

    def catch(recipe: Any, **how: Any) -> None:
        names = ("data", "out", "resume", "device", "engine", "precision", "workers", "rhythm", "exact", "labelled")
        asked.append((recipe, {key: how[key] for key in how if key not in (*names, "display")}))
        raise Stop

    monkeypatch.setattr(pretrain, "pretrain_run", catch)
    with pytest.raises(Stop):
        cli.main(words)
    return asked[0]


def trained_by(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Recipe, Recipe]:
    """The recipe that a record's commands train and evaluate by, and the recorded one."""
    first, *more = [shlex.split(command) for command in again(found)]
    name, changes = given(first[1:], monkeypatch)
    made = (begun_with(found) if name is None else get_recipe(name)).replace(**changes)
    for words in more:
        options = cli.build_parser(words[1]).parse_args(words[1:])
        told = {k.removeprefix("change:"): v for k, v in vars(options).items() if k.startswith("change:") and v}
        linear = build(type(made.linear), plain(made.linear) | told, "linear")
        made = dataclasses.replace(made, linear=linear)
    return made, Recipe.from_json(json.dumps(found["recipe"]))


@pytest.mark.parametrize("found", RECORDS, ids=lambda r: f"{r['name']}-{r['recipe']['method']}-{r['finished']}")
def test_the_commands_of_every_record_train_and_evaluate_its_recipe(found, monkeypatch) -> None:
    made, wanted = trained_by(found, monkeypatch)
    if "linear" in found["evaluations"]:
        assert made.linear == wanted.linear
    aside = {"mean": wanted.mean, "std": wanted.std} if wanted.method == "seed" else {}
    classes = {k: v for k, v in wanted.options.items() if k == "num_classes"}  # as many as there are
    assert wanted.strays(made.replace(options=classes, **aside)) is None


def test_a_change_of_any_kind_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    view = {"size": 24, "crop": (0.1, 0.5), "blur": 0.25, "jitter_order": "fixed"}
    strong = dataclasses.replace(get_recipe("cifar10").views[1], **view)
    for recipe in (
        get_recipe("cifar10").replace(lr=0.1 + 0.2, mean="0.5,0.25,0.125", decay_norm_and_bias=False, knn_k=20),
        get_recipe("cifar10").replace(views=["none,pad=4", strong]),
        get_recipe("tiny-imagenet").replace(method="swav", image_size=32, prototypes=50),
        get_recipe("tiny-imagenet").replace(method="cpc-v2", stem="small"),
        get_recipe("cifar10").replace(method="byol", linear={"lr": 0.5, "scale": (0.2, 1.0), "resize": 40}),
        dataclasses.replace(get_recipe("imagenet-r18").replace(bank_size=77, method="instdisc"), name="mine"),
    ):
        made, wanted = trained_by(record(recipe, 50.0), monkeypatch)
        assert wanted.strays(made) is None
        assert (made.linear, made.knn_k) == (wanted.linear, wanted.knn_k)


def test_a_command_says_what_is_chosen_from_the_pictures() -> None:
    """Another folder, or no GPU, would have others."""
    recipe, _ = choose_recipe("folder", Findings(count=9469, short_side=160, on_gpu=True))
    words = again(record(recipe, 50.0, steps=36 * recipe.epochs))
    said = "--image-size 128 --stem imagenet --backbone resnet18 --width 64 --epochs"
    assert words[0].startswith(f"ressl pretrain --data FOLDER {said} {recipe.epochs} --batch-size 256 --bn-groups 8")
    elsewhere, _ = choose_recipe("folder", Findings(count=500, short_side=60, on_gpu=False))
    flags = dict(zip(*[iter(shlex.split(words[0])[4:-2])] * 2, strict=True))
    changes = {key.removeprefix("--").replace("-", "_"): value for key, value in flags.items()}
    assert recipe.strays(elsewhere.replace(**changes)) is None
    assert again(record(dataclasses.replace(recipe, data="array"), 50.0))[0].startswith("ressl pretrain --data FILE ")


def test_a_classifier_that_was_told_other_settings_is_told_them_again() -> None:
    recipe = get_recipe("cifar10")
    told = record(recipe, 50.0)
    told["evaluations"]["linear"] |= {"settings": plain(recipe.linear) | {"epochs": 5}, "changed": {"epochs": 5}}
    assert again(told) == [
        "ressl pretrain cifar10 --out RUN",
        "ressl evaluate RUN --protocol linear --epochs 5",
    ]


def test_views_are_said_as_they_are_read() -> None:
    for words in ("weak", "strong", "none", "crop+flip+gray", "flip+pad", "crop+rand+solarize", "jitter"):
        view = parse_view(words, 48)
        (told,) = get_recipe("cifar10").replace(method="instdisc", image_size=48, views=[view_words(view, 48)]).views
        assert told == view


def test_only_an_older_run_of_the_same_settings_and_seed_is_replaced(tmp_path: Path) -> None:
    recipe = get_recipe("cifar10").replace(epochs=30)
    day = lambda n: f"2026-02-0{n}T00:00:00Z"
    whole = [record(recipe, 80.0 + n, finished=day(n), commit=f"c{n}") for n in (1, 2)]
    bare = record(recipe, finished=day(3), commit="c3")  # a number of the others it has not
    part = record(recipe, 84.0, finished=day(4), commit="c4", lacking=5)
    seed = record(recipe.replace(seed=1), 85.0, finished=day(5), commit="c5")
    text = page(write(tmp_path, *whole, bare, part, seed)).split("## Other runs in the ledger")[1]
    rows = re.findall(r"^\| `(.*)` .* \| (c\d) \| (.*?) ?\|$", text, re.MULTILINE)
    assert [(commit, newer) for _, commit, newer in rows] == [
        ("c1", "c2"), ("c2", ""), ("c3", ""), ("c4", ""), ("c5", ""),
    ]  # fmt: skip
    assert rows[0][0] == "ressl pretrain cifar10 --epochs 30 --then linear"
    assert rows[-1][0] == "ressl pretrain cifar10 --epochs 30 --seed 1 --then linear"


def test_the_ledgers_old_run_of_the_first_seed_is_marked() -> None:
    text = page(Ledger(ROOT / "results")).split("## Other runs in the ledger")[1]
    (row,) = [line for line in text.splitlines() if "| 89.83 |" in line]
    assert row.startswith("| `ressl pretrain cifar10 --then linear` |")
    assert row.endswith("| 1b999778448e | 71458b079fd1 |")


def test_a_folder_is_told_by_what_its_runs_know(tmp_path: Path) -> None:
    recipe, _ = choose_recipe("folder", Findings(count=4000, short_side=160, on_gpu=True))
    made = record(recipe.replace(epochs=10), 44.0, steps=150)
    made["evaluations"]["linear"] |= {"data": "pets", "own_data": True, "test_pictures": 1234, "contents": "abcd"}
    made["evaluations"]["classes"] = {"classes": ["cat", "cow", "dog", "eel"]}
    text = page(write(tmp_path, made))
    held = (
        "- pets: 3,840 to 4,095 pictures to learn from (15 whole batches of 256 an epoch); 1,234 to test on; "
        "4 classes (cat, cow, dog and so on); contents abcd"
    )
    assert held in text.splitlines()
    assert f"| 2.0 | abc | `{again(made)[0]}` |" in text
    assert "Other runs" not in text  # it stands there once
