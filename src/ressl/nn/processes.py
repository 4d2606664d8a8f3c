"""What a method may know of other processes: the whole batch, in the order of the global batch.

With one process all of it is the identity. Row j of rank r is row j * world + r of the global batch (see
:class:`ressl.data.batches.Loader`), so a method that looks at the whole batch sees the same with one process or eight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ressl.uncompiled import uncompiled


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


@dataclass(eq=False)
class Trade:
    """Which rows this process gives and gets when the global batch is dealt anew; each goes straight to its new place.

    Neither a tuple nor frozen: into those the compiler looks, and with every step's own counts it would begin anew.
    """

    outgoing: Tensor  # my rows, ordered by the process they go to
    given: list[int]  # how many go to each
    incoming: Tensor  # their places in my new hand, ordered by the process they come from
    got: list[int]

    @uncompiled
    def there(self, x: Tensor) -> Tensor:
        """My hand of the dealt batch."""
        return _put(_trade(x[self.outgoing], self.given, self.got), self.incoming)

    @uncompiled
    def back(self, x: Tensor) -> Tensor:
        """What was made of a hand, to where its rows came from."""
        return _put(_trade(x[self.incoming], self.got, self.given), self.outgoing)


def trade(order: Tensor, rank: int, world: int, device: torch.device) -> Trade:
    """For the batch whose row p is row ``order[p]`` (on the host) of the global one, dealt out in the same way.

    >>> trade(torch.tensor([3, 1, 0, 2]), 0, 2, torch.device("cpu"))  # rank 0 has rows 0 and 2, and is dealt 3 and 0
    Trade(outgoing=tensor([0, 1]), given=[1, 1], incoming=tensor([1, 0]), got=[1, 1])
    """
    place = torch.arange(len(order))
    mine = place[order % world == rank]  # where my rows are now
    mine = mine[torch.argsort(mine % world, stable=True)]
    source = order[rank::world] % world  # where my new rows were
    on = lambda x: (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)
    counted = lambda x: torch.bincount(x, minlength=world).tolist()
    by_source = torch.argsort(source, stable=True)
    return Trade(on(order[mine] // world), counted(mine % world), on(by_source), counted(source))


def _trade(x: Tensor, given: list[int], got: list[int]) -> Tensor:
    # Pictures travel as they lie, and need not be laid out anew on either side.
    last = x.ndim == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    x = (x.movedim(1, 3) if last else x).contiguous()
    found = torch.empty_like(x)  # a hand has as many rows as every other
    dist.all_to_all_single(found, x, got, given)
    return found.movedim(3, 1) if last else found


def _put(x: Tensor, places: Tensor) -> Tensor:
    return torch.empty_like(x).index_copy_(0, places, x)


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
