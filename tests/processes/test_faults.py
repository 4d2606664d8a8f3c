"""Jobs of two processes that lose one of them, are asked to stop, or fail: as a user starts them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from once import once
from test_together import free_port

from ressl.engine.loop import Rhythm
from ressl.pretraining import pretrain
from ressl.recipes import Recipe
from ressl.runs import Run

EPOCHS, PER_EPOCH = 12, 4
SMALL = {
    "data": "array", "backbone": "resnet10", "width": 4, "image_size": 16, "batch_size": 16, "bn_groups": 2,
    "hidden_dim": 16, "output_dim": 8, "queue_size": 32, "knn_every": 0, "knn_k": 5, "epochs": EPOCHS, "stem": "medium",
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and pictures."""
    folder = tmp_path_factory.mktemp("faults")
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (96, 16, 16, 3), dtype=np.uint8)
    label = np.arange(96) % 3
    np.savez(folder / "p.npz", x_train=images[:72], y_train=label[:72], x_test=images[72:], y_test=label[72:])
    (folder / "recipe.json").write_text(Recipe("small").replace(**SMALL).to_json())
    return folder


def words(place: Path, out: Path) -> list[str]:
    return ["pretrain", str(place / "recipe.json"), "--data", str(place / "p.npz"), "--out", str(out),
            *("--device", "cpu", "--log-steps", "1", "--checkpoint-steps", "5")]  # fmt: skip


@contextmanager
def job(arguments: list[str], restarts: int = 2, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A command of two processes in a session of its own, of which nothing is left behind."""
    process = subprocess.Popen(
        [*(sys.executable, "-m", "ressl", "launch", "--processes", "2", "--max-restarts", str(restarts)),
         "--", *arguments],
        # A thread each, whatever the tests themselves were given: threads that wait for a core do so by spinning.
        env=os.environ | {"OMP_NUM_THREADS": "1"} | variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        for pid in ranks(process).values():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()


def ranks(process: subprocess.Popen[str]) -> dict[int, int]:
    """rank -> pid of the job's processes, which call themselves by their rank."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            name = (entry / "comm").read_text().strip()
            if name.startswith("ressl rank ") and parent(parent(int(entry.name))) == process.pid:
                found[int(name.split()[-1])] = int(entry.name)
        except OSError:
            continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def until(true: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := true():
            return found
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


def logged(out: Path) -> int:
    rows = Run(out).metrics()
    return int(rows[-1]["step"]) if rows else 0


@pytest.fixture(scope="module")
def whole(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""

    def make(folder: Path) -> None:
        with job(words(place, folder / "run")) as process:
            said = process.communicate(timeout=100)[0]
        assert process.returncode == 0, said
        assert "shared by 2 processes: 8 samples and 1 batch-norm group each, 2 in all" in said
        assert said.count("run folder") == 2  # one process speaks

    return once(tmp_path_factory, "whole", make) / "run"


def assert_equal(one: Path, two: Path) -> None:
    a, b = Run(one), Run(two)
    for name, tensor in a.checkpoint().tensors.items():
        assert torch.equal(tensor, b.checkpoint().tensors[name]), name
    rows = [[row | {"images_per_second": 0} for row in run.metrics()] for run in (a, b)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_costs_seconds_and_changes_nothing(rank: int, place: Path, whole: Path) -> None:
    out = place / f"killed-{rank}"
    with job(words(place, out)) as process:
        until(lambda: logged(out) > 12, process)
        os.kill(ranks(process)[rank], signal.SIGKILL)
        start = time.monotonic()
        time.sleep(0.3)
        before = (out / "metrics.jsonl").stat().st_mtime_ns
        until(lambda: (out / "metrics.jsonl").stat().st_mtime_ns > before, process)
        recovery = time.monotonic() - start
        said = process.communicate(timeout=100)[0]
    assert process.returncode == 0, said
    assert "resumed after step" in said
    assert recovery < 10, f"{recovery:.1f} s"
    assert_equal(whole, out)


def test_a_signal_to_one_process_stops_all_and_one_process_goes_on(place: Path, whole: Path) -> None:
    out = place / "stopped"
    with job([*words(place, out), "--checkpoint-steps", "0"], restarts=0) as process:
        until(lambda: logged(out) > 5, process)
        os.kill(ranks(process)[1], signal.SIGTERM)
        start = time.monotonic()
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 143, said
    assert time.monotonic() - start < 20
    assert "saved after step" in said
    assert "Traceback" not in said
    step = Run(out).checkpoint().facts["step"]
    assert logged(out) == step
    alone = place / "alone"
    shutil.copytree(out, alone)
    run = pretrain(out=alone, resume=True, device="cpu", rhythm=Rhythm(log_steps=1))
    assert run.facts["steps"] == EPOCHS * PER_EPOCH
    losses = [[row["loss"] for row in Run(path).metrics() if "loss" in row] for path in (whole, alone)]
    np.testing.assert_allclose(losses[0][: step + 4], losses[1][: step + 4], rtol=1e-3)  # then roundings grow


def test_a_stopped_process_ends_the_job(place: Path) -> None:
    out = place / "frozen"
    with job(words(place, out), RESSL_PATIENCE_SECONDS="3") as process:
        until(lambda: logged(out) > 2, process)
        os.kill(ranks(process)[1], signal.SIGSTOP)
        start = time.monotonic()
        before = logged(out)
        until(lambda: logged(out) > before + 10, process)  # with restarts left: it goes on
        assert time.monotonic() - start < 30


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_who_waits_for_the_others_to_come_leaves_at_once(signum: signal.Signals, place: Path) -> None:
    """In a wait of ten minutes that no handler of Python's breaks off."""
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    process = subprocess.Popen(
        [sys.executable, "-m", "ressl", *words(place, place / "alone-here")],
        env=os.environ | variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        until(lambda: "ressl rank 1" in Path(f"/proc/{process.pid}/comm").read_text(), process)
        time.sleep(0.5)
        process.send_signal(signum)
        said = process.communicate(timeout=30)[0]
    finally:
        process.kill()
    assert process.returncode in (-signum, 128 + signum), said
    assert "Traceback" not in said
    assert not (place / "alone-here").exists()


FAILING = """
import os
import ressl.pretraining as p
from ressl.errors import ResslError
from ressl.__main__ import run
if os.environ["RANK"] == "1":
    def broken(*args): raise ResslError("the disk of this machine is not there; mount it")
    p.build_method = broken
run()  # as a user's command: it ends without taking gloo's threads apart, which may abort
"""


def test_the_error_of_one_process_ends_all_and_is_said(place: Path) -> None:
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", FAILING, *words(place, place / "failing")],
            env=os.environ | variables | {"RANK": str(rank)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=60)[1] for process in running]
    assert [process.returncode for process in running] == [1, 2]
    assert "ressl: rank 1: the disk of this machine is not there; mount it" in said[1]
    assert "ressl: rank 0: another process of this job failed" in said[0]
    assert not any("Traceback" in text for text in said)
    assert not (place / "failing").exists()
