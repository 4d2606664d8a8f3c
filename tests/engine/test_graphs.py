"""What a start tells and in which order it goes; the graphs themselves need a GPU (tests/gpu)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from ressl.bench.steps import pictures
from ressl.data.loaders import ResidentLoader
from ressl.engine import graphs
from ressl.engine.graphs import GraphedBody, Start
from ressl.engine.lookahead import look_ahead
from ressl.engine.step import TrainStep
from ressl.recipes import Recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

PARTS = ("compiling the views", "choosing convolutions", "compiling the step", "capturing it")


class Told:
    def __init__(self) -> None:
        self.parts: list[tuple[str, int, int]] = []
        self.said: list[str] = []

    def busy(self, what: str, done: int, total: int) -> None:
        self.parts.append((what, done, total))

    def message(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(("pace", "long"), [(2.5, True), (1.0, False)])
def test_every_part_is_told_and_a_long_start_is_accounted_for(
    pace: float, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(pace * i for i in range(10))
    monkeypatch.setattr(graphs.time, "monotonic", lambda: next(clock))
    for told in (Told(), None):
        start = Start(told)
        for what in PARTS:
            start.next(what)
        start.end()
        if told is not None:
            assert told.parts == [(what, i, 4) for i, what in enumerate(PARTS)]
            each = "compiling the views 2.5, choosing convolutions 2.5, compiling the step 2.5, capturing it 2.5"
            assert told.said == ([f"the step was ready after 10.0 s ({each})"] if long else [])


class Helpers:
    """All that work beside a start, and what was asked of them; a rehearsal among them, which draws random numbers."""

    def __init__(self, out: bool, done: bool) -> None:
        self.is_out, self.done, self.asked = out, done, list[str]()

    def out(self) -> bool:
        return self.is_out

    def wait(self, part: str) -> None:
        self.asked.append(f"wait for the {part}")

    def back(self) -> bool:
        self.asked.append("back")
        self.is_out = False
        return self.done

    def choose(self) -> None:
        self.asked.append("choose")
        torch.randn(7)

    def join(self) -> None:
        self.asked.append("join")


def made_step(recipe: Recipe) -> TrainStep:
    cpu = torch.device("cpu")
    loader = ResidentLoader(pictures(48, 16), recipe.batch_size, cpu, 0)
    return build_step(recipe, build_method(recipe), loader, Settings(device="cpu", precision="fp32"), cpu)


def noting(step: TrainStep, asked: list[str]) -> None:
    """Let ``step`` look ahead, and note when views are made and when it is taken."""

    def noted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: (asked.append(what), function(*args))[1]

    look_ahead(step, lambda function: noted("views", function) if function.__name__ == "_make" else function)
    step.body = noted("step", step.body)  # type: ignore[method-assign]


# With helpers out, networks and the rest of the step come first, without views; and back they are before any are made.
FIRST = ["choose", "join", "wait for the rest", "step", "back"]
ORDERS = {
    (True, True, True): FIRST,
    (True, True, False): [*FIRST, "helpers"],
    (True, False, True): ["back", "views", "views", "choose", "join"],
    (False, True, True): ["back"],
    (False, True, False): ["back", "helpers"],
    (False, False, True): ["back"],
}


@pytest.mark.parametrize(("rehearsed", "out", "done"), ORDERS)
def test_a_start_goes_on_when_others_are_ready_and_leaves_no_trace(
    rehearsed: bool, out: bool, done: bool, tiny: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    helpers, step = Helpers(out, done), made_step(tiny())
    noting(step, helpers.asked)
    state = lambda: [torch.get_rng_state(), step.step.clone(), *(x.clone() for x in step.method.state_dict().values())]
    captured: list[list[Tensor]] = []

    @contextlib.contextmanager
    def capture(graph: object) -> Iterator[None]:
        captured.append(state())
        yield

    for name in ("Stream", "CUDAGraph", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *args: None)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None, raising=False)
    monkeypatch.setattr(graphs, "_growing_memory", contextlib.nullcontext)
    monkeypatch.setattr(graphs, "scouts", helpers)
    monkeypatch.setattr(graphs, "wake_compiler", lambda device: helpers.asked.append("helpers"))
    step.begin_epoch(0)
    before = state()
    body = GraphedBody(step, pytest.fail, cast("Any", helpers) if rehearsed else None)
    assert body._captured(None)
    wanted = ORDERS[rehearsed, out, done]
    assert helpers.asked[: len(wanted)] == wanted
    assert helpers.asked[len(wanted) :].count("step") == graphs.WARM_UP + 1
    assert all(a.equal(b) for a, b in zip(before, captured[0], strict=True))


@pytest.mark.parametrize("late", [True, False])
def test_a_step_that_cannot_be_made_fast_is_as_it_was_and_goes_on_plainly(
    late: bool, tiny: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a reason; also if it fails behind the update."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda *args: None)
    said, made = list[str](), []
    for fast in (True, False):
        torch.manual_seed(5)
        step = made_step(tiny())
        if fast:
            plain = step.body

            def failing(batch: Any, plain: Callable[[Any], None] = plain) -> None:
                if late:
                    plain(batch)
                torch.randn(3)  # as a method may that drops some of its numbers
                raise RuntimeError("no such kernel\nand a long story")

            step.body = failing  # type: ignore[method-assign]
            step.body = GraphedBody(step, said.append)  # type: ignore[method-assign]
            step.engine = "graph"
        step.begin_epoch(0)
        for _ in range(3):
            step.advance()
        assert step.engine == "eager"
        made.append([torch.get_rng_state(), step.step, step.ring, *step.method.state_dict().values()])
    assert said == ["engine eager, because this step cannot be a CUDA graph here: no such kernel"]
    assert all(a.equal(b) for a, b in zip(*made, strict=True))
