"""Grouped batch norm, residual add and ReLU in one pass over the activations (Triton, channels-last).

A network of this size spends as much time moving activations as multiplying them. Here the forward reads its input
twice and writes once, the backward reads its two inputs twice and writes once, and no mask is stored.

In memory an activation is N x R x C with R = H W rows of C channels; sample i belongs to group i % G. Sums are made in
a fixed order, so that two runs agree bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from ressl.engine.launching import TILE, launch, mapping, twice
from ressl.engine.reducing import (
    affine,
    gradient_behind,
    group_statistics,
    last_of,
    move_running,
    over_parts,
    rows_of,
    settle_gradients,
    store_gradient,
    store_result,
    tickets,
)

# Chosen by timing on an H200 at the four activation sizes of the CIFAR ResNet-18, batch 256 and 1024.
PROGRAMS = 512  # that share a reduction: about four for each multiprocessor of a large GPU
LARGE = 1 << 23  # elements from which a reduction takes whole rows and loads ahead; below, more and simpler programs


@triton.jit
def _moments(
    x_ptr, part_ptr, found_ptr, running_mean_ptr, running_var_ptr, ticket_ptr, n, C, S, eps, momentum,
    R: tl.constexpr, G: tl.constexpr, S_PAD: tl.constexpr, G_PAD: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Statistics from sum and sum of squares; a program adds up one part of one group (2 x S x G x C in all).

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
        place, inside = rows_of(tiles - 1 - back, g, c, n, C, R, G, ROWS)
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        total += x
        square += x * x
    place = part_ptr + (s * G + g) * C + c
    tl.store(place, tl.sum(total, 0), mask=c < C)
    tl.store(place + S * G * C, tl.sum(square, 0), mask=c < C)
    mine = ticket_ptr + tl.program_id(1) * (G + 1)
    if last_of(mine + g, S):
        whole = over_parts(part_ptr, g, c, S, G, C, S_PAD, COLS)
        squares = over_parts(part_ptr + S * G * C, g, c, S, G, C, S_PAD, COLS)
        group_statistics(whole, squares, found_ptr, g, c, n * R, eps, G, C)
        if last_of(mine + G, G):
            move_running(found_ptr, running_mean_ptr, running_var_ptr, c, n * R, momentum, G, C, G_PAD)


@triton.jit
def _apply(
    x_ptr, residual_ptr, y_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, R, C, G,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """y = relu(normalised x + residual); a program takes some rows of one sample."""
    chunks = tl.cdiv(R, ROWS)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    i = tl.program_id(0) // chunks
    r = (tl.program_id(0) % chunks) * ROWS + tl.arange(0, ROWS)
    _, _, scale, shift = affine(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, i % G, c, C)
    inside = (r < R)[:, None] & (c < C)[None, :]
    place = (i.to(tl.int64) * R + r)[:, None] * C + c[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    store_result(x, scale, shift, residual_ptr, y_ptr, place, inside, RESIDUAL, RELU)


@triton.jit
def _backward_moments(
    dy_ptr, dy2_ptr, x_ptr, y_ptr, dz_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, part_ptr, means_ptr, dweight_ptr,
    dbias_ptr, ticket_ptr, n, C, S, R: tl.constexpr, G: tl.constexpr, S_PAD: tl.constexpr, G_PAD: tl.constexpr,
    TWO: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Means of dz and of dz times the normalised x."""
    g = tl.program_id(0) % G
    s = tl.program_id(0) // G
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    mean, rstd, scale, shift = affine(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, g, c, C)
    tiles = tl.cdiv(n * R, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    dot = tl.zeros((ROWS, COLS), tl.float32)
    for back in tl.range(s, tiles, S, num_stages=STAGES):
        place, inside = rows_of(tiles - 1 - back, g, c, n, C, R, G, ROWS)
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        dz = gradient_behind(dy_ptr, dy2_ptr, y_ptr, x, scale, shift, place, inside, TWO, RESIDUAL, RELU)
        if RESIDUAL:
            tl.store(dz_ptr + place, dz.to(dz_ptr.dtype.element_ty), mask=inside)
        total += dz
        dot += dz * ((x - mean[None, :]) * rstd[None, :])
    settle_gradients(
        tl.sum(total, 0), tl.sum(dot, 0), part_ptr, means_ptr, dweight_ptr, dbias_ptr, ticket_ptr, g, s, c, n * R, S, G,
        C, S_PAD, G_PAD, COLS,
    )  # fmt: skip


@triton.jit
def _backward_apply(
    dz_ptr, dz2_ptr, x_ptr, dx_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, mean_dz_ptr, mean_dot_ptr, R, C, G,
    TWO: tl.constexpr, MASK: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """dx = weight / deviation * (dz - mean dz - normalised x * mean of dz times it)."""
    chunks = tl.cdiv(R, ROWS)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    i = tl.program_id(0) // chunks
    r = (tl.program_id(0) % chunks) * ROWS + tl.arange(0, ROWS)
    at = (i % G) * C + c
    mean, rstd, scale, shift = affine(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, i % G, c, C)
    inside = (r < R)[:, None] & (c < C)[None, :]
    place = (i.to(tl.int64) * R + r)[:, None] * C + c[None, :]
    x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
    dz = gradient_behind(dz_ptr, dz2_ptr, dz_ptr, x, scale, shift, place, inside, TWO, False, MASK)
    mean_dz = tl.load(mean_dz_ptr + at, mask=c < C, other=0.0)
    mean_dot = tl.load(mean_dot_ptr + at, mask=c < C, other=0.0)
    store_gradient(dz, x, mean, rstd, scale, mean_dz, mean_dot, dx_ptr, place, inside)


class Plan:
    """Launch sizes for an activation of N x C x H x W in G groups, and memory for what is found."""

    def __init__(self, norm: nn.BatchNorm2d, x: Tensor, groups: int) -> None:
        N, self.C, H, W = x.shape
        self.G, self.R, self.n = groups, H * W, N // groups
        self.count = self.n * self.R
        large = x.numel() >= LARGE
        cols = min(triton.next_power_of_2(self.C), 64 if large else 32)
        rows = TILE // cols
        blocks = triton.cdiv(self.C, cols)
        self.S = max(1, min(PROGRAMS // (groups * blocks), triton.cdiv(self.count, rows)))
        self.reduce = (self.S * groups, blocks)
        pads = {"S_PAD": triton.next_power_of_2(self.S), "G_PAD": triton.next_power_of_2(groups)}
        self.tile = {"R": self.R, "G": groups, **pads, "ROWS": rows, "COLS": cols, "STAGES": 3 if large else 1}
        self.map, self.patch = mapping(N, self.R, self.C)
        self.tickets = tickets(norm, x, blocks * (groups + 1))

    def parts(self, like: Tensor) -> Tensor:
        return torch.empty(2, self.S, self.G, self.C, dtype=torch.float32, device=like.device)

    def fill(self, statistics: Tensor, norm: nn.BatchNorm2d, x: Tensor) -> None:
        """With those of x; the norm's running ones follow."""
        launch(
            _moments, self.reduce, x, self.parts(x), statistics, norm.running_mean, norm.running_var, self.tickets,
            self.n, self.C, self.S, norm.eps, norm.momentum, **self.tile,
        )  # fmt: skip


def statistics_of(x: Tensor, groups: int, kinds: int = 3) -> Tensor:
    """Room for mean, 1 / deviation and variance by group and channel."""
    return torch.empty(kinds, groups, x.shape[1], dtype=torch.float32, device=x.device)


class _NormAct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, groups: int,
        relu: bool,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.set_materialize_grads(False)
        y, statistics = torch.empty_like(x), statistics_of(x, groups)
        p = Plan(norm, x, groups)
        p.fill(statistics, norm, x)
        launch(
            _apply, p.map, x, x if residual is None else residual, y, statistics[0], statistics[1], weight, bias, p.R,
            p.C, p.G, RESIDUAL=residual is not None, RELU=relu, **p.patch,
        )  # fmt: skip
        ctx.save_for_backward(x, y if residual is not None and relu else None, weight, bias, statistics)
        ctx.norm, ctx.groups, ctx.relu, ctx.residual = norm, groups, relu, residual is not None
        return twice(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, statistics = ctx.saved_tensors
        dy, *rest = [g.contiguous(memory_format=torch.channels_last) for g in gradients if g is not None]
        dy2 = rest[0] if rest else dy
        dx, dz = torch.empty_like(x), torch.empty_like(dy) if ctx.residual else dy
        dweight, dbias, means = torch.empty_like(weight), torch.empty_like(bias), statistics_of(x, ctx.groups, kinds=2)
        before = (dy, dy2, x, x if y is None else y, dz, statistics[0], statistics[1], weight, bias)
        p = Plan(ctx.norm, x, ctx.groups)
        launch(
            _backward_moments, p.reduce, *before, p.parts(x), means, dweight, dbias, p.tickets, p.n, p.C, p.S,
            TWO=bool(rest), RESIDUAL=ctx.residual, RELU=ctx.relu, **p.tile,
        )  # fmt: skip
        launch(
            _backward_apply, p.map, dz, dy2, x, dx, statistics[0], statistics[1], weight, bias, means[0], means[1], p.R,
            p.C, p.G, TWO=bool(rest) and not ctx.residual, MASK=ctx.relu and not ctx.residual, **p.patch,
        )  # fmt: skip
        return dx, dz if ctx.residual else None, dweight, dbias, None, None, None


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
    result: tuple[Tensor, Tensor] = _NormAct.apply(x, residual, norm.weight, norm.bias, norm, groups, relu)
    return result


def checked_groups(norm: nn.BatchNorm2d, x: Tensor) -> int:
    """The norm's groups, if it keeps running statistics and the batch splits into them."""
    groups = int(getattr(norm, "groups", 1))
    if x.shape[0] % groups:
        raise ValueError(f"a batch of {x.shape[0]} does not split into {groups} batch-norm groups")
    if x.numel() == x.shape[1] * groups:
        raise ValueError(f"a batch norm needs more than one value per channel and group, not {tuple(x.shape)}")
    assert norm.running_mean is not None and norm.running_var is not None and norm.momentum is not None  # noqa: PT018
    return groups
