"""benchmarks/kills.py: a run that is ended again and again, and what it is compared with."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from ressl.recipes import get_recipe
from ressl.runs import Run

ROOT = Path(__file__).parents[1]
# Stands in for `ressl pretrain`: a step in no time, a checkpoint every seven, 20 in all.
FAKE = """
import json, pathlib, signal, sys, time
words = sys.argv[2:]
out = pathlib.Path(words[words.index("--out") + 1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
begun = (out / "recipe.json").exists()
assert begun == ("--resume" in words) != ("demo" in words)
(out / "checkpoints").mkdir(parents=True, exist_ok=True)
(out / "recipe.json").write_text("{}")
kept = max([int(p.stem[5:]) for p in (out / "checkpoints").iterdir()], default=0)
log = out / "metrics.jsonl"
rows = log.read_text().splitlines()[:kept] if log.exists() else []
log.write_text("".join(row + chr(10) for row in rows))
for step in range(kept + 1, 21):
    with log.open("a") as file:
        file.write(json.dumps({"step": step, "epoch": step, "loss": 1 / step}) + chr(10))
    if step == {0: 12, 7: 18}.get(kept):  # so that who ends it is not too late on a busy machine
        time.sleep(60)
    if step % 7 == 0:
        (out / "checkpoints" / f"step-{step:08d}.safetensors").touch()
    time.sleep(0.03)
"""


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import kills as module

    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(module, "COMMAND", [sys.executable, str(tmp_path / "fake.py")])
    return module


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_is_ended_at_each_moment_and_goes_on(kills: Any, tmp_path: Path, signum: signal.Signals) -> None:
    out = tmp_path / "run"
    stops = kills.disturbed(out, ["demo"], [9, 16], signum)
    assert [stop["resumed"] for stop in stops] == [7, 14]
    assert [9 <= stops[0]["logged"] < 14, 16 <= stops[1]["logged"] < 20] == [True, True]
    rows = [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(1, 21))


def test_a_run_that_fails_by_itself_ends_it_all(kills: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as caught:
        kills.disturbed(tmp_path / "run", ["another"], [3], signal.SIGKILL)
    assert caught.value.code == 1


def test_losses_are_compared_with_the_twins(kills: Any, tmp_path: Path) -> None:
    def run(name: str, losses: list[float]) -> Run:
        made = Run.create(tmp_path / name, get_recipe("demo"), {})
        rows = [{"step": i, "epoch": i, "loss": loss} for i, loss in enumerate(losses, 1)]
        rows.append({"step": 3, "epoch": 3, "knn": 40.0})
        (made.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return made

    twin = run("twin", [4.0, 2.0, 1.0])
    found = kills.compared(run("run", [4.0, 2.0, 0.5]), twin)
    assert found == {"losses": 3, "equal": 2, "largest_difference": 0.5, "knn": 40.0}
    with pytest.raises(SystemExit, match="not logged the same steps"):
        kills.compared(run("short", [4.0, 2.0]), twin)
