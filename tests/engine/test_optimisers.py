"""SGD whose learning rate is a tensor, against torch's own with Python numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ressl.engine.optimisers import build_sgd, gradients, load_optimiser_tensors, optimiser_tensors, set_lr


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
