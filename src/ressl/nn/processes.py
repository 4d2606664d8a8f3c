"""What a method may know of other processes: the whole batch, in the order of the global batch.

With one process all of it is the identity. Row j of rank r is row j * world + r of the global batch (see
:class:`ressl.data.batches.Loader`), so a method that looks at the whole batch sees the same with one process or eight.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world() > 1 else 0


def all_rows(x: Tensor) -> Tensor:
    """The rows of all processes, B x ... -> (B * world) x ..., in the order of the global batch.

    Gradients flow back to every process's own rows, summed over the processes that used them.
    """
    if world() == 1:
        return x
    gathered: Tensor = _AllRows.apply(x)
    return gathered


def my_rows(x: Tensor) -> Tensor:
    """This process's rows of something in the order of the global batch; the inverse of :func:`all_rows`."""
    return x[rank() :: world()] if world() > 1 else x


def mean_over_processes(x: Tensor) -> Tensor:
    """The mean of a statistic (no gradient)."""
    if world() == 1:
        return x
    x = x.detach().clone()
    dist.all_reduce(x)
    return x / world()


class _AllRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world())]
        dist.all_gather(parts, x.contiguous())
        return torch.stack(parts, 1).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Tensor:
        whole = gradients[0].contiguous()
        dist.all_reduce(whole)
        return my_rows(whole)
