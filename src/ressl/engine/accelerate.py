"""Speed, applied from outside: channels-last, compiled kernels, and the whole step as one CUDA graph.

Methods, views and loaders know nothing of it, and the step computes the same with and without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ressl.data.batches import Batch
from ressl.engine.optimisers import optimiser_tensors
from ressl.engine.step import TrainStep
from ressl.errors import unknown

Engine = Literal["auto", "eager", "compile", "graph"]
ENGINES: tuple[str, ...] = get_args(Engine)
WARM_UP = 2  # steps before capture: the first compiles and chooses kernels, the second runs as the rest will


def lay_out(method: nn.Module, device: torch.device) -> nn.Module:
    """Move to the device in the layout its convolutions like; before the optimiser is made, whose state follows it."""
    method.to(device)
    return method.to(memory_format=torch.channels_last) if device.type == "cuda" else method


def accelerate(step: TrainStep, engine: str) -> tuple[str, str]:
    """Make ``step`` fast on its device; returns the engine in use and, where it is not the one asked for, why."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    on_gpu = step.device.type == "cuda"
    wanted = ("graph" if on_gpu else "eager") if engine == "auto" else engine
    why = ""
    if wanted == "graph" and not on_gpu:
        wanted, why = "eager", "CUDA graphs need a CUDA device"
    if on_gpu:
        torch.backends.cudnn.benchmark = True
        torch.set_float32_matmul_precision("high")  # TF32: ten bits more than bf16 has, at tensor-core speed
        step.memory_format = torch.channels_last
    if wanted in ("compile", "graph"):
        compile_parts(step)
    if wanted == "graph":
        step.body = GraphedBody(step)  # type: ignore[method-assign]
    return wanted, why


def compile_parts(step: TrainStep) -> None:
    """Compile what lies between the library's convolutions: views, network with loss, and the update."""
    step.prepare = torch.compile(step.prepare)  # type: ignore[method-assign]
    step.wrapped = torch.compile(step.method)  # type: ignore[assignment]
    step.after = torch.compile(step.after)  # type: ignore[method-assign]


class GraphedBody:
    """The body of a step as a CUDA graph, captured on first use and replayed ever after."""

    def __init__(self, step: TrainStep) -> None:
        self.step, self.plain = step, step.body
        self.graph: torch.cuda.CUDAGraph | None = None
        self.crops: list[Tensor] | None = None  # where a streaming loader's batch is put for the graph to read

    def __call__(self, batch: Batch | None) -> None:
        if self.graph is None:
            self._capture(batch)
        assert self.graph is not None
        if self.crops is not None and batch is not None and batch.crops is not None:
            for mine, new in zip(self.crops, batch.crops, strict=True):
                mine.copy_(new, non_blocking=True)
        self.graph.replay()

    def _capture(self, batch: Batch | None) -> None:
        fixed = batch
        if batch is not None and batch.crops is not None:
            self.crops = [crop.to(self.step.device).clone() for crop in batch.crops]
            fixed = batch._replace(crops=self.crops)
        put_back = snapshot(self.step)
        side = torch.cuda.Stream(self.step.device)
        side.wait_stream(torch.cuda.current_stream(self.step.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.plain(fixed)
        torch.cuda.current_stream(self.step.device).wait_stream(side)
        put_back()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.plain(fixed)


def snapshot(step: TrainStep) -> Callable[[], None]:
    """Remember everything a step changes; the returned function puts it back in place."""
    live = [*step.method.state_dict().values(), *optimiser_tensors(step.optimiser, step.method).values()]
    live += [step.step, step.first_bad]
    saved = [tensor.clone() for tensor in live]

    @torch.no_grad()
    def put_back() -> None:
        for tensor, value in zip(live, saved, strict=True):
            tensor.copy_(value)

    return put_back
