"""Optimisers, built so that the step runs without the host: learning rate and the skip flag are device tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build_sgd(
    module: nn.Module, *, momentum: float, weight_decay: float, decay_norm_and_bias: bool, nesterov: bool = False
) -> torch.optim.SGD:
    """SGD over the trainable parameters of ``module``; its learning rate starts at 0 and is written by the schedule."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    decayed = [p for p in parameters if decay_norm_and_bias or p.ndim > 1]
    plain = [p for p in parameters if not decay_norm_and_bias and p.ndim <= 1]
    device = parameters[0].device
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimiser = torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=torch.zeros((), device=device),
        momentum=momentum,
        nesterov=nesterov,
        fused=True,
    )
    for p in parameters:
        # There from the start: the first step is then like every other (0 * momentum + gradient), also in a graph.
        optimiser.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
    return optimiser


def set_lr(optimiser: torch.optim.Optimizer, lr: Tensor) -> None:
    for group in optimiser.param_groups:
        group["lr"].copy_(lr)


def gradients(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [p.grad for group in optimiser.param_groups for p in group["params"] if p.grad is not None]


def optimiser_tensors(optimiser: torch.optim.Optimizer, module: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state under the names of the parameters, as checkpoints keep it."""
    names: dict[Tensor, str] = {p: name for name, p in module.named_parameters()}
    return {f"{names[p]}.{key}": value for p, state in optimiser.state.items() for key, value in state.items()}


@torch.no_grad()
def load_optimiser_tensors(optimiser: torch.optim.Optimizer, module: nn.Module, tensors: dict[str, Tensor]) -> None:
    mine = optimiser_tensors(optimiser, module)
    if mine.keys() != tensors.keys():
        raise ValueError("the optimiser's state has other parameters")
    for name, tensor in mine.items():
        tensor.copy_(tensors[name])
