"""All that is measured on a GPU, in the time there is: `python benchmarks/everything.py --data data --minutes 90`.

First the paper's tables, while the kernels of the measurements are compiled beside them (two lanes: nobody times
anything then); after that one measurement after the other, alone on the card. What would not be done in time is not
begun, what takes too long is asked to stop, and nothing that fails keeps the rest waiting: every step has a log, and
its records are in `--into` as soon as they are made. Run it again, with `--only`, for what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

RESSL, HERE = [sys.executable, "-m", "ressl"], Path(__file__).parent
PATIENCE = 60.0  # seconds between being asked to stop and being stopped


class Step(NamedTuple):
    name: str
    minutes: float  # about, with kernels compiled; of a table: what is worth beginning for
    words: Sequence[str]
    warm: bool = False  # its kernels can be compiled ahead: a short run of it makes them all
    piece: bool = False  # of another step, and made where it is named


def tables(data: Path, into: Path, runs: Path) -> list[Step]:
    """The runs of the paper's tables, the full ones first."""
    short = ["--quick", "--only"]
    wanted = {
        "table1-ressl": ["table1", "--only", "ReSSL, Tiny ImageNet"],
        "table1-cifar100": ["table1", "--only", "ReSSL, CIFAR-100", "--seeds", "0", "1", "2"],
        "table1-cifar10": ["table1", "table3", "--only", "cifar-10"],
        "temperatures": ["table2", *short, "cifar-10, tau_s 0.1"],
        "collapse": ["table-temperature", *short, "cifar-10"],
        "queues-and-views": ["table4", "table-augmentation", *short, "cifar-10"],
    }
    place = ["--jobs", "2", "--data", str(data), "--into", str(into), "--runs", str(runs / "reproduce")]
    return [Step(name, 1.0, [*RESSL, "reproduce", *words, *place]) for name, words in wanted.items()]


def measurements(data: Path, into: Path, runs: Path, photos: Path | None) -> list[Step]:
    """What must have the card for itself."""
    bench, cost, to = [*RESSL, "bench"], [*RESSL, "cost"], ["--into", str(into)]
    cold = [sys.executable, str(HERE / "cold.py"), "--out", str(runs / "cold"), *to]
    steps = [
        Step("cold", 4.5, [*cold, "cifar10", "--data", str(data / "cifar10")]),
        Step("tests", 4.0, [sys.executable, "-m", "pytest", "-q", "-n", "4", str(HERE.parent / "tests" / "gpu")]),
        Step("bench-cifar10", 7.0, [*bench, "cifar10", *to], warm=True),
        Step("bench-tiny", 1.0, [*bench, "tiny-imagenet", *to, "--parts", "ceilings", "engines:graph"], warm=True),
        Step(
            "bench-r50", 2.0, [*bench, "imagenet-r50", *to, "--parts", "ceilings", "engines:graph", "loss"], warm=True
        ),
        Step("cost-cifar10", 4.0, [*cost, "cifar10", *to], warm=True),
        Step("cost-imagenet", 4.0, [*cost, *to], warm=True),
        Step("sides-cifar10", 2.0, [*bench, "cifar10", *to, "--parts", "sweeps:image_size"], piece=True),
        Step("engines-r50", 2.5, [*bench, "imagenet-r50", *to, "--parts", "engines:compile", "profile"], piece=True),
        Step("cost-5-crops", 2.5, [*cost, *to, "--only", "5 crops"], piece=True),
    ]
    if photos is not None:
        parts = ["--parts", "loader", "profile", "--data", str(photos), "--seconds", "20"]
        steps.append(Step("loader", 3.0, [*bench, "imagenet-r50", *to, *parts]))
    return steps


class Journal:
    """What was begun and what came of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, list[dict[str, Any]]()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._over = False
        folder.mkdir(parents=True, exist_ok=True)

    def note(self, name: str, what: str, seconds: float = 0.0) -> None:
        self.rows.append({"step": name, "what": what, "seconds": round(seconds, 1)})
        print(f"{name:20} {what:24} {seconds:7.1f} s", flush=True)
        (self.folder / "journal.json").write_text(json.dumps(self.rows, indent=1) + "\n")

    def take(self, name: str, words: Sequence[str], end: float) -> None:
        """One step, until it is done or the time is up."""
        if self._over:
            return
        start = time.monotonic()
        with open(self.folder / f"{name}.log", "wb") as log:
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            self._running.add(process)
            try:
                process.wait(max(0.0, end - start))
            except subprocess.TimeoutExpired:
                self._stop(process)
            self._running.discard(process)
        late = time.monotonic() > end
        told = "the time was up" if late else "done" if not process.returncode else f"exit code {process.returncode}"
        self.note(name, told, time.monotonic() - start)

    def stop(self) -> None:
        """Whatever runs, and begin nothing more: another lane may be about to."""
        self._over = True
        for process in [*self._running]:
            self._stop(process)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        for signum, patience in ((signal.SIGTERM, PATIENCE), (signal.SIGKILL, 10.0)):
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signum)
                process.wait(patience)


def make(first: Sequence[Step], alone: Sequence[Step], minutes: float, journal: Journal) -> None:
    """``first``, with what can be compiled ahead beside it; then those who want to be ``alone``."""
    end = time.monotonic() + 60 * minutes
    trained = end - 60 * sum(step.minutes for step in alone)
    over = threading.Event()  # who compiles ahead stops when there is nobody to do it beside

    def train() -> None:
        try:
            for step in first:
                left = (trained - time.monotonic()) / 60
                if left < step.minutes:
                    journal.note(step.name, "no time for it")
                    continue
                more = ["--minutes", f"{left:.1f}"] if "reproduce" in step.words else []
                journal.take(step.name, [*step.words, *more], trained)
        finally:
            over.set()

    lane = threading.Thread(target=train, daemon=True)
    lane.start()
    for step in alone:
        if step.warm and not over.is_set():
            scratch = ["--seconds", "0.05", "--into", str(journal.folder / "scratch")]
            journal.take(f"{step.name}-ahead", [*step.words, *scratch], trained)
    while lane.is_alive():  # a join without an end would not hear a signal
        lane.join(0.2)
    for step in alone:
        if time.monotonic() + 60 * step.minutes > end:
            journal.note(step.name, "no time for it")
        else:
            journal.take(step.name, step.words, end)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="with a folder per data set (default: data)")
    parser.add_argument("--photos", type=Path, help="JPEG files for the loader")
    parser.add_argument("--minutes", type=float, default=90.0)
    parser.add_argument("--only", nargs="+", default=[], metavar="STEP", help="of those that --list names")
    parser.add_argument("--list", action="store_true", help="name the steps, and stop")
    parser.add_argument("--into", type=Path, default=Path("results"))
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--logs", type=Path, default=Path("runs/everything"))
    options = parser.parse_args()
    first = tables(options.data, options.into, options.runs)
    alone = measurements(options.data, options.into, options.runs, options.photos)
    known = [step.name for step in (*first, *alone)]
    if options.list:
        print("\n".join(known))
        return 0
    for name in options.only:
        if name not in known:
            parser.error(f"there is no step '{name}'; --list names them")
    chosen = lambda steps: [step for step in steps if (step.name in options.only if options.only else not step.piece)]
    journal = Journal(options.logs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        make(chosen(first), chosen(alone), options.minutes, journal)
    finally:
        journal.stop()
    return 0 if all(row["what"] == "done" for row in journal.rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
