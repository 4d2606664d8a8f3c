"""Several runs at once: the same results, and all of them stop together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from ressl import cli
from ressl.commands import reproduce
from ressl.engine.signals import Interrupted
from ressl.errors import ResslError
from ressl.recipes import get_recipe
from ressl.reproduce import running
from ressl.reproduce.grid import Ledger, jobs
from ressl.reproduce.tables import TABLE3, TABLES
from ressl.reproduce.workers import at_once
from ressl.runs import Run


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of the children: like this process's


def test_two_at_once_make_what_one_after_the_other_makes(tmp_path, data, shrunk, monkeypatch, capsys) -> None:
    monkeypatch.setitem(TABLES, "table3", shrunk(TABLE3))
    words = ["reproduce", "table3", "--only", "CIFAR-10", "--data", str(data), "--device", "cpu"]
    place = lambda name: ["--runs", str(tmp_path / name), "--into", str(tmp_path / f"{name}-led")]
    assert cli.main([*words, *place("one")]) == 0
    assert "begun" not in capsys.readouterr().out  # its own progress is shown
    assert cli.main([*words, *place("two"), "--jobs", "2"]) == 0
    shown = capsys.readouterr().out
    assert "1/2  " in shown
    assert "2/2  " in shown
    assert shown.count("begun  ") == 2
    assert shown.index("begun  contrastive teacher, CIFAR-10, seed 0") < shown.index("1/2  ")
    one, two = (Ledger(tmp_path / f"{name}-led") for name in ("one", "two"))
    for job in jobs(TABLES["table3"], only="CIFAR-10"):
        alone, beside = one.find(job), two.find(job)
        assert alone is not None
        assert beside is not None
        assert (alone["jobs"], beside["jobs"]) == (1, 2)
        assert beside["curves"]["loss"] == alone["curves"]["loss"]
        assert beside["evaluations"]["linear"]["curve"] == alone["evaluations"]["linear"]["curve"]


def test_a_run_with_nobody_beside_it_is_recorded_as_alone(tmp_path, data, shrunk, monkeypatch, capsys) -> None:
    """Its speed is its own, and shown as such."""
    monkeypatch.setitem(TABLES, "table3", shrunk(TABLE3))
    words = ["reproduce", "table3", "--data", str(data), "--device", "cpu", "--jobs", "4"]
    words += ["--runs", str(tmp_path / "runs"), "--into", str(tmp_path / "led"), "--only"]
    assert cli.main([*words, "weak teacher, CIFAR-10"]) == 0
    assert [record["jobs"] for record in Ledger(tmp_path / "led")] == [1]
    assert "share it" not in capsys.readouterr().out
    asked: list[int] = []
    monkeypatch.setattr(reproduce, "make_all", lambda todo, place, display: asked.append(place.jobs) or iter(()))
    assert cli.main([*words, "CIFAR-10", "--seeds", "0", "1"]) == 0
    assert asked == [3]  # the three others


LONG = """
import json, sys
from ressl.cli import main
from ressl.reproduce.tables import TABLES, Cell, Table
changes = json.loads(sys.argv[1])
cells = [Cell(name, "x", "cifar10", {**changes, "lr": lr}) for name, lr in (("a", 0.06), ("b", 0.05), ("c", 0.04))]
TABLES["long"] = Table("long", "A long table", tuple(cells))
sys.exit(main(["reproduce", "long", "--jobs", "2", "--device", "cpu", *sys.argv[2:]]))
"""


# A terminal's Ctrl-C goes to all processes, a kill to one, which of SIGKILL cannot tell the others.
@pytest.mark.parametrize(
    ("to", "signum"), [("all", signal.SIGINT), ("parent", signal.SIGTERM), ("parent", signal.SIGKILL)]
)
def test_a_signal_stops_all_and_leaves_runs_that_go_on(tmp_path, data, shrunk, to: str, signum: int) -> None:
    small = shrunk(TABLE3, epochs=20_000).cells[1].changes
    place = ["--data", str(data), "--runs", str(tmp_path / "runs"), "--into", str(tmp_path / "led")]
    process = subprocess.Popen(
        [sys.executable, "-c", LONG, json.dumps(dict(small)), *place],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while len(begun := [p for p in tmp_path.glob("runs/*/metrics.jsonl") if p.stat().st_size]) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signum) if to == "all" else process.send_signal(signum)
        out, err = process.communicate(timeout=120)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    if signum == signal.SIGKILL:
        assert process.returncode == -signum
    else:
        assert process.returncode == 128 + signum, err
        assert "stopped; the same command, with the same options, goes on" in out
    assert err == ""
    assert gone(process.pid)
    assert len(list(tmp_path.glob("runs/*"))) == 2  # the third was not begun
    for path in begun:
        run = Run.open(path.parent)
        assert "finished" not in run.facts
        step = run.checkpoint().facts["step"]
        assert step > 0
        goes_on(run, data, step)


def gone(group: int) -> bool:
    """Whether nobody of a process group is left, soon (Python's own helper goes a little after its master)."""
    for _ in range(200):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def goes_on(run: Run, data: Path, step: int) -> None:
    seen: list[int] = []

    class Look(running.Quiet):
        def progress(self, done: int, total: int, values: dict[str, float]) -> None:
            seen.append(done)
            signal.raise_signal(signal.SIGTERM)

    job = replace(jobs(TABLE3, only="weak teacher | CIFAR-10")[0], recipe=run.recipe, at=str(run.path))
    place = running.Place(str(data), device="cpu")
    with pytest.raises(Interrupted):
        running.make(job, place, Look())
    assert step < seen[0] <= step + 50


def leave_or_say(code: int) -> dict[str, int]:
    if code:
        os._exit(code)
    return {"pid": os.getpid()}


def test_a_worker_that_is_lost_is_said_and_another_takes_its_place() -> None:
    found = [result for _, result in at_once(leave_or_say, [0, 9, 0, 0], 1)]
    with pytest.raises(ResslError, match=r"a worker was lost \(exit code 9\); go on with the same command"):
        raise found[1]  # type: ignore[misc]
    first, second, third = (found[i]["pid"] for i in (0, 2, 3))  # type: ignore[index]
    assert first != second == third


def stopped_after(step: int) -> dict[str, int]:
    raise Interrupted(signal.SIGINT, step)


def test_a_worker_that_hears_a_signal_first_stops_all() -> None:
    with pytest.raises(Interrupted, match="stopped by SIGINT after step 7") as stop:
        list(at_once(stopped_after, [7], 1))
    assert (stop.value.exit_code, stop.value.step) == (130, 7)


def test_an_error_in_a_worker_is_the_users_sentence() -> None:
    ((_, found),) = at_once(get_recipe, ["cifar11"], 2)  # type: ignore[arg-type]
    assert type(found) is ResslError
    assert "unknown recipe 'cifar11'; did you mean 'cifar10'" in str(found)
