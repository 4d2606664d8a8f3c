"""The paper's tables at a size that trains in a second, and data for them in the official formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invented import pictures
from PIL import Image

from ressl.recipes import get_recipe, method_options
from ressl.reproduce.figures import Figure
from ressl.reproduce.tables import Table

SMALL = {
    "width": 4, "backbone": "resnet10", "image_size": 16, "batch_size": 16, "bn_groups": 2, "epochs": 1, "knn_k": 5,
    "knn_every": 0, "warmup_epochs": 0.1, "linear": {"epochs": 1, "augment": False, "batch_size": 16, "resize": 18},
}  # fmt: skip
OPTIONS = {"queue_size": 32, "hidden_dim": 16, "output_dim": 8}


@pytest.fixture
def shrunk() -> Callable[..., Any]:
    """A table or figure with the same cells, so small that one trains in a second."""

    def shrink(table: Table | Figure, **changes: Any) -> Any:
        def small(cell: Any) -> Any:
            method = cell.changes.get("method", get_recipe(cell.recipe).method)
            options = {key: value for key, value in OPTIONS.items() if key in method_options(method)}
            untrained = {"epochs": 0} if cell.changes.get("epochs") == 0 else {}
            return replace(cell, changes={**cell.changes, **SMALL, **options, **changes, **untrained})

        return replace(table, cells=tuple(map(small, table.cells)))

    return shrink


@pytest.fixture
def data(tmp_path: Path, make_voc: Callable[[Path], Path]) -> Path:
    """A folder per data set, each as its archive unpacks."""
    root = tmp_path / "data"
    (root / "cifar10").mkdir(parents=True)
    parts = {f"{kind}_{part}": value for part, n in (("train", 48), ("test", 16))
             for kind, value in (("x", pictures(n, 16, n)), ("y", np.arange(n) % 2))}  # fmt: skip
    np.savez(root / "cifar10" / "cifar10.npz", **parts)
    stl10 = root / "stl10" / "stl10_binary"
    stl10.mkdir(parents=True)
    for seed, (part, n) in enumerate({"train": 24, "test": 12, "unlabeled": 24}.items()):
        columns = pictures(n, 96, seed).transpose(0, 3, 2, 1)  # stored by channel, then column by column
        (stl10 / f"{part}_X.bin").write_bytes(columns.tobytes())
        if part != "unlabeled":
            (stl10 / f"{part}_y.bin").write_bytes(bytes(1 + i % 2 for i in range(n)))
    (stl10 / "class_names.txt").write_text("\n".join(f"class{i}" for i in range(10)))
    for part, n in (("train", 32), ("val", 12)):
        for i, picture in enumerate(pictures(n, 40, n)):
            folder = root / "imagenet" / part / ("n01440764", "n01443537")[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture[: 30 + i % 10]).save(folder / f"{folder.name}_{i}.JPEG")  # sizes differ
    make_voc(root / "voc07")
    return root
