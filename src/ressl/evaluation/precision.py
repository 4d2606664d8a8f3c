"""Average precision as the PASCAL VOC 2007 challenge defines it."""

from __future__ import annotations

import torch
from torch import Tensor


def average_precision(scores: Tensor, truth: Tensor) -> float:
    """11-point interpolated AP of one class, in percent.

    ``truth`` is 1 (present), -1 (absent) or 0 (difficult); difficult pictures count neither for nor against. At each
    recall 0, 0.1, ..., 1 the largest precision at that recall or above is taken, and the mean of those is the AP.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, -1, 1]))  # doctest: +ELLIPSIS
    84.84...
    """
    order = scores.argsort(descending=True, stable=True)
    hit, miss = truth[order] > 0, truth[order] < 0
    positives = int(hit.sum())
    if positives == 0:
        raise ValueError("a class without a positive picture has no average precision")
    tp, fp = hit.double().cumsum(0), miss.double().cumsum(0)
    recall, precision = tp / positives, tp / (tp + fp).clamp_min(1)
    # From the right: the largest precision at this place of the ranking or later.
    ceiling = precision.flip(0).cummax(0).values.flip(0)
    # Recall as a count, so that 0.3 of 10 positives is exactly 3; the rounding of 0.1 * i would lose some.
    tenths = torch.arange(11, device=scores.device) * positives
    place = torch.searchsorted((tp * 10).long().contiguous(), tenths)
    assert float(recall[-1]) == 1.0
    return 100.0 * float(ceiling[place].mean())


def mean_average_precision(scores: Tensor, truth: Tensor) -> float:
    """Mean over the classes that have a positive picture; both are N x C."""
    present = torch.nonzero((truth > 0).any(0))[:, 0].tolist()
    return sum(average_precision(scores[:, c], truth[:, c]) for c in present) / len(present)
