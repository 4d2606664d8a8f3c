"""The engine that launches our kernels one by one, in one process and in two: losses and weights of the plain step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import launched as work
import team
from test_together import assert_twins, free_port

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7) and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="Triton's interpreter before 3.7 cannot count loops with NumPy 2.4",
)


def run(out: Path) -> dict[str, Any]:
    """What one process found, and each of two."""
    words = [sys.executable, str(Path(work.__file__)), str(out)]
    how = os.environ | {"TRITON_INTERPRET": "1", "TORCH_COMPILE_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = [subprocess.Popen(words, env=how)]
    running += [subprocess.Popen(words, env=how | place | {"RANK": r, "LOCAL_RANK": r}) for r in "01"]
    assert [process.wait(timeout=110) for process in running] == [0, 0, 0]
    return {name: torch.load(out / f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1")}


def test_one_process_and_two_make_the_plain_steps(tmp_path: Path) -> None:
    """One test, so that the processes are started once."""
    found = run(tmp_path)
    for name, recipe in work.RECIPES.items():
        plain = work.steps(team.step_of(recipe))
        assert_twins(plain, [found["1-0"][name]] * 2, 2e-3, 2e-4)
        assert_twins(plain, [found["2-0"][name], found["2-1"][name]], 2e-3, 2e-4)
        other = work.steps(team.step_of(recipe.replace(seed=1)))
        assert not torch.allclose(other["losses"], plain["losses"], rtol=2e-3)
    assert [found[name]["sent"] for name in ("2-0", "2-1")] == [1, 1]  # gradients travel once, all of them together
