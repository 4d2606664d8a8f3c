"""Numbers that are too high for few pictures or a small batch, and fields that follow from another network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ressl.cli import main
from ressl.methods import METHODS
from ressl.recipes import RECIPES, get_recipe
from ressl.recipes.adapting import inherited, lowered
from ressl.runs import Run


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("base", RECIPES)
def test_nothing_is_too_high_for_a_recipe_of_ours(base: str, method: str) -> None:
    recipe = get_recipe(base).replace(method=method)
    assert lowered(recipe, {"method": method}) == (recipe, "")
    assert inherited(recipe, {"method": method}) == (recipe, "")


@pytest.mark.parametrize(
    ("changes", "prototypes"),
    [
        ({"batch_size": 200}, 100),  # two samples for each
        ({"batch_size": 128}, 64),
        ({"batch_size": 12}, 8),
        ({"batch_size": 128, "queue_from": 0.5}, 100),  # the queue's embeddings are shared out, too
        ({"batch_size": 128, "prototypes": 90}, 90),  # whoever names it has it
        ({"batch_size": 128, "options": {"prototypes": 90}}, 90),
    ],
)
def test_prototypes_for_a_small_batch(changes: dict[str, object], prototypes: int) -> None:
    changes = {"method": "swav"} | changes
    recipe = get_recipe("cifar10").replace(**changes)
    found, remark = lowered(recipe, changes)
    assert found.options["prototypes"] == prototypes
    assert found == recipe.replace(prototypes=prototypes)
    assert bool(remark) == (found != recipe)
    assert not remark or f"{prototypes} prototypes are taken, not 100" in remark


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"queue_size": 1024}, (256, 256, 64)),
        ({"queue_size": 512}, (128, 128, 32)),
        ({"queue_size": 3, "batch_size": 2, "bn_groups": 1}, (1, 1, 1)),
        ({"queue_size": 512, "mixed": 250, "mixed_with_query": 0}, (128, 250, 0)),
        ({"queue_size": 512, "hardest": 256}, (256, 256, 64)),
    ],
)
def test_the_hardest_of_a_short_queue(changes: dict[str, int], numbers: tuple[int, int, int]) -> None:
    given = {"method": "mochi"} | changes
    recipe = get_recipe("cifar10").replace(**given)
    found, remark = lowered(recipe, given)
    names = ("hardest", "mixed", "mixed_with_query")
    default = {"hardest": 256, "mixed": 256, "mixed_with_query": 64} | changes
    assert tuple((default | dict(found.options))[name] for name in names) == numbers
    assert bool(remark) == (found != recipe)
    if remark:
        assert remark.endswith("are taken, not " + ", ".join(str(default[n]) for n in names if n not in changes))


def test_a_run_says_what_it_lowers_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    small = ["--width", "4", "--image-size", "16", "--hidden-dim", "16", "--device", "cpu", "--out", str(out)]
    changes = ["--epochs", "1", "--queue-size", "128", "--mixed", "7"]
    assert main(["pretrain", "demo", "--method", "mochi", *changes, *small]) == 0
    told = "with a queue of 128, hardest 32, mixed_with_query 8 are taken, not 64, 16"
    printed = capsys.readouterr()
    assert told in printed.out + printed.err
    kept = json.loads((out / "recipe.json").read_text())["options"]
    assert (kept["hardest"], kept["mixed"], kept["mixed_with_query"]) == (32, 7, 8)
    assert main(["pretrain", "--resume", "--out", str(out)]) == 0  # as it was begun
    printed = capsys.readouterr()
    assert told not in printed.out + printed.err
    recipe = json.loads((out / "recipe.json").read_text())
    recipe["options"] |= {"hardest": 64}
    (tmp_path / "mine.json").write_text(json.dumps(recipe))  # a recipe of this method is taken at its word
    again = ["--out", str(tmp_path / "again"), "--device", "cpu"]
    assert main(["pretrain", str(tmp_path / "mine.json"), *again]) == 0
    assert json.loads((tmp_path / "again" / "recipe.json").read_text())["options"]["hardest"] == 64


def test_a_student_sees_pictures_as_its_teacher_did(
    tmp_path: Path, make_run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    teacher = make_run(method="moco-v2", mean=[0.1, 0.2, 0.3], std=[0.4, 0.5, 0.6], output_dim=12)
    small = ["--epochs", "1", "--width", "4", "--image-size", "16", "--hidden-dim", "16", "--device", "cpu"]
    words = ["pretrain", "demo", "--method", "seed", "--teacher", str(teacher.path), *small]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr()
    assert "as its teacher was trained: mean 0.1, 0.2, 0.3 and std 0.4, 0.5, 0.6" in printed.out + printed.err
    assert Run.open(tmp_path / "a").recipe.mean == (0.1, 0.2, 0.3)
    assert Run.open(tmp_path / "a").recipe.std == (0.4, 0.5, 0.6)
    assert main([*words, "--out", str(tmp_path / "b"), "--std", "1,1,1"]) == 0
    printed = capsys.readouterr()
    assert (
        "as its teacher was trained: mean 0.1, 0.2, 0.3; warning: its teacher was trained with std 0.4, 0.5, 0.6"
        in (printed.out + printed.err)
    )
    assert Run.open(tmp_path / "b").recipe.std == (1, 1, 1)
    own = json.loads((tmp_path / "a" / "recipe.json").read_text()) | {"mean": [0.5, 0.5, 0.5]}
    (tmp_path / "own.json").write_text(
        json.dumps(own)
    )  # a recipe of SEED is taken at its word, and goes on as it began
    for more in ([], ["--resume"]):
        words = ["pretrain", str(tmp_path / "own.json"), "--device", "cpu", "--out", str(tmp_path / "c"), *more]
        assert main(words) == 0, capsys.readouterr().err
        assert Run.open(tmp_path / "c").recipe.mean == (0.5, 0.5, 0.5)
    again = Run.open(tmp_path / "a").recipe
    assert inherited(again, {}) == (again, "")
    (teacher.path / "recipe.json").write_text('{"mean": ["x"], "std": 3}')  # no description of pictures
    assert inherited(again, {}) == (again, "")
