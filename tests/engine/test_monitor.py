"""A collapse is said once, when it is certain, with its likely cause."""

from __future__ import annotations

import math

import pytest

from ressl.engine.monitor import PATIENCE, Collapse

FLAT = {"teacher_entropy": 0.999 * math.log(4096), "spread": 0.5}
NARROW = {"teacher_entropy": 3.0, "spread": 0.001}
FINE = {"teacher_entropy": 5.0, "spread": 0.9}


def told(watch: Collapse, logs: list[dict[str, float]], first: int = 1000) -> list[str | None]:
    return [watch.look(first + 50 * i, row) for i, row in enumerate(logs)]


def test_it_says_so_once_after_patience() -> None:
    said = told(Collapse(4096, (0.04, 0.1), 100), [FLAT] * (PATIENCE + 5))
    assert [i for i, text in enumerate(said) if text] == [PATIENCE - 1]
    text = said[PATIENCE - 1] or ""
    assert text.startswith(f"step {1000 + 50 * (PATIENCE - 1)}: ")
    assert "collapsed" in text
    assert f"{math.log(4096):.2f}" in text


def test_a_recovery_in_between_starts_the_count_again() -> None:
    said = told(Collapse(4096, None, 100), [FLAT] * (PATIENCE - 1) + [FINE] + [FLAT] * PATIENCE)
    assert [i for i, text in enumerate(said) if text] == [2 * PATIENCE - 1]


def test_a_healthy_run_hears_nothing() -> None:
    assert not any(told(Collapse(4096, (0.04, 0.1), 100), [FINE] * 50))


def test_nothing_is_said_before_the_warm_up_ends() -> None:
    """A fresh network is flat: that is no collapse."""
    watch = Collapse(4096, (0.04, 0.1), 1000)
    assert not any(told(watch, [FLAT] * 10, first=0))
    said = told(watch, [FLAT] * PATIENCE, first=1000)  # the points before do not count
    assert [bool(text) for text in said] == [False] * (PATIENCE - 1) + [True]


@pytest.mark.parametrize("taus", [(0.1, 0.1), (0.2, 0.1), (0.08, 0.1)])
def test_close_temperatures_are_named_as_the_cause(taus: tuple[float, float]) -> None:
    text = told(Collapse(4096, taus, 100), [FLAT] * PATIENCE)[-1] or ""
    assert f"teacher_temperature {taus[0]}" in text
    assert f"student_temperature {taus[1]}" in text


@pytest.mark.parametrize("taus", [(0.04, 0.1), None])
def test_other_causes_are_named_otherwise(taus: tuple[float, float] | None) -> None:
    text = told(Collapse(4096, taus, 100), [FLAT] * PATIENCE)[-1] or ""
    assert "temperature" not in text
    assert "learning rate" in text


def test_embeddings_that_point_one_way_are_a_collapse_too() -> None:
    text = told(Collapse(None, None, 100), [NARROW] * PATIENCE)[-1] or ""
    assert "point one way (spread 0.001)" in text


def test_logs_of_another_method_are_no_alarm() -> None:
    assert not any(told(Collapse(None, None, 100), [{"loss": 1.0}] * 10))
