"""From a source to batches: everything on the device where it fits, streamed through worker processes where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ressl.data import augment
from ressl.data.base import ArraySource, FileSource, Source
from ressl.data.batches import Batch, CropView, Loader
from ressl.data.decode import BrokenImage
from ressl.data.ragged import DoNotFit, RaggedSource, cut_windows, much_larger, pack_ragged, view_windows
from ressl.data.reading import BROKEN_LIMIT, Progress, SizesDiffer, check_broken, pack, read_all, read_chunks
from ressl.data.streaming import StreamingLoader, lost_worker
from ressl.data.views import Views
from ressl.memory import room, shown_bytes

__all__ = [
    "BROKEN_LIMIT",
    "Batch",
    "Loader",
    "Opened",
    "RaggedLoader",
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

_MARGIN = 1.1  # what a sample of sizes may miss


def choose_residency(source: Source, views: Sequence[CropView], device: torch.device | str) -> tuple[bool, str]:
    """Whether to hold all pictures on the device, for these views, and a sentence that says why."""
    device = torch.device(device)
    sizes = source.sample_sizes() if isinstance(source, FileSource) else [source.size] if source.size else []
    if not sizes:
        return False, "streaming: none of the files looked at is a readable picture"
    tensor = torch.tensor(sizes)
    height, width = tensor.amax(0).tolist()
    alike = len(set(sizes)) == 1
    seen = height, width
    if not alike:  # of a long one a crop sees a part only
        seen = tuple(map(max, zip(*view_windows(views, tensor), strict=True)))
    many = f"{len(source):,} pictures of {'' if alike else 'up to '}{height} x {width}"
    if much_larger(max(seen), views):
        return False, f"streaming: {many} are much larger than views of {max(view.size for view in views)}"
    size = round(len(source) * 3 * tensor.prod(1).double().mean().item())
    limit = _limit(source, device)
    verdict = f"{many} are {'' if alike else 'about '}{shown_bytes(size)}"
    if size * (1 if alike else _MARGIN) > limit:
        return False, f"streaming: {verdict}, more than the {shown_bytes(limit)} set aside on {device}"
    return True, f"resident: {verdict} on {device}"


def _limit(source: Source, device: torch.device) -> int:
    """Bytes that the pictures may take."""
    if isinstance(source, FileSource):
        return min(room(device), room(torch.device("cpu")))  # they are gathered in memory first
    return room(device)


class ResidentLoader(Loader):
    """All pictures on the device as uint8; a batch is a gather."""

    def __init__(
        self,
        source: ArraySource | RaggedSource,
        batch_size: int,
        device: torch.device | str,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(source, batch_size, device, seed, rank, world)
        self.images = source.images.to(self.device).contiguous()  # N x 3 x H x W, or all end to end
        self.labels = None if source.labels is None else source.labels.to(self.device)

    def batch(self, epoch: int, step: int) -> Batch:
        index = self.ids(epoch, step)
        return Batch(index, self.images[index], None, None if self.labels is None else self.labels[index])

    def iterate(self, epoch: int, start_step: int = 0) -> Iterator[Batch]:
        for step in range(start_step, self.steps_per_epoch):
            yield self.batch(epoch, step)

    def make_views(self, views: Views, step: int | Tensor, index: Tensor) -> list[Tensor]:
        """All views of the samples ``index``, which are this process's at ``step`` (counted through all epochs)."""
        return views(self.images[index], step, self.rows)


class RaggedLoader(ResidentLoader):
    """The same for pictures of different sizes, end to end in one buffer; a view is cut from a window of its own."""

    def __init__(
        self,
        source: RaggedSource,
        views: Sequence[CropView],
        batch_size: int,
        device: torch.device | str,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(source, batch_size, device, seed, rank, world)
        self.starts, self.sizes = source.starts.to(self.device), source.sizes.to(self.device)
        self.windows = view_windows(views, source.sizes)

    def batch(self, epoch: int, step: int) -> Batch:
        """Without pictures, which are no one tensor; ``make_views`` cuts what it needs."""
        index = self.ids(epoch, step)
        return Batch(index, None, None, None if self.labels is None else self.labels[index])

    def make_views(self, views: Views, step: int | Tensor, index: Tensor) -> list[Tensor]:
        starts, sizes, crops = self.starts[index], self.sizes[index], []
        for view, window, u in zip(views.views, self.windows, views.draws(step, self.rows), strict=True):
            corners, sides = view.boxes(u, *sizes.unbind(1)).split(2, 1)
            pixels = cut_windows(self.images, starts, sizes, corners, window)
            boxes = torch.cat((torch.zeros_like(corners), sides), 1)  # in the window
            crops.append(augment.crop_resize(pixels, boxes, view.size))
        return views.finish(crops, step, self.rows)


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
    agreed: Callable[[bool], bool] = bool,
) -> Opened:
    """The loader that suits the source: resident if everything fits, whatever the sizes, else streaming.

    ``agreed`` says whether every process of the job has room for them, given whether this one has.
    """
    resident, why = choose_residency(source, views, device)
    if agreed(resident) < resident:
        resident, why = False, "streaming: another process of this job has not as much room for pictures"
    if resident and source.size is not None:
        try:
            packed, broken = pack(source, progress)
            return Opened(ResidentLoader(packed, batch_size, device, seed, rank, world), why, broken)
        except SizesDiffer:
            pass  # the sample did not see it
    if resident:
        try:
            ragged, broken = pack_ragged(source, views, _limit(source, torch.device(device)), progress)
            height, width = ragged.largest
            why = f"resident: {len(ragged):,} pictures of up to {height} x {width} are "
            why += f"{shown_bytes(len(ragged.images))} on {device}"
            return Opened(RaggedLoader(ragged, views, batch_size, device, seed, rank, world), why, broken)
        except DoNotFit as error:
            why = f"streaming: {error}"
    return Opened(StreamingLoader(source, views, batch_size, device, seed, workers, rank, world), why, [])
