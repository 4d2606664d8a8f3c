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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ressl.engine.building import build
from ressl.engine.fusion import fuse
from ressl.engine.launching import Launch, noted
from ressl.engine.streams import on_device
from ressl.nn.crops import forward_crops


class Sketch(NamedTuple):
    """What one training step of a network will ask for."""

    launches: list[Launch]  # the different kernels of ours
    convolutions: list[Call]  # the different calls of the library's


class Call(NamedTuple):
    """Of an operation, with tensors that have no memory."""

    operation: Any
    args: tuple[Any, ...]
    back: bool  # on the way back

    def again(self, device: torch.device) -> None:
        """On ``device``, with random numbers."""
        self.operation(*(_filled(arg, device) if isinstance(arg, Tensor) else arg for arg in self.args))


class Rehearsal(threading.Thread):
    """Builds every kernel of a training step of ``network`` on pictures of ``shape``, once started.

    ``calls``: of each of its calls that differ the side of the views, where it is another, and how many it takes at
    once. Whoever needs a kernel before it is ready makes it himself. ``also``: what else is to be built. ``how`` as for
    :func:`fuse`.
    """

    def __init__(
        self,
        network: nn.Module,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        calls: Sequence[tuple[int, int]] = (),
        also: Sequence[Launch] = (),
        **how: Any,
    ) -> None:
        super().__init__(name="rehearsal", daemon=True)
        self.device = next(network.parameters()).device
        # Before the thread begins: notes that nobody else takes.
        self.launches, self.convolutions = sketched(network, shape, dtype, calls, **how)
        self.launches += also

    def run(self) -> None:
        with contextlib.suppress(Exception), torch.cuda.device(self.device):  # a mistake comes again in the step itself
            build(self.launches, _target())

    def choose(self) -> None:
        """Let the library choose its convolutions, those of the way back in the thread that goes it."""

        def all_of(back: bool) -> None:
            with torch.no_grad():
                for call in self.convolutions:
                    if call.back == back:
                        call.again(self.device)

        with contextlib.suppress(Exception), on_device(self.device):
            all_of(back=False)
            end = torch.zeros((), device=self.device, requires_grad=True) * 1
            end.register_hook(lambda gradient: all_of(back=True))
            end.backward()


def _target() -> tuple[str, int | str, int]:
    """Backend, architecture and warp size of the current card."""
    import triton

    found = triton.runtime.driver.active.get_current_target()
    return found.backend, found.arch, found.warp_size


_CONVOLUTIONS = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default


class _Noting(TorchDispatchMode):
    """Notes the convolutions that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, Call] = {}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation in _CONVOLUTIONS:
            alike = [(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else str(x) for x in args]
            back = torch._C._current_autograd_node() is not None  # a gradient may be a convolution itself
            self.found[(operation, back, *alike)] = Call(operation, args, back)
        return operation(*args, **(kwargs or {}))


def sketched(
    network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, calls: Sequence[tuple[int, int]] = (), **how: Any
) -> Sketch:
    """What a forward and backward of ``network`` on such pictures asks for; ``calls`` as for :class:`Rehearsal`."""
    twin = _twin(network, dtype, **how)
    with noted() as launches, _Noting() as convolutions:
        for side, views in calls or [(shape[-1], 1)]:
            pictures = torch.zeros(*shape[:2], side, side, dtype=dtype, device="meta")
            pictures = pictures.contiguous(memory_format=torch.channels_last)
            torch.stack(forward_crops(twin, [pictures] * views)).sum().backward()
    different = {(one.kernel, *one.kinds(), *one.constants.items()): one for one in launches}
    return Sketch([*different.values()], [*convolutions.found.values()])


def _twin(network: nn.Module, dtype: torch.dtype, **how: Any) -> nn.Module:
    """A copy without memory, ready as the engine would make it."""
    twin = copy.deepcopy(network).to("meta").train()
    for part in twin.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            part.to(dtype)
    fuse(twin, **how)
    return twin


def _filled(like: Tensor, device: torch.device) -> Tensor:
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device).normal_()
