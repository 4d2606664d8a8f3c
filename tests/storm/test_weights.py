"""Weights that are no numbers, damaged checkpoints, files that unpack to more than they are: at every door, a sentence.

Nobody gets a number or a feature out of them, and nobody gets the checkpoint before the newest without being told.
"""

from __future__ import annotations

import errno
import math
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import ressl
from ressl import cli, memory, runs
from ressl.checkpoints import Checkpoint
from ressl.errors import ResslError
from ressl.nn import build_backbone
from ressl.nn.foreign import open_foreign
from ressl.recipes import Recipe
from ressl.runs import Run, build_method

DOORS = {
    "evaluate": ["evaluate", "run", "--data", "pictures.npz", "--protocol", "knn", "--device", "cpu"],
    "embed": ["embed", "run", "pictures.npz", "-o", "f.npy", "--device", "cpu", "--quiet"],
    "export": ["export", "run", "--to", "safetensors", "-o", "weights.safetensors"],
}
SPOILT = "method.backbone.conv1.weight"


@pytest.fixture
def saved(
    tmp_path: Path, tiny: Callable[..., Recipe], array_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, str], Path]:
    """Adds a checkpoint of a step to the run ``run``: a good one, a cut one, or one with NaN and a right checksum."""
    monkeypatch.chdir(tmp_path)
    recipe = tiny(data="array")
    run = Run.create(tmp_path / "run", recipe, {"data": str(array_file)})

    def add(step: int, state: str) -> Path:
        tensors = {f"method.{name}": t.clone() for name, t in build_method(recipe).state_dict().items()}
        if state == "spoilt":
            tensors[SPOILT].view(-1)[0] = math.nan
        path = run.checkpoints.save(step, Checkpoint(tensors, {"step": step, "pictures": 72}))
        if state == "cut":
            path.write_bytes(path.read_bytes()[:-1])
        return path

    return add


@pytest.mark.parametrize("door", DOORS)
def test_weights_that_are_not_finite_are_refused(
    door: str, saved: Callable[[int, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    saved(1, "spoilt")
    assert cli.main(DOORS[door]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{SPOILT} is not finite" in said
    assert not any(Path(name).exists() for name in ("f.npy", "weights.safetensors", "run/evaluation/knn.json"))
    with pytest.raises(ResslError, match="is not finite"):
        ressl.load("run")


@pytest.mark.parametrize("state", ["cut", "spoilt"])
@pytest.mark.parametrize("door", DOORS)
def test_a_damaged_newest_checkpoint_is_named(
    door: str, state: str, saved: Callable[[int, str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    saved(1, "good")
    newest = saved(2, state)
    assert cli.main(DOORS[door]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == 1, said
    assert said[0].startswith(f"ressl: warning: the checkpoint run/checkpoints/{newest.name} is damaged: ")
    assert said[0].endswith("; using the one before")


def test_a_damaged_newest_checkpoint_is_named_in_python(saved: Callable[[int, str], Path]) -> None:
    saved(1, "good")
    newest = saved(2, "cut")
    with pytest.warns(UserWarning, match=f"{newest.name} is damaged: .*; using the one before"):
        ressl.load("run")
    newest.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ressl.load("run")


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_weights_of_others_that_are_not_finite_are_refused(ending: str, value: float, tmp_path: Path) -> None:
    def write(state: dict[str, Any], name: str) -> Path:
        path = tmp_path / f"{name}.{ending}"
        (safetensors.torch.save_file if ending == "safetensors" else torch.save)(state, path)
        return path

    state = build_backbone("resnet18", "imagenet", 4, 1).state_dict()
    ressl.load(write(state, "good"))
    state["layer2.0.bn1.running_var"][1] = value
    with pytest.raises(ResslError, match=r"its weights are not finite \(layer2\.0\.bn1\.running_var\)"):
        ressl.load(write(state, "bad"))
    theirs = open_foreign("torchvision/shufflenet_v2_x0_5").backbone.state_dict()
    open_foreign("torchvision/shufflenet_v2_x0_5", str(write(theirs, "theirs")))
    theirs["conv1.0.weight"].view(-1)[0] = value
    with pytest.raises(ResslError, match=r"of no use: its conv1\.0\.weight is not finite"):
        open_foreign("torchvision/shufflenet_v2_x0_5", str(write(theirs, "theirs")))


def bomb(path: Path, kind: str) -> None:
    """A file of PyTorch's that takes more memory than disk."""
    torch.save({"conv1.weight": torch.zeros(1 << 20)}, path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if kind == "deflated" else zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        if kind == "overlapping":  # all the same bytes
            archive.filelist += 9 * archive.filelist
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("kind", "says"),
    [("deflated", "compressed"), ("overlapping", "42 MB, more than the file"), ("cut", "no whole zip"),
     ("large", "takes 4 MB, more than half of the memory")],
)  # fmt: skip
def test_a_file_that_unpacks_to_more_is_not_opened(
    kind: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("it was opened")

    path = tmp_path / "weights.pth"
    bomb(path, kind)
    if kind == "large":
        monkeypatch.setattr(memory, "ram", lambda: 6 << 20)
    monkeypatch.setattr(torch, "load", opened)
    for attempt in (ressl.load, lambda path: open_foreign("torchvision/shufflenet_v2_x0_5", str(path))):
        with pytest.raises(ResslError, match=says) as caught:
            attempt(path)
        assert "\n" not in str(caught.value)
    path.rename(tmp_path / "weights.pt2")
    with pytest.raises(ResslError, match=says):
        ressl.load(tmp_path / "weights.pt2")


def test_a_folder_that_cannot_be_made_a_run_is_not_left(
    tmp_path: Path, tiny: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = runs.write_atomically

    def full(path: Path, data: bytes) -> None:
        if path.name == "recipe.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(runs, "write_atomically", full)
    (tmp_path / "mine").mkdir()
    for name in ("new", "mine"):
        with pytest.raises(ResslError, match=r"cannot write the run folder .*: No space left"):
            Run.create(tmp_path / name, tiny(), {})
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]  # who made it may keep it
