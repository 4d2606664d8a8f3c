"""One job at a time beside the training, whose failure is not missed."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Background:
    """Runs a job in a thread; the next job, or :meth:`finish`, waits for it and raises what it raised.

    A process that ends by itself waits for the job too, so that it does not end in the middle of a write.

    >>> beside, done = Background(), []
    >>> beside.start(lambda: done.append(1))
    >>> beside.finish()
    >>> done
    [1]
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._job: Future[None] | None = None
        self.seconds = 0.0  # that the last job took

    def start(self, job: Callable[[], Any]) -> None:
        self.finish()
        self._job = self._pool.submit(self._run, job)

    def _run(self, job: Callable[[], Any]) -> None:
        begun = time.monotonic()
        try:
            job()
        finally:
            self.seconds = time.monotonic() - begun

    def check(self) -> None:
        """Raise what the job raised, if it has ended."""
        if self._job is not None and self._job.done():
            self.finish()

    def finish(self) -> None:
        """Wait for the job, and raise what it raised."""
        job, self._job = self._job, None
        if job is not None:
            job.result()
