"""The step on a CPU: compiled where a run is long enough to pay for it, and then the same step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ressl.bench.steps import pictures
from ressl.data.loaders import ResidentLoader
from ressl.engine import accelerate as engine
from ressl.engine.step import TrainStep
from ressl.recipes import get_recipe
from ressl.runs import build_method
from ressl.training import Settings, _engine, build_step

CPU = torch.device("cpu")
SMALL = {"width": 4, "backbone": "resnet10", "batch_size": 16, "bn_groups": 2, "queue_size": 32, "hidden_dim": 16}


def small_step(**changes: Any) -> TrainStep:
    recipe = get_recipe("cifar10").replace(**(SMALL | {"views": ["weak,size=8", "weak,size=8"]} | changes))
    loader = ResidentLoader(pictures(64, 8), recipe.batch_size, CPU, 0)
    return build_step(recipe, build_method(recipe), loader, Settings(device="cpu"), CPU)


def losses(step: TrainStep, steps: int) -> list[float]:
    for _ in range(steps):
        if step.done % step.loader.steps_per_epoch == 0:
            step.begin_epoch(step.done // step.loader.steps_per_epoch)
        step.advance()
    return [row["loss"] for row in step.drain()]


@pytest.mark.parametrize(("epochs", "compiler", "wanted"), [(20, True, "eager"), (200_000, True, "compile"),
                                                             (200_000, False, "eager")])  # fmt: skip
def test_a_long_run_is_compiled(
    epochs: int, compiler: bool, wanted: str, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    if not compiler:
        monkeypatch.setenv("CXX", "none-of-this-name")
    step = small_step(epochs=epochs)
    engine.accelerate(step, "auto", said.append)
    assert step.engine == wanted
    assert any("there is no C++ compiler here (none-of-this-name)" in text for text in said) == (not compiler)


@pytest.fixture
def said() -> list[str]:
    return []


def test_another_layout_is_the_same_step() -> None:
    """In float32, with momentum from before: what the optimiser keeps must lie as the weights do."""
    plain, other = small_step(), small_step()
    assert losses(plain, 3) == losses(other, 3)
    engine.lay(other, torch.channels_last)
    conv = other.method.backbone.layer1[0].conv1.weight
    assert conv.is_contiguous(memory_format=torch.channels_last)
    assert other.optimiser.state[conv]["momentum_buffer"].stride() == conv.stride() != conv.contiguous().stride()
    torch.testing.assert_close(losses(other, 5), losses(plain, 5), rtol=1e-4, atol=1e-5)


def test_compiled_steps_are_the_step_and_can_be_made_again() -> None:
    """By the real compiler, from the middle on twice: the same to the bit, and as eager steps but for rounding."""
    plain, fast = small_step(), small_step()
    engine.accelerate(fast, "compile")
    before = losses(plain, 4)
    torch.testing.assert_close(losses(fast, 4), before, rtol=1e-4, atol=1e-5)
    kept = {name: tensor.clone() for name, tensor in fast.method.state_dict().items()}
    momenta = {p: state["momentum_buffer"].clone() for p, state in fast.optimiser.state.items()}
    once = losses(fast, 6)
    torch.testing.assert_close(once, losses(plain, 6), rtol=1e-3, atol=1e-4)
    fast.method.load_state_dict(kept)
    for p, momentum in momenta.items():
        fast.optimiser.state[p]["momentum_buffer"].copy_(momentum)
    fast.seek(4, 4)
    assert losses(fast, 6) == once
    torch._dynamo.reset()


def test_what_cannot_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the engine is named: a resumed run names that which it was begun with."""

    def refuse(program: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        raise RuntimeError("no")

    plain, fast, compile_ = small_step(), small_step(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: compile_(function, backend=refuse, **how))
    engine.accelerate(fast, "compile")
    torch.testing.assert_close(losses(fast, 3), losses(plain, 3), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_a_run_goes_on_with_the_engine_it_was_begun_with() -> None:
    auto = Settings()
    assert _engine(auto, {}, CPU) == "auto"
    assert _engine(auto, {"step": 3}, CPU) == "eager"  # of an earlier version
    assert _engine(auto, {"engine": "compile"}, CPU) == "compile"
    assert _engine(auto, {"engine": "graph"}, CPU) == "auto"
    assert _engine(auto, {"engine": "eager"}, torch.device("cuda")) == "auto"
    assert _engine(replace(auto, engine="eager"), {"engine": "compile"}, CPU) == "eager"
