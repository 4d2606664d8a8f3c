"""A step that finds its views ready against one that makes them: the same numbers, across epochs and after a jump."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ressl.bench.steps import pictures
from ressl.data.loaders import RaggedLoader, ResidentLoader
from ressl.data.ragged import RaggedSource
from ressl.engine.graphs import snapshot
from ressl.engine.lookahead import LookAhead, look_ahead
from ressl.engine.step import TrainStep
from ressl.recipes import Recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

CPU = torch.device("cpu")


def make(recipe: Recipe, ahead: bool, catch_up: bool = True, ragged: bool = False) -> TrainStep:
    source = pictures(3 * recipe.batch_size, recipe.image_size)
    loader = ResidentLoader(source, recipe.batch_size, CPU, recipe.seed)
    if ragged:  # the same bytes, taken for pictures that are wider than high
        sizes = torch.tensor([[recipe.image_size // 2, 2 * recipe.image_size]]).expand(len(source), -1)
        several = RaggedSource("r", source.images.flatten(), sizes)
        loader = RaggedLoader(several, recipe.views, recipe.batch_size, CPU, recipe.seed)
    step = build_step(recipe, build_method(recipe), loader, Settings(device="cpu", precision="fp32"), CPU)
    if ahead:
        look_ahead(step, compiled=lambda function: function)
        plain = step.body

        def body(batch: None) -> None:  # as the graph engine does it
            if step.turned and catch_up:
                step.catch_up()
            plain(batch)

        step.body = body  # type: ignore[method-assign, assignment]
    return step


def train(step: TrainStep) -> list[dict[str, float]]:
    rows = []
    for start, stop in ((0, 7), (4, 9)):  # three steps an epoch, and a jump back into the middle of one
        step.seek(start, start)
        for number in range(start, stop):
            if number % 3 == 0 or number == start:
                step.begin_epoch(number // 3)
            step.advance()
        rows += step.drain()
    return rows


@pytest.mark.parametrize("ragged", [False, True])
def test_views_made_ahead_are_the_same_views(tiny: Callable[..., Recipe], ragged: bool) -> None:
    plain, ahead = make(tiny(), False, ragged=ragged), make(tiny(), True, ragged=ragged)
    assert train(plain) == train(ahead)
    for a, b in zip(plain.method.state_dict().values(), ahead.method.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_without_catching_up_an_epoch_would_begin_with_the_wrong_pictures(tiny: Callable[..., Recipe]) -> None:
    recipe = tiny(epochs=3)  # as many steps as are made before somebody looks
    plain, ahead = train(make(recipe, False)), train(make(recipe, True, catch_up=False))
    assert plain[:3] == ahead[:3]
    assert plain[3]["loss"] != ahead[3]["loss"]


def test_a_step_in_the_dark_makes_no_view_and_leaves_no_trace(tiny: Callable[..., Recipe]) -> None:
    plain, ahead = make(tiny(), False), make(tiny(), True)
    look = ahead.prepare
    assert isinstance(look, LookAhead)
    make_views, made = look.make, list[Any]()
    look.make = lambda number: made.append(number) or make_views(number)
    put_back, ahead.turned = snapshot(ahead), False
    with look.in_the_dark():
        ahead.body(None)
    assert not made
    assert int(ahead.step) == 1
    put_back()
    ahead.turned = True
    assert train(plain) == train(ahead)
    assert made


def test_views_are_compiled_once(tiny: Callable[..., Recipe]) -> None:
    """They are made before the first step as well as in steps, which differ in whether gradients are noted."""
    found: list[torch.fx.GraphModule] = []

    def note(program: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(program)
        return program.forward

    torch._dynamo.reset()
    step = make(tiny(), False)
    look_ahead(step, compiled=lambda function: torch.compile(function, backend=note))
    step.begin_epoch(0)
    step.prepare(None)
    once = len(found)
    with torch.no_grad():
        step.prepare(None)
    step.advance()
    assert len(found) == once == 2  # the schedules, and the views
    torch._dynamo.reset()
