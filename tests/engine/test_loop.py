"""The loop: what it writes, when it saves, and how it stops."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ressl.checkpoints import CheckpointFolder
from ressl.data.base import ArraySource
from ressl.data.loaders import ResidentLoader
from ressl.data.views import Views
from ressl.engine.loop import Loop, Rhythm, device_of
from ressl.engine.monitor import Collapse, NonFinite
from ressl.engine.optimisers import build_sgd
from ressl.engine.records import Records, read_metrics
from ressl.engine.signals import Interrupted
from ressl.engine.step import TrainStep
from ressl.errors import ResslError
from ressl.methods.base import Method, Output
from ressl.recipes import Recipe
from ressl.runs import build_method

NEVER = 1e9
PER_EPOCH = 4
EVERY_THIRD = Rhythm(log_steps=3, checkpoint_minutes=NEVER)


class Counter(Method):
    """Loss = number of the step, which it keeps in a buffer; not a number from ``bad`` on."""

    def __init__(self, bad: int | None = None) -> None:
        super().__init__()
        self.backbone = nn.Linear(1, 1)
        self.bad = bad
        self.register_buffer("count", torch.zeros(()))

    def forward(self, views: object) -> Output:
        loss = self.backbone.weight.sum() * 0 + self.get_buffer("count")
        if self.bad is not None and self.get_buffer("count") >= self.bad:
            loss = loss * float("nan")
        return Output(loss, None, {"spread": torch.ones(())})

    @torch.no_grad()
    def after_step(self, carry: object) -> None:
        self.get_buffer("count").add_(1)


class Watched:
    def __init__(self, at: int | None = None, do: Callable[[], None] | None = None) -> None:
        self.steps: list[int] = []
        self.messages: list[str] = []
        self.at, self.do = at, do

    def busy(self, what: str, done: int, total: int) -> None: ...

    def progress(self, done: int, total: int, values: dict[str, float]) -> None:
        self.steps.append(done)
        if done == self.at and self.do is not None:
            act, self.do = self.do, None
            act()

    def message(self, text: str) -> None:
        self.messages.append(text)


def build(folder: Path, method: Method, recipe: Recipe, records: Records | None = None, epochs: int = 3,
          display: Watched | None = None,
          rhythm: Rhythm = EVERY_THIRD, **more: Any) -> Loop:  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    n = PER_EPOCH * recipe.batch_size + 3
    source = ArraySource("a", torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=draw))
    loader = ResidentLoader(source, recipe.batch_size, "cpu", recipe.seed)
    step = TrainStep(
        method.train(),
        Views(recipe.views, recipe.mean, recipe.std, recipe.seed),
        loader,
        build_sgd(method, momentum=0.9, weight_decay=0.0, decay_norm_and_bias=True),
        lambda s: 0.01 * (s + 1).float(),
        epochs * PER_EPOCH,
        log_capacity=rhythm.log_steps,
    )
    checkpoints = CheckpointFolder(folder / "checkpoints")
    return Loop(step, epochs=epochs, records=records or Records(folder), checkpoints=checkpoints, facts={"recipe": {}},
                display=display or Watched(), collapse=Collapse(None, None, 0), rhythm=rhythm, **more)  # fmt: skip


def saved(folder: Path) -> list[int]:
    return [int(p.stem.removeprefix("step-")) for p in CheckpointFolder(folder / "checkpoints").paths()]


def test_rows_are_means_over_the_steps_since_the_last(tmp_path: Path, tiny: Callable[..., Recipe]) -> None:
    """4 steps an epoch, a row every 3 and at the ends: 0 1 2 | 3 | 4 5 | 6 7 | 8 | 9 10 11."""
    build(tmp_path, Counter(), tiny()).run()
    rows = read_metrics(tmp_path)
    spans = {3: (0, 1, 2), 4: (3,), 6: (4, 5), 8: (6, 7), 9: (8,), 12: (9, 10, 11)}
    assert [row["step"] for row in rows] == list(spans)
    for row in rows:
        span = spans[row["step"]]
        assert row["loss"] == pytest.approx(sum(span) / len(span))
        assert row["lr"] == pytest.approx(0.01 * row["step"])  # the newest, not a mean
        assert row["epoch"] == row["step"] / PER_EPOCH
        assert row["images_per_second"] > 0
        assert row["spread"] == 1.0


def test_evaluation_comes_on_its_epochs_and_at_the_end(tmp_path: Path, tiny: Callable[..., Recipe]) -> None:
    for every, expected in ((0, [5]), (2, [2, 4, 5]), (1, [1, 2, 3, 4, 5])):
        folder = tmp_path / str(every)
        folder.mkdir()
        build(folder, Counter(), tiny(), epochs=5, evaluate=lambda: {"knn": 50.0}, evaluate_every=every).run()
        assert [row["epoch"] for row in read_metrics(folder) if "knn" in row] == expected


def test_checkpoints_come_every_so_many_steps_and_at_the_end(tmp_path: Path, tiny: Callable[..., Recipe]) -> None:
    seen: list[int] = []
    rhythm = Rhythm(log_steps=1, checkpoint_minutes=NEVER, checkpoint_steps=5, checkpoint_epochs=100)
    loop = build(tmp_path, Counter(), tiny(), rhythm=rhythm)
    save = loop.save
    loop.save = lambda: (seen.append(loop.step.done), save())[1]  # type: ignore[method-assign]
    loop.run()
    assert seen == [5, 10, 12]
    assert saved(tmp_path) == [10, 12]


def test_a_slow_disk_is_not_written_to_after_every_epoch(tmp_path: Path, tiny: Callable[..., Recipe]) -> None:
    seen: list[int] = []
    loop = build(tmp_path, Counter(), tiny(), epochs=4)
    save = loop.save

    def slow() -> None:
        seen.append(loop.step.done)
        save()
        loop._cost = 1e6  # as if it had taken days

    loop.save = slow  # type: ignore[method-assign]
    loop.run()
    assert seen == [4, 16]


def test_who_does_not_write_looks_as_seldom_as_who_does(
    tmp_path: Path, tiny: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once in so many minutes, not after every step from then on: each look waits for the device."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("ressl.engine.loop.time", clock)
    rhythm = Rhythm(log_steps=1, checkpoint_minutes=5.0, checkpoint_epochs=100)
    loop = build(tmp_path, Counter(), tiny(), rhythm=rhythm)
    loop.team = SimpleNamespace(world=1, leads=False, rhythm=1)  # type: ignore[assignment]
    looks, advance, look = list[int](), loop.step.advance, loop._refuse_spoilt

    def minute(batch: Any = None) -> None:
        clock.now += 70.0
        advance(batch)

    monkeypatch.setattr(loop.step, "advance", minute)
    monkeypatch.setattr(loop, "_refuse_spoilt", lambda learned: (looks.append(loop.step.done), look(learned))[1])
    loop.run()
    assert looks == [5, 10, 12]  # the last comes whatever the time
    assert saved(tmp_path) == []


@pytest.mark.parametrize("bad", [0, 1, 5, 11])
def test_a_step_that_is_not_finite_stops_the_run_and_is_named(
    tmp_path: Path, tiny: Callable[..., Recipe], bad: int
) -> None:
    loop = build(tmp_path, Counter(bad), tiny())
    with pytest.raises(NonFinite) as caught:
        loop.run()
    text = str(caught.value)
    assert text.startswith(f"step {bad} (epoch {bad // PER_EPOCH}, batch {bad % PER_EPOCH}) is not finite (loss nan")
    assert "\n" not in text
    assert all(step <= bad for step in saved(tmp_path))
    assert all(row["step"] <= bad for row in read_metrics(tmp_path))
    assert ("no checkpoint was written" in text) == (bad < PER_EPOCH)


def test_a_bad_step_is_seen_before_a_checkpoint_even_between_log_points(
    tmp_path: Path, tiny: Callable[..., Recipe]
) -> None:
    rhythm = Rhythm(log_steps=100, checkpoint_minutes=NEVER, checkpoint_steps=1)
    with pytest.raises(NonFinite, match="step 2 "):
        build(tmp_path, Counter(2), tiny(), rhythm=rhythm).run()
    assert saved(tmp_path) == [1, 2]  # after two good steps


def test_weights_that_are_nan_stop_the_run(tmp_path: Path, tiny: Callable[..., Recipe]) -> None:
    method: Any = build_method(tiny())
    with torch.no_grad():
        method.head[0].bias[0] = float("nan")
    with pytest.raises(NonFinite, match=r"step 0 .*lower lr"):
        build(tmp_path, method, tiny()).run()
    assert saved(tmp_path) == []
    assert method.queue.keys.isfinite().all()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_leaves(
    tmp_path: Path, tiny: Callable[..., Recipe], signum: signal.Signals
) -> None:
    rhythm = Rhythm(log_steps=1, checkpoint_minutes=NEVER)
    display = Watched(6, lambda: signal.raise_signal(signum))
    with pytest.raises(Interrupted) as caught:
        build(tmp_path, Counter(), tiny(), display=display, rhythm=rhythm).run()
    assert (caught.value.step, caught.value.exit_code) == (6, 128 + signum)
    assert saved(tmp_path)[-1] == 6


def test_a_signal_in_the_last_moment_of_a_first_step_leaves_no_evaluation_out(
    tmp_path: Path, tiny: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step is counted, but not that it ended an epoch: what is saved then would never be evaluated."""
    rhythm = Rhythm(log_steps=1, checkpoint_minutes=NEVER, checkpoint_steps=PER_EPOCH - 1)
    build(tmp_path, Counter(), tiny(), epochs=1, rhythm=rhythm).run()
    CheckpointFolder(tmp_path / "checkpoints").paths()[-1].unlink()  # as if killed before the last step
    evaluated: list[int] = []
    loop = build(tmp_path, Counter(), tiny(), epochs=1, evaluate=lambda: evaluated.append(1) or {})
    loop.restore(loop.checkpoints.load_latest())
    advance = loop.step.advance
    monkeypatch.setattr(loop.step, "advance", lambda batch=None: (advance(batch), signal.raise_signal(signal.SIGTERM)))
    with pytest.raises(Interrupted):
        loop.run()
    again = build(tmp_path, Counter(), tiny(), epochs=1, evaluate=lambda: evaluated.append(1) or {})
    again.restore(again.checkpoints.load_latest())
    again.run()
    assert evaluated == [1]
    assert saved(tmp_path)[-1] == PER_EPOCH


