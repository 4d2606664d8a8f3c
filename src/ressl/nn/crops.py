"""Many crops through one network: those of one size share a forward, and none notices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ressl.nn.batchnorm import GroupedBatchNorm2d, become, grouped_kind
from ressl.uncompiled import uncompiled


def each(function: Callable[[Tensor], Tensor], views: Sequence[Tensor]) -> list[Tensor]:
    """``[function(view) for view in views]``, for functions that run a network.

    A compiler that leaves a loop half-way, at a network that it does not compile, gives up on the function around the
    loop. Here that is this one, and a method's loss stays one program.
    """
    return [function(view) for view in views]


def forward_crops(backbone: nn.Module, crops: Sequence[Tensor]) -> list[Tensor]:
    """``[backbone(crop) for crop in crops]``, with one call for all crops of a size.

    Batch norm still takes its statistics crop by crop, group by group. For n crops of B samples the rows are dealt in
    turn (sample 0 of every crop, sample 1 of every crop ...) and each norm has n times its groups in that call: row j
    belongs to group j % (n G), which is crop j % n of the samples that were its group before. Running statistics move
    once, to the mean over the crops, where n calls would move them n times.
    """
    sizes = [crop.shape[-1] for crop in crops]
    if len(set(sizes)) < len(sizes) and _has_other_norms(backbone):
        return each(backbone, crops)
    features: dict[int, Tensor] = {}
    # Shared ones first: they write running statistics in a way that autograd would take amiss after an ordinary call.
    for size in sorted(dict.fromkeys(sizes), key=lambda size: -sizes.count(size)):
        same = [i for i, s in enumerate(sizes) if s == size]
        if len(same) == 1:
            features[same[0]] = backbone(crops[same[0]])
            continue
        n = len(same)
        _multiply_groups(backbone, n, 1)
        try:
            dealt = backbone(torch.stack([crops[i] for i in same], 1).flatten(0, 1))  # nB x D
        finally:
            _multiply_groups(backbone, 1, n)
        for k, i in enumerate(same):
            features[i] = dealt[k::n]
    return [features[i] for i in range(len(crops))]


@uncompiled
def _has_other_norms(network: nn.Module) -> bool:
    """Batch norms of a kind that we do not know would take their statistics over all crops."""
    return any(isinstance(module, nn.BatchNorm2d) and grouped_kind(module) is None for module in network.modules())


@uncompiled
def _multiply_groups(network: nn.Module, by: int, divide: int) -> None:
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d) and (kind := grouped_kind(module)) not in (None, type(module)):
            become(module, kind)  # with one group the two are the same
        if isinstance(module, GroupedBatchNorm2d):
            module.groups = module.groups * by // divide
