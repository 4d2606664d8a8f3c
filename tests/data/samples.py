"""Pictures, and torchvision one at a time, for the tests of batched augmentations."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

Sides = tuple[int, int]
SIDES = [(32, 32), (24, 24), (64, 64), (40, 57)]


def uniforms(seed: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def pictures(kind: str, sides: Sides, batch: int = 4) -> Tensor:
    """Noise (all frequencies, saturated colours) or smooth ramps (where a shifted grid shows)."""
    noise = uniforms(7, batch, 3, *sides)
    if kind == "noise":
        return noise
    y, x = torch.linspace(0, 1, sides[0])[:, None], torch.linspace(0, 1, sides[1])[None, :]
    a, b, c = noise[:, :, :1, :1], noise[:, :, 1:2, :1], noise[:, :, 2:3, :1]
    return (0.5 + 0.25 * torch.sin(6 * a * y + 5 * b * x) + 0.25 * torch.cos(7 * c * x * y)).clamp(0, 1)


def as_uint8(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8)


def loop(twin: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """torchvision's function on one sample at a time."""
    return torch.stack(
        [twin(image, *(p[i].item() for p in parameters)) for i, image in enumerate(images)],
    )


def far(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


every_picture = pytest.mark.parametrize(("kind", "sides"), list(itertools.product(["noise", "smooth"], SIDES)))
