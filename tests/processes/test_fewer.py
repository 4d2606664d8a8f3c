"""Nothing in a checkpoint depends on how many processes there were."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from test_faults import place

from ressl.runs import Run

__all__ = ["place"]  # the fixture
STEPS = 16


def test_a_run_of_four_processes_goes_on_as_two(place: Path) -> None:
    script = Path(__file__).with_name("fewer.py")
    done = subprocess.run([sys.executable, script, place], capture_output=True, text=True, timeout=100, env=os.environ)
    assert "\n[0]\n" in done.stdout, done.stdout + done.stderr
    assert "\n[143, 143, 143, 143]\n" in done.stdout, done.stdout + done.stderr
    assert done.stdout.endswith("\n[0, 0]\n"), done.stdout + done.stderr
    assert "saved after step 6;" in done.stdout
    assert "resumed after step 6 of 16" in done.stdout
    losses = [[row["loss"] for row in Run(place / name).metrics() if "loss" in row] for name in ("one", "fewer")]
    assert len(losses[0]) == len(losses[1]) == STEPS
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
