"""A run of 4 processes that is stopped goes on as 2: ``python fewer.py PLACE``; for test_fewer.py, in one import."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from forks import together
from test_faults import words

from ressl import cli
from ressl.engine.step import TrainStep

STOP = 6  # the step after which the first is stopped


def stopped(arguments: list[str], rank: int) -> int:
    """The command, of which the last rank is asked to stop."""
    plain = TrainStep.advance

    def advance(step: TrainStep, batch: Any = None) -> None:
        plain(step, batch)
        if step.done == STOP and rank == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    TrainStep.advance = advance  # type: ignore[method-assign]
    return cli.main(arguments)


def main(place: Path) -> None:
    more = ["--bn-groups", "4", "--epochs", "4"]
    one, fewer = ([*words(place, place / name), *more] for name in ("one", "fewer"))
    resumed = ["pretrain", "--resume", "--out", str(place / "fewer"), "--device", "cpu", "--log-steps", "1"]
    print(together(1, lambda rank: cli.main(one)), flush=True)
    print(together(4, lambda rank: stopped(fewer, rank)), flush=True)
    print(together(2, lambda rank: cli.main(resumed)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
