"""Ctrl-C, SIGTERM and SIGUSR1: finish the step, save, leave. A second Ctrl-C leaves at once."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

# SIGUSR1 is what SLURM users have sent ahead of the time limit (--signal=USR1@120). Windows has none.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))
ECHO = 1.0  # seconds that a launcher may take to send a signal on


class Interrupted(Exception):
    """Training was stopped by a signal after its state was saved."""

    def __init__(self, signum: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name} after step {step}")
        self.exit_code = 128 + signum
        self.step = step

    def __reduce__(self) -> tuple[type[Interrupted], tuple[int, int]]:
        return Interrupted, (self.exit_code - 128, self.step)  # to another process


class Leave(BaseException):
    """A signal where there is nothing to wait for. Not an Exception: no handler on the way may keep it."""


class StopRequest:
    """While active, turns the signals into a flag that the loop reads between two steps."""

    def __init__(self, launched: bool = False) -> None:
        """``launched``: a launcher started us, so that not every SIGINT is a Ctrl-C."""
        self.signum: int | None = None
        self._came = 0.0  # when
        self._launched = launched
        self._at_once = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                self._previous[signum] = signal.signal(signum, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def heard(self, signum: int) -> None:
        """Another process was asked to stop, and all do so."""
        if self.signum is None:
            self._came = time.monotonic()
        self.signum = signum

    def leave(self) -> None:
        """Raise :class:`Leave` if a signal has come."""
        if self.signum is not None:
            raise Leave

    @contextmanager
    def at_once(self, really: bool = True) -> Iterator[None]:
        """Around what may be broken off anywhere: a signal raises :class:`Leave` then and there."""
        self._at_once = really
        try:
            if really:
                self.leave()
            yield
        finally:
            self._at_once = False

    def _is_the_launchers(self) -> bool:
        """A launcher sends on the Ctrl-C that we have from the terminal too; and its death comes as a SIGINT."""
        return self._launched and (self.signum != signal.SIGINT or time.monotonic() - self._came < ECHO)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:  # the first one says what the exit code is
            if signum == signal.SIGINT and not self._is_the_launchers():
                raise KeyboardInterrupt
            return
        self.signum, self._came = signum, time.monotonic()
        if self._at_once:
            raise Leave


class Terminated(BaseException):
    """A signal outside of training, where there is nothing to save: what is half written goes, and so do we."""

    def __init__(self, signum: int) -> None:
        super().__init__(signal.Signals(signum).name)
        self.exit_code = 128 + signum


@contextmanager
def undefended() -> Iterator[None]:
    """Around a wait that no handler of Python's can break off: a signal ends the process there and then. Nothing may be
    written yet."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        previous = {signum: signal.signal(signum, signal.SIG_DFL) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextmanager
def tidy_exit() -> Iterator[None]:
    """Turn the signals (Ctrl-C apart, which Python itself turns) into :class:`Terminated`, so that clean-ups run."""

    def end(signum: int, frame: FrameType | None) -> None:
        raise Terminated(signum)

    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        previous = {signum: signal.signal(signum, end) for signum in SIGNALS if signum != signal.SIGINT}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
