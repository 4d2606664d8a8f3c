"""Pictures of different sizes held together: their pixels end to end in one buffer, and windows cut out of it.

End to end, each picture takes its own bytes. Padded to a common size, upright and lying photographs would take half as
much again, and one panorama could make it a multiple. A view copies from the buffer a window that holds its crop box.
Windows have one shape for all samples and steps, so they compile and can be captured in a CUDA graph; and because a
crop's aspect ratio is bounded, a panorama needs none larger than other pictures do.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl.data.base import Source
from ressl.data.batches import CropView
from ressl.data.decode import BrokenImage, shown
from ressl.data.reading import Progress, in_order, readers, unreadable
from ressl.errors import ResslError
from ressl.memory import shown_bytes

_SIDE = 256  # pixels that are held and moved whole, however small the view
_CHUNK = 256  # pictures between two looks at how large they are


class DoNotFit(ResslError):
    """Pictures of different sizes are more, or larger, than they were thought to be."""


class RaggedSource(Source):
    """Pictures in one buffer: ``images`` holds 3 x H x W bytes of each, one after the other, ``sizes`` is N x 2."""

    size = None

    def __init__(
        self, name: str, images: Tensor, sizes: Tensor, labels: Tensor | None = None, classes: Sequence[str] = ()
    ) -> None:
        ends = (3 * sizes.prod(1)).cumsum(0)
        if images.dtype != torch.uint8 or images.shape != (int(ends[-1]),):
            raise ValueError(f"{len(sizes)} pictures of {int(ends[-1])} bytes, but {tuple(images.shape)} of pixels")
        self.name, self.images, self.sizes, self.labels, self.classes = name, images, sizes, labels, list(classes)
        self.starts = ends - 3 * sizes.prod(1)  # N: where each begins

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, index: int) -> NDArray[np.uint8]:
        start, (height, width) = int(self.starts[index]), self.sizes[index].tolist()
        picture: NDArray[np.uint8] = self.images[start : start + 3 * height * width].numpy().reshape(3, height, width)
        return np.ascontiguousarray(picture.transpose(1, 2, 0))

    @property
    def largest(self) -> tuple[int, int]:
        """The largest height and the largest width; not always of one picture."""
        height, width = self.sizes.amax(0).tolist()
        return height, width


def view_windows(views: Sequence[CropView], sizes: Tensor) -> list[tuple[int, int]]:
    """For each view the height and width that hold its boxes in pictures of ``sizes`` (N x 2)."""
    return [view.window(*sizes.unbind(1)) for view in views]


def much_larger(side: int, views: Sequence[CropView]) -> bool:
    """Whether so many pixels a side are cut on the CPU: moving them costs more than the workers that decode them."""
    return side > max(_SIDE, 2 * max(view.size for view in views))


def cut_windows(images: Tensor, starts: Tensor, sizes: Tensor, corners: Tensor, window: tuple[int, int]) -> Tensor:
    """The pixels to the right of and below ``corners`` (B x 2: top, left) of pictures in a buffer: B x 3 x window.

    Beyond a picture's edge the edge goes on, so that nothing is read from the picture that comes next.
    """
    (height, width), device = sizes.unbind(1), images.device  # B
    y, x = (
        torch.minimum(corner[:, None] + torch.arange(n, device=device), side[:, None] - 1)  # B x n
        for corner, n, side in zip(corners.unbind(1), window, (height, width), strict=True)
    )
    plane = torch.arange(3, device=device) * height[:, None]  # B x 3, in rows
    row = starts[:, None, None] + (plane[:, :, None] + y[:, None, :]) * width[:, None, None]  # B x 3 x tall
    return images[row[:, :, :, None] + x[:, None, None, :]]


def pack_ragged(
    source: Source, views: Sequence[CropView], limit: int, progress: Progress | None = None
) -> tuple[RaggedSource, list[BrokenImage]]:
    """All pictures in one buffer, without the broken ones.

    Raises DoNotFit as soon as they take more than ``limit`` bytes, or one is much larger than the views.
    """
    taken, lock = 0, Lock()

    def one(index: int) -> NDArray[np.uint8]:
        nonlocal taken
        with source.open(index) as picture:
            with lock:  # counted before they are decoded, so that not even a chunk of them is beyond the limit
                taken += 3 * picture.height * picture.width
            if taken > limit:
                raise DoNotFit(f"pictures of different sizes take more than the {shown_bytes(limit)} set aside.")
            return np.ascontiguousarray(np.asarray(picture.load()).transpose(2, 0, 1))  # 3 x H x W

    parts, sizes, index, broken = list[Tensor](), list[Tensor](), list[int](), list[BrokenImage]()
    with readers() as pool:
        for start in range(0, len(source), _CHUNK):
            pixels = list[NDArray[np.uint8]]()
            for i, found in in_order(pool, one, start, min(start + _CHUNK, len(source))):
                if isinstance(found, BrokenImage):
                    broken.append(found)
                else:
                    index.append(i)
                    pixels.append(found)
            if pixels:
                parts.append(torch.from_numpy(np.concatenate([picture.ravel() for picture in pixels])))
                sizes.append(torch.tensor([picture.shape[1:] for picture in pixels]))
                _refuse_large(source, index[-len(pixels) :], sizes[-1], views)
            if progress is not None:
                progress(len(index) + len(broken), len(source))
    if not index:
        raise unreadable(source, broken)
    images, at = torch.empty(sum(len(part) for part in parts), dtype=torch.uint8), 0
    while parts:  # each is given up as it is copied: never twice the memory
        part = parts.pop(0)
        images[at : at + len(part)] = part
        at += len(part)
    labels = None if source.labels is None else source.labels[torch.tensor(index)]
    return RaggedSource(source.name, images, torch.cat(sizes), labels, source.classes), broken


def _refuse_large(source: Source, index: Sequence[int], sizes: Tensor, views: Sequence[CropView]) -> None:
    if not much_larger(max(max(window) for window in view_windows(views, sizes)), views):
        return
    for i, size in zip(index, sizes, strict=True):
        if much_larger(max(max(window) for window in view_windows(views, size[None])), views):
            raise DoNotFit(
                f"{shown(source.identify(i))} ({size[0]} x {size[1]}) is much larger than views of "
                f"{max(view.size for view in views)}."
            )
