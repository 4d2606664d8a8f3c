"""The update's tables: where they lie, and what a capture does with them."""

import pytest
import torch
from torch import Tensor, nn

from ressl.engine.launching import noted
from ressl.engine.optimisers import build_sgd

pytest.importorskip("triton")
updating = pytest.importorskip("ressl.engine.updating")


@pytest.fixture
def weights() -> nn.Module:
    found = nn.Sequential(nn.Linear(40, 60), nn.Linear(60, 3))
    for p in found.parameters():
        p.grad = torch.zeros_like(p)
    return found


@pytest.fixture
def update(weights: nn.Module) -> "updating.Update":
    optimiser = build_sgd(weights, momentum=0.9, weight_decay=5e-4, decay_norm_and_bias=True, nesterov=False)
    optimiser.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    return updating.Update(optimiser, [], lambda p: p.grad, lambda: None)


def rows_of(tables: dict[object, Tensor]) -> list[list[int]]:
    return [row for table in tables.values() for row in table.tolist()]


def test_a_capture_takes_the_tables_of_the_step_before(
    update: "updating.Update", weights: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it allocated itself would lie in the graph's memory, to which every replay writes."""
    with noted():
        update.norm()
        update.step()
        before, places = dict(update.tables), rows_of(update.tables)
        for p in weights.parameters():
            p.grad = torch.ones_like(p)  # elsewhere, as in a graph's memory
        monkeypatch.setattr(updating, "_capturing", lambda: True)
        update.norm()
        assert all(update.tables[key] is table for key, table in before.items())
        assert rows_of(update.tables) == places  # nothing is copied to the card yet
        update.step()
    update.settle()
    wanted = [p.grad.data_ptr() for p in weights.parameters() if p.grad is not None]
    assert [row[0] for row in rows_of(update.tables) if row[0] in wanted] == wanted
    assert rows_of(update.tables) != places


def test_an_update_that_no_step_has_made_before_is_not_captured(
    update: "updating.Update", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updating, "_capturing", lambda: True)
    with noted(), pytest.raises(RuntimeError, match="steps before the capture"):
        update.norm()
