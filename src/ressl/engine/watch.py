"""A process that dies or stops is noticed by the others, which would otherwise wait for it without end.

Every process writes a sign of life into the job's key-value store once a second and reads that of its right-hand
neighbour. The signs come from a thread of their own, so a process that is only slow (it compiles, it evaluates, it
writes a checkpoint) is never taken for a dead one.
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ressl.errors import ResslError

LIMIT = 15.0  # seconds without a sign of life
EVERY = 1.0
EXIT_CODE = 1


def patience() -> float:
    """Seconds without a sign of life, as the user says."""
    text = os.environ.get("RESSL_PATIENCE_SECONDS", str(LIMIT))
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise ResslError(f"RESSL_PATIENCE_SECONDS must be a number of seconds above 0, not '{text}'")


class Watch:
    """Signs of life of this process, and an eye on the next one. ``close`` it before the processes part."""

    def __init__(self, store: Any, rank: int, world: int, limit: float | None = None) -> None:
        self.store, self.rank, self.neighbour = store, rank, (rank + 1) % world
        self.limit = limit or patience()
        self._closing = threading.Event()
        self._answered = time.monotonic()  # when the store last did
        self._seen, self._seen_at = b"", time.monotonic()  # the neighbour's newest sign
        # Two threads: the first may be held up by a store that no longer answers, the second never is.
        for work in (self._beat, self._look):
            threading.Thread(target=work, name=f"ressl watch {rank}", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def _beat(self) -> None:
        count = 0
        while not self._closing.wait(EVERY if count else 0.0):
            count += 1
            try:
                self.store.set(f"sign/{self.rank}", f"{_me()} {count}")
                if self.store.check([f"sign/{self.neighbour}"]):
                    sign = self.store.get(f"sign/{self.neighbour}")
                    if sign != self._seen:
                        self._seen, self._seen_at = sign, time.monotonic()
                if self.store.check(["gone"]):
                    self._leave(f"process {self.store.get('gone').decode()} of this job is gone")
            except Exception:  # the store's own process is gone: `_look` waits in case that is the normal end
                return
            self._answered = time.monotonic()

    def _look(self) -> None:
        while not self._closing.wait(EVERY / 2):
            now = time.monotonic()
            if now - self._answered > self.limit:
                if self.neighbour == 0:
                    self._end_neighbour()
                self._leave(
                    f"the job's store has not answered for {self.limit:g} s, so its process has died or stopped"
                )
            if self._seen and not _lives(self._seen):
                self._tell_gone()
                self._leave(f"process {self.neighbour} of this job has died")
            if now - self._seen_at > self.limit:  # also of one that was stopped before its first
                self._end_neighbour()
                self._tell_gone()
                self._leave(f"process {self.neighbour} of this job has shown no sign of life for {self.limit:g} s")

    def _tell_gone(self) -> None:
        with contextlib.suppress(Exception):
            self.store.set("gone", str(self.neighbour))

    def _end_neighbour(self) -> None:
        """A stopped process of this machine would hold up a restart: torchrun gives it 30 s to leave by itself."""
        if self._seen and _here(self._seen) and _lives(self._seen):
            with contextlib.suppress(OSError):
                os.kill(int(self._seen.split()[1]), signal.SIGKILL)

    def _leave(self, why: str) -> None:
        # The main thread may sit in a collective that nothing can interrupt; it gets a moment to say it better.
        if not self._closing.wait(2.0):
            print(f"ressl: rank {self.rank}: {why}; this process ends too", file=sys.stderr, flush=True)
            os._exit(EXIT_CODE)


def _me() -> str:
    """``machine pid start-time``: enough to know a process by."""
    return f"{_machine()} {os.getpid()} {_started(os.getpid())}"


def _machine() -> str:
    try:
        space = os.readlink("/proc/self/ns/pid")  # process numbers of another container mean nothing here
    except OSError:
        space = ""
    return f"{platform.node()}{space}".replace(" ", "")


def _started(pid: int) -> str:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "-"
    return "-" if fields[0] == "Z" else fields[19]


def _here(sign: bytes) -> bool:
    return sign.decode().split()[0] == _machine() and Path("/proc/self/stat").exists()


def _lives(sign: bytes) -> bool:
    """False when the process is of this machine and certainly gone."""
    _, pid, started, _ = sign.decode().split()
    return not _here(sign) or started == "-" or _started(int(pid)) == started