@pytest.mark.parametrize("during", ["step", "evaluation"])
@pytest.mark.parametrize("at", [4, 12])
def test_a_signal_at_the_end_of_an_epoch_leaves_its_evaluation_to_the_resumed_run(
    tmp_path: Path, tiny: Callable[..., Recipe], at: int, during: str
) -> None:
    """An evaluation may take minutes: it is not waited for, and not lost either."""
    stop = lambda: signal.raise_signal(signal.SIGTERM)
    loop = build(tmp_path, Counter(), tiny(), display=Watched(at if during == "step" else None, stop), evaluate_every=1)
    loop.evaluate = lambda: (during == "evaluation" and loop.step.done == at and stop(), {"knn": 1.0})[1]
    with pytest.raises(Interrupted):
        loop.run()
    assert saved(tmp_path)[-1] == at
    steps = lambda: [row["step"] for row in read_metrics(tmp_path) if "knn" in row]
    assert steps() == list(range(PER_EPOCH, at, PER_EPOCH))
    found = CheckpointFolder(tmp_path / "checkpoints").load_latest()
    records = Records(tmp_path, found.facts["step"], found.facts["rows"])
    again = build(tmp_path, Counter(), tiny(), records, evaluate=lambda: {"knn": 1.0}, evaluate_every=1)
    again.restore(found)
    again.run()
    assert steps() == [4, 8, 12]


