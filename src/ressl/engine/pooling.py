"""Grouped batch norm, ReLU and the ResNet's max-pool (3 x 3, in steps of two) in one pass (Triton, channels-last).

The activation before the pool is the largest of the network, and nobody else reads it: it is never written. Instead of
the place of each maximum as eight bytes one byte is kept: which of the nine it was, or that all were below zero.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ressl.engine.kernels import _backward_statistics, _Plan, checked_groups
from ressl.engine.launching import TILE, launch, mapping, twice

NONE = tl.constexpr(9)  # in place of 0 to 8: no maximum above zero


@triton.jit
def _apply_pool(
    x_ptr, y_ptr, which_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, H, W, OH, OW, C, G,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """y = the largest of nine relu(normalised x); a program takes some results of one sample."""
    chunks = tl.cdiv(OH * OW, ROWS)
    i = tl.program_id(0) // chunks
    r = (tl.program_id(0) % chunks) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    at = (i % G) * C + c
    scale = tl.load(rstd_ptr + at, mask=c < C, other=0.0) * tl.load(weight_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - tl.load(mean_ptr + at, mask=c < C, other=0.0) * scale
    oh, ow = r // OW, r % OW
    best = tl.zeros((ROWS, COLS), tl.float32)
    which = tl.full((ROWS, COLS), NONE, tl.int32)
    for k in tl.static_range(9):
        h, w = 2 * oh - 1 + k // 3, 2 * ow - 1 + k % 3
        inside = ((r < OH * OW) & (h >= 0) & (h < H) & (w >= 0) & (w < W))[:, None] & (c < C)[None, :]
        place = ((i.to(tl.int64) * H + h) * W + w)[:, None] * C + c[None, :]
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        better = inside & ((x > best) | (x != x))  # not a number stays none
        best = tl.where(better, x, best)
        which = tl.where(better, k, which)
    inside = (r < OH * OW)[:, None] & (c < C)[None, :]
    place = (i.to(tl.int64) * OH * OW + r)[:, None] * C + c[None, :]
    tl.store(y_ptr + place, best.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(which_ptr + place, which.to(tl.uint8), mask=inside)


@triton.jit
def _pool_moments(
    dy_ptr, dy2_ptr, x_ptr, which_ptr, dz_ptr, mean_ptr, rstd_ptr, sum_ptr, dot_ptr, n, C, S, H, W, OW,
    R: tl.constexpr, G: tl.constexpr, TWO: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of dz and of dz times the normalised x, over the maxima alone: elsewhere dz is zero. R = OH OW."""
    g = tl.program_id(0) % G
    s = tl.program_id(0) // G
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    mean = tl.load(mean_ptr + g * C + c, mask=c < C, other=0.0)
    rstd = tl.load(rstd_ptr + g * C + c, mask=c < C, other=0.0)
    total = tl.zeros((ROWS, COLS), tl.float32)
    dot = tl.zeros((ROWS, COLS), tl.float32)
    for tile in tl.range(s, tl.cdiv(n * R, ROWS), S, num_stages=STAGES):
        q = tile * ROWS + tl.arange(0, ROWS)
        i, r = (q // R) * G + g, q % R
        inside = (q < n * R)[:, None] & (c < C)[None, :]
        place = (i.to(tl.int64) * R + r)[:, None] * C + c[None, :]
        dz = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if TWO:
            dz += tl.load(dy2_ptr + place, mask=inside, other=0.0).to(tl.float32)
        which = tl.load(which_ptr + place, mask=inside, other=NONE).to(tl.int32)
        alive = which < NONE
        dz = tl.where(alive, dz, 0.0)
        tl.store(dz_ptr + place, dz.to(dz_ptr.dtype.element_ty), mask=inside)
        h = 2 * (r // OW)[:, None] - 1 + which // 3
        w = 2 * (r % OW)[:, None] - 1 + which % 3
        source = ((i.to(tl.int64)[:, None] * H + h) * W + w) * C + c[None, :]
        x = tl.load(x_ptr + source, mask=inside & alive, other=0.0).to(tl.float32)
        total += dz
        dot += dz * ((x - mean[None, :]) * rstd[None, :])
    place = (s * G + g) * C + c
    tl.store(sum_ptr + place, tl.sum(total, 0), mask=c < C)
    tl.store(dot_ptr + place, tl.sum(dot, 0), mask=c < C)


@triton.jit
def _pool_backward(
    dz_ptr, which_ptr, x_ptr, dx_ptr, mean_ptr, rstd_ptr, weight_ptr, mean_dz_ptr, mean_dot_ptr, H, W, OH, OW, C, G,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """dx as in _backward_apply, where the dz of a place comes from the up to four windows whose maximum it was."""
    chunks = tl.cdiv(H * W, ROWS)
    i = tl.program_id(0) // chunks
    r = (tl.program_id(0) % chunks) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    at = (i % G) * C + c
    h, w = r // W, r % W
    inside = (r < H * W)[:, None] & (c < C)[None, :]
    dz = tl.zeros((ROWS, COLS), tl.float32)
    for a in tl.static_range(2):
        for b in tl.static_range(2):
            oh, ow = (h + a) // 2, (w + b) // 2  # an even place lies in one window, an odd one in two
            seen = (oh < OH) & (ow < OW) & ((a == 0) | (h % 2 == 1)) & ((b == 0) | (w % 2 == 1))
            seen = inside & seen[:, None]
            place = ((i.to(tl.int64) * OH + oh) * OW + ow)[:, None] * C + c[None, :]
            mine = ((h - 2 * oh + 1) * 3 + w - 2 * ow + 1)[:, None]
            hit = tl.load(which_ptr + place, mask=seen, other=NONE).to(tl.int32) == mine
            dz += tl.where(hit, tl.load(dz_ptr + place, mask=seen, other=0.0).to(tl.float32), 0.0)
    mean = tl.load(mean_ptr + at, mask=c < C, other=0.0)
    rstd = tl.load(rstd_ptr + at, mask=c < C, other=0.0)
    scale = rstd * tl.load(weight_ptr + c, mask=c < C, other=0.0)
    mean_dz = tl.load(mean_dz_ptr + at, mask=c < C, other=0.0)
    mean_dot = tl.load(mean_dot_ptr + at, mask=c < C, other=0.0)
    place = (i.to(tl.int64) * H * W + r)[:, None] * C + c[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    normal = (x - mean[None, :]) * rstd[None, :]
    dx = scale[None, :] * (dz - mean_dz[None, :] - normal * mean_dot[None, :])
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


class _NormPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, groups: int,
        eps: float, momentum: float,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.set_materialize_grads(False)
        N, C, H, W = x.shape
        OH, OW = (H - 1) // 2 + 1, (W - 1) // 2 + 1
        statistics = _Plan(x, groups).statistics(x, running_mean, running_var, eps, momentum)
        y = torch.empty((N, C, OH, OW), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        which = torch.empty_like(y, dtype=torch.uint8)
        grid, patch = mapping(N, OH * OW, C, TILE // 4, widest=64)  # nine times as many loads as results
        launch(
            _apply_pool, grid, x, y, which, statistics[0], statistics[1], weight, bias, H, W, OH, OW, C, groups,
            **patch,
        )  # fmt: skip
        ctx.save_for_backward(x, which, weight, statistics)
        ctx.groups, ctx.bias = groups, bias
        return twice(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, which, weight, statistics = ctx.saved_tensors
        (N, C, H, W), (OH, OW) = x.shape, which.shape[2:]
        dy, *rest = [g.contiguous(memory_format=torch.channels_last) for g in gradients if g is not None]
        p, whole = _Plan(dy, ctx.groups), _Plan(x, ctx.groups)
        partial, means = p.partial(x), p.grouped(x)
        dz, dx = torch.empty_like(dy), torch.empty_like(x)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(ctx.bias)
        launch(
            _pool_moments, p.reduce, dy, rest[0] if rest else dy, x, which, dz, statistics[0], statistics[1],
            partial[0], partial[1], p.n, p.C, p.S, H, W, OW, R=p.R, G=p.G, TWO=bool(rest), **p.tile,
        )  # fmt: skip
        launch(
            _backward_statistics, p.few, partial[0], partial[1], means[0], means[1], dweight, dbias,
            whole.count, p.S, p.C, p.G, **p.pads,
        )  # fmt: skip
        grid, patch = mapping(N, H * W, C, TILE // 2, widest=64)
        launch(
            _pool_backward, grid, dz, which, x, dx, statistics[0], statistics[1], weight, means[0], means[1],
            H, W, OH, OW, C, ctx.groups, **patch,
        )  # fmt: skip
        return dx, dweight, dbias, None, None, None, None, None


def can_pool(pool: nn.Module) -> bool:
    """Whether it is the pool of a ResNet."""
    if not isinstance(pool, nn.MaxPool2d) or pool.ceil_mode or pool.return_indices:
        return False
    pairs = [(v, v) if isinstance(v, int) else tuple(v) for v in (pool.kernel_size, pool.stride, pool.padding)]
    return pairs == [(3, 3), (2, 2), (1, 1)] and pool.dilation in (1, (1, 1))


def norm_pool_twice(norm: nn.BatchNorm2d, x: Tensor) -> tuple[Tensor, Tensor]:
    """``max_pool(relu(norm(x)))`` in training mode, twice, as :func:`ressl.engine.kernels.norm_act_twice`."""
    groups = checked_groups(norm, x)
    x = x.contiguous(memory_format=torch.channels_last)
    result: tuple[Tensor, Tensor] = _NormPool.apply(
        x, norm.weight, norm.bias, norm.running_mean, norm.running_var, groups, norm.eps, norm.momentum
    )
    return result
