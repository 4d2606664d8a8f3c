"""Randomness as a pure function of (seed, step, sample), never a hidden state.

Every random number of a run - the order of an epoch, a crop box, the teacher's shuffle - is a hash of where it is
used. So there is no generator to save: a resumed run, a captured CUDA graph, one process or eight, CPU or GPU all
draw the same numbers, because they ask for the same coordinates.

The hash is SplitMix64 (Steele, Lea and Flood, 2014). Ground floor: every room may import it.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Streams keep draws for different purposes apart. A view's stream is VIEWS + its place among the views.
ORDER, SHUFFLE, PARTS, EVALUATION, VIEWS = 0, 1, 2, 3, 16
METHOD, CLUSTERS = 8, 9  # a method's own draws, and where k-means starts

_GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15, the golden-ratio increment, as a signed 64-bit number
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical shift right; torch's own is arithmetic on signed integers."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


def _places(count: int, device: torch.device) -> Tensor:
    """1, 2, ... ``count``, int64."""
    # The idle `| 0` keeps the compiler from folding a product with them into 32-bit index arithmetic (torch 2.11).
    return torch.arange(1, count + 1, dtype=torch.int64, device=device) | 0


def _scalar(value: Tensor | int, device: torch.device) -> Tensor:
    # full, not as_tensor: a fill can be captured in a CUDA graph, a copy from the host cannot.
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=torch.int64, device=device)


def bits(seed: Tensor | int, step: Tensor | int, rows: Tensor, columns: int, stream: int) -> Tensor:
    """64 random bits for each of ``rows`` (R, int64) and each column: R x columns, int64."""
    return _bits(seed, step, rows, columns, _scalar(stream + 1, rows.device))


def _bits(seed: Tensor | int, step: Tensor | int, rows: Tensor, columns: int, stream: Tensor) -> Tensor:
    """Of one stream (a number from 1, no dimension) or of several (S x 1): R x columns, or S x R x columns."""
    device = rows.device
    key = _mix(_scalar(seed, device) ^ _mix(stream * _GAMMA))
    key = _mix(key + _scalar(step, device))
    key = _mix(key + rows)[..., None]
    return _mix(key + _places(columns, device) * _GAMMA)


def uniform(seed: Tensor | int, step: Tensor | int, rows: Tensor, columns: int, stream: int) -> Tensor:
    """Uniform numbers in [0, 1): R x columns, float32 (24 random bits each)."""
    return _uniform(bits(seed, step, rows, columns, stream))


def uniforms(seed: Tensor | int, step: Tensor | int, rows: Tensor, columns: int, first: int, streams: int) -> Tensor:
    """:func:`uniform` of ``streams`` streams from the ``first`` on, in as many operations as one: S x R x columns."""
    return _uniform(_bits(seed, step, rows, columns, (_places(streams, rows.device) + first)[:, None]))


def _uniform(bits: Tensor) -> Tensor:
    return _shift(bits, 40).to(torch.float32) * 2.0**-24


def permutation(seed: Tensor | int, step: Tensor | int, n: int, stream: int, device: torch.device | str) -> Tensor:
    """A random permutation of 0..n-1, the same on every device."""
    rows = torch.arange(n, dtype=torch.int64, device=device)
    return torch.argsort(bits(seed, step, rows, 1, stream)[:, 0], stable=True)


def small_permutation(
    seed: Tensor | int, step: Tensor | int, n: int, stream: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """The same permutation and its inverse, by comparing all pairs: no sort, which a GPU does slowly for a batch."""
    rows = torch.arange(n, dtype=torch.int64, device=device)
    key = bits(seed, step, rows, 1, stream)  # n x 1
    before = (key > key.T) | ((key == key.T) & (rows[None, :] < rows[:, None]))
    inverse = before.sum(1)  # how many come before each: its place
    return torch.zeros_like(rows).scatter(0, inverse, rows), inverse
