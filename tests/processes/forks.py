"""Processes of one job, forked from one that has imported everything: many of them start in the time of one."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable

import torch
from test_together import free_port

import ressl.nn.resnet  # noqa: F401 - loaded once, for all processes

Act = Callable[[int], int]  # what a rank does, and its exit code


def together(world: int, act: Act) -> list[int | None]:
    """The exit codes of so many processes."""
    fork, port = multiprocessing.get_context("fork"), free_port()
    team = [fork.Process(target=_rank_of, args=(rank, world, port, act)) for rank in range(world)]
    for process in team:
        process.start()
    for process in team:
        process.join()
    return [process.exitcode for process in team]


def _rank_of(rank: int, world: int, port: int, act: Act) -> None:
    torch.set_num_threads(1)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    os.environ |= {name: str(x) for name, x in zip(names, (rank, world, rank, "127.0.0.1", port), strict=True)}
    sys.exit(act(rank))
