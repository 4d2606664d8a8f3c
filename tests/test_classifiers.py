"""benchmarks/classifiers.py: several linear classifiers on one backbone, in one record."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ressl.pretraining import pretrain
from ressl.recipes import Recipe

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "classifiers.py"


def test_every_way_is_recorded_and_none_measured_twice(
    tiny: Callable[..., Recipe], array_file: Path, memory: Any, tmp_path: Path
) -> None:
    run = pretrain(tiny(data="array"), data=array_file, out=tmp_path / "run", device="cpu", display=memory())
    into = tmp_path / "ledger"
    words = [sys.executable, SCRIPT, run.path, "--into", into, "--device", "cpu", "--epochs", "1"]
    first = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert first.returncode == 0, first.stderr
    (path,) = into.glob("*.json")
    made = json.loads(path.read_text())["evaluations"]
    ways = {(r["settings"]["schedule"], r["settings"]["lr"]) for name, r in made.items() if name.startswith("linear")}
    assert ways >= {("step", 10.0), ("step", 3.0), ("cosine", 1.0), ("cosine", 0.2)}
    assert {r["settings"]["epochs"] for name, r in made.items() if name.startswith("linear")} == {1}
    again = subprocess.run(words, capture_output=True, text=True, timeout=100)
    numbers = lambda text: [line for line in text.splitlines() if ", best " in line]
    assert numbers(first.stdout) == numbers(again.stdout)  # seconds and all
    assert len(numbers(first.stdout)) == 6
    wrong = subprocess.run([*words[:2], tmp_path / "no", *words[3:]], capture_output=True, text=True, timeout=100)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
