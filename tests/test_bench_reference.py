"""The benchmark's clock, and the way most people train, which its ratios are to."""

from types import SimpleNamespace

import pytest
import torch

from benched import CPU, toy
from ressl.bench import steps, views
from ressl.bench.steps import pil_batches, pil_loader, reference_speed
from ressl.bench.timing import as_torch_comes, in_stock, timed


def test_the_clock_measures_a_known_pause(monkeypatch):
    """By a clock of its own: on a busy machine a pause takes as long as it takes."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr("ressl.bench.timing.time", clock)
    pauses = iter([9.0, 9.0, *[0.01] * 9, *[0.07] * 4, *[0.01] * 100])  # warming up, and one stretch that is disturbed

    def pause():
        clock.now += next(pauses)

    found = timed(pause, CPU, 0.2)
    assert found.median == pytest.approx(0.01)
    assert found.spread == pytest.approx(6.0)  # 70 ms against 10
    assert len(list(pauses)) == 100 - 2 * 4  # five stretches of four


def test_the_reference_makes_the_recipes_views():
    recipe = toy()
    batches = list(pil_loader(recipe, 0, 40))
    assert len(batches) == 2  # an incomplete last batch is dropped
    assert all(view.shape == (16, 3, 16, 16) for batch in batches for view in batch)
    weak, strong = batches[0]
    assert abs(float(weak.mean())) < 5
    assert not torch.equal(weak, strong)


def test_an_epoch_of_the_reference_has_no_end(monkeypatch):
    """Where it ended, workers would start anew."""
    made = []
    monkeypatch.setattr(steps, "pil_loader", lambda recipe, workers, pictures: made.append(pictures) or [0, 1, 2])
    batches = pil_batches(toy(), 2)
    assert [next(batches) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert made == [steps.STEPS * 16]  # one loader, over and over


def test_what_lay_in_stock_is_used_up_by_steps_before_the_clock_starts(monkeypatch):
    """The first steps take longer, and workers fill the stock meanwhile: from there batches would come for nothing."""
    recipe, taken, clock = toy(), [], []
    batch = torch.zeros(16, 3, 16, 16), torch.zeros(16, 3, 16, 16)
    monkeypatch.setattr(steps, "pil_batches", lambda *args: iter(lambda: taken.append(1) or batch, 0))
    monkeypatch.setattr(steps, "seconds_of_one", lambda step, *args: clock.append(len(taken)) or step() or 1.0)
    assert reference_speed(recipe, CPU, 3, 0.01)["images_per_second"] == 16.0
    assert clock == [in_stock(3)]
    assert len(taken) == in_stock(3) + 1


def test_views_of_workers_are_timed_without_their_starts_and_say_so(monkeypatch):
    taken, clock = [], []
    monkeypatch.setattr(views, "pil_batches", lambda *args: iter(lambda: taken.append(1) or 0, 1))
    monkeypatch.setattr(views, "seconds_of_one", lambda step, *args: clock.append(len(taken)) or 1.0)
    row = views._pil(toy(), 3, CPU, 0.01)
    assert (row["views"], row["images_per_second"], row["steady"]) == ("PIL, 3 workers", 16.0, True)
    assert clock == [in_stock(3)]


def test_the_reference_is_as_torch_comes_and_leaves_it_as_it_was():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with as_torch_comes():
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.backends.cudnn.benchmark
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    row = reference_speed(toy(), CPU, 0, 0.01)
    assert row["images_per_second"] > 0
