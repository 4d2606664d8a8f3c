"""A network made ready beside the compiler's work on the rest of the step.

A kernel is compiled when it is first launched, and a network has some forty variants of ours. Here a sketch of the
network (shapes, no memory) says which ones it will launch, and other processes compile them. Then a rehearsal lets the
library choose its convolutions, in the thread that will use them, for which alone it remembers its choice. Without all
this a cold start is slower, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ressl.engine.building import build
from ressl.engine.fusion import fuse
from ressl.engine.launching import Launch, noted
from ressl.nn.crops import forward_crops


class Rehearsal(threading.Thread):
    """Builds every kernel of a training step of ``network`` on pictures of ``shape``, once started.

    ``calls``: how many views of that shape the network takes at once, in each of its calls that differ. Whoever needs a
    kernel before it is ready makes it himself. ``also``: what else is to be built. ``how`` as for :func:`fuse`.
    """

    def __init__(
        self,
        network: nn.Module,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        calls: Sequence[int] = (1,),
        also: Sequence[Launch] = (),
        **how: Any,
    ) -> None:
        super().__init__(name="rehearsal", daemon=True)
        self.device, self.shape, self.dtype, self.calls = next(network.parameters()).device, shape, dtype, calls
        # Both before the thread begins: a copy of weights that nobody changes yet, and notes that nobody else takes.
        self.found = [*launches(network, shape, dtype, calls, **how), *also]
        self.twin: nn.Module | None = _twin(network, self.device, dtype, **how)

    def run(self) -> None:
        with contextlib.suppress(Exception), torch.cuda.device(self.device):  # a mistake comes again in the step itself
            build(self.found, _target())

    def choose(self) -> None:
        """The convolutions, once, when it has been joined."""
        with contextlib.suppress(Exception), torch.cuda.device(self.device):
            assert self.twin is not None
            _once(self.twin, self.shape, self.dtype, self.calls)
            torch.cuda.synchronize(self.device)
        self.twin = None


def _target() -> tuple[str, int | str, int]:
    """Backend, architecture and warp size of the current card."""
    import triton

    found = triton.runtime.driver.active.get_current_target()
    return found.backend, found.arch, found.warp_size


def launches(
    network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, calls: Sequence[int] = (1,), **how: Any
) -> list[Launch]:
    """The different kernels that such a step launches."""
    with noted() as found:
        _once(_twin(network, torch.device("meta"), dtype, **how), shape, dtype, calls)
    signature = lambda one: [arg.dtype if isinstance(arg, Tensor) else arg for arg in one.args]
    return list({(one.kernel, *signature(one), *one.constants.items()): one for one in found}.values())


def _twin(network: nn.Module, device: torch.device, dtype: torch.dtype, **how: Any) -> nn.Module:
    twin = copy.deepcopy(network).to(device).train()
    for part in twin.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            part.to(dtype)
    fuse(twin, **how)
    return twin


def _once(twin: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, calls: Sequence[int]) -> None:
    """Forward and backward on black pictures."""
    pictures = torch.zeros(shape, dtype=dtype, device=next(twin.parameters()).device)
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    for views in calls:
        torch.stack(forward_crops(twin, [pictures] * views)).sum().backward()
