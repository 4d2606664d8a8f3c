"""A network made ready while the compiler's workers wake up.

A kernel is compiled when it is first launched, one after the other, and a network has some forty variants of ours. Here
a sketch of the network (shapes, no memory) says which ones it will launch, and threads compile them side by side. Then
a rehearsal lets the library choose its convolutions. Without it a cold start is slower, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import copy
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor, nn

from ressl.engine.fusion import fuse
from ressl.engine.launching import Launch, noted

THREADS = 8


def make_ready(network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, **how: Any) -> None:
    """Compile and choose every kernel of a training step of ``network`` on pictures of ``shape``.

    ``how`` as for :func:`fuse`.
    """
    wait(compile_ahead(network, shape, dtype, **how))
    with contextlib.suppress(Exception):  # what cannot be rehearsed is chosen as it goes, and says itself what is wrong
        rehearse(network, shape, dtype, **how)


def launches(network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, **how: Any) -> list[Launch]:
    """The different kernels that such a step launches."""
    with noted() as found:
        rehearse(network, shape, dtype, torch.device("meta"), **how)
    different = {(one.kernel, *_signature(one), *one.constants.items()): one for one in found}
    return list(different.values())


def rehearse(
    network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None, **how: Any
) -> None:
    """Forward and backward of a copy on black pictures."""
    twin = copy.deepcopy(network).to(device).train()
    for part in twin.modules():
        if isinstance(part, (nn.Conv2d, nn.Linear)):
            part.to(dtype)
    fuse(twin, **how)
    pictures = torch.zeros(shape, dtype=dtype, device=next(twin.parameters()).device)
    twin(pictures.contiguous(memory_format=torch.channels_last)).sum().backward()


def _signature(launch: Launch) -> list[Any]:
    """Arguments as the compiler sees them: of a tensor only its type."""
    return [arg.dtype if isinstance(arg, Tensor) else arg for arg in launch.args]


def compile_ahead(network: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, **how: Any) -> list[Future[None]]:
    """Start compiling what :func:`launches` finds; whoever needs a kernel before it is ready compiles it himself."""
    device = next(network.parameters()).device
    pool = ThreadPoolExecutor(THREADS)
    begun = []
    with contextlib.suppress(Exception):  # a network that cannot be sketched is compiled as it goes
        begun = [pool.submit(_compile, launch, device) for launch in launches(network, shape, dtype, **how)]
    pool.shutdown(wait=False)
    return begun


def _compile(launch: Launch, device: torch.device) -> None:
    with contextlib.suppress(Exception), torch.cuda.device(device):
        launch.kernel.warmup(*_signature(launch), grid=launch.grid, **launch.constants)
