"""SimSiam: Exploring Simple Siamese Representation Learning.

Chen and He, CVPR 2021, arXiv:2011.10566.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Method, Output
from ressl.nn import MLP, each, forward_crops, groups_of, l2_normalize


class SimSiam(Method):
    """From either view a predictor guesses the embedding of the other, through which no gradient flows."""

    title: ClassVar[str] = "SimSiam"
    paper: ClassVar[str] = "arXiv:2011.10566"
    backprops: ClassVar[int] = 2
    most_views: ClassVar[int | None] = 2

    def __init__(
        self,
        backbone: nn.Module,
        *,
        output_dim: int = 2048,
        predictor_dim: int = 512,
        projector_layers: int = 2,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        groups = groups_of(backbone)
        if projector_layers < 1:
            raise ValueError(f"projector_layers must be at least 1, not {projector_layers}")
        self.head = MLP(width, *[output_dim] * projector_layers, groups=groups, last_norm=True)
        self.predictor = MLP(output_dim, predictor_dim, output_dim, groups=groups)

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        z1, z2 = each(self.head, forward_crops(self.backbone, views))  # B x D
        p1, p2 = each(self.predict, (z1, z2))
        z1, z2 = l2_normalize(z1.detach()), l2_normalize(z2.detach())
        loss = -0.5 * ((p1 * z2).sum(1) + (p2 * z1).sum(1)).mean()
        with torch.no_grad():
            logs = {"alignment": (z1 * z2).sum(1).mean(), "spread": losses.spread(z1)}
        return Output(loss, carry=None, logs=logs)

    def predict(self, z: Tensor) -> Tensor:
        return l2_normalize(self.predictor(z))
