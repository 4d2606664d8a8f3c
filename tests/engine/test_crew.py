"""Processes that work ahead: one imports, all work, and none is left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from ressl.engine import crew

PROGRAM = """
import os, pathlib, subprocess, sys, time
here = pathlib.Path(__file__).parent

def ready():
    with open(here / "imported", "a") as file:
        file.write(f"{os.getpid()}\\n")

def main():
    asked = sys.stdin.read()
    if asked == "fail":
        raise ValueError(asked)
    if asked == "sleep":
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (here / "asleep").write_text(f"{os.getpid()} {helper.pid} {os.getppid()}")
        time.sleep(600)
    if asked == "fork" and not os.fork():
        time.sleep(600)  # a helper that outlives it does not speak for it
    if asked:
        (here / f"did {asked}").write_text(str(os.getppid()))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "worker.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    return tmp_path


def gone(pid: int) -> bool:
    """Whether a process has ended, within some seconds; a dead one that nobody has asked for counts as ended."""
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_one_imports_and_each_does_what_it_is_told(place: Path) -> None:
    members = crew.start(["worker"] * 3)
    for member, what in zip(members, ("this", "that", ""), strict=True):
        member.tell(what)
    assert [member.wait(60) for member in members] == [0, 0, 0]
    parents = {(place / f"did {what}").read_text() for what in ("this", "that")}
    assert {(place / "imported").read_text().strip()} == parents
    assert len(list(place.glob("did *"))) == 2
    assert gone(int(parents.pop()))


def test_who_fails_says_so_and_the_others_go_on(place: Path) -> None:
    one, other = crew.start(["worker"] * 2)
    one.tell("fail")
    assert one.wait(60) == 1
    other.tell("this")
    assert other.wait(60) == 0


def test_a_module_that_cannot_be_imported_is_noticed() -> None:
    (member,) = crew.start(["ressl.engine.no_such_room"])
    member.tell("this")
    assert member.wait(60) == 1


def test_helpers_do_not_keep_a_member_s_word(place: Path) -> None:
    (member,) = crew.start(["worker"])
    member.tell("fork")
    assert member.wait(60) == 0
    os.killpg(int(member._said.split()[0]), signal.SIGKILL)


def test_who_still_works_is_ended_with_its_helpers(place: Path) -> None:
    (member,) = crew.start(["worker"])
    member.tell("sleep")
    assert member.wait(0.05) is None
    while not (place / "asleep").exists() or not (place / "asleep").read_text():
        time.sleep(0.01)
    member.end()
    assert member.returncode == 1
    assert all(gone(int(pid)) for pid in (place / "asleep").read_text().split())


def test_who_does_not_finish_in_time_is_ended(place: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    quick, slow = crew.start(["worker"] * 2)
    quick.tell("this")
    assert crew.finished([quick], 60)
    slow.tell("sleep")
    while not (place / "asleep").exists() or not (place / "asleep").read_text():
        time.sleep(0.01)
    assert not crew.finished([quick, slow], 0.1)
    assert (quick.returncode, slow.returncode) == (0, 1)
    assert gone(int((place / "asleep").read_text().split()[0]))
    assert len(os.listdir("/proc/self/fd")) == before  # nothing of them is held open


def test_who_was_told_nothing_ends_when_it_is_born(place: Path) -> None:
    (member,) = crew.start(["worker"])
    member.end()
    assert gone(crew._parents[-1].pid)
    assert not list(place.glob("did *"))


def test_all_end_when_the_one_they_work_for_is_killed(place: Path) -> None:
    worker = os.fork()
    if not worker:
        crew.start(["worker"] * 2)
        time.sleep(600)
    while not (place / "imported").exists() or not (place / "imported").read_text():
        time.sleep(0.01)
    parent = int((place / "imported").read_text())
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    assert gone(parent)
