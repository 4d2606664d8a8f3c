"""The whole step as one CUDA graph, and back to a plain step where it cannot be one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from ressl.data.batches import Batch
from ressl.engine import scouts
from ressl.engine.ahead import Rehearsal
from ressl.engine.compiling import wake_compiler
from ressl.engine.generators import random_states, set_random_states
from ressl.engine.lookahead import LookAhead
from ressl.engine.optimisers import optimiser_tensors
from ressl.engine.step import TrainStep
from ressl.engine.streams import beside, join
from ressl.errors import ResslError

WARM_UP = 2  # steps before capture: the first compiles and chooses kernels, the second runs as the rest will


class Watcher(Protocol):
    """Who is told what a long start is busy with."""

    def busy(self, what: str, done: int, total: int) -> None: ...
    def message(self, text: str) -> None: ...


class Start:
    """The parts of a start, each told when it begins; in the end how long they took, if that was long."""

    PARTS = 4
    LONG = 5.0  # seconds

    def __init__(self, watcher: Watcher | None) -> None:
        self.watcher, self.began = watcher, list[tuple[str, float]]()

    def next(self, what: str) -> None:
        if self.watcher is not None:
            self.watcher.busy(what, len(self.began), self.PARTS)
        self.began.append((what, time.monotonic()))

    def end(self) -> None:
        self.began.append(("", time.monotonic()))
        if self.watcher is not None and (whole := self.began[-1][1] - self.began[0][1]) > self.LONG:
            parts = ", ".join(f"{what} {after - before:.1f}" for (what, before), (_, after) in pairwise(self.began))
            self.watcher.message(f"the step was ready after {whole:.1f} s ({parts})")


class GraphedBody:
    """The body of a step as a CUDA graph, captured on first use and replayed ever after."""

    def __init__(
        self,
        step: TrainStep,
        say: Callable[[str], None],
        rehearsal: Rehearsal | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.step, self.plain, self.say, self.rehearsal, self.watcher = step, step.body, say, rehearsal, watcher
        self.graph: torch.cuda.CUDAGraph | None = None
        self.fixed: Batch | None = None  # where a streaming loader's batch is put for the graph to read

    def __call__(self, batch: Batch | None) -> None:
        if self.graph is None and not self._captured(batch):
            return self.step.body(batch)
        assert self.graph is not None
        if batch is not None and self.fixed is not None:
            for mine, new in zip(_tensors(self.fixed), _tensors(batch), strict=True):
                mine.copy_(new, non_blocking=True)
        if self.step.turned:
            self.step.catch_up()
        return self.graph.replay()

    def _captured(self, batch: Batch | None) -> bool:
        """Whether that could be done; where it could not, the step is as it was, and a plain one from now on."""
        device, weights = self.step.device, snapshot(self.step)
        drawn = random_states(device)

        def put_back() -> None:
            weights()
            set_random_states(drawn, device)  # a rehearsal draws, and so may a method

        try:
            self._capture(batch, put_back)
        except (torch.OutOfMemoryError, ResslError):
            raise
        except Exception as error:  # also the compiler's; a fault of the step itself comes again when it runs plainly
            self.graph = None
            with contextlib.suppress(RuntimeError):  # which a capture that failed may forbid
                if device.type == "cuda":  # what runs beside this would write over what is put back
                    torch.cuda.synchronize(device)
            weights()
            with contextlib.suppress(RuntimeError):
                set_random_states(drawn, device)
            reason = (str(error).strip() or type(error).__name__).split("\n")[0]
            self.say(f"engine eager, because this step cannot be a CUDA graph here: {reason}")
            plain_again(self.step)
            return False
        return True

    def _capture(self, batch: Batch | None, put_back: Callable[[], None]) -> None:
        self.fixed = fixed = None if batch is None else _own(batch, self.step.device)
        side, start = torch.cuda.Stream(self.step.device), Start(self.watcher)
        with beside(side):
            if self.rehearsal is not None:
                self._make_ready(self.rehearsal, fixed, start)
            else:
                _helped(self.step.device)
            start.next("compiling the step")
            for _ in range(WARM_UP):
                self.plain(fixed)
        join(side)
        put_back()
        torch.cuda.synchronize(self.step.device)
        start.next("capturing it")
        torch._C._cuda_clearCublasWorkspaces()  # of the streams that warmed up; those of the graph are its own
        self.graph = torch.cuda.CUDAGraph()
        with _growing_memory(), torch.cuda.graph(self.graph):
            self.plain(fixed)
        self.step.settle()
        self.step.turned = True  # what was looked at while warming up lies behind
        start.end()

    def _make_ready(self, rehearsal: Rehearsal, fixed: Batch | None, start: Start) -> None:
        """Views and networks, each while other processes work for the other one."""

        def views() -> None:
            start.next("compiling the views")
            _helped(self.step.device)
            self.step.prepare(fixed)

        def networks() -> None:
            start.next("choosing convolutions")
            rehearsal.choose()
            rehearsal.join()
            if scouts.out() and isinstance(self.step.prepare, LookAhead):
                scouts.wait("rest")
                with self.step.prepare.in_the_dark():
                    self.plain(fixed)

        for part in (networks, views) if scouts.out() else (views, networks):
            part()


def _helped(device: torch.device) -> None:
    """Wait for those who compile ahead; where they did not, the compiler gets helpers of its own."""
    if not scouts.back():
        wake_compiler(device)  # a method of the user's, for example, which they do not know


@contextlib.contextmanager
def _growing_memory() -> Iterator[None]:
    """Memory in segments that grow: room that small results leave behind serves large ones as well.

    The allocator's setting is the process's, and other programs may not expect it, so it holds for a capture alone.
    """
    chosen = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if "expandable_segments" in chosen:
        yield
        return
    also = lambda value: torch._C._accelerator_setAllocatorSettings(f"{chosen},{value}".strip(","))
    also("expandable_segments:True")
    try:
        yield
    finally:
        also("expandable_segments:False")


def _own(batch: Batch, device: torch.device) -> Batch:
    def copy(x: Tensor) -> Tensor:
        return x.to(device).clone()

    return Batch(
        copy(batch.index),
        None if batch.images is None else copy(batch.images),
        None if batch.crops is None else [copy(crop) for crop in batch.crops],
        None if batch.labels is None else copy(batch.labels),
    )


def _tensors(batch: Batch) -> list[Tensor]:
    return [x for x in (batch.index, batch.images, *(batch.crops or ()), batch.labels) if x is not None]


def snapshot(step: TrainStep) -> Callable[[], None]:
    """Remember everything a step changes; the returned function puts it back in place."""
    live = [*step.method.state_dict().values(), *optimiser_tensors(step.optimiser, step.method).values()]
    live += [step.step, step.first_bad, step.ring]
    saved = [tensor.clone() for tensor in live]

    @torch.no_grad()
    def put_back() -> None:
        for tensor, value in zip(live, saved, strict=True):
            tensor.copy_(value)

    return put_back


def plain_again(step: TrainStep) -> None:
    """Undo what ``accelerate`` put in: everything it did hangs on the objects, and the classes' own come back."""
    for module in step.method.modules():
        for name in ("forward", "update"):
            module.__dict__.pop(name, None)
    step.method.__dict__.pop("target", None)
    for name in ("prepare", "after", "body", "grad_norm"):
        step.__dict__.pop(name, None)
    step.optimiser.__dict__.pop("step", None)
    step.optimiser.zero_grad(set_to_none=True)  # of a step that was not finished
    step.call, step.engine = step.method, "eager"
    step.collect = step.settle = step.catch_up = lambda: None
