"""How long a run will take, told from records of other lengths, in company, and of other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from invented import record, write

from ressl.recipes import Recipe, get_recipe
from ressl.reproduce.grid import Ledger, jobs
from ressl.reproduce.tables import TABLES
from ressl.reproduce.times import estimate

CIFAR = get_recipe("cifar10")
STEPS = 195  # of an epoch: 49,920 pictures


def run(
    recipe: Recipe, speed: float, rest: float, linear: tuple[float, float] | None = None, **changes: Any
) -> dict[str, Any]:
    """A record of so many images/s, so many seconds that are no steps, and of an evaluation (seconds, its start)."""
    steps = STEPS * recipe.epochs
    made = record(recipe, steps=steps, images_per_second=speed, seconds=steps * 256 / speed + rest, **changes)
    if linear is not None:
        made["evaluations"] = {"linear": {"last": 90.0, "best": 90.0, "seconds": linear[0], "start_seconds": linear[1]}}
    return made


def test_a_short_run_is_told_from_a_long_one() -> None:
    """Its steps are fewer, its start-up and its linear evaluation are not."""
    long = run(CIFAR, 62_300.0, 30.0, (11.0, 1.0))
    short = CIFAR.replace(epochs=20)
    assert estimate([long], CIFAR) == pytest.approx(long["seconds"] + 11.0)
    assert estimate([long], short) == pytest.approx(20 * 49_920 / 62_300 + 30.0 + 11.0)
    quick = jobs(TABLES["table1"], quick=True, only="ReSSL | CIFAR-10")[0].recipe
    assert (quick.epochs, quick.linear.epochs) == (20, 20)
    assert estimate([long], quick) == pytest.approx(20 * 49_920 / 62_300 + 30.0 + 1.0 + 10.0 / 5)
    assert estimate([], CIFAR) is None
    assert estimate([long], CIFAR.replace(batch_size=64)) is None
    assert estimate([long | {"environment": long["environment"] | {"device": "cpu"}}], CIFAR) is None


def test_runs_that_were_alone_are_preferred() -> None:
    """One of six has neither the speed nor the start-up of its own, however near its length."""
    short = CIFAR.replace(epochs=20)
    alone = run(CIFAR, 60_000.0, 30.0, (11.0, 1.0))
    beside = run(short, 20_000.0, 90.0, (40.0, 5.0), jobs=6)
    known = estimate([alone], short)
    assert known is not None
    assert estimate([beside, alone], short) == pytest.approx(known)
    # Where a method has no other, its share of the card, with the start-up of others that were alone.
    simclr = short.replace(method="simclr")
    shared = run(simclr, 10_000.0, 90.0, jobs=6)
    assert estimate([shared, alone], simclr) == pytest.approx(20 * 49_920 / 60_000 + 30.0 + 11.0)
    assert estimate([shared], simclr) == pytest.approx(20 * 49_920 / 60_000 + 90.0)
    swav = run(short.replace(method="swav"), 5_000.0, 10.0)  # another method's step costs what it costs
    assert estimate([swav, shared], simclr) == pytest.approx(20 * 49_920 / 60_000 + 10.0)


def test_a_longer_run_may_have_more_beside_its_steps() -> None:
    """Methods that cluster do so between epochs."""
    short = run(CIFAR.replace(method="localagg", epochs=20), 60_000.0, 40.0)
    assert estimate([short], CIFAR.replace(method="localagg")) == pytest.approx(200 * 49_920 / 60_000 + 400.0)


def test_many_are_told_by_their_middle_and_the_evaluation_by_those_that_timed_one() -> None:
    several = [run(CIFAR, 60_000.0, rest) for rest in (20.0, 30.0, 500.0)]
    timed = run(CIFAR.replace(method="supervised"), 80_000.0, 25.0, (21.0, 1.0))  # the same network
    assert estimate([*several, timed], CIFAR) == pytest.approx(200 * 49_920 / 60_000 + 30.0 + 21.0)
    other = run(get_recipe("cifar100"), 60_000.0, 25.0, (22.0, 2.0))
    other["steps"] *= 2  # twice the pictures
    assert estimate([*several, other], CIFAR) == pytest.approx(200 * 49_920 / 60_000 + 30.0 + 2.0 + 20.0 / 2)
    assert estimate([*several, timed, other], CIFAR) == pytest.approx(200 * 49_920 / 60_000 + 30.0 + 21.0)
    beside = run(CIFAR, 60_000.0, 30.0, (90.0, 1.0), jobs=2)
    assert estimate([*several, timed, beside], CIFAR) == pytest.approx(200 * 49_920 / 60_000 + 30.0 + 21.0)
    told = run(CIFAR, 60_000.0, 30.0, (3.0, 1.0))
    told["evaluations"]["linear"]["changed"] = {"epochs": 10}  # of this many, and not of its recipe's hundred
    assert estimate([told], CIFAR) == pytest.approx(200 * 49_920 / 60_000 + 30.0 + 21.0)


def test_a_run_too_short_for_a_speed_or_one_that_went_on_is_still_known() -> None:
    bare = run(CIFAR, 60_000.0, 30.0) | {"images_per_second": None}
    assert estimate([bare], CIFAR) == pytest.approx(bare["seconds"])
    went_on = run(CIFAR, 60_000.0, -100.0)  # its seconds are of the last part
    assert estimate([went_on], CIFAR) == pytest.approx(200 * 49_920 / 60_000)


def test_the_ledgers_own_runs_tell_what_twenty_epochs_take() -> None:
    """By its 62,300 images/s the training alone is 16 s, and its evaluation was never done in less than 11."""
    ledger = Ledger(Path(__file__).parents[2] / "results")
    short = jobs(TABLES["table1"], epochs=20, only="ReSSL | CIFAR-10")[0]
    seconds = estimate(ledger, short.recipe)
    assert seconds is not None
    assert 16.0 + 11.0 < seconds < 120.0
    whole = jobs(TABLES["table1"], only="ReSSL | CIFAR-10")[0]
    (longer,) = [found for found in [estimate(ledger, whole.recipe)] if found is not None]
    alone = [r["seconds"] for r in ledger.records[whole.key] if r.get("jobs", 1) == 1]
    assert min(alone) < longer < 1.5 * max(alone)


def test_a_ledger_without_such_runs_knows_nothing(tmp_path: Path) -> None:
    job = jobs(TABLES["table3"])[0]
    assert estimate(write(tmp_path), job.recipe) is None
