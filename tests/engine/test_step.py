"""The engine's step against a plain training loop written out here with Python numbers."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl import rng
from ressl.data.base import ArraySource
from ressl.data.batches import Batch
from ressl.data.loaders import ResidentLoader
from ressl.data.views import Views
from ressl.engine.graphs import plain_again, snapshot
from ressl.engine.optimisers import build_sgd, optimiser_tensors
from ressl.engine.schedules import warmup_cosine
from ressl.engine.step import TrainStep
from ressl.methods.base import Method, Output
from ressl.recipes import Recipe
from ressl.runs import build_method

TOTAL, WARMUP, PEAK = 8, 3.0, 0.05  # large steps would blow up rounding


def pictures(n: int = 40) -> ArraySource:
    draw = torch.Generator().manual_seed(0)
    return ArraySource("a", torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=draw))


def make(recipe: Recipe, method: Method | None = None, capacity: int = 256) -> TrainStep:
    method = method or build_method(recipe).train()
    return TrainStep(
        method,
        Views(recipe.views, recipe.mean, recipe.std, recipe.seed),
        ResidentLoader(pictures(), recipe.batch_size, "cpu", recipe.seed),
        build_sgd(
            method,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            decay_norm_and_bias=recipe.decay_norm_and_bias,
        ),
        lambda s: warmup_cosine(s, peak=PEAK, warmup_steps=WARMUP, total_steps=TOTAL),
        TOTAL,
        log_capacity=capacity,
    )


def advance(step: TrainStep, count: int) -> None:
    for _ in range(count):
        epoch, place = divmod(step.done, step.loader.steps_per_epoch)
        if place == 0:
            step.begin_epoch(epoch)
        step.advance()


def plain_training(
    recipe: Recipe, steps: int
) -> tuple[nn.Module, nn.Module, nn.Module, Tensor, list[dict[str, float]]]:
    """ReSSL as the paper's algorithm: two networks, a queue that is a list, SGD with Python floats."""
    made: Any = build_method(recipe).train()
    student, head = copy.deepcopy(made.backbone), copy.deepcopy(made.head)
    teacher = copy.deepcopy(nn.Sequential(student, head))
    queue, key = made.queue.keys.clone(), int(made.shuffle.key)
    source = pictures()
    per_epoch = len(source) // recipe.batch_size
    views = Views(recipe.views, recipe.mean, recipe.std, recipe.seed)
    named = [(n, p) for m in (student, head) for n, p in m.named_parameters()]
    small = [p for _, p in named if p.ndim <= 1]
    large = [p for _, p in named if p.ndim > 1]
    decay = recipe.weight_decay
    groups = [
        {"params": large, "weight_decay": decay},
        {"params": small, "weight_decay": decay if recipe.decay_norm_and_bias else 0.0},
    ]
    optimiser = torch.optim.SGD(groups, lr=0.0, momentum=recipe.momentum)
    m, logs = recipe.options["teacher_momentum"], []
    for step in range(steps):
        lr = PEAK * step / WARMUP if step < WARMUP else PEAK / 2 * (
            1 + math.cos(math.pi * (step - WARMUP) / (TOTAL - WARMUP)))  # fmt: skip
        for group in optimiser.param_groups:
            group["lr"] = lr
        epoch, place = divmod(step, per_epoch)
        order = rng.permutation(recipe.seed, epoch, len(source), rng.ORDER, "cpu")
        batch = order[place * recipe.batch_size : (place + 1) * recipe.batch_size]
        weak, strong = views(source.images[batch], step, torch.arange(recipe.batch_size))
        z2 = F.normalize(head(student(strong)), dim=1)
        with torch.no_grad():
            shuffle = rng.permutation(key, step, len(weak), rng.SHUFFLE, "cpu")
            z1 = torch.empty(len(weak), queue.shape[1])
            z1[shuffle] = F.normalize(teacher(weak[shuffle]), dim=1)
            p1 = F.softmax(z1 @ queue.T / recipe.options["teacher_temperature"], dim=1)
        p2 = F.softmax(z2 @ queue.T / recipe.options["student_temperature"], dim=1)
        loss = -(p1 * p2.log()).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        norm = math.sqrt(sum(p.grad.double().pow(2).sum().item() for _, p in named if p.grad is not None))
        optimiser.step()
        with torch.no_grad():
            for mine, theirs in zip(teacher.parameters(), [p for _, p in named], strict=True):
                mine.mul_(m).add_(theirs, alpha=1 - m)
        queue = torch.cat([queue, z1])[-len(queue) :]
        logs.append({"loss": loss.item(), "lr": lr, "grad_norm": norm})
    return student, head, teacher, queue, logs


