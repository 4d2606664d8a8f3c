"""The step on a CPU, the ways it can be run: layouts, threads, compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ressl.bench.steps import step_speed
from ressl.engine.accelerate import lay
from ressl.engine.step import TrainStep
from ressl.nn import GroupedBatchNorm2d
from ressl.recipes.recipe import Recipe


def _written_out(step: TrainStep) -> int:
    """Batch norm of groups as one would first write it, in plain operations."""
    for part in step.method.modules():
        if isinstance(part, GroupedBatchNorm2d):
            part._native = part._explicit  # type: ignore[method-assign]
    return 1


def _in(layout: torch.memory_format) -> Callable[[TrainStep], int]:
    def change(step: TrainStep) -> int:
        lay(step, layout)
        return 1

    return change


WAYS: dict[str, tuple[str, Callable[[TrainStep], int]]] = {
    "eager, norms written out": ("eager", _written_out),
    "eager": ("eager", _in(torch.contiguous_format)),
    "eager, channels last": ("eager", _in(torch.channels_last)),
    "compile": ("compile", _in(torch.contiguous_format)),
    "compile, channels last": ("compile", _in(torch.channels_last)),
}


def cpu_ways(recipe: Recipe, seconds: float, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """The recipe's own step in every way; the first row is the plainest."""
    cpu, cores = torch.device("cpu"), torch.get_num_threads()
    try:
        for threads in dict.fromkeys((cores, max(1, cores // 2))):
            torch.set_num_threads(threads)
            for name, (engine, change) in WAYS.items():
                row = step_speed(recipe, cpu, engine, "fp32", seconds, change=change)
                shown = f"{name}, {threads} thread{'s' * (threads > 1)}"
                say(f"{shown}: {row['images_per_second']:,.0f} images/s, ready after {row['start_seconds']:.0f} s")
                yield {"way": shown, "threads": threads, **row}
    finally:
        torch.set_num_threads(cores)
