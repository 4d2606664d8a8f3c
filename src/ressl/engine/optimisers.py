"""Optimisers, built so that the step runs without the host: learning rate and the skip flag are device tensors."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ressl.errors import unknown

Optimiser = Literal["sgd", "lars"]
OPTIMISERS: tuple[str, ...] = get_args(Optimiser)
TRUST = 0.001  # LARS: the share of a weight's norm that a step of learning rate 1 may change


def build_optimiser(
    name: str, module: nn.Module, *, momentum: float, weight_decay: float, decay_norm_and_bias: bool
) -> torch.optim.SGD:
    """The optimiser ``name`` over the trainable parameters of ``module``.

    A method's own ``parameter_groups`` stay apart: plain SGD with the learning rate and decay they ask for.
    """
    if name == "sgd":
        return build_sgd(module, momentum=momentum, weight_decay=weight_decay, decay_norm_and_bias=decay_norm_and_bias)
    if name != "lars":
        raise unknown("optimiser", name, OPTIMISERS)
    apart, rest = _own_groups(module)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if p.ndim > 1], "trust": TRUST, "decay": weight_decay},
        {"params": [p for p in rest if p.ndim <= 1]},  # norms and biases: neither scaled nor decayed
        *apart,
    ]
    return _ready(LARS, groups, momentum, nesterov=False)


def build_sgd(
    module: nn.Module, *, momentum: float, weight_decay: float, decay_norm_and_bias: bool, nesterov: bool = False
) -> torch.optim.SGD:
    """SGD over the trainable parameters of ``module``; its learning rate starts at 0 and is written by the schedule."""
    apart, rest = _own_groups(module)
    decayed = [p for p in rest if decay_norm_and_bias or p.ndim > 1]
    plain = [p for p in rest if not decay_norm_and_bias and p.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": weight_decay}, {"params": plain}, *apart]
    return _ready(torch.optim.SGD, groups, momentum, nesterov)


class LARS(torch.optim.SGD):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, 2017, arXiv:1708.03888).

    The gradient of each weight, decay included, is scaled to ``trust`` times the weight's norm; then momentum SGD.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if "trust" in group:
                _scale(group)
        super().step()  # fused: it reads found_inf on the device and then leaves weights and momentum alone


def _scale(group: dict[str, Any]) -> None:
    weights = [p for p in group["params"] if p.grad is not None]
    if not weights:
        return
    gradients = [p.grad for p in weights]
    torch._foreach_add_(gradients, weights, alpha=group["decay"])
    w, g = (torch.stack(torch._foreach_norm(tensors)) for tensors in (weights, gradients))
    ratio = torch.where((w > 0) & (g > 0), group["trust"] * w / g, 1.0)
    torch._foreach_mul_(gradients, list(ratio.unbind()))


def _own_groups(module: nn.Module) -> tuple[list[dict[str, Any]], list[nn.Parameter]]:
    """The groups that a method asks for, and all other trainable parameters."""
    asked = getattr(module, "parameter_groups", None)
    apart: list[dict[str, Any]] = asked() if asked is not None else []
    taken = {id(p) for group in apart for p in group["params"]}
    return apart, [p for p in module.parameters() if p.requires_grad and id(p) not in taken]


def _ready(
    kind: type[torch.optim.SGD], groups: list[dict[str, Any]], momentum: float, nesterov: bool
) -> torch.optim.SGD:
    groups = [group for group in groups if group["params"]]
    device = groups[0]["params"][0].device
    for group in groups:
        group["lr"] = torch.zeros((), device=device)  # one each, because their scales may differ
    optimiser = kind(groups, lr=torch.zeros((), device=device), momentum=momentum, nesterov=nesterov, fused=True)
    for p in (p for group in groups for p in group["params"]):
        # There from the start: the first step is then like every other (0 * momentum + gradient), also in a graph.
        optimiser.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
    return optimiser


def set_lr(optimiser: torch.optim.Optimizer, lr: Tensor) -> None:
    for group in optimiser.param_groups:
        group["lr"].copy_(lr * group["lr_scale"] if "lr_scale" in group else lr)


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
