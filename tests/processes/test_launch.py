"""``ressl launch``: signals to all of its processes, what a killed one leaves behind, and mistakes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_faults import SMALL, logged, place, ranks, until, words
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ressl.commands import launch
from ressl.recipes import Recipe
from ressl.runs import Run

__all__ = ["place"]  # the fixture


@contextmanager
def session(arguments: list[str], *options: str) -> Iterator[subprocess.Popen[str]]:
    """A launch in a session of its own, of which nothing is left behind."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ressl", "launch", "--processes", "2", *options, "--", *arguments],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        for pid in members(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def members(session: int) -> dict[int, int]:
    """pid -> parent of the session's processes that have not ended."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found[int(entry.parent.name)] = int(fields[1])
    return found


def worker(process: subprocess.Popen[str]) -> int | None:
    """A loader worker of rank 0: a child that stays what its parent is. Others, as git, are asked and leave."""
    mine = ranks(process).get(0)
    told = lambda pid: Path(f"/proc/{pid}/cmdline").read_bytes()

    def forks() -> set[int]:
        with suppress(OSError):  # one that has left meanwhile
            return {pid for pid, of in members(process.pid).items() if of == mine and told(pid) == told(mine)}
        return set()

    before = forks()
    time.sleep(0.3)
    return next(iter(before & forks()), None)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_processes_saves(signum: signal.Signals, place: Path) -> None:
    """As a scheduler or a terminal sends it: to the launcher, the ranks and the process they are forked from."""
    out = place / f"group-{signum}"
    with session([*words(place, out), "--checkpoint-steps", "0", "--epochs", "1000"]) as process:
        until(lambda: logged(out) > 9, process)
        os.killpg(process.pid, signum)
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + signum, said
    assert "saved after step" in said
    assert "Traceback" not in said
    assert "stopped" not in said  # which a rank says that had no time to save
    assert Run(out).checkpoint().facts["step"] == logged(out)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """32 pictures so large that workers decode them."""
    folder, draw = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for i in range(32):
        Image.fromarray(draw.integers(0, 256, (260, 260, 3), dtype=np.uint8)).save(folder / f"{i:02d}.jpg")
    return folder


def test_lost_processes_come_again_and_leave_nothing(tmp_path: Path, photos: Path) -> None:
    """A rank is killed, then a loader worker: both times the job goes on, and at its end nothing of it is left.

    It is long enough that the second kill comes long before the end.
    """
    recipe, out = tmp_path / "recipe.json", tmp_path / "run"
    recipe.write_text(Recipe("streamed").replace(**SMALL | {"data": "folder", "epochs": 100}).to_json())
    arguments = ["pretrain", str(recipe), "--data", str(photos), "--out", str(out), "--device", "cpu",
                 *("--workers", "1", "--log-steps", "1", "--checkpoint-steps", "2")]  # fmt: skip
    with session(arguments, "--max-restarts", "2") as process:
        until(lambda: logged(out) > 5, process)
        first = ranks(process)
        os.kill(first[1], signal.SIGKILL)
        until(lambda: len(now := ranks(process)) == 2 and not {*now.values()} & {*first.values()}, process)
        os.kill(until(lambda: worker(process), process), signal.SIGKILL)
        process.wait(100)
        end = time.monotonic() + 15
        while (left := members(process.pid)) and time.monotonic() < end:
            time.sleep(0.1)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert not left
    assert "ressl: rank 0: loader worker" in said, said
    assert said.count("resumed after step") == 2, said
    assert logged(out) == 200


def test_the_one_that_failed_is_named_not_those_who_left_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a mistake of rank 1 the agent starts all again; they leave at once, rank 0 perhaps first."""
    monkeypatch.setenv(launch.MISTAKE, str(tmp_path / "mistake"))
    monkeypatch.setattr("multiprocessing.set_start_method", lambda *_, **__: None)
    monkeypatch.setattr("ressl.cli.main", lambda _: 2)
    for rank in "10":
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            launch.work([])
    failure = ProcessFailure(local_rank=0, pid=0, exitcode=2, error_file="none")

    def failed(*_: object) -> None:
        raise ChildFailedError("ressl", {0: failure})

    monkeypatch.setattr("torch.distributed.launcher.api.elastic_launch", lambda *_: failed)
    monkeypatch.setattr("logging.disable", lambda: None)
    assert launch._elastic(None, []) == 2
    assert "rank 1 left with 2" in capsys.readouterr().err
