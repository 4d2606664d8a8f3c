"""Schedules against the formulas in plain Python."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ressl.engine.schedules import step_decay, warmup_cosine


def plain_cosine(step: int, peak: float, warmup: float, total: int) -> float:
    if step < warmup:
        return peak * step / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


@settings(max_examples=100, deadline=None)
@given(total=st.integers(2, 40_000), share=st.floats(0, 0.9), peak=st.floats(1e-3, 50.0), data=st.data())
def test_warmup_and_cosine_follow_the_formula(total, share, peak, data):  # type: ignore[no-untyped-def]
    step, warmup = data.draw(st.integers(0, total - 1)), total * share
    ours = warmup_cosine(torch.tensor(step), peak=peak, warmup_steps=warmup, total_steps=total)
    assert ours.dtype == torch.float32
    assert ours.ndim == 0
    assert ours.item() == pytest.approx(plain_cosine(step, peak, warmup, total), rel=1e-5, abs=peak * 1e-7)


def test_the_paper_warms_up_from_zero_and_ends_near_zero() -> None:
    """5 of 200 epochs of 195 steps, peak 0.06."""
    at = lambda s: warmup_cosine(torch.tensor(s), peak=0.06, warmup_steps=975.0, total_steps=39_000).item()
    assert at(0) == 0.0
    assert at(975) == pytest.approx(0.06)
    assert at((975 + 39_000) // 2) == pytest.approx(0.03, rel=1e-3)
    assert 0 < at(38_999) < 1e-8
    assert at(39_500) == 0.0  # past the end it stays there


def test_no_warmup_begins_at_the_peak() -> None:
    assert warmup_cosine(torch.tensor(0), peak=0.2, warmup_steps=0.0, total_steps=10).item() == pytest.approx(0.2)


def test_a_warmup_as_long_as_the_run_only_rises() -> None:
    values = [warmup_cosine(torch.tensor(s), peak=1.0, warmup_steps=10.0, total_steps=10).item() for s in range(11)]
    assert values == pytest.approx([s / 10 for s in range(11)])


@settings(max_examples=60, deadline=None)
@given(total=st.integers(5, 10_000), data=st.data())
def test_step_decay_is_a_tenth_after_each_milestone(total, data):  # type: ignore[no-untyped-def]
    step = data.draw(st.integers(0, total - 1))
    expected = 30.0 if step < 0.6 * total else 3.0 if step < 0.8 * total else 0.3
    ours = step_decay(torch.tensor(step), peak=30.0, milestones=(0.6, 0.8), total_steps=total)
    assert ours.item() == pytest.approx(expected, rel=1e-6)


def test_without_milestones_nothing_decays() -> None:
    assert step_decay(torch.tensor(99), peak=2.0, milestones=(), total_steps=100).item() == 2.0
