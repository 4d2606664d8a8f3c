"""Two processes share the work of an evaluation and find what one finds, of pictures in memory and in their files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import evaluated as work
import pytest
import torch
from test_faults import job

from nearly import close
from ressl import alike
from ressl.engine.processes import ALONE
from ressl.evaluating import evaluate_each
from ressl.evaluation.linear import LinearProtocol
from ressl.recipes import Recipe
from ressl.runs import Run

VIEWED = LinearProtocol(schedule="cosine", lr=10.0, epochs=4, batch_size=16, scale=(0.4, 1.0))  # on random views


@pytest.fixture
def photos(make_folder: Callable[..., Path]) -> Path:
    """91 pictures to fit on and 31 to test on, of many sizes, one of each broken."""
    make_folder(31, mixed=True, name="photos/test", side=19, broken=(7,))
    return make_folder(91, mixed=True, name="photos/train", side=20, broken=(4,)).parent


def elsewhere(photos: Path, run: Run) -> None:
    """Folders beside the photos and the run, with what rank 1 may find in their place."""
    for name in ("moved", "fewer", "unread", "trained"):
        folder = photos.parent / name
        shutil.copytree(photos, folder / "photos")
        shutil.copytree(run.path, folder / "run", dirs_exist_ok=True)
    (photos.parent / "fewer/photos/test/a/000.png").unlink()
    (photos.parent / "unread/photos/train/b/010.png").write_bytes(b"nothing")


def test_pictures_in_their_files(photos: Path, make_run: Callable[..., Run]) -> None:
    """One test, so that the processes are started once."""
    place = photos.parent
    elsewhere(photos, make_run("run", data="folder"))
    shutil.rmtree(place / "trained/run")
    make_run("trained/run", data="folder", seed=5)
    done = subprocess.run(
        [sys.executable, str(Path(work.__file__)), str(place)], capture_output=True, text=True, timeout=100
    )
    said = done.stdout + done.stderr
    assert said.startswith("[0, 0]\n"), said
    one, shared = work.measured(place), [torch.load(place / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert len(one.pop("files")) == 91 + 31
    files = [found.pop("files") for found in shared]
    assert [len(mine) for mine in files] == [46 + 16] * 2
    assert len({*files[0], *files[1]}) == 91 + 31
    for found in shared:
        close(found, one)
    assert one["results"]["linear-imagenet"]["broken"] == 2
    for name in ("linear-cosine", "linear-step"):
        assert len(set(one["results"][name]["curve"])) > 2  # a curve that moves
    assert "\nmoved [0, 0]\n" in said, said
    assert "\nfewer [2, 2]\n" in said, said
    assert said.count("rank 1 sees other pictures than rank 0 (30 of them, rank 0 31)") == 2
    assert "\nunread [1, 1]\n" in said, said
    assert said.count("rank 1 could not read 010.png, rank 0 could") == 2
    assert "\ntrained [2, 2]\n" in said, said
    assert said.count("rank 1 has other weights than rank 0") == 2


def test_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is alone has all of it, also in a shell of an allocation for several."""
    cpu, two = torch.device("cpu"), cast("Any", SimpleNamespace(world=2, agree=lambda value: value))
    monkeypatch.setattr(alike, "ram", lambda: 1200)
    monkeypatch.setattr(alike, "may_be_held", lambda device: 600)
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)
    assert alike.may_all_hold(cpu, two) == alike.may_all_hold(cpu, ALONE) == 600
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (alike.may_all_hold(cpu, two), alike.may_all_hold(cpu, ALONE)) == (300, 600)
    two.agree = lambda value: max(value, -200)  # the other has less
    assert alike.may_all_hold(cpu, two) == 200


def read(run: Path) -> dict[str, Any]:
    return {path.stem: work.result_of(json.loads(path.read_text())) for path in (run / "evaluation").glob("*.json")}


def alone(run: Path, photos: Path, protocols: Sequence[str], **changes: Any) -> dict[str, Any]:
    """What one process finds, in a copy of the run."""
    copy = Run(shutil.copytree(run, run.with_name("alone"), ignore=shutil.ignore_patterns("evaluation")))
    dict(evaluate_each(copy, protocols, data=str(photos), device="cpu", changes=changes))
    return read(copy.path)


def command(*words: str) -> str:
    with job([*words, "--device", "cpu"], restarts=0) as process:
        said = process.communicate(timeout=100)[0]
    assert process.returncode == 0, said
    return said


def test_a_command_of_two_processes_evaluates_as_one_does(photos: Path, make_run: Callable[..., Run]) -> None:
    run = make_run("run", data="folder", linear=VIEWED).path
    protocols = ("knn", "classes", "linear", "linear-sweep", "geometry")
    said = command("evaluate", str(run), "--data", str(photos), "--rates", "cosine:10,step:3", "--protocol", *protocols)
    assert said.count("tested on 30 test pictures of photos") == 1  # one process speaks
    found = read(run)
    assert [result["broken"] for result in found.values()] == [2] * len(protocols)
    close(found, alone(run, photos, protocols, **{"linear-sweep": {"rates": ("cosine:10", "step:3")}}))


def test_a_training_of_two_processes_is_evaluated_by_both(
    photos: Path, tiny: Callable[..., Recipe], tmp_path: Path
) -> None:
    recipe, run = tmp_path / "recipe.json", tmp_path / "run"
    recipe.write_text(tiny(data="folder", linear=VIEWED).to_json())
    said = command("pretrain", str(recipe), "--data", str(photos), "--out", str(run), "--then", "knn", "linear")
    found = read(run)
    assert found.keys() == {"knn", "linear"}, said
    assert {result["step"] for result in found.values()} == {2 * 5}
    close(found, alone(run, photos, ("knn", "linear")))
