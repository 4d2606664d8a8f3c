"""A run of 4 processes that is stopped goes on as 2: ``python fewer.py PLACE``; for test_fewer.py, in one import."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from typing import Any

import torch
from test_faults import words
from test_together import free_port

import ressl.nn.resnet  # noqa: F401 - loaded once, for all processes
from ressl import cli
from ressl.engine.step import TrainStep

STOP = 6  # the step after which the first is stopped


def rank_of(rank: int, world: int, port: int, arguments: list[str], stop: int) -> None:
    torch.set_num_threads(1)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    os.environ |= {name: str(x) for name, x in zip(names, (rank, world, rank, "127.0.0.1", port), strict=True)}
    plain = TrainStep.advance

    def advance(step: TrainStep, batch: Any = None) -> None:
        plain(step, batch)
        if step.done == stop and rank == world - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    TrainStep.advance = advance  # type: ignore[method-assign]
    sys.exit(cli.main(arguments))


def together(world: int, arguments: list[str], stop: int = 0) -> list[int | None]:
    """The exit codes of so many processes."""
    fork, port = multiprocessing.get_context("fork"), free_port()
    team = [fork.Process(target=rank_of, args=(rank, world, port, arguments, stop)) for rank in range(world)]
    for process in team:
        process.start()
    for process in team:
        process.join()
    return [process.exitcode for process in team]


def main(place: Any) -> None:
    more = ["--bn-groups", "4", "--epochs", "4"]
    print(together(1, [*words(place, place / "one"), *more]), flush=True)
    print(together(4, [*words(place, place / "fewer"), *more], STOP), flush=True)
    print(
        together(2, ["pretrain", "--resume", "--out", str(place / "fewer"), "--device", "cpu", "--log-steps", "1"]),
        flush=True,
    )


if __name__ == "__main__":
    from pathlib import Path

    main(Path(sys.argv[1]))
