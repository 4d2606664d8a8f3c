"""For kernels that are tried without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def interpret() -> Callable[[str], None]:
    """Run a program in a process of its own, in which Triton's interpreter runs kernels on the CPU; all must agree."""

    def run(program: str) -> None:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout.strip() == "all agree"

    return run
