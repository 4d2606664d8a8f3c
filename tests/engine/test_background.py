"""A job beside the training: one at a time, and no failure missed."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from ressl.engine.background import Background


def test_the_next_job_waits_for_the_one_before() -> None:
    beside, gate, order = Background(), threading.Event(), []
    beside.start(lambda: (gate.wait(10), order.append("first")))
    threading.Timer(0.05, gate.set).start()
    beside.start(lambda: order.append("second"))
    assert order[0] == "first"
    beside.finish()
    assert order == ["first", "second"]
    assert beside.seconds >= 0


@pytest.mark.parametrize("how", ["check", "finish", "start"])
def test_a_failure_comes_up_once_and_as_it_was(how: str) -> None:
    def fail() -> None:
        raise OSError("disk full")

    beside = Background()
    beside.start(fail)
    assert beside._job is not None
    wait([beside._job])
    with pytest.raises(OSError, match="disk full"):
        beside.start(list) if how == "start" else getattr(beside, how)()
    beside.check()
    beside.finish()


def test_a_look_at_a_job_under_way_does_not_wait() -> None:
    beside, gate = Background(), threading.Event()
    beside.start(lambda: gate.wait(10))
    beside.check()  # returns
    gate.set()
    beside.finish()
