"""Which samples make which batch: the part that both loaders share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from ressl import rng
from ressl.data.base import Source
from ressl.errors import ResslError


class Batch(NamedTuple):
    """One process's share of a step. Either whole pictures, from which the views are made, or one crop per view."""

    index: Tensor  # type: ignore[assignment]  # B sample ids, int64 (hides tuple.index)
    images: Tensor | None  # B x 3 x H x W uint8
    crops: list[Tensor] | None  # per view B x 3 x size x size uint8, not yet flipped
    labels: Tensor | None  # B int64


class CropView(Protocol):
    """What loaders need of a view; ressl.data.views.View has it."""

    COLUMNS: ClassVar[int]

    @property
    def size(self) -> int: ...
    def boxes(self, u: Tensor, height: int | Tensor, width: int | Tensor) -> Tensor: ...
    def window(self, height: Tensor, width: Tensor) -> tuple[int, int]: ...


def check_share(batch_size: int, world: int) -> None:
    """Every process has as many samples of a batch as every other."""
    if batch_size % world:
        raise ResslError(f"a batch of {batch_size} cannot be shared evenly by {world} processes; change either.")


class Loader:
    """Batches as a pure function of (seed, epoch, step, rank).

    A step takes ``batch_size`` consecutive places of the epoch's order, and rank r every world-th of them from r on:
    its row j is row j * world + r of the global batch. Those are ``rows``, by which the views draw their random
    numbers; so the same samples get the same views however many processes share the work.
    """

    def __init__(
        self, source: Source, batch_size: int, device: torch.device | str, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        check_share(batch_size, world)
        if not 0 < batch_size <= len(source):
            raise ResslError(f"a batch of {batch_size:,} does not fit {len(source):,} pictures; make it smaller.")
        self.device, self.seed, self.batch_size, self.rank, self.world = (
            *(torch.device(device), seed, batch_size),
            *(rank, world),
        )
        self.samples = len(source)
        self.labelled = source.labels is not None and bool((source.labels >= 0).all())
        self.classes = int(source.labels.max()) + 1 if self.labelled and source.labels is not None else 0
        self.steps_per_epoch = self.samples // batch_size  # an incomplete last batch is dropped
        self.rows = torch.arange(rank, batch_size, world, dtype=torch.int64, device=self.device)
        self._latest: tuple[int, Tensor] | None = None

    def order(self, epoch: int) -> Tensor:
        """The epoch's permutation of all samples; the latest is kept, because every step asks for it."""
        if self._latest is None or self._latest[0] != epoch:
            self._latest = epoch, rng.permutation(self.seed, epoch, self.samples, rng.ORDER, self.device)
        return self._latest[1]

    def ids(self, epoch: int, step: int) -> Tensor:
        """The samples of this process at this step, int64 on the device."""
        if not 0 <= step < self.steps_per_epoch:
            raise IndexError(f"step {step} of an epoch of {self.steps_per_epoch}")
        return self.order(epoch)[step * self.batch_size + self.rows]

    def iterate(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from ``start_step`` on."""
        raise NotImplementedError

    def close(self) -> None:
        """End worker processes, if there are any."""
