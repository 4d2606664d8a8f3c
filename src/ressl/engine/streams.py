"""Work on a GPU, and beside other work there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def on_device(device: torch.device) -> Iterator[None]:
    """With ``device`` as the current one, where it is a GPU: captures and our kernels go there."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        yield


@contextmanager
def beside(side: torch.cuda.Stream | None) -> Iterator[None]:
    """On a stream that waits for what is under way here; without one, here."""
    if side is None:
        yield
        return
    side.wait_stream(torch.cuda.current_stream(side.device))
    with torch.cuda.stream(side):
        yield


def join(*sides: torch.cuda.Stream | None) -> None:
    """Wait here for what is under way on each of them."""
    for side in sides:
        if side is not None:
            torch.cuda.current_stream(side.device).wait_stream(side)


class Later:
    """Numbers of the device, on their way to the host while other work is given out; to ask waits for them alone."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers.to("cpu", non_blocking=True)
        self.there = torch.cuda.current_stream(numbers.device).record_event() if numbers.is_cuda else None

    def tolist(self) -> list[float]:
        if self.there is not None:
            self.there.synchronize()
        found: list[float] = self.numbers.tolist()
        return found
