"""Frozen features: pictures in, one vector each out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ressl.data.augment import resize_center_crop, to_float
from ressl.data.views import normalize

Progress = Callable[[int, int], None]


@contextmanager
def frozen(backbone: nn.Module) -> Iterator[nn.Module]:
    """Eval mode without gradients, and back to what it was."""
    training = backbone.training
    backbone.eval()
    try:
        with torch.no_grad():
            yield backbone
    finally:
        backbone.train(training)


def autocast(device: torch.device, precision: torch.dtype) -> torch.autocast:
    return torch.autocast(device.type, dtype=precision, enabled=precision != torch.float32)


def prepare(
    images: Tensor, mean: tuple[float, ...], std: tuple[float, ...], size: int | None = None, resize: int | None = None
) -> Tensor:
    """Test-time input from uint8 pictures: as they are, or the short side to ``resize`` and the centre of ``size``."""
    floats = to_float(images)
    if resize is not None and size is not None:
        floats = resize_center_crop(floats, resize, size)
    return normalize(floats, mean, std)


def extract(
    backbone: nn.Module,
    images: Tensor,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    size: int | None = None,
    resize: int | None = None,
    batch_size: int = 512,
    precision: torch.dtype = torch.float32,
    progress: Progress | None = None,
) -> Tensor:
    """Features of uint8 pictures (N x 3 x H x W, on any device): N x D float32 on the backbone's device."""
    device = next(backbone.parameters()).device
    features = []
    with frozen(backbone), autocast(device, precision):
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size].to(device, non_blocking=True)
            features.append(backbone(prepare(batch, mean, std, size, resize)).float())
            if progress is not None:
                progress(min(start + batch_size, len(images)), len(images))
    return torch.cat(features)
