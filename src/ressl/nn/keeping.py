"""Parts that take up what a step made, unless it was bad."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Keeps(nn.Module):
    """A part with the step's flag: a 0-dim bool on the device, False after a step that was not finite.

    The engine puts one tensor of its own into all such parts, so that no method has to pass it on. Outside of training
    it stays true.
    """

    kept: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.ones((), dtype=torch.bool), persistent=False)
