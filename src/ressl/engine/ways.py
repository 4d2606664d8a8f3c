"""Which way a convolution is made: the library's, or one of ours where that is faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

from ressl.engine.pairing import can_pair, convolve_pairs


class Way(NamedTuple):
    """A convolution as a function of its input, and its gradient by the input as a function of the result's."""

    forth: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Ways:
    """Finds the way of a convolution of few channels or few pixels; None means the library's."""

    paired: bool = True  # two pixels at once, see ressl.engine.pairing
    inside: bool = True  # without the border, see ressl.engine.borders

    def __call__(self, x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int]) -> Way | None:
        if x.element_size() != 2:
            return None
        if self.paired and x.shape[-1] % 2 == 0 and can_pair(weight, stride, padding):
            from ressl.engine.turning import both_ways  # here, because Triton is not on every machine

            with torch.no_grad():
                forth, back = both_ways(weight)
            return Way(partial(convolve_pairs, weight=forth), partial(convolve_pairs, weight=back))
        if self.inside and (found := borders()) is not None and found.can_leave_out(x, weight, stride, padding):
            return Way(partial(found.convolve_inside, weight=weight), partial(found.gradient_inside, weight=weight))
        return None


@cache
def borders() -> ModuleType | None:
    """:mod:`ressl.engine.borders`, if this machine's card can take tiles of a matrix by itself."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
        return None
    try:
        from ressl.engine import borders
    except ImportError:  # Triton is not on every machine
        return None
    return borders
