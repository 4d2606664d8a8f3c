"""The step on a CPU, the ways it can be run: layouts, threads, compiled or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ressl.bench.steps import step_speed
from ressl.engine.step import TrainStep
from ressl.recipes.recipe import Recipe


def _channels_last(step: TrainStep) -> int:
    step.method.to(memory_format=torch.channels_last)
    step.memory_format = torch.channels_last
    return 1


LAYOUTS: dict[str, Callable[[TrainStep], int]] = {"contiguous": lambda step: 1, "channels last": _channels_last}


def cpu_ways(recipe: Recipe, seconds: float, say: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """The recipe's own step in every way; the first row is what PyTorch does if nobody chooses."""
    cpu, cores = torch.device("cpu"), torch.get_num_threads()
    try:
        for threads in dict.fromkeys((cores, max(1, cores // 2))):
            torch.set_num_threads(threads)
            for engine in ("eager", "compile"):
                for layout, change in LAYOUTS.items():
                    row = step_speed(recipe, cpu, engine, "fp32", seconds, change=change)
                    name = f"{engine}, {layout}, {threads} threads"
                    say(f"{name}: {row['images_per_second']:,.0f} images/s")
                    yield {"way": name, "threads": threads, "layout": layout, **row}
    finally:
        torch.set_num_threads(cores)
