"""What a step is made of: its arithmetic, its loss, and what each idea of the graph engine is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ressl import losses
from ressl.bench.steps import pictures, step_speed
from ressl.bench.timing import captured, seconds_per_call, wait
from ressl.data.batches import Batch
from ressl.data.loaders import ResidentLoader
from ressl.engine.accelerate import ALL_IDEAS, Ideas
from ressl.engine.compiling import compiled
from ressl.engine.graphs import GraphedBody
from ressl.engine.step import TrainStep
from ressl.recipes.recipe import Recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step


class Work(NamedTuple):
    """What a training step cannot do without: views, both networks and backward."""

    flops: float  # multiplications and additions for one picture
    numbers: float  # that its convolutions read and write for one picture, each once
    weights: float  # the same of their weights, for a whole step

    def bytes_per_image(self, batch: int, precision: str) -> float:
        return (self.numbers + self.weights / batch) * (2 if precision == "bf16" else 4)


def work_of(recipe: Recipe) -> Work:
    few = recipe.replace(batch_size=2 * recipe.bn_groups)
    cpu = torch.device("cpu")
    loader = ResidentLoader(pictures(few.batch_size, few.image_size), few.batch_size, cpu, 0)
    step = build_step(few, build_method(few), loader, Settings(device="cpu", precision="fp32"), cpu)
    step.begin_epoch(0)
    with FlopCounterMode(display=False) as counter, _Traffic() as traffic:
        step.advance()
    return Work(counter.get_total_flops() / few.batch_size, traffic.numbers / few.batch_size, traffic.weights)


class _Traffic(TorchDispatchMode):
    """Counts what convolutions read and write, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.weights = 0, 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        if operation is torch.ops.aten.convolution.default:
            self.numbers += args[0].numel() + result.numel()
            self.weights += args[1].numel()
        elif operation is torch.ops.aten.convolution_backward.default:
            gradient, pictures, weight = args[:3]
            of_pictures, of_weight = result[:2]
            if of_pictures is not None:
                self.numbers += gradient.numel() + pictures.numel()
                self.weights += weight.numel()
            if of_weight is not None:
                self.numbers += gradient.numel() + pictures.numel()
                self.weights += weight.numel()
        return result


def loss_cost(recipe: Recipe, device: torch.device, step_ms: float, seconds: float) -> dict[str, Any]:
    """Time and memory of the relational loss alone, forward and backward, and its share of the step.

    On a GPU as it is in a step, part of a graph: launched one by one its few kernels would wait for the host.
    """
    options = dict(recipe.options)
    B, K, D = recipe.batch_size, options["queue_size"], options["output_dim"]
    z1, z2, Q = (F.normalize(torch.randn(n, D, device=device), dim=1) for n in (B, B, K))
    z2.requires_grad_()
    loss = compiled(losses.relational) if device.type == "cuda" else losses.relational

    def once() -> None:
        z2.grad = None
        loss(z2, z1, Q).backward()

    once()
    wait(device)
    memory = None
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        once()
        wait(device)
        memory = round((torch.cuda.max_memory_allocated(device) - before) / 1e9, 3)
    on_gpu = device.type == "cuda"
    each = 1000 * seconds_per_call(captured(once) if on_gpu else once, device, seconds)
    return {"batch": B, "queue_size": K, "dim": D, "milliseconds": round(each, 3), "peak_memory_gb": memory,
            "share_of_step": round(each / step_ms, 4), "in_graph": on_gpu}  # fmt: skip


def ideas_worth(
    recipe: Recipe, device: torch.device, seconds: float, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """The graph engine as it is, and with each of its ideas changed: off, or on where it is off."""
    for name in ("all", *(field.name for field in fields(Ideas) if applies(field.name, recipe.stem))):
        on = name == "all" or getattr(ALL_IDEAS, name)
        ideas = ALL_IDEAS if name == "all" else replace(ALL_IDEAS, **{name: not on})
        # What the library has once tried it remembers, in this process.
        measure = _apart if name == "tried_convolutions" else step_speed
        row = measure(recipe, device, "graph", "bf16", seconds, ideas)
        shown = "all ideas" if name == "all" else f"{'without' if on else 'with'} {name.replace('_', ' ')}"
        say(f"{shown}: {row['images_per_second']:,.0f} images/s")
        yield {"ideas": shown, **({} if on else {"dropped": True}), **row}
    for shown, change in DROPPED.items():
        row = step_speed(recipe, device, "graph", "bf16", seconds, ALL_IDEAS, change)
        say(f"{shown}: {row['images_per_second']:,.0f} images/s")
        yield {"ideas": shown, "dropped": True, **row}


def applies(idea: str, stem: str) -> bool:
    """Whether it changes anything: only some networks have a max-pool behind their first convolution."""
    return idea != "fused_pool" or stem != "small"


def _apart(*what: Any) -> dict[str, Any]:
    """:func:`step_speed` in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return {"apart": True, **pool.submit(step_speed, *what).result()}


def _four_steps(step: TrainStep) -> int:
    """Four steps in one graph: fewer replays, in the hope of fewer gaps."""
    body = step.body
    assert isinstance(body, GraphedBody)
    one = body.plain

    def four(batch: Batch | None) -> None:
        for _ in range(4):
            one(batch)

    body.plain = four
    return 4


# What was tried and not kept, measured again with the rest so that it can be seen why.
DROPPED: dict[str, Callable[[TrainStep], int]] = {"four steps per replay": _four_steps}
