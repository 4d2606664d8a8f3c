"""Convolutions over few pixels without the zeros around them (Triton, for cards with a tensor copy engine).

A 3 x 3 convolution pads its input. Of its products on 4 x 4 pixels 44 in 144 are with those zeros, on 8 x 8 pixels 92
in 576, and the library makes them all. Here a program makes one pixel of many pictures: every neighbour inside the
picture is a plain matrix product, and those outside are left out. The gradient by the input is the same with the
weights turned about.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ressl.engine.launching import Tile, launch

# All chosen by timing on an H200.
PICTURES, CHANNELS, DEPTH = 128, 128, 64  # of a program's product: rows, columns, and how many terms at a time
MANY = 1024  # programs of twice as many columns are faster, if there are so many of them
GROUP = 8  # blocks of pictures that are done together, so that neighbours find what they share in the cache
PIXELS = 64  # of an activation, at most: with more, fewer of the products are with zeros
PROGRAMS = 128  # at least: with fewer, part of the card would have nothing to do


@triton.jit
def _pixel(i, H: tl.constexpr, W: tl.constexpr):
    """Row and column of a picture's i-th pixel: those within first, then the upper and lower row, then the sides."""
    wide: tl.constexpr = W - 2 if W > 2 else 1
    within: tl.constexpr = (H - 2) * (W - 2) if H > 2 and W > 2 else 0
    j = i - within
    k = j - 2 * W
    sides: tl.constexpr = 2 if W > 1 else 1
    y = tl.where(j < 0, 1 + i // wide, tl.where(k < 0, j // W * (H - 1), 1 + k // sides))
    x = tl.where(j < 0, 1 + i % wide, tl.where(k < 0, j % W, k % sides * (W - 1)))
    return y, x


@triton.jit
def _inside(
    x, weight, bias_ptr, residual, y, N,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr, BACK: tl.constexpr, RELU: tl.constexpr,
    RESIDUAL: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One pixel of ROWS pictures, COLS of its OUT channels, from C channels of its neighbours.

    Matrices, of which tiles are taken: x (N x HWC), weight (OUT x 9C, or C x 9 OUT for the way BACK), y and residual
    (N x HW OUT). Pixels with many neighbours come first, so that short programs are left for the end.
    """
    columns: tl.constexpr = OUT // COLS
    whole: tl.constexpr = GROUP * columns * H * W
    i = tl.program_id(0) % whole
    first = tl.program_id(0) // whole * GROUP
    blocks = tl.minimum(tl.cdiv(N, ROWS) - first, GROUP)  # the last group may have fewer
    row = (first + i // columns % blocks) * ROWS
    col = i % columns * COLS
    py, px = _pixel(i // (columns * blocks), H, W)
    top, left = (py == 0).to(tl.int32), (px == 0).to(tl.int32)
    high = 3 - top - (py == H - 1).to(tl.int32)
    wide = 3 - left - (px == W - 1).to(tl.int32)
    steps: tl.constexpr = C // DEPTH
    total = tl.zeros((ROWS, COLS), tl.float32)
    for t in range(0, high * wide * steps):
        dy, dx = top + t // steps // wide, left + t // steps % wide
        c = t % steps * DEPTH
        a = x.load([row, ((py + dy - 1) * W + px + dx - 1) * C + c])
        tap = 3 * dy + dx
        b = weight.load([c, (8 - tap) * OUT + col]) if BACK else weight.load([col, tap * C + c]).T
        total = tl.dot(a, b, total, input_precision="ieee")
    place = (py * W + px) * OUT + col
    if RELU:
        total += tl.load(bias_ptr + col + tl.arange(0, COLS)).to(tl.float32)[None, :]
        if RESIDUAL:
            total += residual.load([row, place]).to(tl.float32)
        total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    y.store([row, place], total.to(y.dtype))


def can_leave_out(x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether a convolution of ``x``, and its gradient, is better made without its border."""
    (N, C, H, W), OUT = x.shape, len(weight)
    same = weight.shape == (OUT, C, 3, 3) and tuple(stride) == tuple(padding) == (1, 1)
    fits = C % CHANNELS == OUT % CHANNELS == 0 and x.element_size() == weight.element_size() == 2
    return same and fits and H * W <= PIXELS and _programs(N, min(C, OUT) // CHANNELS, H * W) >= PROGRAMS


def _programs(N: int, columns: int, pixels: int) -> int:
    return -(-N // PICTURES) * columns * pixels


def convolve_inside(x: Tensor, weight: Tensor) -> Tensor:
    """``conv2d(x, weight, padding=1)`` for a 3 x 3 weight; all channels last."""
    return _convolve(x, weight, len(weight))


def gradient_inside(dy: Tensor, weight: Tensor) -> Tensor:
    """The gradient of :func:`convolve_inside` by its input."""
    return _convolve(dy, weight, weight.shape[1], back=True)


def convolve_inside_relu(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None) -> Tensor:
    """``relu(conv2d(x, weight, bias, padding=1) + residual)``"""
    return _convolve(x, weight, len(weight), bias, residual)


def _convolve(
    x: Tensor, weight: Tensor, OUT: int, bias: Tensor | None = None, residual: Tensor | None = None, back: bool = False
) -> Tensor:
    N, C, H, W = x.shape
    y = torch.empty(N, OUT, H, W, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    wide, deep, tall = CHANNELS, DEPTH, PICTURES
    if OUT % (2 * wide) == 0 and _programs(N, OUT // (2 * wide), H * W) >= MANY:
        wide *= 2
    result = Tile(_matrix(y), (tall, wide))
    launch(
        _inside, (_programs(N, OUT // wide, H * W),), Tile(_matrix(x), (tall, deep)),
        Tile(_matrix(weight), (deep, wide) if back else (wide, deep)), weight if bias is None else bias,
        result if residual is None else Tile(_matrix(residual), (tall, wide)), result, N,
        H=H, W=W, C=C, OUT=OUT, BACK=back, RELU=bias is not None, RESIDUAL=residual is not None, ROWS=tall, COLS=wide,
        DEPTH=deep, GROUP=GROUP, num_warps=wide // 32, num_stages=3,
    )  # fmt: skip
    return y


def _matrix(x: Tensor) -> Tensor:
    """N x C x H x W -> N x HWC, the same memory if the channels come last."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1)
