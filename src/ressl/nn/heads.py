"""Projection and prediction heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl.nn.batchnorm import GroupedBatchNorm1d


def l2_normalize(x: Tensor) -> Tensor:
    """Rows of unit length, in float32 whatever autocast says (a bf16 norm would not be one)."""
    with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
        return F.normalize(x.float() if x.dtype in (torch.bfloat16, torch.float16) else x, dim=-1)


class ProjectionHead(nn.Sequential):
    """The two-layer head g of the paper: linear, ReLU, linear, with biases; batch norm only where a method asks.

    The norm's statistics are those of the whole batch (of all processes), or of ``groups`` groups.
    """

    def __init__(
        self, in_dim: int, hidden_dim: int, out_dim: int, *, batch_norm: bool = False, groups: int | None = None
    ) -> None:
        norm = nn.BatchNorm1d(hidden_dim) if groups is None else GroupedBatchNorm1d(hidden_dim, groups)
        between = [norm] if batch_norm else []
        super().__init__(nn.Linear(in_dim, hidden_dim), *between, nn.ReLU(inplace=True), nn.Linear(hidden_dim, out_dim))


class MLP(nn.Sequential):
    """Linear, batch norm, ReLU, ..., linear: the head of methods that need batch norm in it.

    ``dims`` are the widths from input to output; ``last_norm`` puts a batch norm without scale behind the last layer.
    The norms' statistics are taken in ``groups`` groups, those of the backbone (:func:`ressl.nn.groups_of`).
    """

    def __init__(self, *dims: int, groups: int = 1, last_norm: bool = False) -> None:
        layers: list[nn.Module] = []
        for i in range(1, len(dims) - 1):
            # No bias in front of a norm, which takes it away again.
            norm = GroupedBatchNorm1d(dims[i], groups)
            layers += [nn.Linear(dims[i - 1], dims[i], bias=False), norm, nn.ReLU(inplace=True)]
        layers.append(nn.Linear(dims[-2], dims[-1], bias=not last_norm))
        if last_norm:
            layers.append(GroupedBatchNorm1d(dims[-1], groups, affine=False))
        super().__init__(*layers)


def head_words(shapes: Mapping[str, Sequence[int]]) -> str:
    """A head in words, from the names and shapes of its tensors: ``linear 512 unbiased, norm, relu, linear 128``.

    It must be a linear layer, or linear layers and norms with ReLUs between them, as all heads here are.
    """
    words = []
    for i in range(1 + max(int(name.partition(".")[0]) for name in shapes)):
        if f"{i}.running_mean" in shapes:
            words.append("norm" if f"{i}.weight" in shapes else "norm unscaled")
        elif f"{i}.weight" in shapes:
            words.append(f"linear {shapes[f'{i}.weight'][0]}" + ("" if f"{i}.bias" in shapes else " unbiased"))
        else:
            words.append("relu")
    return ", ".join(words)


def head_of(words: str, in_dim: int) -> nn.Sequential:
    """The head that :func:`head_words` describes.

    >>> head_of("linear 8, relu, linear 2", 4)[2]
    Linear(in_features=8, out_features=2, bias=True)
    """
    layers: list[nn.Module] = []
    for word in words.split(", "):
        match word.split():
            case ["linear", width, *rest] if width.isdecimal() and rest in ([], ["unbiased"]):
                layers.append(nn.Linear(in_dim, int(width), bias=not rest))
                in_dim = int(width)
            case ["norm", *rest] if rest in ([], ["unscaled"]):
                layers.append(nn.BatchNorm1d(in_dim, affine=not rest))
            case ["relu"]:
                layers.append(nn.ReLU(inplace=True))
            case _:
                raise ValueError(f"a head is made of 'linear N', 'norm' and 'relu', not '{word}'")
    return nn.Sequential(*layers)
