"""The states of torch's random generators, to keep and to put back."""

from __future__ import annotations

import torch
from torch import Tensor


def random_states(device: torch.device) -> dict[str, Tensor]:
    """torch's own generators. Nothing of ours draws from them, but a method of the user's may."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
