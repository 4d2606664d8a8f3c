"""Whether somebody's own pictures have labels: said before anything is trained, with the reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ressl.cli import main
from ressl.errors import ResslError
from ressl.evaluating import evaluate
from ressl.pretraining import pretrain
from ressl.runs import Run

SMALL = {"epochs": 0, "width": 4, "hidden_dim": 8, "image_size": 16}


def said(data: Path, out: Path, memory: Any) -> list[str]:
    """The lines in which the recipe is announced."""
    shown = memory()
    pretrain(data=data, out=out, device="cpu", display=shown, **SMALL)
    lines: list[str] = next(text for text in shown.messages if text.startswith("recipe chosen")).split("\n")
    return lines


def test_labels_are_announced_with_where_they_come_from(
    tmp_path: Path, make_folder: Callable[..., Path], array_file: Path, memory: Any
) -> None:
    photos = make_folder(48)
    assert said(photos, tmp_path / "a", memory)[-1] == "  - 3 classes by subfolder: a, b, c"
    shutil.copyfile(photos / "a" / "000.png", photos / "thumb.png")
    found = said(photos, tmp_path / "b", memory)[-1]
    assert found.startswith("  - unlabelled, because thumb.png lies beside the subfolders")
    flat = make_folder(48, classes=False, name="flat")
    (flat / "one").mkdir()
    shutil.copyfile(flat / "000.png", flat / "one" / "000.png")
    found = said(flat, tmp_path / "c", memory)[-1]
    assert found == "  - unlabelled, because there are no two subfolders with pictures"
    assert said(array_file, tmp_path / "d", memory)[-1] == "  - 3 classes"
    np.save(tmp_path / "plain.npy", np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8))
    assert said(tmp_path / "plain.npy", tmp_path / "e", memory)[-1].startswith("  - unlabelled")


def test_the_picture_that_takes_the_labels_away_is_named(
    make_run: Callable[..., Run], make_folder: Callable[..., Path]
) -> None:
    run, photos = make_run(), make_folder(48)
    (photos / "train").mkdir()
    for name in "abc":
        (photos / name).rename(photos / "train" / name)
    shutil.copyfile(photos / "train" / "a" / "000.png", photos / "train" / "thumb.png")
    with pytest.raises(ResslError, match=r"photos has no labels .*; move train/thumb\.png away") as caught:
        evaluate(run, "knn", data=str(photos), device="cpu")
    assert "\n" not in str(caught.value)
    (photos / "train" / "thumb.png").unlink()
    assert evaluate(run, "knn", data=str(photos), device="cpu")["test_pictures"] == 10


def test_pictures_without_labels_are_refused_before_they_are_trained_on_to_be_measured(
    tmp_path: Path, make_folder: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    flat, out = make_folder(48, classes=False), tmp_path / "run"
    words = ["pretrain", "--data", str(flat), "--out", str(out), "--device", "cpu", "--epochs", "0", "--width", "4"]
    assert main([*words, "--then", "transfer"]) == 2
    assert "ressl evaluate RUN --protocol transfer --to DATA" in capsys.readouterr().err
    assert main([*words, "--then", "linear"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ressl: photos has no labels of two classes or more to measure against")
    assert "train without --then" in said
    assert said.count("\n") == 1
    assert not out.exists()
    assert main([*words, "--quiet"]) == 0
