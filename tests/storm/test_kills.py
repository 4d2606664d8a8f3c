"""SIGKILL at a random moment: whenever it comes, the resumed run ends with every bit of the undisturbed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from child import Child, digest, loop_of
from scale import draw, shards, share, times

PARTS = len(shards(8, 2))


@pytest.mark.parametrize("part", shards(8, 2))
def test_a_killed_run_ends_like_the_undisturbed_one(
    part: int, tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    expected, whole = undisturbed
    kills, wanted, moments, run = 0, len(share(times(200, 8), part, PARTS)), draw("kill", part), 0
    while kills < wanted:
        run, out, lives = run + 1, tmp_path / f"run{run}", 0
        while True:
            # From the very start to past the end of what a life usually takes: start-up, steps, saves, the end.
            moment = moments.uniform(0, whole * 1.1)
            child = spawn.train(out, ground)
            child.process.join(moment)
            if child.code is None and kills < wanted:
                child.process.kill()
            child.join()
            lives += 1
            if child.code == -signal.SIGKILL:
                kills += 1
                continue
            assert child.code == 0, f"life {lives} of run {run}: exit {child.code}\n{child.output}"
            break
        assert digest(out) == expected, f"run {run} differs after {lives} lives"
        litter = [p.name for p in out.rglob("*") if p.name.endswith(".tmp")]
        assert not litter, litter


def test_so_does_the_command_line_itself(
    tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    """Nothing forked: a process of its own, killed as soon as it has written a checkpoint, three times."""
    out, command = tmp_path / "run", [sys.executable, "-c", "import child, sys; sys.exit(child.main())", "pretrain"]
    command += ["--out", str(out), "--data", str(ground / "pictures.npz"), "--device", "cpu", "--log-steps", "1"]
    command += ["--checkpoint-steps", "3"]
    place = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    killed, seen = 0, set[str]()
    for _ in range(20):
        start = ["--resume"] if (out / "recipe.json").exists() else [str(ground / "recipe.json")]
        process = subprocess.Popen([*command, *start], env=place, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while process.poll() is None and killed < times(3, 1):
            new = {p.name for p in (out / "checkpoints").glob("step-*")} - seen
            if new:
                seen |= new
                process.kill()
                killed += process.wait() == -signal.SIGKILL
                break
            time.sleep(0.002)
        _, said = process.communicate(timeout=120)
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, said.decode()
            break
    assert killed >= 1
    assert digest(out) == undisturbed[0]


def test_a_checkpoint_holds_everything(tmp_path: Path) -> None:
    """What the digest covers is there to be covered."""
    loop, _ = loop_of(tmp_path)
    names = loop.checkpoints.load_latest().tensors.keys()
    assert {"method.queue.keys", "method.queue.position", "method.shuffle.count", "random.cpu", "engine.ring"} <= names
    for part in ("method.backbone.", "method.head.", "method.teacher.", "optimiser.backbone.", "optimiser.head."):
        assert any(name.startswith(part) for name in names), part
