"""What the norms' kernels share, above all the end of a reduction that many programs share (Triton).

A program takes a ticket when its part is written. Whoever takes the last one reads all parts, in a fixed order: which
program it is differs from run to run, the sum does not. So a reduction needs no second kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn


@triton.jit
def last_of(ticket_ptr, programs):
    """Whether all ``programs`` have been here, this one included: then what each stored before can be read."""
    tl.debug_barrier()  # all threads have stored
    last = tl.atomic_add(ticket_ptr, 1, sem="acq_rel", scope="gpu") == programs - 1
    if last:
        tl.store(ticket_ptr, 0)  # for the next launch
    return last


@triton.jit
def over_parts(ptr, g, c, S, G, C, S_PAD: tl.constexpr, COLS: tl.constexpr):
    """The S parts of group g added up, of S x G x C."""
    AT_ONCE: tl.constexpr = min(S_PAD, 32)
    total = tl.zeros((COLS,), tl.float32)
    for first in tl.static_range(0, S_PAD, AT_ONCE):
        s = first + tl.arange(0, AT_ONCE)
        inside = (s < S)[:, None] & (c < C)[None, :]
        total += tl.sum(tl.load(ptr + (s * G + g)[:, None] * C + c[None, :], mask=inside, other=0.0), 0)
    return total


@triton.jit
def over_groups(ptr, c, G, C, G_PAD: tl.constexpr):
    """The rows of G x C added up."""
    g = tl.arange(0, G_PAD)
    inside = (g < G)[:, None] & (c < C)[None, :]
    return tl.sum(tl.load(ptr + g[:, None] * C + c[None, :], mask=inside, other=0.0), 0)


@triton.jit
def rows_of(tile, g, c, n, C, R: tl.constexpr, G: tl.constexpr, ROWS: tl.constexpr):
    """Where the rows of a tile of group g lie, at the channels c, and which of them there are."""
    q = tile * ROWS + tl.arange(0, ROWS)  # row within the group
    row = ((q // R) * G + g) * R + q % R  # row in memory
    inside = (q < n * R)[:, None] & (c < C)[None, :]
    return row.to(tl.int64)[:, None] * C + c[None, :], inside


@triton.jit
def affine(mean_ptr, rstd_ptr, weight_ptr, bias_ptr, g, c, C):
    """Mean and 1 / deviation of group g, and what the norm makes of them: scale and shift."""
    mean = tl.load(mean_ptr + g * C + c, mask=c < C, other=0.0)
    rstd = tl.load(rstd_ptr + g * C + c, mask=c < C, other=0.0)
    scale = rstd * tl.load(weight_ptr + c, mask=c < C, other=0.0)
    shift = tl.load(bias_ptr + c, mask=c < C, other=0.0) - mean * scale
    return mean, rstd, scale, shift


@triton.jit
def group_statistics(total, square, found_ptr, g, c, count, eps, G, C):
    """Mean and 1 / deviation of a group from its sums; both are kept, and the variance (3 x G x C)."""
    mean = total / count
    var = tl.maximum(square / count - mean * mean, 0.0)
    rstd = tl.rsqrt(var + eps)
    place = g * C + c
    tl.store(found_ptr + place, mean, mask=c < C)
    tl.store(found_ptr + G * C + place, rstd, mask=c < C)
    tl.store(found_ptr + 2 * G * C + place, var, mask=c < C)
    return mean, rstd


@triton.jit
def move_running(found_ptr, running_mean_ptr, running_var_ptr, c, count, momentum, G, C, G_PAD: tl.constexpr):
    """The running statistics, towards the averages over the groups."""
    mean = over_groups(found_ptr, c, G, C, G_PAD) / G
    var = over_groups(found_ptr + 2 * G * C, c, G, C, G_PAD) / G * (count / (count - 1))
    old_mean = tl.load(running_mean_ptr + c, mask=c < C, other=0.0)
    old_var = tl.load(running_var_ptr + c, mask=c < C, other=0.0)
    tl.store(running_mean_ptr + c, old_mean + momentum * (mean - old_mean), mask=c < C)
    tl.store(running_var_ptr + c, old_var + momentum * (var - old_var), mask=c < C)


@triton.jit
def gradient_behind(
    dy_ptr, dy2_ptr, y_ptr, x, scale, shift, place, inside,
    TWO: tl.constexpr, RESIDUAL: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """dz: the gradient behind ReLU and residual add.

    A result that is used twice (by the next block and by its shortcut) has TWO gradients, added up on the way.
    """
    dz = tl.load(dy_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if TWO:
        dz += tl.load(dy2_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        if RESIDUAL:
            alive = tl.load(y_ptr + place, mask=inside, other=0.0).to(tl.float32) > 0.0
        else:
            alive = x * scale[None, :] + shift[None, :] > 0.0
        dz = tl.where(alive, dz, 0.0)
    return dz


@triton.jit
def store_result(x, scale, shift, residual_ptr, y_ptr, place, inside, RESIDUAL: tl.constexpr, RELU: tl.constexpr):
    """y = relu(normalised x + residual)"""
    y = x * scale[None, :] + shift[None, :]
    if RESIDUAL:
        y += tl.load(residual_ptr + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y_ptr + place, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def store_gradient(dz, x, mean, rstd, scale, mean_dz, mean_dot, dx_ptr, place, inside):
    """dx = weight / deviation * (dz - mean dz - normalised x * mean of dz times it)"""
    normal = (x - mean[None, :]) * rstd[None, :]
    dx = scale[None, :] * (dz - mean_dz[None, :] - normal * mean_dot[None, :])
    tl.store(dx_ptr + place, dx.to(dx_ptr.dtype.element_ty), mask=inside)


@triton.jit
def settle_gradients(
    total, dot, part_ptr, means_ptr, dweight_ptr, dbias_ptr, ticket_ptr, g, s, c, count, S, G, C,
    S_PAD: tl.constexpr, G_PAD: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """From the sums of one part of one group: the means of the groups (2 x G x C), the gradients of weight and bias."""
    place = part_ptr + (s * G + g) * C + c
    tl.store(place, total, mask=c < C)
    tl.store(place + S * G * C, dot, mask=c < C)
    mine = ticket_ptr + tl.program_id(1) * (G + 1)
    if last_of(mine + g, S):
        mean = over_parts(part_ptr, g, c, S, G, C, S_PAD, COLS) / count
        mean_dot = over_parts(part_ptr + S * G * C, g, c, S, G, C, S_PAD, COLS) / count
        tl.store(means_ptr + g * C + c, mean, mask=c < C)
        tl.store(means_ptr + (G + g) * C + c, mean_dot, mask=c < C)
        if last_of(mine + G, G):
            tl.store(dbias_ptr + c, over_groups(means_ptr, c, G, C, G_PAD) * count, mask=c < C)
            tl.store(dweight_ptr + c, over_groups(means_ptr + G * C, c, G, C, G_PAD) * count, mask=c < C)


def tickets(norm: nn.Module, x: Tensor, count: int) -> Tensor:
    """Zeros that belong to ``norm``, of which nobody else takes any at the same time."""
    mine: Tensor | None = norm.__dict__.get("_tickets")
    if mine is None or mine.device != x.device or len(mine) < count:
        norm.__dict__["_former_tickets"] = mine, norm.__dict__.get("_former_tickets")  # a captured graph may take those
        mine = norm.__dict__["_tickets"] = torch.zeros(count, dtype=torch.int32, device=x.device)
    return mine
