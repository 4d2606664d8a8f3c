"""Where the time of a step goes: views, forward, backward, optimiser and teacher."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ressl.bench.steps import on_random_pictures
from ressl.bench.timing import seconds_per_call, wait
from ressl.data.batches import Batch
from ressl.engine.accelerate import accelerate
from ressl.engine.step import TrainStep
from ressl.methods import Output
from ressl.recipes.recipe import Recipe
from ressl.training import Settings, build_step

PHASES = ("views", "forward", "backward", "optimiser and teacher")
STEPS = 500  # at most


class Marks:
    """Moments within a step: events on a GPU, which do not wait for it, the clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.steps: list[list[Any]] = []

    def begin(self) -> None:
        self.steps.append([])
        self.mark()

    def mark(self) -> None:
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record(torch.cuda.current_stream(self.device))
            self.steps[-1].append(event)
        else:
            self.steps[-1].append(time.perf_counter())

    def milliseconds(self) -> list[list[float]]:
        """Per step, what lies between two marks."""
        wait(self.device)
        between: Callable[[Any, Any], float] = lambda a, b: 1000 * (b - a)
        if self.device.type == "cuda":
            between = lambda a, b: float(a.elapsed_time(b))
        return [[between(a, b) for a, b in pairwise(marks)] for marks in self.steps]


def step_phases(recipe: Recipe, device: torch.device, seconds: float) -> dict[str, Any]:
    """The median time of each phase. The step is compiled on a GPU, eager elsewhere, and never one CUDA graph: inside
    a graph the phases overlap. So on a GPU they include what the host takes to start their kernels.
    """
    engine, precision = ("compile", "bf16") if device.type == "cuda" else ("eager", "fp32")
    recipe, method, loader = on_random_pictures(recipe, device)
    step = build_step(recipe, method, loader, Settings(device=str(device), precision=precision), device)
    accelerate(step, engine)
    step.begin_epoch(0)
    each = seconds_per_call(step.advance, device, seconds / 5)
    marks = watched(step)
    for _ in range(max(3, min(STEPS, round(seconds / each)))):
        step.advance()
    medians = [statistics.median(column) for column in zip(*marks.milliseconds(), strict=True)]
    rows = [
        {"phase": phase, "milliseconds": round(value, 3), "share": round(value / sum(medians), 4)}
        for phase, value in zip(PHASES, medians, strict=True)
    ]
    return {"engine": step.engine, "precision": precision, "batch": recipe.batch_size,
            "milliseconds": round(sum(medians), 3), "phases": rows}  # fmt: skip


def watched(step: TrainStep) -> Marks:
    """The marks that every further step leaves where one phase ends and the next begins."""
    marks = Marks(step.device)
    body, prepare, call, update = step.body, step.prepare, step.call, step.update

    def marked(function: Callable[..., Any]) -> Callable[..., Any]:
        def then(*args: Any, **more: Any) -> Any:
            result = function(*args, **more)
            marks.mark()
            return result

        return then

    def whole(batch: Batch | None) -> None:
        marks.begin()
        body(batch)

    def last(output: Output, lr: Tensor) -> None:
        marks.mark()  # the backward is over
        update(output, lr)
        marks.mark()

    step.body, step.prepare, step.update = whole, marked(prepare), last  # type: ignore[method-assign]
    step.call = marked(call)
    return marks
