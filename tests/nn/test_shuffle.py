"""The shuffle across processes, all of them played here, against indexing the whole batch."""

from __future__ import annotations

import copy

import pytest
import torch

from ressl import rng
from ressl.nn import BatchShuffle, processes
from ressl.nn.processes import Trade, trade

CPU = torch.device("cpu")


def swapped(monkeypatch: pytest.MonkeyPatch, how: str, trades: list[Trade], parts: list[torch.Tensor]) -> list:
    """What each process has after ``there`` or ``back``, called once to hear what all give, and once to get it."""
    given: list[list[torch.Tensor]] = []
    monkeypatch.setattr(processes, "_trade", lambda x, counts, got: given.append(x.split(counts)) or x)
    for mine, x in zip(trades, parts, strict=True):
        getattr(mine, how)(x)
    found = []
    for me, (mine, x) in enumerate(zip(trades, parts, strict=True)):
        came = torch.cat([of[me] for of in given])
        monkeypatch.setattr(processes, "_trade", lambda x, counts, got, came=came: came)
        assert [len(of[me]) for of in given] == (mine.got if how == "there" else mine.given)
        found.append(getattr(mine, how)(x))
    return found


@pytest.mark.parametrize("world", [2, 3, 8])
def test_rows_go_where_the_permutation_says_and_back(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    batch = torch.randn(world * 5, 3, 2)
    for step in range(4):
        order = rng.permutation(7, step, len(batch), rng.SHUFFLE, "cpu")
        trades = [trade(order, rank, world, CPU) for rank in range(world)]
        hands = swapped(monkeypatch, "there", trades, [batch[rank::world] for rank in range(world)])
        for rank, hand in enumerate(hands):
            assert torch.equal(hand, batch[order][rank::world])
        home = swapped(monkeypatch, "back", trades, [2 * hand for hand in hands])
        for rank, rows in enumerate(home):
            assert torch.equal(rows, 2 * batch[rank::world])


def test_pictures_travel_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[torch.Tensor]()
    swap = lambda found, x, got, given: sent.append(x) or found.copy_(x.flip(0))  # of two who give all they have
    monkeypatch.setattr(processes.dist, "all_to_all_single", swap)
    x = torch.randn(4, 3, 5, 6)
    for layout in (torch.contiguous_format, torch.channels_last):
        laid = x.contiguous(memory_format=layout)
        found = processes._trade(laid, [0, 4], [0, 4])
        assert torch.equal(found, x.flip(0))
        assert found.stride() == laid.stride()
        assert sent[-1].is_contiguous()  # as the library wants it
        assert sent[-1].data_ptr() == laid.data_ptr()  # no copy was made


def test_the_host_draws_what_a_device_draws_also_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffle, drawn = BatchShuffle(), list[torch.Tensor]()
    monkeypatch.setattr("ressl.nn.shuffle.trade", lambda order, *more: drawn.append(order))
    device, saved = copy.deepcopy(shuffle), {}
    for step in range(5):
        if step == 3:
            saved = {name: tensor.clone() for name, tensor in shuffle.state_dict().items()}
        shuffle._dealt(12)
        assert torch.equal(drawn[-1], device(12)[0])
    assert torch.equal(shuffle.count, device.count)
    shuffle.load_state_dict(saved)
    shuffle._dealt(12)
    assert torch.equal(drawn[-1], drawn[3])


def test_the_compiler_does_not_begin_anew_with_every_permutation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ressl.nn.shuffle.world", lambda: 2)
    monkeypatch.setattr(processes, "_trade", lambda x, given, got: x)
    shuffle, network = BatchShuffle(), torch.nn.Linear(3, 3)
    torch._dynamo.reset()
    apart = torch.compile(lambda x: shuffle.apart(network, x), backend="eager")
    x = torch.randn(16, 3)
    apart(x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(6):
            apart(x)
    torch._dynamo.reset()
