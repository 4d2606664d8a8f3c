"""SimCLR: A Simple Framework for Contrastive Learning of Visual Representations.

Chen, Kornblith, Norouzi and Hinton, ICML 2020, arXiv:2002.05709.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Method, Output
from ressl.methods.moco_v2 import contrast
from ressl.nn import MLP, all_rows, each, forward_crops, groups_of, l2_normalize, rank, world


class SimCLR(Method):
    """Two views of a picture must find each other among both views of the whole batch, over all processes."""

    title: ClassVar[str] = "SimCLR"
    paper: ClassVar[str] = "arXiv:2002.05709"
    backprops: ClassVar[int] = 2
    most_views: ClassVar[int | None] = 2

    def __init__(
        self, backbone: nn.Module, *, hidden_dim: int = 512, output_dim: int = 128, temperature: float = 0.1
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        self.head = MLP(width, hidden_dim, output_dim, groups=groups_of(backbone))
        self.tau = temperature

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        z1, z2 = each(self.project, forward_crops(self.backbone, views))  # B x D each
        Z1, Z2 = all_rows(z1), all_rows(z2)  # N x D: the batch of all processes
        loss = 0.5 * (nt_xent(z1, z2, Z1, Z2, self.tau) + nt_xent(z2, z1, Z2, Z1, self.tau)).mean()
        return Output(loss, carry=None, logs=contrast(z1, z2))

    def project(self, features: Tensor) -> Tensor:
        return l2_normalize(self.head(features))


def nt_xent(anchor: Tensor, positive: Tensor, same: Tensor, other: Tensor, temperature: float) -> Tensor:
    """The loss of each anchor: its positive against all of both views (``same``, ``other``: N x D) but itself."""
    mine = torch.arange(len(anchor), device=anchor.device) * world() + rank()  # where the anchors stand in `same`
    itself = torch.arange(len(same), device=anchor.device)[None, :] == mine[:, None]  # B x N
    within = (losses.similarity(anchor, same) / temperature).masked_fill(itself, -torch.inf)
    across = losses.similarity(anchor, other) / temperature
    return torch.cat((within, across), 1).logsumexp(1) - (anchor * positive).sum(1) / temperature
