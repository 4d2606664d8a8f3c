"""Both kernels of :mod:`ressl.engine.pairing` in one launch (Triton): they are made anew in every step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ressl.engine.launching import launch

TILE = 1024


@triton.jit
def _both_ways(weight_ptr, forth_ptr, back_ptr, C: tl.constexpr, TILE: tl.constexpr):
    """From C x 3 x 3 x C (channels last) twice 2C x 3 x 4 x C; the second half lies one to the right."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = at < 24 * C * C
    i, x, y, o = at % C, at // C % 4, at // (4 * C) % 3, at // (12 * C)
    x -= o // C
    o %= C
    real = inside & (x >= 0) & (x < 3)
    forth = tl.load(weight_ptr + ((o * 3 + y) * 3 + x) * C + i, mask=real, other=0.0)
    back = tl.load(weight_ptr + ((i * 3 + 2 - y) * 3 + 2 - x) * C + o, mask=real, other=0.0)
    tl.store(forth_ptr + at, forth, mask=inside)
    tl.store(back_ptr + at, back, mask=inside)


def both_ways(weight: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`ressl.engine.pairing.both_ways` of a C x C x 3 x 3 weight."""
    C, weight = len(weight), weight.contiguous(memory_format=torch.channels_last)
    forth, back = (
        torch.empty(2 * C, C, 3, 4, dtype=weight.dtype, device=weight.device, memory_format=torch.channels_last)
        for _ in range(2)
    )
    launch(_both_ways, (triton.cdiv(24 * C * C, TILE),), weight, forth, back, C=C, TILE=TILE)
    return forth, back
