"""Ctrl-C and SIGTERM become a flag while training, and are what they were afterwards."""

from __future__ import annotations

import signal
import threading

import pytest

from ressl.engine.signals import Interrupted, StopRequest

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("signum", BOTH)
def test_a_signal_sets_the_flag_and_nothing_else(signum: signal.Signals) -> None:
    with StopRequest() as stop:
        assert stop.signum is None
        signal.raise_signal(signum)
        assert stop.signum == signum


def test_a_second_ctrl_c_leaves_at_once() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.signum == signal.SIGINT


def test_a_second_sigterm_still_waits_for_the_step() -> None:
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert stop.signum == signal.SIGTERM


def test_ctrl_c_after_sigterm_leaves_at_once() -> None:
    with StopRequest():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_launcher_sends_the_same_ctrl_c_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequest(launched=True):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr("ressl.engine.signals.ECHO", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with StopRequest(launched=True) as stop:
        monkeypatch.undo()
        stop.heard(signal.SIGINT)  # from another process, and then from the launcher
        signal.raise_signal(signal.SIGINT)
        assert stop.signum == signal.SIGINT


def test_the_end_of_a_launcher_is_no_ctrl_c() -> None:
    with StopRequest(launched=True) as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert stop.signum == signal.SIGTERM


def test_handlers_are_put_back_also_after_an_error() -> None:
    before = [signal.getsignal(s) for s in BOTH]
    with StopRequest():
        assert [signal.getsignal(s) for s in BOTH] != before
    assert [signal.getsignal(s) for s in BOTH] == before
    with pytest.raises(RuntimeError), StopRequest():
        raise RuntimeError
    assert [signal.getsignal(s) for s in BOTH] == before


def test_outside_the_main_thread_handlers_are_left_alone() -> None:
    before, seen = [signal.getsignal(s) for s in BOTH], []

    def elsewhere() -> None:
        with StopRequest() as stop:
            seen.append(([signal.getsignal(s) for s in BOTH], stop.signum))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [(before, None)]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_is_the_shell_s(signum: signal.Signals, code: int) -> None:
    stop = Interrupted(signum, 12)
    assert stop.exit_code == code
    assert signum.name in str(stop)
    assert "12" in str(stop)
