"""Grouped batch norm, residual add and ReLU in one pass over the activations (Triton, channels-last).

A network of this size spends as much time moving activations as multiplying them. Here the forward reads its input
twice and writes once, the backward reads its two inputs twice and writes once, and no mask is stored.

In memory an activation is N x R x C with R = H W rows of C channels; sample i belongs to group i % G. Sums are made in
a fixed order, without atomics, so that two runs agree bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ressl.engine.launching import TILE, launch, mapping, twice

# Chosen by timing on an H200 at the four activation sizes of the CIFAR ResNet-18, batch 256 and 1024.
PROGRAMS = 512  # that share a reduction: about four for each multiprocessor of a large GPU
LARGE = 1 << 23  # elements from which a reduction takes whole rows and loads ahead; below, more and simpler programs


@triton.jit
def _moments(
    x_ptr, sum_ptr, square_ptr, n, C, S,
    R: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sum and sum of squares of one part of one group: S x G x C partial results.

    All programs walk together from the end of the activation to its beginning: what the convolution wrote last is still
    in the cache, and so is what the next kernel reads first. R and G are constants of the kernel, so that the divisions
    below are shifts where they are powers of two.
    """
    g = tl.program_id(0) % G
    s = tl.program_id(0) // G
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    tiles = tl.cdiv(n * R, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    square = tl.zeros((ROWS, COLS), tl.float32)
    for back in tl.range(s, tiles, S, num_stages=STAGES):
        q = (tiles - 1 - back) * ROWS + tl.arange(0, ROWS)  # row within the group
        row = ((q // R) * G + g) * R + q % R  # row in memory
        inside = (q < n * R)[:, None] & (c < C)[None, :]
        x = tl.load(x_ptr + row.to(tl.int64)[:, None] * C + c[None, :], mask=inside, other=0.0).to(tl.float32)
        total += x
        square += x * x
    place = (s * G + g) * C + c
    tl.store(sum_ptr + place, tl.sum(total, 0), mask=c < C)
    tl.store(square_ptr + place, tl.sum(square, 0), mask=c < C)


@triton.jit
def _partials(ptr, c, S, G, C, S_PAD: tl.constexpr, G_PAD: tl.constexpr):
    """The parts of each group added up: G_PAD x COLS."""
    s = tl.arange(0, S_PAD)[:, None, None]
    g = tl.arange(0, G_PAD)[None, :, None]
    inside = (s < S) & (g < G) & (c < C)[None, None, :]
    return tl.sum(tl.load(ptr + (s * G + g) * C + c[None, None, :], mask=inside, other=0.0), 0)


@triton.jit
def _statistics(
    sum_ptr, square_ptr, mean_ptr, rstd_ptr, running_mean_ptr, running_var_ptr, count, S, C, G, eps, momentum,
    S_PAD: tl.constexpr, G_PAD: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation of each group, and the running statistics, which are averages over the groups."""
    c = tl.program_id(0) * COLS + tl.arange(0, COLS)
    g = tl.arange(0, G_PAD)
    mean = _partials(sum_ptr, c, S, G, C, S_PAD, G_PAD) / count
    var = tl.maximum(_partials(square_ptr, c, S, G, C, S_PAD, G_PAD) / count - mean * mean, 0.0)
    inside = (g < G)[:, None] & (c < C)[None, :]
    place = g[:, None] * C + c[None, :]
    tl.store(mean_ptr + place, mean, mask=inside)
    tl.store(rstd_ptr + place, tl.rsqrt(var + eps), mask=inside)
    new_mean = tl.sum(tl.where(inside, mean, 0.0), 0) / G
    new_var = tl.sum(tl.where(inside, var, 0.0), 0) / G * (count / (count - 1))
    old_mean = tl.load(running_mean_ptr + c, mask=c < C, other=0.0)
    old_var = tl.load(running_var_ptr + c, mask=c < C, other=0.0)
    tl.store(running_mean_ptr + c, old_mean + momentum * (new_mean - old_mean), mask=c < C)
    tl.store(running_var_ptr + c, old_var + momentum * (new_var - old_var), mask=c < C)


@triton.jit
def _apply(
    x_ptr, residual_ptr, y_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, R, C, G,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """y = relu(normalised x + residual); a program takes some rows of one sample."""
    chunks = tl.cdiv(R, ROWS)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    weight = tl.load(weight_ptr + c, mask=c < C, other=0.0)
    bias = tl.load(bias_ptr + c, mask=c < C, other=0.0)
    i = tl.program_id(0) // chunks
    r = (tl.program_id(0) % chunks) * ROWS + tl.arange(0, ROWS)
    at = (i % G) * C + c
    scale = tl.load(rstd_ptr + at, mask=c < C, other=0.0) * weight
    shift = bias - tl.load(mean_ptr + at, mask=c < C, other=0.0) * scale
    inside = (r < R)[:, None] & (c < C)[None, :]
    place = (i.to(tl.int64) * R + r)[:, None] * C + c[None, :]
    y = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
    if RESIDUAL:
        y += tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward_moments(
    dy_ptr, dy2_ptr, x_ptr, y_ptr, dz_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, sum_ptr, dot_ptr, n, C, S,
    R: tl.constexpr, G: tl.constexpr, TWO: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Sums of dz and of dz times the normalised x, where dz is the gradient behind ReLU and residual add.

    A result that is used twice (by the next block and by its shortcut) has TWO gradients, added up on the way.
    """
    g = tl.program_id(0) % G
    s = tl.program_id(0) // G
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    mean = tl.load(mean_ptr + g * C + c, mask=c < C, other=0.0)
    rstd = tl.load(rstd_ptr + g * C + c, mask=c < C, other=0.0)
    scale = rstd * tl.load(weight_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale
    tiles = tl.cdiv(n * R, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    dot = tl.zeros((ROWS, COLS), tl.float32)
    for back in tl.range(s, tiles, S, num_stages=STAGES):
        q = (tiles - 1 - back) * ROWS + tl.arange(0, ROWS)
        row = ((q // R) * G + g) * R + q % R
        inside = (q < n * R)[:, None] & (c < C)[None, :]
        place = row.to(tl.int64)[:, None] * C + c[None, :]
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        dz = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if TWO:
            dz += tl.load(dy2_ptr + place, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                alive = tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32) > 0.0
            else:
                alive = x * scale[None, :] + shift[None, :] > 0.0
            dz = tl.where(alive, dz, 0.0)
        if RESIDUAL:
            tl.store(dz_ptr + place, dz.to(dz_ptr.dtype.element_ty), mask=inside)
        total += dz
        dot += dz * ((x - mean[None, :]) * rstd[None, :])
    place = (s * G + g) * C + c
    tl.store(sum_ptr + place, tl.sum(total, 0), mask=c < C)
    tl.store(dot_ptr + place, tl.sum(dot, 0), mask=c < C)


@triton.jit
def _backward_statistics(
    sum_ptr, dot_ptr, mean_dz_ptr, mean_dot_ptr, dweight_ptr, dbias_ptr, count, S, C, G,
    S_PAD: tl.constexpr, G_PAD: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    c = tl.program_id(0) * COLS + tl.arange(0, COLS)
    g = tl.arange(0, G_PAD)
    total = _partials(sum_ptr, c, S, G, C, S_PAD, G_PAD)
    dot = _partials(dot_ptr, c, S, G, C, S_PAD, G_PAD)
    inside = (g < G)[:, None] & (c < C)[None, :]
    place = g[:, None] * C + c[None, :]
    tl.store(mean_dz_ptr + place, total / count, mask=inside)
    tl.store(mean_dot_ptr + place, dot / count, mask=inside)
    tl.store(dbias_ptr + c, tl.sum(tl.where(inside, total, 0.0), 0), mask=c < C)
    tl.store(dweight_ptr + c, tl.sum(tl.where(inside, dot, 0.0), 0), mask=c < C)


@triton.jit
def _backward_apply(
    dz_ptr, dz2_ptr, x_ptr, dx_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, mean_dz_ptr, mean_dot_ptr, R, C, G,
    TWO: tl.constexpr, MASK: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """dx = weight / deviation * (dz - mean dz - normalised x * mean of dz times it)."""
    chunks = tl.cdiv(R, ROWS)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    weight = tl.load(weight_ptr + c, mask=c < C, other=0.0)
    bias = tl.load(bias_ptr + c, mask=c < C, other=0.0)
    i = tl.program_id(0) // chunks
    r = (tl.program_id(0) % chunks) * ROWS + tl.arange(0, ROWS)
    at = (i % G) * C + c
    mean = tl.load(mean_ptr + at, mask=c < C, other=0.0)
    rstd = tl.load(rstd_ptr + at, mask=c < C, other=0.0)
    scale = rstd * weight
    inside = (r < R)[:, None] & (c < C)[None, :]
    place = (i.to(tl.int64) * R + r)[:, None] * C + c[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    dz = tl.load(dz_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if TWO:
        dz += tl.load(dz2_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if MASK:
        dz = tl.where(x * scale[None, :] + (bias - mean * scale)[None, :] > 0.0, dz, 0.0)
    mean_dz = tl.load(mean_dz_ptr + at, mask=c < C, other=0.0)
    mean_dot = tl.load(mean_dot_ptr + at, mask=c < C, other=0.0)
    normal = (x - mean[None, :]) * rstd[None, :]
    dx = scale[None, :] * (dz - mean_dz[None, :] - normal * mean_dot[None, :])
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


class _Plan:
    """Launch sizes for an activation of N x C x H x W in G groups."""

    def __init__(self, x: Tensor, groups: int) -> None:
        N, self.C, H, W = x.shape
        self.G, self.R, self.n = groups, H * W, N // groups
        self.count = self.n * self.R
        large = x.numel() >= LARGE
        self.cols = min(triton.next_power_of_2(self.C), 64 if large else 32)
        self.rows = TILE // self.cols
        self.tile = {"ROWS": self.rows, "COLS": self.cols, "STAGES": 3 if large else 1}
        blocks = triton.cdiv(self.C, self.cols)
        self.S = max(1, min(PROGRAMS // (groups * blocks), triton.cdiv(self.count, self.rows)))
        self.reduce = (self.S * groups, blocks)
        self.pads = {"S_PAD": triton.next_power_of_2(self.S), "G_PAD": triton.next_power_of_2(groups), "COLS": 4}
        self.few = (triton.cdiv(self.C, 4),)
        self.map, self.patch = mapping(N, self.R, self.C)

    def partial(self, like: Tensor) -> Tensor:
        return torch.empty(2, self.S, self.G, self.C, dtype=torch.float32, device=like.device)

    def grouped(self, like: Tensor) -> Tensor:
        return torch.empty(2, self.G, self.C, dtype=torch.float32, device=like.device)

    def statistics(self, x: Tensor, running_mean: Tensor, running_var: Tensor, eps: float, momentum: float) -> Tensor:
        """Mean and 1 / deviation of x by group and channel (2 x G x C); the running ones are moved towards them."""
        partial, found = self.partial(x), self.grouped(x)
        launch(
            _moments, self.reduce, x, partial[0], partial[1], self.n, self.C, self.S, R=self.R, G=self.G, **self.tile
        )
        launch(
            _statistics, self.few, partial[0], partial[1], found[0], found[1], running_mean, running_var,
            self.count, self.S, self.C, self.G, eps, momentum, **self.pads,
        )  # fmt: skip
        return found


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, running_mean: Tensor,
        running_var: Tensor, groups: int, eps: float, momentum: float, relu: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.set_materialize_grads(False)
        p = _Plan(x, groups)
        statistics, y = p.statistics(x, running_mean, running_var, eps, momentum), torch.empty_like(x)
        launch(
            _apply, p.map, x, x if residual is None else residual, y, statistics[0], statistics[1], weight, bias,
            p.R, p.C, p.G, RESIDUAL=residual is not None, RELU=relu, **p.patch,
        )  # fmt: skip
        ctx.save_for_backward(x, y if residual is not None and relu else None, weight, bias, statistics)
        ctx.groups, ctx.relu, ctx.residual = groups, relu, residual is not None
        return twice(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, statistics = ctx.saved_tensors
        dy, *rest = [g.contiguous(memory_format=torch.channels_last) for g in gradients if g is not None]
        dy2 = rest[0] if rest else dy
        p = _Plan(x, ctx.groups)
        partial, means, dx = p.partial(x), p.grouped(x), torch.empty_like(x)
        dz = torch.empty_like(dy) if ctx.residual else dy
        dweight, dbias = torch.empty_like(weight), torch.empty_like(bias)
        launch(
            _backward_moments, p.reduce, dy, dy2, x, x if y is None else y, dz, statistics[0], statistics[1], weight,
            bias, partial[0], partial[1], p.n, p.C, p.S, R=p.R, G=p.G, TWO=bool(rest), RESIDUAL=ctx.residual,
            RELU=ctx.relu, **p.tile,
        )  # fmt: skip
        launch(
            _backward_statistics, p.few, partial[0], partial[1], means[0], means[1], dweight, dbias,
            p.count, p.S, p.C, p.G, **p.pads,
        )  # fmt: skip
        launch(
            _backward_apply, p.map, dz, dy2, x, dx, statistics[0], statistics[1], weight, bias, means[0], means[1],
            p.R, p.C, p.G, TWO=bool(rest) and not ctx.residual, MASK=ctx.relu and not ctx.residual,
            **p.patch,
        )  # fmt: skip
        return dx, dz if ctx.residual else None, dweight, dbias, None, None, None, None, None, None


def norm_act(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, relu: bool = True) -> Tensor:
    """``relu(norm(x) + residual)`` in training mode, updating the norm's running statistics."""
    return norm_act_twice(norm, x, residual, relu)[0]


def norm_act_twice(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None, relu: bool = True
) -> tuple[Tensor, Tensor]:
    """The same result as two tensors, for two users: their gradients are then added inside the backward kernel."""
    groups = checked_groups(norm, x)
    x = x.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.contiguous(memory_format=torch.channels_last)
    result: tuple[Tensor, Tensor] = _NormAct.apply(
        x, residual, norm.weight, norm.bias, norm.running_mean, norm.running_var, groups, norm.eps, norm.momentum, relu
    )
    return result


def checked_groups(norm: nn.BatchNorm2d, x: Tensor) -> int:
    """The norm's groups, if it keeps running statistics and the batch splits into them."""
    groups = int(getattr(norm, "groups", 1))
    if x.shape[0] % groups:
        raise ValueError(f"a batch of {x.shape[0]} does not split into {groups} batch-norm groups")
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None  # noqa: PT018
    return groups
