"""A look at data before a recipe is chosen for it."""

from __future__ import annotations

import contextlib
import statistics

import numpy as np

from ressl.data.base import ArraySource, Source
from ressl.data.decode import BrokenImage
from ressl.errors import ResslError
from ressl.recipes.folder import Findings

LOOKED_AT = 256  # pictures, evenly spaced


def survey(source: Source, on_gpu: bool) -> Findings:
    """Count, usual size, and the colour statistics of a sample."""
    pictures = []
    for index in np.linspace(0, len(source) - 1, min(LOOKED_AT, len(source)), dtype=np.int64):
        with contextlib.suppress(BrokenImage):
            pictures.append(source.read(int(index)))
    if not pictures:
        raise ResslError(f"none of the pictures looked at in {source.name} could be read")
    sides = [source.size] if isinstance(source, ArraySource) else [p.shape[:2] for p in pictures]
    # The mean of each picture's own moments, so that a large picture counts no more than a small one.
    first = np.mean([p.reshape(-1, 3).mean(0) for p in pictures], axis=0) / 255
    second = np.mean([(p.reshape(-1, 3) / 255.0).__pow__(2).mean(0) for p in pictures], axis=0)
    std = np.sqrt(np.maximum(second - first**2, 1e-4))
    numbers = [tuple(round(float(v), 4) for v in values) for values in (first, std)]
    short = int(statistics.median(min(side) for side in sides))
    return Findings(len(source), short, on_gpu, mean=numbers[0], std=numbers[1])  # type: ignore[arg-type]
