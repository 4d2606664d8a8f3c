"""A process of two is killed or stopped, again and again, or their launcher is: the job goes on, or ends."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scale import FULL, draw

from ressl.runs import Run

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
faults = pytest.importorskip("test_faults")

KILLS = 20
# The short form of these rows are the tests of tests/processes, which run anyway.
full = pytest.mark.skipif(not FULL, reason="the full form only; tests/processes has the short one")


def words(place: Path, out: Path) -> list[str]:
    return [*faults.words(place, out), "--epochs", "60"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = faults.place.__wrapped__(tmp_path_factory)
    return made


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    with faults.job(words(place, place / "whole")) as process:
        said = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    return place / "whole"


@full
def test_ranks_are_killed_and_nothing_changes(place: Path, whole: Path) -> None:
    out, moments, waits = place / "killed", draw("ranks"), []
    with faults.job(words(place, out), restarts=KILLS + 1) as process:
        for kill in range(KILLS):
            before = faults.logged(out) if out.exists() else 0
            faults.until(lambda before=before: out.exists() and faults.logged(out) > before + 6, process)
            time.sleep(moments.uniform(0, 0.2))
            rank, old = kill % 2, faults.ranks(process)
            start = time.monotonic()
            os.kill(old[rank], signal.SIGKILL)
            # The survivor may still write a row: what counts is the first one of the process in its place.
            new = lambda old=old, rank=rank: faults.ranks(process).get(rank) not in (None, old[rank])
            faults.until(new, process)
            seen = time.time_ns()
            faults.until(lambda seen=seen: (out / "metrics.jsonl").stat().st_mtime_ns > seen, process)
            waits.append(time.monotonic() - start)
        said: Any = process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    print(f"recovery {min(waits):.1f} to {max(waits):.1f} s")
    assert max(waits) < 10
    faults.assert_equal(out, whole)


@full
def test_a_stopped_rank_ends_the_job(place: Path) -> None:
    out = place / "stopped"
    with faults.job(words(place, out), restarts=0) as process:
        faults.until(lambda: out.exists() and faults.logged(out) > 6, process)
        start = time.monotonic()
        os.kill(faults.ranks(process)[1], signal.SIGSTOP)
        said = process.communicate(timeout=60)[0]
    assert process.returncode not in (0, None)
    assert time.monotonic() - start < 60
    assert "ressl: " in said


def test_ranks_whose_launcher_is_killed_save_and_leave(place: Path) -> None:
    """SIGKILL lets it send nothing: they would train on, with nobody to hear of it."""
    out = place / "deserted"
    with faults.job([*faults.words(place, out), "--epochs", "1000", "--checkpoint-steps", "0"]) as process:
        faults.until(lambda: out.exists() and faults.logged(out) > 3, process)
        mine = faults.ranks(process)
        try:
            process.kill()
            said = process.communicate(timeout=30)[0]  # to the end of the last that writes there
        finally:
            for pid in mine.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert len(mine) == 2
    assert "saved after step" in said, said
    assert "Traceback" not in said
    assert Run(out).checkpoint().facts["step"] == faults.logged(out) < 4000
