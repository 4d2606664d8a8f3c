"""Mean and spread over several draws or seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Interval:
    """The mean of n values, their standard deviation, and half the width of the confidence interval of the mean."""

    mean: float
    std: float | None  # of the values, n - 1 in the denominator; None for a single value
    half: float | None  # Student's t; None for a single value
    n: int
    values: list[float]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """
    >>> round(interval([1.0, 2.0, 3.0]).half, 3)
    2.484
    """
    n = len(values)
    if n < 1:
        raise ValueError("an interval needs at least one value")
    mean = statistics.fmean(values)
    if n == 1:
        return Interval(mean, None, None, 1, list(values))
    from scipy.special import stdtrit  # here, because it takes half a second to import

    std = statistics.stdev(values)
    t = float(stdtrit(n - 1, 0.5 + confidence / 2))
    return Interval(mean, std, t * std / math.sqrt(n), n, list(values))
