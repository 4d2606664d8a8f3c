"""A step taken ahead by other processes makes the compiler meet what the real one does."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ressl import scouting
from ressl.data.base import ArraySource
from ressl.data.loaders import ResidentLoader
from ressl.engine import accelerate, fusion, scouts
from ressl.engine.accelerate import ALL_IDEAS
from ressl.engine.step import TrainStep
from ressl.methods import METHODS
from ressl.recipes import Recipe, get_recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

CPU = torch.device("cpu")


def recipe_of(method: str) -> Recipe:
    small = get_recipe("cifar10").replace(method=method, width=8, batch_size=32, bn_groups=4, epochs=2)
    return small.replace(bank_size=64) if method in ("instdisc", "localagg", "pcl-v2") else small


def loader_of(recipe: Recipe) -> ResidentLoader:
    labels = torch.arange(64) % 10
    pictures = torch.zeros(64, 3, 32, 32, dtype=torch.uint8)
    return ResidentLoader(ArraySource("", pictures, labels, [str(i) for i in range(10)]), 32, CPU, recipe.seed)


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("seed", "cpc-v2")])
@pytest.mark.parametrize("part", scouts.PARTS)
def test_every_method_is_told_and_taken(method: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(method)
    told = scouting.task(recipe, loader_of(recipe), Settings(device="cpu", engine="eager"), CPU)
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({**told, "part": part})))
    monkeypatch.setattr(scouting, "awaken", lambda device: None)
    taken: list[TrainStep] = []
    take = scouting.take
    monkeypatch.setattr(scouting, "take", lambda step, *how: (take(step, *how), taken.append(step)))
    scouting.main()
    assert [int(step.step) for step in taken] == [part == "rest"]  # the views alone are no step


def test_who_is_told_nothing_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(scouting, "awaken", lambda device: None)
    monkeypatch.setattr(scouting, "scout", lambda task: pytest.fail("there was no task"))
    scouting.main()


@pytest.mark.parametrize("method", ["ressl", "simclr", "byol"])
def test_the_compiler_meets_the_same_programs(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    met: set[Any] = set()

    def note(program: torch.fx.GraphModule, given: list[Any]) -> Callable[..., Any]:
        kind = lambda x: (x.shape, x.dtype, x.stride(), x.requires_grad) if isinstance(x, torch.Tensor) else x
        met.add((program.code, *(str(kind(x)) for x in given)))  # a size that varies has no hash
        return program.forward

    noting = functools.partial(torch.compile, backend=note)
    monkeypatch.setattr(torch, "compile", noting)
    monkeypatch.setattr(accelerate, "look_ahead", functools.partial(accelerate.look_ahead, compiled=noting))
    # Networks as the engine runs them, but for the kernels of their norms.
    monkeypatch.setattr(fusion._Fused, "norm", lambda self, norm, x, residual=None, relu=True: norm(x))
    monkeypatch.setattr(fusion._Fused, "norm_pool", lambda self, norm, pool, x: norm(x))
    recipe = recipe_of(method)

    def programs(hollow: bool | None) -> set[Any]:
        met.clear()
        torch._dynamo.reset()
        settings = Settings(device="cpu", precision="bf16")
        step = build_step(recipe, build_method(recipe), loader_of(recipe), settings, CPU)
        step.memory_format = torch.channels_last
        shown = [] if hollow is None else scouting.hollow(step)
        ideas = replace(ALL_IDEAS, fused_norms=hollow is None, gradient_stream=False, teacher_stream=False)
        ideas = replace(ideas, paired_pixels=False)  # a kernel, too
        accelerate._for_graph(step, ideas)
        if hollow is not None:
            scouting.take(step, hollow, shown)
        else:
            step.begin_epoch(0)
            step.body(None)
        return {*met}

    real = programs(None)
    assert len(real) >= 5
    assert real <= programs(False) | programs(True)


def test_it_is_worth_it_for_pictures_of_one_size_that_are_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = loader_of(recipe_of("ressl"))
    assert scouting.worth_it(loader)
    monkeypatch.setattr(scouting, "LARGEST", loader.images.nbytes - 1)
    assert not scouting.worth_it(loader)
    assert not scouting.worth_it(object())


IMPORTS = """
import threading, torch

asked = []
torch._C._cuda_getDeviceCount = lambda: asked.append("how many") or 1
torch.cuda._lazy_init = lambda: asked.append("start")
torch.cuda._device_count_nvml = lambda: 1  # the driver's own answer

import ressl.engine.building, ressl.scouting

for module in (ressl.engine.building, ressl.scouting):
    module.ready()
assert torch.cuda.is_available()
assert not asked, asked
assert threading.active_count() == 1
"""


def test_nothing_that_copies_could_not_use_is_touched_before_they_are_made() -> None:
    pytest.importorskip("triton")
    subprocess.run([sys.executable, "-c", IMPORTS], env=os.environ | scouts.SETTINGS, check=True)
