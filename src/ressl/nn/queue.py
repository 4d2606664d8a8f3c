"""The memory queue: the last K embeddings, first in, first out."""

from __future__ import annotations

import torch
from torch import Tensor

from ressl.nn.heads import l2_normalize
from ressl.nn.keeping import Keeps


class MemoryQueue(Keeps):
    """K unit vectors of past samples in a ring.

    The position is a device tensor, so that enqueueing needs no host sync and can be captured in a CUDA graph. Both
    buffers are persistent: a resumed run has the queue it was stopped with.

    >>> queue = MemoryQueue(size=4, dim=2)
    >>> queue.enqueue(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> queue.newest(2)
    tensor([[1., 0.],
            [0., 1.]])
    """

    keys: Tensor
    position: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1 or dim < 1:
            raise ValueError(f"a queue needs a positive size and dimension, not {size} x {dim}")
        self.register_buffer("keys", l2_normalize(torch.randn(size, dim)))  # K x D
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))  # where the next key goes

    @property
    def size(self) -> int:
        return self.keys.shape[0]

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Replace the oldest entries by ``keys`` (B x D); of a batch larger than K the newest K stay."""
        count = keys.shape[0]
        arrival = torch.arange(count, device=self.keys.device)[-self.size :]
        slots = (self.position + arrival) % self.size
        keys = torch.where(self.kept, keys[-self.size :].to(self.keys.dtype), self.keys[slots])
        self.keys.index_copy_(0, slots, keys)
        self.position.copy_((self.position + count * self.kept) % self.size)

    def newest(self, count: int) -> Tensor:
        """The last ``count`` entries, oldest of them first."""
        if count > self.size:
            raise ValueError(f"the queue holds {self.size} keys, not {count}")
        slots = (self.position - count + torch.arange(count, device=self.keys.device)) % self.size
        return self.keys[slots]

    def extra_repr(self) -> str:
        return f"size={self.size}, dim={self.keys.shape[1]}"
