"""What the user sees while work goes on: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ressl.errors import printable

_SHOWN = (  # metric, how it is written
    ("epoch", "epoch {:.1f}"),
    ("loss", "loss {:.3f}"),
    ("lr", "lr {:.4f}"),
    ("images_per_second", "{:,.0f} img/s"),
    ("knn", "kNN {:.1f} %"),
    ("accuracy", "top-1 {:.2f} %"),
)


def summary(values: dict[str, float]) -> str:
    return "  ".join(text.format(values[name]) for name, text in _SHOWN if name in values)


def plain(text: str) -> str:
    """Lines without what a terminal would obey: names of files and classes come from anywhere."""
    return "\n".join(map(printable, text.split("\n")))


class Lines:
    """One line at most every ``seconds``, with the time left: for logs and pipes."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.seconds, self._start, self._first, self._last = seconds, time.monotonic(), -1, -1e9
        self._what, self._begun, self._from, self._done = "", 0.0, 0, 0
        self._before = 0

    def progress(self, done: int, total: int, values: dict[str, float]) -> None:
        now = time.monotonic()
        if self._first < 0 or done < self._before:  # the first, or another piece of work
            self._start, self._first = now, done
        self._before = done
        if now - self._last < self.seconds and done < total:
            return
        self._last = now
        pace = (now - self._start) / (done - self._first) if done > self._first else None
        left = "" if pace is None else f"  {_clock(pace * (total - done))} left"
        said = f"  {text}" if (text := summary(values)) else ""
        print(f"step {done}/{total}{said}{left}", flush=True)

    def busy(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what or done < self._done:  # another piece of work
            self._what, self._begun, self._from = what, now, done
        self._done = done
        if now - self._last >= self.seconds:
            self._last = now
            pace = (now - self._begun) / (done - self._from) if done > self._from else None
            left = "" if pace is None else f"  {_clock(pace * (total - done))} left"
            print(f"{what} {done:,}/{total:,}{left}", flush=True)

    def message(self, text: str) -> None:
        print(plain(text), flush=True)


class Bar:
    """A bar with loss, learning rate, images/s, kNN and time left."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("training", total=None, values="")
        self._before = 0

    def progress(self, done: int, total: int, values: dict[str, float]) -> None:
        self._show(done, total, summary(values))

    def busy(self, what: str, done: int, total: int) -> None:
        self._show(done, total, what)

    def _show(self, done: int, total: int, text: str) -> None:
        if done < self._before:  # another piece of work: its clock starts anew, also where it has as many steps
            self._bar.reset(self._task)
        self._before = done
        self._bar.update(self._task, completed=done, total=total, values=text)

    def message(self, text: str) -> None:
        self._bar.console.print(plain(text), highlight=False, markup=False, emoji=False)


class Silent:
    def progress(self, done: int, total: int, values: dict[str, float]) -> None: ...
    def busy(self, what: str, done: int, total: int) -> None: ...
    def message(self, text: str) -> None: ...


@contextmanager
def display(quiet: bool = False) -> Iterator[Lines | Bar | Silent]:
    """The display that fits where the output goes."""
    if quiet:
        yield Silent()
    elif not sys.stdout.isatty():
        yield Lines()
    else:
        columns = (
            SpinnerColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f} %"),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console()) as bar:
            yield Bar(bar)


def _clock(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