@pytest.mark.parametrize("decay_all", [True, False])
def test_the_step_is_the_plain_loop(tiny: Callable[..., Recipe], decay_all: bool) -> None:
    """Five steps over two epochs, warm-up and cosine, a queue that wraps: weights, teacher, queue and logs."""
    recipe = tiny(
        seed=3, queue_size=40, teacher_momentum=0.9, student_temperature=0.1, teacher_temperature=0.04,
        weight_decay=0.05, decay_norm_and_bias=decay_all,
    )  # fmt: skip
    step = make(recipe)
    advance(step, 5)
    student, head, teacher, queue, logs = plain_training(recipe, 5)
    method: Any = step.method
    pairs = [(method.backbone, student), (method.head, head), (method.teacher.module, teacher)]
    for ours, theirs in pairs:
        for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
        for (name, a), b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(method.queue.newest(40), queue, rtol=1e-3, atol=2e-4)
    rows = step.drain()
    assert len(rows) == 5
    for ours_row, theirs_row in zip(rows, logs, strict=True):
        for name, value in theirs_row.items():
            assert ours_row[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name


def test_the_first_step_has_learning_rate_zero_and_changes_no_weight(tiny: Callable[..., Recipe]) -> None:
    step = make(tiny())
    before = [p.detach().clone() for p in step.method.parameters()]
    advance(step, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, step.method.parameters(), strict=True))
    advance(step, 1)
    assert not all(torch.equal(a, b) for a, b in zip(before, step.method.parameters(), strict=True))


# --- logs ---


class Counter(Method):
    """Its loss is the step number; at chosen steps it is not a number."""

    def __init__(self, bad: Sequence[int] = (), where: str = "loss") -> None:
        super().__init__()
        self.backbone = nn.Linear(1, 1)
        self.bad, self.where, self.calls = bad, where, 0
        self.register_buffer("kept", torch.zeros(2))
        self.progress: list[float] = []

    def forward(self, views: Sequence[Tensor]) -> Output:
        number, self.calls = self.calls, self.calls + 1
        loss = self.backbone.weight.sum() * 0 + float(number)
        carry = torch.full((2,), float(number))
        if number in self.bad:
            if self.where == "loss":
                loss, carry = loss * float("nan"), carry * float("nan")
            else:  # a finite loss with an infinite gradient
                loss = loss + (self.backbone.weight - self.backbone.weight.detach()).sum().abs().sqrt()
        return Output(loss, carry, {"twice": torch.tensor(2.0 * number)})

    @torch.no_grad()
    def set_progress(self, progress: Tensor) -> None:
        self.progress.append(progress.item())

    @torch.no_grad()
    def after_step(self, carry: Tensor | None) -> None:
        assert carry is not None
        self.kept: Tensor
        self.kept.copy_(carry)


def test_drain_gives_every_step_once_and_in_order(tiny: Callable[..., Recipe]) -> None:
    step = make(tiny(), Counter(), capacity=6)
    seen: list[float] = []
    for count in (1, 6, 3, 5):  # the ring of 6 wraps
        advance(step, count)
        rows = step.drain()
        assert [row["twice"] for row in rows] == [2 * row["loss"] for row in rows]
        seen += [row["loss"] for row in rows]
    assert seen == list(range(15))
    assert step.drain() == []


