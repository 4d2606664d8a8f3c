"""A killed loader worker is named, the run goes on from its checkpoint, and nothing of it stays in shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child import Child, alive
from PIL import Image
from scale import draw, times

from ressl import cli
from ressl.data import loaders
from ressl.runs import Run

RHYTHM = ["--log-steps", "1", "--checkpoint-steps", "2", "--device", "cpu", "--epochs", "3"]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 pictures of several sizes."""
    folder, draw = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(48):
        Image.fromarray(draw.integers(0, 256, (16 + i % 5, 16 + i % 3, 3), dtype=np.uint8)).save(
            folder / f"{i:02d}.png"
        )
    return folder


class Reaper:
    """Kills one of this process's loader workers at a step."""

    def __init__(self, step: int, which: int, signum: int) -> None:
        self.step, self.which, self.signum = step, which, signum

    def __call__(self) -> None:
        from ressl.engine.step import TrainStep

        plain = TrainStep.advance

        def advance(step: TrainStep, batch: Any = None) -> None:
            plain(step, batch)
            if step.done == self.step:
                show_shared()
                os.kill(victim := workers()[self.which], self.signum)
                deadline = time.monotonic() + 60
                while (
                    runs(victim) and time.monotonic() < deadline
                ):  # on a busy machine the run may be over before it is
                    time.sleep(0.05)
                time.sleep(0.2)

        TrainStep.advance = advance  # type: ignore[method-assign]


def workers() -> list[int]:
    return sorted(int(x) for x in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def runs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def stream(out: str, photos: str, recipe: str, count: int, before: Any) -> int:
    loaders.room = lambda device: 0  # so that workers decode them
    if before is not None:
        before()
    start = ["--resume"] if os.path.exists(f"{out}/recipe.json") else [recipe]
    return cli.main(["pretrain", *start, "--out", out, "--data", photos, "--workers", str(count), *RHYTHM])


def show_shared() -> None:
    print("process:", os.getpid(), *workers(), flush=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if " /dev/shm/" in line and not line.endswith("(deleted)"):
            print("shared:", line.split()[-1], flush=True)


def leftover(log: Path) -> None:
    """Shared memory that the process had under a name must be gone with it."""
    lines = log.read_text().splitlines()
    names = [line.split(": ")[1] for line in lines if line.startswith("shared: ")]
    assert not [name for name in names if os.path.exists(name)]
    ours = {f"torch_{pid}_" for line in lines if line.startswith("process: ") for pid in line.split()[1:]}
    assert len(ours) >= 3  # the run and two workers; torch puts the number of the maker into the name
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(tuple(ours))]


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    import json

    from child import RECIPE

    (tmp_path / "recipe.json").write_text(json.dumps(RECIPE | {"data": "folder", "epochs": 3}))
    return str(tmp_path / "recipe.json")


def same(a: Path, b: Path) -> None:
    one, two = Run(a).checkpoint(), Run(b).checkpoint()
    for name, tensor in one.tensors.items():
        assert tensor.equal(two.tensors[name]), name
    rows = [[{k: v for k, v in r.items() if k != "images_per_second"} for r in Run(x).metrics()] for x in (a, b)]
    assert rows[0] == rows[1]


def test_a_killed_worker_is_named_and_the_run_resumable(
    tmp_path: Path, photos: Path, recipe: str, spawn: type[Child]
) -> None:
    whole = spawn(tmp_path / "log", stream, str(tmp_path / "whole"), str(photos), recipe, 0, None).join()
    assert whole.code == 0, whole.output
    moments = draw("workers")
    for case in range(times(10, 2)):
        out, signum = tmp_path / f"run{case}", moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV])
        reaper = Reaper(moments.randrange(1, 8), moments.randrange(2), signum)
        child = spawn(tmp_path / f"{case}.log", stream, str(out), str(photos), recipe, 2, reaper).join()
        assert child.code == 2, f"case {case}: {child.output}"
        assert "ressl: loader worker " in child.output
        assert "resume the run" in child.output
        assert "Traceback" not in child.output
        child = spawn(tmp_path / f"{case}b.log", stream, str(out), str(photos), recipe, 1 + case % 3, None).join()
        assert child.code == 0, child.output
        same(out, tmp_path / "whole")
        leftover(tmp_path / f"{case}.log")


class Group:
    """Sends a signal to every process of the run, as a scheduler does."""

    def __init__(self, signum: int) -> None:
        self.signum = signum

    def __call__(self) -> None:
        from ressl.engine.step import TrainStep

        os.setpgrp()
        plain = TrainStep.advance

        def advance(step: TrainStep, batch: Any = None) -> None:
            plain(step, batch)
            if step.done == 4:
                os.killpg(os.getpgrp(), self.signum)
                time.sleep(0.1)

        TrainStep.advance = advance  # type: ignore[method-assign]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_all_processes_saves_as_one_to_the_first_does(
    signum: signal.Signals, tmp_path: Path, photos: Path, recipe: str, spawn: type[Child]
) -> None:
    """Workers must not die before the run has saved."""
    out = tmp_path / "run"
    child = spawn(tmp_path / "log", stream, str(out), str(photos), recipe, 2, Group(signum)).join()
    assert child.code == 128 + signum, child.output
    assert Run(out).checkpoint().facts["step"] == 4


def report_workers() -> None:
    from ressl.engine.step import TrainStep

    plain = TrainStep.advance

    def advance(step: TrainStep, batch: Any = None) -> None:
        plain(step, batch)
        show_shared()
        print("workers", *workers(), flush=True)
        time.sleep(0.3)

    TrainStep.advance = advance  # type: ignore[method-assign]


def test_workers_of_a_killed_run_go_too(tmp_path: Path, photos: Path, recipe: str, spawn: type[Child]) -> None:
    child = spawn(tmp_path / "log", stream, str(tmp_path / "run"), str(photos), recipe, 2, report_workers)
    deadline = time.monotonic() + 60
    while "\nworkers " not in (child.output if child.log.exists() else "") and time.monotonic() < deadline:
        time.sleep(0.02)
    child.process.kill()
    child.join()
    left = [int(x) for x in child.output.split("\nworkers ")[1].split("\n")[0].split()]
    assert len(left) == 2
    while any(alive(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in left)
    leftover(child.log)
