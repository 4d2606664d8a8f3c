"""NaN and Inf in weights, input, loss or gradient: the run stops, and nothing that stays has seen them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from child import Child, loop_of
from scale import shards

from ressl import cli
from ressl.checkpoints import load, save
from ressl.engine.monitor import NonFinite
from ressl.engine.optimisers import optimiser_tensors
from ressl.errors import ResslError
from ressl.methods.base import Output
from ressl.runs import Run

PLACES = ("student", "teacher", "weak view", "strong view", "loss", "gradient", "one pixel", "head", "keys", "carry")
CASES = [(place, value) for place in PLACES for value in (math.nan, math.inf)]


class Poison:
    """Spoil one thing in step 8, whose checkpoints are those after steps 3 and 6."""

    def __init__(self, place: str, value: float, log_steps: int = 1) -> None:
        self.place, self.value = place, value

    def __call__(self) -> None:
        from ressl.engine.step import TrainStep

        plain = TrainStep.advance

        def advance(step: TrainStep, batch: Any = None) -> None:
            if step.done == 7:
                poison(step, self.place, self.value)
            plain(step, batch)

        TrainStep.advance = advance  # type: ignore[method-assign]


def poison(step: Any, place: str, value: float) -> None:
    method = step.method
    with torch.no_grad():
        if place == "student":
            next(method.backbone.parameters()).view(-1)[0] = value
        elif place == "teacher":
            next(method.teacher.module.parameters()).view(-1)[0] = value
        elif place == "head":
            next(method.head.parameters()).view(-1)[0] = value
        elif place == "keys":
            method.queue.keys[0, 0] = value
    if place in ("weak view", "strong view", "one pixel"):
        real, which = step.make_views, 0 if place == "weak view" else 1
        spot = (0, 0, 3, 3) if place == "one pixel" else (slice(None),)

        def views(*where: Any) -> Any:
            made = [view.clone() for view in real(*where)]
            made[which][spot] = value
            return made

        step.make_views = views
    if place in ("loss", "gradient", "carry"):
        real_call = step.call

        def call(views: Any, **wanted: Any) -> Output:
            output = real_call(views, **wanted)
            if place == "loss":
                return output._replace(loss=output.loss * value)
            if place == "carry":  # both: what is bad in the keys alone shows in the next loss
                return output._replace(loss=output.loss * value, carry=output.carry * value)
            weight = next(method.backbone.parameters())
            weight.register_hook(lambda g: g + value)
            return output

        step.call = call


@pytest.mark.parametrize(("place", "value"), CASES if len(shards(2)) == 2 else CASES[::3])
def test_the_run_stops_and_what_it_wrote_is_finite(
    place: str, value: float, tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    out = tmp_path / "run"
    child = spawn.train(out, ground, before=Poison(place, value)).join()
    assert child.code == 2, child.output
    assert "ressl: step 7 (epoch 1, batch 3) is not finite" in child.output
    assert "Traceback" not in child.output
    for path in Run(out).checkpoints.paths():
        for name, tensor in load(path).tensors.items():
            assert tensor.isfinite().all(), f"{path.name}: {name}"
    assert Run(out).checkpoint().facts["step"] == 6
    child = spawn.train(out, ground).join()
    assert child.code == 0, child.output
    from child import digest

    assert digest(out) == undisturbed[0]


class Overflow:
    """In step 9, after which a checkpoint is due: loss and gradient are finite, what is left of the step is not."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __call__(self) -> None:
        from ressl.engine.step import TrainStep

        plain = TrainStep.advance

        def advance(step: TrainStep, batch: Any = None) -> None:
            if step.done == 8 and self.place == "update":
                step.schedule = lambda s: torch.full((), 3e38) * 10
            plain(step, batch)
            if step.done == 9 and self.place == "statistics":
                step.method.get_buffer("backbone.1.running_var")[0] = math.inf
            if step.done == 9 and self.place == "momentum":
                next(iter(step.optimiser.state.values()))["momentum_buffer"].view(-1)[0] = math.nan

        TrainStep.advance = advance  # type: ignore[method-assign]


@pytest.mark.parametrize("place", ["update", "statistics", "momentum"])
def test_what_overflows_behind_a_finite_loss_is_not_saved(
    place: str, tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    out = tmp_path / "run"
    child = spawn.train(out, ground, before=Overflow(place)).join()
    assert child.code == 2, child.output
    assert "ressl: after step 8 (epoch 2, batch 0) " in child.output
    assert "step-00000006.safetensors; lower lr" in child.output
    assert "Traceback" not in child.output
    for path in Run(out).checkpoints.paths():
        for name, tensor in load(path).tensors.items():
            assert tensor.isfinite().all(), f"{path.name}: {name}"
    child = spawn.train(out, ground).join()
    assert child.code == 0, child.output
    from child import digest

    assert digest(out) == undisturbed[0]


@pytest.mark.parametrize("words", [("--lr", "1e45"), ("--lr", "2e38", "--batch-size", "512")])
def test_a_learning_rate_that_no_step_can_count_with(
    words: tuple[str, ...], tmp_path: Path, spawn: type[Child]
) -> None:
    child = spawn(tmp_path / "log", cli.main, ["pretrain", "demo", "--out", str(tmp_path / "run"), *words]).join()
    assert child.code == 2, child.output
    assert child.output.startswith("ressl: lr ")
    assert child.output.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("place", ["weak view", "strong view", "loss", "gradient", "carry"])
def test_teacher_queue_and_optimiser_in_memory_are_untouched(place: str, tmp_path: Path) -> None:
    """Between the bad step and the next look, many more steps may run."""
    loop, _ = loop_of(tmp_path)
    step, method = loop.step, loop.step.method
    state = lambda: {
        **{name: p.detach().clone() for name, p in method.named_parameters()},
        **{f"queue.{name}": t.clone() for name, t in method.queue.state_dict().items()},  # type: ignore[union-attr]
        **{f"optimiser.{name}": t.clone() for name, t in optimiser_tensors(step.optimiser, method).items()},
    }
    poison(step, place, math.nan)
    before = state()
    for _ in range(3):
        step.advance(None)
    for name, tensor in state().items():
        assert torch.equal(tensor, before[name]), name
    with pytest.raises(NonFinite, match="step 4"):
        loop.save()
    assert len(loop.checkpoints.paths()) == 1


def test_a_checkpoint_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    loop, _ = loop_of(tmp_path)
    found = loop.checkpoints.load_latest()
    found.tensors["method.backbone.0.weight"][0] = math.nan
    with pytest.raises(ResslError, match=r"backbone\.0\.weight is not finite"):
        loop.restore(found)


def test_a_resumed_run_passes_over_a_checkpoint_that_is_not_finite(
    tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    """As an older version may have written it: its checksum is right."""
    out = tmp_path / "run"
    assert spawn.train(out, ground, before=Poison("loss", math.nan)).join().code == 2
    folder = Run(out).checkpoints
    newest = folder.load_latest()
    newest.tensors["method.backbone.1.running_var"][0] = math.inf
    save(folder.paths()[-1], newest)
    child = spawn.train(out, ground).join()
    assert child.code == 0, child.output
    named = "step-00000006.safetensors is damaged: its method.backbone.1.running_var is not finite"
    assert f"{named}; using the one before" in child.output
    assert "resumed after step 3 of 24" in child.output
    from child import digest

    assert digest(out) == undisturbed[0]
