"""Frozen features: pictures in, one vector each out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ressl.data.augment import resize_center_crop, to_float
from ressl.data.reading import Progress
from ressl.data.views import normalize
from ressl.engine.folding import fold

AT_ONCE = 2**21  # pixels that keep a GPU busy


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
        network: Callable[[Tensor], Tensor] = backbone
        if device.type == "cuda":
            network = (fold(backbone, precision) if precision != torch.float32 else None) or backbone
            batch_size = max(batch_size, AT_ONCE // (images.shape[-1] * images.shape[-2]))
        for start in range(0, len(images), batch_size):
            # The last batch reaches back to be as large as the others: for a new size CUDA would choose kernels anew.
            first = max(0, min(start, len(images) - batch_size)) if device.type == "cuda" else start
            batch = images[first : start + batch_size].to(device, non_blocking=True)
            made = network(prepare(batch, mean, std, size, resize)).float()
            features.append(made[start - first :])
            if progress is not None:
                progress(min(start + batch_size, len(images)), len(images))
    return torch.cat(features)