def test_a_ring_that_overflows_keeps_the_newest(tiny: Callable[..., Recipe]) -> None:
    step = make(tiny(), Counter(), capacity=4)
    advance(step, 7)
    assert [row["loss"] for row in step.drain()] == [3, 4, 5, 6]


@pytest.mark.parametrize("capacity", [3, 5, 8, 20])
def test_undrained_logs_move_to_a_ring_of_another_size(tiny: Callable[..., Recipe], capacity: int) -> None:
    """Resuming with other log_steps."""
    first = make(tiny(), Counter(), capacity=8)
    advance(first, 5)
    first.drain()
    advance(first, 6)
    second = make(tiny(), Counter(), capacity=capacity)
    second.seek(first.done, first.drained)
    second.names = first.names
    second.fill_ring(first.ring)
    assert [row["loss"] for row in second.drain()] == list(range(max(5, 11 - capacity), 11))


def test_the_method_hears_how_far_training_is(tiny: Callable[..., Recipe]) -> None:
    step = make(tiny(), Counter())
    advance(step, 4)
    assert isinstance(step.method, Counter)
    assert step.method.progress == pytest.approx([0, 1 / TOTAL, 2 / TOTAL, 3 / TOTAL])


# --- steps that are not finite ---


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_bad_step_is_remembered_and_changes_nothing(tiny: Callable[..., Recipe], where: str) -> None:
    step = make(tiny(), Counter(bad=(3, 5), where=where))
    advance(step, 3)
    assert step.bad_step() is None
    weights = [p.detach().clone() for p in step.method.parameters()]
    state = {k: v.clone() for k, v in optimiser_tensors(step.optimiser, step.method).items()}
    advance(step, 1)
    assert step.bad_step() == 3
    assert all(torch.equal(a, b) for a, b in zip(weights, step.method.parameters(), strict=True))
    assert all(torch.equal(state[k], v) for k, v in optimiser_tensors(step.optimiser, step.method).items())
    assert all(b.isfinite().all() for b in step.method.buffers())
    advance(step, 3)
    assert step.bad_step() == 3  # the first, not the last


def test_a_poisoned_batch_leaves_weights_teacher_and_queue_finite(tiny: Callable[..., Recipe]) -> None:
    step = make(tiny())
    advance(step, 2)
    real = step.make_views

    def poisoned(number: Tensor, batch: Batch | None) -> list[Tensor]:
        weak, strong = real(number, batch)
        return [weak.index_fill(0, torch.tensor([1]), float("nan")), strong.index_fill(0, torch.tensor([2]), math.inf)]

    step.make_views = poisoned  # type: ignore[method-assign]
    method: Any = step.method
    before = {name: p.detach().clone() for name, p in method.named_parameters()}  # the teacher's too
    before |= {f"queue.{name}": tensor.clone() for name, tensor in method.queue.state_dict().items()}
    advance(step, 2)
    assert step.bad_step() == 2
    for name, p in method.named_parameters():
        assert p.isfinite().all(), name
        assert torch.equal(p, before[name]), name
    for name, tensor in method.queue.state_dict().items():
        assert torch.equal(tensor, before[f"queue.{name}"]), name
    assert all(t.isfinite().all() for t in optimiser_tensors(step.optimiser, method).values())


def test_a_step_that_failed_on_the_way_leaves_no_gradient_behind(tiny: Callable[..., Recipe]) -> None:
    plain, failed = make(tiny()), make(tiny())
    put_back = snapshot(failed)

    def fail(*args: object) -> None:
        raise RuntimeError("cannot be captured")

    failed.after = fail  # type: ignore[method-assign]
    failed.begin_epoch(0)
    with pytest.raises(RuntimeError, match="captured"):
        failed.advance()
    put_back()
    plain_again(failed)
    advance(plain, 2)
    advance(failed, 2)
    assert plain.drain() == failed.drain()