def test_restoring_another_model_is_an_error(tmp_path: Path, tiny: Callable[..., Recipe]) -> None:
    build(tmp_path, Counter(), tiny(), epochs=1).run()
    loop = build(tmp_path, build_method(tiny()), tiny())
    with pytest.raises(ResslError, match="belongs to another model") as caught:
        loop.restore(loop.checkpoints.load_latest())
    assert "\n" not in str(caught.value)


def test_collapse_is_shown_as_a_warning(tmp_path: Path, tiny: Callable[..., Recipe]) -> None:
    class Narrow(Counter):
        def forward(self, views: object) -> Output:
            return super().forward(views)._replace(logs={"spread": torch.zeros(())})

    display = Watched()
    build(tmp_path, Narrow(), tiny(), display=display).run()
    warnings = [text for text in display.messages if "collapsed" in text]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: step 9: ")  # the fifth log point: 2, 4, 6, 8 and the end of an epoch


def test_devices_by_name() -> None:
    assert device_of("cpu") == torch.device("cpu")
    assert device_of("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "", "mps", "meta", "cuda:x", "cpu:zero"])
def test_an_unknown_device_is_an_error(name: str) -> None:
    with pytest.raises(ResslError, match="device"):
        device_of(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_an_absent_gpu_is_an_error(name: str) -> None:
    with pytest.raises(ResslError, match=r"no such CUDA device.*--device cpu"):
        device_of(name)
