"""What is evaluated: a run, or a backbone of others' measured in the same way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ressl.pretraining import pretrain
from ressl.subjects import subject_of


def test_a_foreign_backbone_is_asked_by_as_many_neighbours_as_a_run_on_the_same_pictures(
    tmp_path: Path, make_folder: Callable[..., Path], memory: Any
) -> None:
    photos = make_folder(240)
    small = {"epochs": 0, "width": 4, "hidden_dim": 8, "image_size": 16}
    run = pretrain(data=photos, out=tmp_path / "run", device="cpu", display=memory(), **small)
    baseline = subject_of("torchvision/resnet18", str(photos)).recipe
    assert baseline.knn_k == run.recipe.knn_k == 12
    assert subject_of("torchvision/resnet18", "cifar10").recipe.knn_k == 200  # the paper's
