"""The storm, tested: each safety switched off in turn, and the test that must notice.

    python tests/storm/mutants.py      runs them all and prints a table

Every line runs the short form of one storm test with one safety gone; it has to fail. ``STORM_MUTANT=name`` does that
to any test run of the storm.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _rename(put: Callable[..., None]) -> None:
    from ressl import checkpoints, runs
    from ressl.engine import records

    def write(path: Path, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    for module in (checkpoints, records, runs):
        put(module, "write_atomically", write)


def _queue(put: Callable[..., None]) -> None:
    from ressl.nn.queue import MemoryQueue

    plain = MemoryQueue.__init__

    def forgetful(self: Any, size: int, dim: int) -> None:
        plain(self, size, dim)
        for name in ("keys", "position"):
            self.register_buffer(name, getattr(self, name), persistent=False)

    put(MemoryQueue, "__init__", forgetful)


def _random(put: Callable[..., None]) -> None:
    from ressl.engine import loop

    put(loop, "random_states", lambda device: {})


def _optimiser(put: Callable[..., None]) -> None:
    from ressl.engine import loop

    put(loop, "load_optimiser_tensors", lambda *args: None)


def _rows(put: Callable[..., None]) -> None:
    from ressl.engine import records

    plain = records.Records.__init__
    put(records.Records, "__init__", lambda self, folder, from_step=0, rows=None: plain(self, folder, 10**9))


def _checksum(put: Callable[..., None]) -> None:
    from ressl import checkpoints

    class Agrees:
        def update(self, piece: object) -> None: ...
        def hexdigest(self) -> Any:
            class Same(str):
                def encode(self, *args: Any) -> Any:  # type: ignore[override]
                    return Any_()

            return Same()

    class Any_(bytes):
        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = bytes.__hash__

    plain = checkpoints.load

    def load(path: Path) -> Any:
        real = checkpoints.hashlib.sha256
        checkpoints.hashlib.sha256 = Agrees  # type: ignore[assignment, misc]
        try:
            return plain(path)
        finally:
            checkpoints.hashlib.sha256 = real  # type: ignore[misc]

    put(checkpoints, "load", load)


def _skip(put: Callable[..., None]) -> None:
    from ressl.engine.step import TrainStep

    plain = TrainStep.after
    put(TrainStep, "after", lambda self, carry, finite, logs: plain(self, carry, finite | True, logs))


def _flag(put: Callable[..., None]) -> None:
    from ressl.engine.step import TrainStep

    plain = TrainStep.after

    def after(self: Any, carry: Any, finite: Any, logs: Any) -> None:
        theirs, self.kept = self.kept, self.kept.clone()
        plain(self, carry, finite, logs)
        self.kept = theirs

    put(TrainStep, "after", after)


def _spoilt(put: Callable[..., None]) -> None:
    from ressl.checkpoints import Checkpoint

    put(Checkpoint, "spoilt", lambda self: None)


def _alien(put: Callable[..., None]) -> None:
    from ressl.runs import Run

    put(Run, "refuse_alien", lambda *args: None)


def _at_once(put: Callable[..., None]) -> None:
    from ressl.engine.signals import StopRequest

    put(StopRequest, "leave", lambda self: None)


def _unpickler(put: Callable[..., None]) -> None:
    import pickle

    from ressl.data.cifar import _Unpickler

    put(_Unpickler, "find_class", pickle._Unpickler.find_class)  # type: ignore[attr-defined]


def _objects(put: Callable[..., None]) -> None:
    import numpy

    plain = numpy.load
    put(numpy, "load", lambda *args, **more: plain(*args, **(more | {"allow_pickle": True})))


def _bombs(put: Callable[..., None]) -> None:
    from ressl.data.decode import Picture

    put(Picture, "_refuse_bombs", lambda *args: None)


def _names(put: Callable[..., None]) -> None:
    from ressl.data import archives

    put(archives, "_check_name", lambda text: None)
    put(archives, "_extract_tar", lambda path, folder: __import__("tarfile").open(path).extractall(folder, filter=None))


def _workers(put: Callable[..., None]) -> None:
    from ressl import training
    from ressl.data import streaming

    for module in (streaming, training):
        put(module, "lost_worker", lambda error: None)


def _escaping(put: Callable[..., None]) -> None:
    from ressl.report import markup  # type: ignore[attr-defined]

    put(markup.html, "escape", lambda text, quote=True: text)


MUTANTS: dict[str, tuple[Callable[..., None], str, str]] = {
    # name: how, what it is in words, the test that must fail
    "rename": (_rename, "checkpoints written in place, without the rename", "test_saves.py"),
    "queue": (_queue, "the queue left out of checkpoints", "test_kills.py"),
    "random": (_random, "torch's random state left out of checkpoints", "test_kills.py"),
    "optimiser": (_optimiser, "the optimiser's state not taken from checkpoints", "test_kills.py"),
    "rows": (_rows, "rows after the checkpoint not taken back", "test_kills.py"),
    "checksum": (_checksum, "checksums not compared", "test_damage.py"),
    "skip": (_skip, "teacher, queue and record not told of a bad step", "test_nonfinite.py"),
    "flag": (_flag, "teacher and queue deaf to the flag", "test_nonfinite.py"),
    "spoilt": (_spoilt, "weights and statistics not looked at in checkpoints", "test_nonfinite.py"),
    "alien": (_alien, "checkpoints of other experiments taken", "test_alien.py"),
    "leave": (_at_once, "signals noted but not obeyed", "test_phases.py"),
    "worker": (_workers, "a lost worker not recognised", "test_workers.py"),
    "unpickler": (_unpickler, "CIFAR's pickles read by the ordinary unpickler", "test_hostile.py"),
    "objects": (_objects, "arrays of objects allowed", "test_hostile.py"),
    "bombs": (_bombs, "bombs not refused", "test_pictures.py"),
    "names": (_names, "names in archives not looked at", "test_escapes.py"),
    "escaping": (_escaping, "names not escaped in the page", "test_markup.py"),
}


def switch_off(name: str, put: Callable[..., None]) -> None:
    """Switch one safety off; ``put`` is setattr or monkeypatch's."""
    MUTANTS[name][0](put)


def main() -> int:
    here, missed = Path(__file__).parent, 0
    chosen = sys.argv[1:] or list(MUTANTS)
    for name, (_, words, test) in ((name, MUTANTS[name]) for name in chosen):
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(here / test)]
        done = subprocess.run(command, env=os.environ | {"STORM_MUTANT": name}, capture_output=True, text=True)
        if done.returncode == 5 or (not done.returncode and " skipped" in done.stdout and " passed" not in done.stdout):
            print(f"{'skipped':12} {words}")
            continue
        noticed = done.returncode == 1 and "FAILED" in done.stdout
        missed += not noticed
        failed = [line.split("::")[-1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
        print(f"{'red' if noticed else 'NOT NOTICED':12} {words} ({test}: {', '.join(failed) or done.stdout[-300:]})")
    return missed


if __name__ == "__main__":
    sys.exit(main())
