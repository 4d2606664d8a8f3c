"""A look at data before a recipe is chosen for it."""

from __future__ import annotations

import statistics

import numpy as np
from numpy.typing import NDArray

from ressl.data.base import Source
from ressl.data.decode import BrokenImage
from ressl.errors import ResslError
from ressl.recipes.folder import Findings

LOOKED_AT = 256  # pictures, evenly spaced


def survey(source: Source, on_gpu: bool) -> Findings:
    """Count, usual size, and the colour statistics of a sample."""
    sides, moments, broken = [], [], []
    for index in np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source)), dtype=np.int64):
        try:
            picture = source.read(int(index))  # one at a time: 256 photographs together are gigabytes
        except BrokenImage as error:
            broken.append(error)
            continue
        sides.append(min(picture.shape[:2]))
        moments.append(_moments(picture))
    if not moments:
        first = f" (the first: {broken[0]})" if broken else ""
        raise ResslError(
            f"none of the {len(broken):,} pictures looked at can be read{first}; mend them, or give others by --data"
        )
    # The mean of each picture's own moments, so that a large picture counts no more than a small one.
    first, second = np.mean(moments, axis=0)
    std = np.sqrt(np.maximum(second - first**2, 1e-4))
    numbers = [tuple(round(float(v), 4) for v in values) for values in (first, std)]
    short = int(statistics.median(sides))
    return Findings(len(source), short, on_gpu, mean=numbers[0], std=numbers[1])  # type: ignore[arg-type]


def _moments(picture: NDArray[np.uint8]) -> list[NDArray[np.float64]]:
    """Mean and mean square of each channel, of pixels in 0..1, from how often each of the 256 values occurs."""
    values = np.arange(256) / 255.0
    counts = np.stack([np.bincount(picture[..., c].ravel(), minlength=256) for c in range(3)]) / picture[..., 0].size
    return [counts @ values, counts @ values**2]
