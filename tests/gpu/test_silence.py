"""Between two log points the host neither waits for the device nor moves anything to it or from it."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ressl.bench.steps import pictures
from ressl.data.loaders import ResidentLoader
from ressl.engine.accelerate import accelerate
from ressl.engine.step import TrainStep
from ressl.recipes import get_recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

STEPS = 50


@pytest.fixture(params=["ressl", "moco-v2", "byol"])
def step(request: pytest.FixtureRequest) -> TrainStep:
    """A captured step behind its first epoch."""
    recipe = get_recipe("cifar10").replace(method=request.param, width=16, batch_size=64)
    device = torch.device("cuda")
    loader = ResidentLoader(pictures(STEPS // 2 * 64, 32), 64, device, 0)
    made = build_step(recipe, build_method(recipe), loader, Settings(device="cuda", precision="bf16"), device)
    accelerate(made, "graph", pytest.fail)
    made.begin_epoch(0)
    for _ in range(3):
        made.advance()
    return made


def go_on(step: TrainStep) -> None:
    """As the training loop does between two log points; an epoch begins on the way."""
    for _ in range(STEPS):
        if step.done % step.loader.steps_per_epoch == 0:
            step.begin_epoch(step.done // step.loader.steps_per_epoch)
        step.advance()


def test_nothing_waits_for_the_device(step: TrainStep) -> None:
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        go_on(step)
        with pytest.raises(RuntimeError, match="synchroniz"):  # else this test could not fail
            step.bad_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert step.drain()[-1]["loss"] > 0


def test_nothing_travels_between_host_and_device(step: TrainStep) -> None:
    def moved(what: str) -> int:
        return sum(event.count for event in seen.key_averages() if what in event.key)

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        go_on(step)
        torch.cuda.synchronize()
    assert moved("") > 10 * STEPS  # the kernels of a graph are seen
    assert moved("HtoD") == moved("DtoH") == 0
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step.bad_step()
    assert moved("DtoH") == 1
