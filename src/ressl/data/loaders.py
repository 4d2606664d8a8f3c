"""From a source to batches: everything on the device where it fits, streamed through worker processes where not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ressl.data.base import ArraySource, FileSource, Source
from ressl.data.batches import Batch, Loader
from ressl.data.decode import BrokenImage
from ressl.data.memory import room
from ressl.data.reading import BROKEN_LIMIT, Progress, SizesDiffer, check_broken, pack, read_all, read_chunks
from ressl.data.streaming import CropView, StreamingLoader, lost_worker

__all__ = [
    "BROKEN_LIMIT",
    "Batch",
    "Loader",
    "Opened",
    "ResidentLoader",
    "SizesDiffer",
    "StreamingLoader",
    "check_broken",
    "choose_residency",
    "lost_worker",
    "make_loader",
    "pack",
    "read_all",
    "read_chunks",
]

_SIDE = 256  # larger pictures than this (and than twice the view) are cut on the CPU: moving them costs more


def choose_residency(source: Source, device: torch.device | str, image_size: int) -> tuple[bool, str]:
    """Whether to hold all pictures on the device, for views of up to ``image_size``, and a sentence that says why."""
    device = torch.device(device)
    sizes = source.sample_sizes() if isinstance(source, FileSource) else [source.size]
    shown_sizes = [f"{size[0]} x {size[1]}" for size in sizes if size is not None]
    if not shown_sizes:
        return False, "streaming: none of the files looked at is a readable picture"
    if len(shown_sizes) > 1:
        return False, f"streaming: pictures differ in size (e.g. {', '.join(shown_sizes[:2])})"
    height, width = sizes[0] or (0, 0)
    many = f"{len(source):,} pictures of {height} x {width}"
    if max(height, width) > max(_SIDE, 2 * image_size):
        return False, f"streaming: {many} are much larger than views of {image_size}"
    size = len(source) * 3 * height * width
    limit = room(device)
    if isinstance(source, FileSource):
        limit = min(limit, room(torch.device("cpu")))  # they are gathered in memory first
    verdict = f"{many} are {_bytes(size)}"
    if size > limit:
        return False, f"streaming: {verdict}, more than the {_bytes(limit)} set aside on {device}"
    return True, f"resident: {verdict} on {device}"


def _bytes(size: int) -> str:
    return (
        f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB" if size >= 1e6 else f"{size / 1e3:,.0f} kB"
    )


class ResidentLoader(Loader):
    """All pictures on the device as uint8; a batch is a gather."""

    def __init__(
        self, source: ArraySource, batch_size: int, device: torch.device | str, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        super().__init__(source, batch_size, device, seed, rank, world)
        self.images = source.images.to(self.device).contiguous()  # N x 3 x H x W
        self.labels = None if source.labels is None else source.labels.to(self.device)

    def batch(self, epoch: int, step: int) -> Batch:
        index = self.ids(epoch, step)
        return Batch(index, self.images[index], None, None if self.labels is None else self.labels[index])

    def iterate(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        for step in range(start_step, self.steps_per_epoch):
            yield self.batch(epoch, step)


class Opened(NamedTuple):
    loader: ResidentLoader | StreamingLoader
    why: str  # the sentence to print
    broken: list[BrokenImage]  # met while packing; a streaming loader meets its own later


def make_loader(
    source: Source,
    views: Sequence[CropView],
    batch_size: int,
    device: torch.device | str,
    seed: int,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    progress: Progress | None = None,
) -> Opened:
    """The loader that suits the source: resident if everything fits, else streaming."""
    resident, why = choose_residency(source, device, max(view.size for view in views))
    if resident:
        try:
            packed, broken = pack(source, progress)
            return Opened(ResidentLoader(packed, batch_size, device, seed, rank, world), why, broken)
        except SizesDiffer as error:
            why = f"streaming: {error}"
    return Opened(StreamingLoader(source, views, batch_size, device, seed, workers, rank, world), why, [])
