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
    from ressl import runs
    from ressl.engine import checkpoint, records

    def write(path: Path, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    for module in (checkpoint, records, runs):
        put(module, "write_atomically", write)


def _queue(put: Callable[..., None]) -> None:
    import child

    from ressl.nn.queue import MemoryQueue

    plain = MemoryQueue.__init__

    def forgetful(self: Any, size: int, dim: int) -> None:
        plain(self, size, dim)
        for name in ("keys", "position"):
            self.register_buffer(name, getattr(self, name), persistent=False)

    put(MemoryQueue, "__init__", forgetful)
    put(child, "MISSING", {"method.queue.keys", "method.queue.position"})


def _random(put: Callable[..., None]) -> None:
    import child

    from ressl.engine import loop

    put(loop, "random_states", lambda device: {})
    put(child, "MISSING", {"random.cpu"})


MUTANTS: dict[str, tuple[Callable[..., None], str, str]] = {
    # name: how, what it is in words, the test that must fail
    "rename": (_rename, "checkpoints written in place, without the rename", "test_saves.py"),
    "queue": (_queue, "the queue left out of checkpoints", "test_kills.py"),
    "random": (_random, "torch's random state left out of checkpoints", "test_kills.py"),
}


def switch_off(name: str, put: Callable[..., None]) -> None:
    """Switch one safety off; ``put`` is setattr or monkeypatch's."""
    MUTANTS[name][0](put)


def main() -> int:
    here, missed = Path(__file__).parent, 0
    for name, (_, words, test) in MUTANTS.items():
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(here / test)]
        done = subprocess.run(command, env=os.environ | {"STORM_MUTANT": name}, capture_output=True, text=True)
        noticed = done.returncode == 1 and " failed" in done.stdout
        missed += not noticed
        failed = [line.split("::")[-1].split(" ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")]
        print(f"{'red' if noticed else 'NOT NOTICED':12} {words} ({test}: {', '.join(failed) or done.stdout[-300:]})")
    return missed


if __name__ == "__main__":
    sys.exit(main())
