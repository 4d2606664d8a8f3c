"""Random states that are kept and put back."""

from __future__ import annotations

import torch

from ressl.engine.generators import random_states, set_random_states


def test_random_states_come_back() -> None:
    device = torch.device("cpu")
    states = random_states(device)
    first = torch.rand(3)
    set_random_states(states, device)
    assert torch.equal(torch.rand(3), first)
