"""What the compiler makes of a step: few programs, and a loss that is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ressl.bench.steps import pictures
from ressl.data.loaders import ResidentLoader
from ressl.engine import accelerate as engine
from ressl.engine.step import TrainStep
from ressl.recipes import get_recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

SOURCE = Path(engine.__file__).parents[1]
SMALL = {"width": 4, "backbone": "resnet10", "batch_size": 16, "bn_groups": 2, "queue_size": 32, "hidden_dim": 16}


def small_step(**changes: Any) -> TrainStep:
    recipe = get_recipe("cifar10").replace(**SMALL, **changes)
    cpu = torch.device("cpu")
    loader = ResidentLoader(pictures(32, 32), recipe.batch_size, cpu, 0)
    return build_step(recipe, build_method(recipe), loader, Settings(device="cpu", precision="bf16"), cpu)


@pytest.mark.parametrize("views", [["weak", "weak"], ["weak", "weak", "weak"]])
def test_the_loss_is_one_program(views: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces would be compiled one by one if a method's forward held a loop over networks (from Python 3.12 on)."""
    found: list[torch.fx.GraphModule] = []

    def note(program: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(program)
        assert all(x.dtype != torch.float64 for x in inputs if isinstance(x, torch.Tensor))  # a number as an input
        return program.forward

    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: plain(function, backend=note, **how))
    torch._dynamo.reset()
    step = small_step(views=views)
    off = dict.fromkeys(("fused_norms", "gradient_stream", "teacher_stream", "fused_update", "look_ahead"), False)
    engine._for_graph(step, engine.Ideas(**off))
    step.prepare = type(step).prepare.__get__(step)  # the views take long to trace, and are not the matter here
    step.begin_epoch(0)
    step.advance()
    step.advance()
    sums = [sum("logsumexp" in str(node.target) for node in program.graph.nodes) for program in found]
    assert [n for n in sums if n] == [len(views)]  # the relations of the teacher and of every student view
    torch._dynamo.reset()


def test_crops_of_many_sizes_are_a_program_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for any size, which is what the compiler makes of a second one by itself, takes it minutes."""
    varying: list[bool] = []

    def note(program: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        sizes = [size for x in inputs if isinstance(x, torch.Tensor) for size in x.shape]
        varying.append(any(isinstance(x, torch.SymInt) for x in (*inputs, *sizes)))
        return program.forward

    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: plain(function, backend=note, **how))
    step = small_step(method="clsa-multi")
    assert len({view.size for view in step.views.views}) == 5
    engine.accelerate(step, "compile")
    step.prepare = type(step).prepare.__get__(step)  # the views take long to trace, and are not the matter here
    step.begin_epoch(0)
    step.advance()
    assert len(varying) > 5
    assert not any(varying)
    torch._dynamo.reset()


def test_nothing_is_compiled_for_any_size() -> None:
    """Also what is measured alone: it must be what the engine makes of it."""
    lines = [(path.name, line) for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines()]
    calls = [(name, line) for name, line in lines if "torch.compile(" in line]
    assert {name for name, _ in calls} == {"compiling.py", "rand.py"}
    assert all("dynamic=False" in line for _, line in calls)


def test_no_size_of_many_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many variants of a function the compiler leaves the rest as it is, unless told that there are more."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: plain(function, backend="eager", **how))
    # Two share a forward, which breaks the program there.
    step = small_step(method="clsa", views=[f"weak,size={size}" for size in (8, 8, 8, 9, 10, 11)])
    with torch._dynamo.config.patch(recompile_limit=3, fail_on_recompile_limit_hit=True):
        engine.accelerate(step, "compile")
        step.prepare = type(step).prepare.__get__(step)  # the views take long to trace, and are not the matter here
        step.begin_epoch(0)
        step.advance()
    torch._dynamo.reset()


def test_every_run_of_a_process_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler gives a function up after some variants; runs that follow each other must not count as such."""
    found: list[torch.fx.GraphModule] = []

    def note(program: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(program)
        return program.forward

    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **how: plain(function, backend=note, **how))
    programs = []
    with torch._dynamo.config.patch(recompile_limit=1):
        for epochs in (10, 20):
            step = small_step(epochs=epochs, warmup_epochs=1, views=["weak", "weak"])
            engine.accelerate(step, "compile")
            step.begin_epoch(0)
            step.advance()
            programs.append(len(found))
            found.clear()
    assert programs[0] > 0
    assert programs[0] == programs[1]
    torch._dynamo.reset()
