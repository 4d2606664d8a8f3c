"""What processes send each other in a step, and what that predicts for many of them. Arithmetic, not measurement."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from ressl.recipes.recipe import Recipe
from ressl.runs import build_method


@dataclass(frozen=True)
class Traffic:
    """Bytes that one process receives in a step."""

    gradients: float  # ring all-reduce, float32
    statistics: float  # running statistics of batch norm and the logs, ring all-reduce
    keys: float  # all-gather of the teacher's embeddings for the queue, float32
    shuffle: float  # all-to-all of the teacher's views, and back of what it makes of them

    @property
    def total(self) -> float:
        return self.gradients + self.statistics + self.keys + self.shuffle


@dataclass(frozen=True)
class Machine:
    """What the prediction assumes. Every field is an assumption until it is measured on the machine in question."""

    step_seconds: float  # of one process alone, at its share of the batch
    node: int = 8  # processes that are joined by the fast links
    inside: float = 300e9  # bytes/s that one process receives from its own node
    between: float = 40e9  # ... and from other nodes
    hidden: float = 0.5  # share of the step during which gradients can travel unseen: the backward


def traffic(recipe: Recipe, world: int, batch: int, view_bytes: int = 2) -> Traffic:
    """For ``batch`` samples on each of ``world`` processes; views, and what the teacher makes of them, are bf16."""
    with torch.device("meta"):  # sizes are all that is wanted
        method = build_method(recipe.replace(queue_size=max(recipe.batch_size, 1)))
    weights = sum(p.numel() for p in method.parameters() if p.requires_grad)
    norms = [m for m in method.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]
    statistics = sum(2 * m.num_features for m in norms)
    ring, others = 2 * (world - 1) / world, (world - 1) * batch
    return Traffic(
        gradients=ring * weights * 4,
        statistics=ring * statistics * 4,
        keys=others * recipe.options["output_dim"] * 4,
        shuffle=others / world * (3 * recipe.views[0].size ** 2 + recipe.options["output_dim"]) * view_bytes,
    )


def efficiency(sent: Traffic, world: int, machine: Machine) -> float:
    """Images/s of one process among ``world`` over those of one alone.

    Time = step + what of the gradients does not hide behind the backward + statistics, keys and shuffle, which do not
    hide at all.
    """
    rate = machine.inside if world <= machine.node else machine.between
    open_gradients = max(0.0, sent.gradients / rate - machine.hidden * machine.step_seconds)
    in_sight = open_gradients + (sent.statistics + sent.keys + sent.shuffle) / rate
    return machine.step_seconds / (machine.step_seconds + in_sight)
