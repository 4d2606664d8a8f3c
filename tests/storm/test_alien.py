"""Checkpoints and folders that are not what they seem: of the same shapes, of another experiment, of two at once."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ressl
from ressl import cli
from ressl.checkpoints import Checkpoint
from ressl.errors import ResslError
from ressl.pretraining import pretrain
from ressl.recipes import Recipe
from ressl.runs import Run

Tiny = Callable[..., Recipe]


@pytest.fixture
def trained(tmp_path: Path, tiny: Tiny, array_file: Path, memory: Any) -> Callable[..., Run]:
    def train(name: str, **changes: Any) -> Run:
        recipe = tiny(data="array", epochs=1, knn_every=0, **changes)
        return pretrain(recipe, data=array_file, out=tmp_path / name, device="cpu", display=memory())

    return train


@pytest.mark.parametrize("change", [{"seed": 5}, {"lr": 0.07}, {"teacher_temperature": 0.05}])
def test_a_checkpoint_of_another_experiment_is_refused(
    change: dict[str, Any], trained: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every tensor fits: nothing but its facts can tell."""
    run, other = trained("mine"), trained("other", **change)
    for mine, theirs in zip(run.checkpoints.paths(), other.checkpoints.paths(), strict=True):
        mine.write_bytes(theirs.read_bytes())
    before = (run.path / "metrics.jsonl").read_bytes()
    assert cli.main(["pretrain", "--resume", "--out", str(run.path), "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert f"the checkpoint in {run.path} is of another recipe: its " in said
    assert "Traceback" not in said
    assert (run.path / "metrics.jsonl").read_bytes() == before
    with pytest.raises(ResslError, match="of another recipe"):
        ressl.load(run.path)


def test_a_recipe_changed_by_hand_is_refused(trained: Callable[..., Run], memory: Any) -> None:
    run = trained("mine")
    place = run.path / "recipe.json"
    whole = json.loads(place.read_text())
    place.write_text(json.dumps(whole | {"seed": 9}))
    with pytest.raises(ResslError, match="its seed is 0, not 9; bring back"):
        pretrain(out=run.path, resume=True, device="cpu", display=memory())
    place.write_text(json.dumps(whole | {"name": "renamed", "summary": "of no weight"}))
    pretrain(out=run.path, resume=True, device="cpu", display=memory())


def test_rows_stay_where_the_checkpoint_is_of_another_run(trained: Callable[..., Run], memory: Any) -> None:
    """One of an earlier step would take the rows behind it back."""
    run = trained("mine")
    before = (run.path / "metrics.jsonl").read_bytes()
    cut_back(run, {"rows": 0, "pictures": 5})
    with pytest.raises(ResslError, match="began with 5 pictures"):
        pretrain(out=run.path, resume=True, device="cpu", display=memory())
    assert (run.path / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_logs_of_another_kind_of_number_are_taken_over(
    kind: torch.dtype, trained: Callable[..., Run], memory: Any
) -> None:
    """Nobody but a stranger writes them so; the next step would have ended in a traceback."""
    run = cut_back(trained("mine"), {}, kind)
    assert pretrain(out=run.path, resume=True, device="cpu", display=memory()).facts["steps"] == 4


@pytest.mark.parametrize("name", ["step", "epoch", "images_per_second", "lr", "\ud800", "a\0b", "a\nb", "\u202e"])
def test_names_of_logs_that_no_row_can_have_are_refused(name: str, trained: Callable[..., Run], memory: Any) -> None:
    run = trained("mine")
    names = run.checkpoint().facts["logs"]
    cut_back(run, {"logs": [*names[:-1], name]})
    with pytest.raises(ResslError, match="its logs make no sense"):
        pretrain(out=run.path, resume=True, device="cpu", display=memory())


def cut_back(run: Run, facts: dict[str, Any], ring: torch.dtype = torch.float32) -> Run:
    """The run with a checkpoint of step 1 alone, and in it what is asked for."""
    found = run.checkpoint()
    for path in run.checkpoints.paths():
        path.unlink()
    tensors = found.tensors | {"engine.ring": found.tensors["engine.ring"].to(ring)}
    run.checkpoints.save(1, Checkpoint(tensors, found.facts | {"step": 1, "drained": 1} | facts))
    return run


def create(path: str, seed: int, gate: Any, said: Any) -> None:
    recipe = Recipe("a").replace(seed=seed)
    gate.wait()
    try:
        Run.create(path, recipe, {})
        said.put(seed)
    except ResslError:
        said.put(None)


def test_of_two_that_begin_in_one_folder_at_once_one_does(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for case in range(5):
        gate, said, path = context.Barrier(4), context.SimpleQueue(), tmp_path / str(case)
        makers = [context.Process(target=create, args=(str(path), seed, gate, said)) for seed in range(4)]
        for maker in makers:
            maker.start()
        found = [said.get() for _ in makers]
        for maker in makers:
            maker.join()
        made = [seed for seed in found if seed is not None]
        assert len(made) == 1, found
        assert Run(path).recipe.seed == made[0]
