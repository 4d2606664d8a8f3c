"""One job at a time beside the training, whose failure is not missed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


class Background:
    """Runs a job in a thread; the next job, or :meth:`finish`, waits for it and raises what it raised.

    >>> beside, done = Background(), []
    >>> beside.start(lambda: done.append(1))
    >>> beside.finish()
    >>> done
    [1]
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0  # that the last job took

    def start(self, job: Callable[[], Any]) -> None:
        self.finish()

        def run() -> None:
            begun = time.monotonic()
            try:
                job()
            except BaseException as error:
                self._error = error
            self.seconds = time.monotonic() - begun

        # No daemon: a process that ends by itself does not end in the middle of a write.
        self._thread = threading.Thread(target=run, name="checkpoint", daemon=False)
        self._thread.start()

    def check(self) -> None:
        """Raise what the job raised, if it has ended."""
        if self._thread is not None and not self._thread.is_alive():
            self.finish()

    def finish(self) -> None:
        """Wait for the job, and raise what it raised."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
