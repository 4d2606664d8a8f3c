"""SIGTERM in every phase of a run: the exit code says so, and at most one step is lost. Also Ctrl-C, and SLURM."""

from __future__ import annotations

import os
import pkgutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from child import STEPS, Child, digest
from scale import FULL

from ressl import cli
from ressl.engine.step import TrainStep
from ressl.runs import Run


class At:
    """Sends a signal to this very process when a function is called for the nth time, before or after its work."""

    def __init__(self, owner: str, name: str, call: int = 1, late: bool = False, signum: int = signal.SIGTERM) -> None:
        self.owner, self.name, self.call, self.late, self.signum = owner, name, call, late, signum

    def __call__(self) -> None:
        owner = pkgutil.resolve_name(self.owner)
        plain, seen = getattr(owner, self.name), 0

        def hit(*args: Any, **more: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == self.call and not self.late:
                self.fire()
            result = plain(*args, **more)
            if seen == self.call and self.late:
                self.fire()
            return result

        setattr(owner, self.name, hit)

    def fire(self) -> None:
        print(f"signal after {TrainStepCount.done} steps", flush=True)
        os.kill(os.getpid(), self.signum)


class TrainStepCount:
    """How many steps the process has finished, for the test to read from its output."""

    done = 0

    @classmethod
    def watch(cls) -> None:
        plain = TrainStep.advance

        def advance(self: TrainStep, batch: Any = None) -> None:
            plain(self, batch)
            cls.done = self.done

        TrainStep.advance = advance  # type: ignore[method-assign]


class Both:
    def __init__(self, *acts: Any) -> None:
        self.acts = acts

    def __call__(self) -> None:
        TrainStepCount.watch()
        for act in self.acts:
            act()


PHASES = {
    "start-up": At("ressl.runs", "build_backbone"),
    "reading data": At("ressl.pretraining", "make_loader"),
    "making the run folder": At("ressl.runs", "write_atomically", 2),
    "building the step": At("ressl.training", "build_step"),
    "first step": At("ressl.methods.ressl:ReSSL", "forward", 1),
    "views": At("ressl.engine.step:TrainStep", "make_views", 8),
    "forward": At("ressl.methods.ressl:ReSSL", "forward", 8),
    "between backward and update": At("ressl.engine.step:TrainStep", "update", 10),
    "teacher and queue": At("ressl.methods.ressl:ReSSL", "after_step", 11),
    "logging": At("ressl.engine.records:Records", "write", 6),
    "kNN evaluation": At("ressl.training", "knn_of"),
    "end of an epoch": At("ressl.engine.loop:Loop", "_end_epoch", 2),
    "start of an epoch": At("ressl.engine.step:TrainStep", "begin_epoch", 3),
    "checkpoint, before": At("ressl.checkpoints", "encode", 3),
    "checkpoint, written but not renamed": At("os", "replace", 6),
    "checkpoint, after": At("ressl.checkpoints:CheckpointFolder", "save", 2, late=True),
    "last step": At("ressl.engine.step:TrainStep", "advance", STEPS),
    "last evaluation": At("ressl.training", "knn_of", 3),
    "closing": At("ressl.data.loaders:ResidentLoader", "close"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_sigterm_in_every_phase_loses_at_most_one_step(
    phase: str, tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    out = tmp_path / "run"
    child = spawn.train(out, ground, before=Both(PHASES[phase])).join()
    assert child.code == 143, f"exit {child.code}\n{child.output}"
    assert "Traceback" not in child.output
    done = int(child.output.split("signal after ")[1].split()[0])
    saved = Run(out).checkpoints.paths()
    kept = Run(out).checkpoint().facts["step"] if saved else 0
    assert done <= kept <= done + 1, f"{kept} kept of {done} steps"
    assert not list(tmp_path.rglob("*.tmp"))
    child = spawn.train(out, ground).join()
    assert child.code == 0, child.output
    assert digest(out) == undisturbed[0]


def evaluate(out: str) -> int:
    Both(At("ressl.measuring", "linear_evaluations"))()
    return cli.main(["evaluate", out, "--protocol", "knn", "linear", "--device", "cpu"])


def test_sigterm_in_an_evaluation_leaves_whole_files(tmp_path: Path, ground: Path, spawn: type[Child]) -> None:
    out = tmp_path / "run"
    assert spawn.train(out, ground).join().code == 0
    child = spawn(tmp_path / "log", evaluate, str(out)).join()
    assert child.code == 143, child.output
    assert [p.name for p in (out / "evaluation").iterdir() if p.is_file()] == ["knn.json"]
    assert Run.open(out).read_evaluation("knn") is not None


def test_ctrl_c_saves_and_a_second_one_leaves_at_once(
    tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    out = tmp_path / "run"
    first = At("ressl.methods.ressl:ReSSL", "forward", 8, signum=signal.SIGINT)
    child = spawn.train(out, ground, before=Both(first)).join()
    assert child.code == 130, child.output
    assert Run(out).checkpoint().facts["step"] == 8
    second = [
        At("ressl.methods.ressl:ReSSL", "forward", 3, signum=signal.SIGINT),
        At("ressl.engine.step:TrainStep", "update", 3, signum=signal.SIGINT),
    ]
    child = spawn.train(out, ground, before=Both(*second)).join()
    assert child.code == 130, child.output
    assert "ressl: stopped" in child.output
    assert Run(out).checkpoint().facts["step"] == 9  # not the step it was in: that would be to wait
    assert spawn.train(out, ground).join().code == 0
    assert digest(out) == undisturbed[0]


# --- SLURM ---

SCRIPT = """#!/bin/bash
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
again() { kill -USR1 "$run"; wait "$run"; scontrol requeue "$SLURM_JOB_ID"; exit 0; }
trap again USR1
if [ -e "$OUT/recipe.json" ]; then start=--resume; else start="$RECIPE"; fi
$RESSL pretrain $start --out "$OUT" --data "$DATA" --device cpu --log-steps 1 --checkpoint-minutes 60 &
run=$!
wait "$run"
"""


@pytest.mark.skipif(not FULL and sys.platform != "linux", reason="needs bash")
def test_a_slurm_job_is_requeued_and_ends_like_the_undisturbed_one(
    tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    """The batch script of docs/RELIABILITY.md, with a stand-in for scontrol that notes the job to start again."""
    tools, out = tmp_path / "bin", tmp_path / "run"
    tools.mkdir()
    (tools / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    (tools / "scontrol").chmod(0o755 | stat.S_IXUSR)
    slow = (
        "import child, sys, time; from ressl.engine.step import TrainStep; plain = TrainStep.advance; "
        "TrainStep.advance = lambda s, b=None: (plain(s, b), time.sleep(0.05))[0]; sys.exit(child.main())"
    )
    (tools / "ressl").write_text(f"#!/bin/sh\nexec {sys.executable} -c '{slow}' \"$@\"\n")
    (tools / "ressl").chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    place = os.environ | {
        **{"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711", "OUT": str(out), "RESSL": "ressl"},
        **{"RECIPE": str(ground / "recipe.json"), "DATA": str(ground / "pictures.npz")},
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    job = subprocess.Popen(["bash", str(script)], env=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    rows = lambda: (out / "metrics.jsonl").read_text().count("\n") if (out / "metrics.jsonl").exists() else 0
    deadline = time.monotonic() + 120
    while rows() < 3 and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    job.send_signal(signal.SIGUSR1)
    said, _ = job.communicate(timeout=120)
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n", said.decode()
    assert 3 <= Run(out).checkpoint().facts["step"] < STEPS, said.decode()
    again = subprocess.run(["bash", str(script)], env=place, capture_output=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr.decode()
    assert digest(out) == undisturbed[0]
