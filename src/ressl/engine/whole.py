"""Norm, residual add and ReLU of small groups in one kernel each way (Triton, channels-last).

In the late stages of a network a group has a few thousand rows at most. One program can take some channels of all of
them, and go over them twice: the second time they come from the cache. The kernels of :mod:`ressl.engine.kernels` take
two launches for that.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor, nn

from ressl.engine.launching import TILE, launch
from ressl.engine.reducing import (
    affine,
    gradient_behind,
    group_statistics,
    last_of,
    move_running,
    over_groups,
    rows_of,
    store_gradient,
    store_result,
    tickets,
)

ROWS = 4096  # of a group, at most
PROGRAMS = 256  # at least, where the channels can be divided so far: about two for each multiprocessor
AHEAD = 4, 3  # tiles that are on their way at once, forward and backward


@triton.jit
def _whole(
    x_ptr, residual_ptr, y_ptr, found_ptr, weight_ptr, bias_ptr, running_mean_ptr, running_var_ptr, ticket_ptr,
    n, C, eps, momentum, R: tl.constexpr, G: tl.constexpr, G_PAD: tl.constexpr, RESIDUAL: tl.constexpr,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y = relu(normalised x + residual) for some channels of one group."""
    g = tl.program_id(0)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    tiles = tl.cdiv(n * R, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    square = tl.zeros((ROWS, COLS), tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        place, inside = rows_of(tile, g, c, n, C, R, G, ROWS)
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        total += x
        square += x * x
    mean, rstd = group_statistics(tl.sum(total, 0), tl.sum(square, 0), found_ptr, g, c, n * R, eps, G, C)
    scale = rstd * tl.load(weight_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale
    for tile in tl.range(0, tiles, num_stages=STAGES):
        place, inside = rows_of(tile, g, c, n, C, R, G, ROWS)
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        store_result(x, scale, shift, residual_ptr, y_ptr, place, inside, RESIDUAL, RELU)
    if last_of(ticket_ptr + tl.program_id(1), G):
        move_running(found_ptr, running_mean_ptr, running_var_ptr, c, n * R, momentum, G, C, G_PAD)


@triton.jit
def _whole_backward(
    dy_ptr, dy2_ptr, x_ptr, y_ptr, dz_ptr, mean_ptr, rstd_ptr, weight_ptr, bias_ptr, dx_ptr, sums_ptr, dweight_ptr,
    dbias_ptr, ticket_ptr, n, C, R: tl.constexpr, G: tl.constexpr, G_PAD: tl.constexpr, TWO: tl.constexpr,
    RESIDUAL: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dx = weight / deviation * (dz - mean dz - normalised x * mean of dz times it) for some channels of one group."""
    g = tl.program_id(0)
    c = tl.program_id(1) * COLS + tl.arange(0, COLS)
    mean, rstd, scale, shift = affine(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, g, c, C)
    tiles = tl.cdiv(n * R, ROWS)
    total = tl.zeros((ROWS, COLS), tl.float32)
    dot = tl.zeros((ROWS, COLS), tl.float32)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        place, inside = rows_of(tile, g, c, n, C, R, G, ROWS)
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        dz = gradient_behind(dy_ptr, dy2_ptr, y_ptr, x, scale, shift, place, inside, TWO, RESIDUAL, RELU)
        total += dz
        dot += dz * ((x - mean[None, :]) * rstd[None, :])
    sum_dz, sum_dot = tl.sum(total, 0), tl.sum(dot, 0)
    tl.store(sums_ptr + g * C + c, sum_dz, mask=c < C)
    tl.store(sums_ptr + (G + g) * C + c, sum_dot, mask=c < C)
    mean_dz, mean_dot = sum_dz / (n * R), sum_dot / (n * R)
    for tile in tl.range(0, tiles, num_stages=STAGES):
        place, inside = rows_of(tile, g, c, n, C, R, G, ROWS)
        x = tl.load(x_ptr + place, mask=inside, other=0.0).to(tl.float32)
        dz = gradient_behind(dy_ptr, dy2_ptr, y_ptr, x, scale, shift, place, inside, TWO, RESIDUAL, RELU)
        if RESIDUAL:
            tl.store(dz_ptr + place, dz.to(dz_ptr.dtype.element_ty), mask=inside)
        store_gradient(dz, x, mean, rstd, scale, mean_dz, mean_dot, dx_ptr, place, inside)
    if last_of(ticket_ptr + tl.program_id(1), G):
        tl.store(dbias_ptr + c, over_groups(sums_ptr, c, G, C, G_PAD), mask=c < C)
        tl.store(dweight_ptr + c, over_groups(sums_ptr + G * C, c, G, C, G_PAD), mask=c < C)


def can_whole(x: Tensor, groups: int) -> bool:
    """Whether a group of x is small enough for one program at a time."""
    return x.numel() // (x.shape[1] * groups) <= ROWS


def _tiles(x: Tensor, groups: int, ahead: int) -> tuple[tuple[int, int], dict[str, int]]:
    N, C, H, W = x.shape
    cols = min(32, triton.next_power_of_2(C))
    while cols > 16 and groups * triton.cdiv(C, cols) < PROGRAMS:
        cols //= 2
    rows = min(TILE // cols, triton.next_power_of_2(N // groups * H * W))
    constants = {"R": H * W, "G": groups, "G_PAD": triton.next_power_of_2(groups), "ROWS": rows, "COLS": cols}
    return (groups, triton.cdiv(C, cols)), {**constants, "STAGES": ahead, "num_warps": 8}


def whole_forward(
    norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, y: Tensor, statistics: Tensor, groups: int, relu: bool
) -> None:
    """Fill in y and the statistics; the running ones follow."""
    grid, tiles = _tiles(x, groups, AHEAD[0])
    launch(
        _whole, grid, x, x if residual is None else residual, y, statistics, norm.weight, norm.bias, norm.running_mean,
        norm.running_var, tickets(norm, x, grid[1]), len(x) // groups, x.shape[1], norm.eps, norm.momentum,
        RESIDUAL=residual is not None, RELU=relu, **tiles,
    )  # fmt: skip


def whole_backward(
    norm: nn.BatchNorm2d, before: tuple[Any, ...], dx: Tensor, sums: Tensor, dweight: Tensor, dbias: Tensor,
    how: dict[str, bool],
) -> None:  # fmt: skip
    """Fill in what comes after ``before``, the kernel's first arguments."""
    groups = sums.shape[1]
    grid, tiles = _tiles(dx, groups, AHEAD[1])
    launch(
        _whole_backward, grid, *before, dx, sums, dweight, dbias, tickets(norm, dx, grid[1]), len(dx) // groups,
        dx.shape[1], **how, **tiles,
    )  # fmt: skip
