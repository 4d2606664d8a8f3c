"""What the storm stands on: a seed in every failure, a process that has torch loaded and forks, and small pictures."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child import RECIPE, Child, digest
from mutants import switch_off
from scale import FULL, MUTANT, SEED


@pytest.fixture(autouse=True)
def _seed(monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"storm: seed {SEED}, {'full' if FULL else 'short'} form")
    if MUTANT:
        switch_off(MUTANT, monkeypatch.setattr)


@pytest.fixture(scope="session")
def spawn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[type[Child]]:
    """Children are forked from one process that has imported torch already: one in 30 ms instead of 3 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # where the forking process finds `child`
        Child.context = multiprocessing.get_context("forkserver")
        Child.context.set_forkserver_preload(["child"])
        log = tmp_path_factory.mktemp("first") / "log"
        Child(log, print, "ready").join()  # the first one waits for the imports
        yield Child


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures and recipe of the tiny run: 4 steps an epoch, 24 in all."""
    folder = tmp_path_factory.mktemp("ground")
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (96, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(96) % 3
    np.savez(folder / "pictures.npz", x_train=images[:72], y_train=labels[:72], x_test=images[72:], y_test=labels[72:])
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    return folder


@pytest.fixture(scope="session")
def undisturbed(ground: Path, spawn: type[Child], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(digest, seconds) of the run that nobody disturbs."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    child = spawn.train(out, ground)
    child.join()
    assert child.code == 0, child.output
    return digest(out), child.seconds
