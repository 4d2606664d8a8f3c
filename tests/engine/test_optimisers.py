"""SGD whose learning rate is a tensor, against torch's own with Python numbers; LARS against one written out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ressl.engine.optimisers import (
    build_optimiser,
    build_sgd,
    gradients,
    load_optimiser_tensors,
    optimiser_tensors,
    set_lr,
)
from ressl.errors import ResslError


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))


def backward(module: nn.Module, seed: int) -> None:
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    module(x).pow(2).mean().backward()


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay_all", [False, True])
def test_it_steps_as_torch_does(decay_all: bool, nesterov: bool) -> None:
    ours, theirs = network(), network()
    optimiser = build_sgd(ours, momentum=0.9, weight_decay=0.1, decay_norm_and_bias=decay_all, nesterov=nesterov)
    norm_and_bias = [p for name, p in theirs.named_parameters() if name.startswith("1.") or name.endswith("bias")]
    others = [p for p in theirs.parameters() if not any(p is q for q in norm_and_bias)]
    reference = torch.optim.SGD(
        [{"params": others, "weight_decay": 0.1}, {"params": norm_and_bias, "weight_decay": 0.1 if decay_all else 0.0}],
        lr=0.0,
        momentum=0.9,
        nesterov=nesterov,
    )
    for step in range(6):
        lr = 0.05 * (step + 1)
        backward(ours, step)
        backward(theirs, step)
        set_lr(optimiser, torch.tensor(lr))
        for group in reference.param_groups:
            group["lr"] = lr
        optimiser.step()
        reference.step()
        optimiser.zero_grad()
        reference.zero_grad()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_without_gradient_only_decayed_weights_shrink() -> None:
    """lr 1 and decay 0.5 halve what decays; norm and bias stay to the bit."""
    module = network()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimiser = build_sgd(module, momentum=0.0, weight_decay=0.5, decay_norm_and_bias=False)
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    set_lr(optimiser, torch.tensor(1.0))
    optimiser.step()
    for name, p in module.named_parameters():
        torch.testing.assert_close(p, before[name] * (0.5 if name in ("0.weight", "4.weight") else 1.0), rtol=0, atol=0)


def test_frozen_parameters_are_left_out() -> None:
    module = network()
    module[0].requires_grad_(False)
    held = {p for group in build_sgd(module, momentum=0.9, weight_decay=0.0, decay_norm_and_bias=True).param_groups
            for p in group["params"]}  # fmt: skip
    assert held == set(module[1].parameters()) | set(module[4].parameters())


def test_a_step_with_found_inf_changes_neither_weights_nor_momentum() -> None:
    module = network()
    optimiser = build_sgd(module, momentum=0.9, weight_decay=0.1, decay_norm_and_bias=True)
    set_lr(optimiser, torch.tensor(0.1))
    backward(module, 0)
    optimiser.step()
    optimiser.zero_grad()
    weights = [p.detach().clone() for p in module.parameters()]
    buffers = {name: t.clone() for name, t in optimiser_tensors(optimiser, module).items()}
    backward(module, 1)
    gradients(optimiser)[0].fill_(float("nan"))
    optimiser.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimiser.step()
    assert all(torch.equal(a, b) for a, b in zip(weights, module.parameters(), strict=True))
    assert all(torch.equal(t, buffers[name]) for name, t in optimiser_tensors(optimiser, module).items())
    optimiser.zero_grad()
    optimiser.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    backward(module, 1)
    optimiser.step()
    assert not any(torch.equal(a, b) for a, b in zip(weights, module.parameters(), strict=True))


def test_state_goes_to_a_twin_that_continues_to_the_bit() -> None:
    first, twin = network(0), network(1)
    build = lambda m: build_sgd(m, momentum=0.9, weight_decay=0.01, decay_norm_and_bias=False)
    a, b = build(first), build(twin)

    def step(module: nn.Module, optimiser: torch.optim.Optimizer, seed: int) -> None:
        set_lr(optimiser, torch.tensor(0.1))
        backward(module, seed)
        optimiser.step()
        optimiser.zero_grad()

    for seed in range(3):
        step(first, a, seed)
    twin.load_state_dict(first.state_dict())
    saved = {name: t.clone() for name, t in optimiser_tensors(a, first).items()}
    assert set(saved) == {f"{name}.momentum_buffer" for name, _ in first.named_parameters()}
    load_optimiser_tensors(b, twin, saved)
    for seed in range(3, 6):
        step(first, a, seed)
        step(twin, b, seed)
    assert all(torch.equal(p, q) for p, q in zip(first.parameters(), twin.parameters(), strict=True))


def test_the_state_of_another_model_is_refused() -> None:
    module, other = network(), nn.Linear(3, 2)
    make = lambda m: build_sgd(m, momentum=0.9, weight_decay=0.0, decay_norm_and_bias=True)
    with pytest.raises(ValueError, match="other parameters"):
        load_optimiser_tensors(make(module), module, optimiser_tensors(make(other), other))


# --- LARS, and groups of a method's own ---


def lars_by_hand(weights: dict[str, torch.Tensor], grads, buffers, lr: float, decay: float) -> None:  # type: ignore[no-untyped-def]
    """One step as the papers write it, a tensor at a time, in float64."""
    for name, w in weights.items():
        g = grads[name].double()
        if w.ndim > 1:
            g = g + decay * w
            if w.norm() > 0 and g.norm() > 0:
                g = g * 0.001 * w.norm() / g.norm()
        buffers[name] = 0.9 * buffers[name] + g
        weights[name] = w - lr * buffers[name]


def test_lars_is_the_reference() -> None:
    module = network()
    with torch.no_grad():
        module[4].weight.zero_()  # a weight of norm zero is not scaled
    optimiser = build_optimiser("lars", module, momentum=0.9, weight_decay=0.1, decay_norm_and_bias=True)
    weights = {name: p.detach().double() for name, p in module.named_parameters()}
    buffers = {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in range(6):
        backward(module, step)
        grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
        set_lr(optimiser, torch.tensor(0.5 * step))
        optimiser.step()
        optimiser.zero_grad()
        lars_by_hand(weights, grads, buffers, 0.5 * step, 0.1)
    for name, p in module.named_parameters():
        torch.testing.assert_close(p.double(), weights[name], rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert set(optimiser_tensors(optimiser, module)) == {f"{name}.momentum_buffer" for name in weights}


def test_lars_skips_a_bad_step_on_the_device() -> None:
    module = network()
    optimiser = build_optimiser("lars", module, momentum=0.9, weight_decay=0.1, decay_norm_and_bias=True)
    set_lr(optimiser, torch.tensor(0.1))
    backward(module, 0)
    optimiser.step()
    before = [t.clone() for t in (*module.parameters(), *optimiser_tensors(optimiser, module).values())]
    gradients(optimiser)[0].fill_(float("inf"))
    optimiser.found_inf = torch.ones(())  # type: ignore[attr-defined]
    optimiser.step()
    after = (*module.parameters(), *optimiser_tensors(optimiser, module).values())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


class WithGroup(nn.Module):
    """A weight of its own learning rate beside an ordinary one."""

    def __init__(self) -> None:
        super().__init__()
        self.ordinary, self.own = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))

    def parameter_groups(self) -> list[dict[str, object]]:
        return [{"params": [self.own], "lr_scale": 10.0, "weight_decay": 0.5}]


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_a_method_s_own_group_has_its_own_rate_and_decay(name: str) -> None:
    module = WithGroup()
    optimiser = build_optimiser(name, module, momentum=0.0, weight_decay=0.0, decay_norm_and_bias=True)
    module.ordinary.grad, module.own.grad = torch.ones(2, 2), torch.ones(2, 2)
    set_lr(optimiser, torch.tensor(0.01))
    optimiser.step()
    torch.testing.assert_close(module.own, torch.full((2, 2), 1 - 0.1 * 1.5))  # never scaled by LARS
    torch.testing.assert_close(module.ordinary, torch.full((2, 2), 1 - 0.01 * (0.001 if name == "lars" else 1.0)))


def test_an_unknown_optimiser_is_named() -> None:
    with pytest.raises(ResslError, match=r"unknown optimiser 'lrs'; did you mean 'lars'\?"):
        build_optimiser("lrs", network(), momentum=0.9, weight_decay=0.0, decay_norm_and_bias=True)
