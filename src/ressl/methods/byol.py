"""BYOL: Bootstrap Your Own Latent.

Grill, Strub, Altche, Tallec, Richemond et al., NeurIPS 2020, arXiv:2006.07733.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Carry, Method, Output
from ressl.nn import MLP, EMATeacher, each, forward_crops, groups_of, l2_normalize


class BYOL(Method):
    """From either view the online network predicts what the moving average makes of the other. No negatives."""

    title: ClassVar[str] = "BYOL"
    paper: ClassVar[str] = "arXiv:2006.07733"
    backprops: ClassVar[int] = 2
    forwards: ClassVar[int] = 4
    ema: ClassVar[bool] = True
    most_views: ClassVar[int | None] = 2

    def __init__(
        self, backbone: nn.Module, *, hidden_dim: int = 4096, output_dim: int = 256, teacher_momentum: float = 0.99
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        groups = groups_of(backbone)
        self.head = MLP(width, hidden_dim, output_dim, groups=groups)
        self.predictor = MLP(output_dim, hidden_dim, output_dim, groups=groups)
        self.teacher = EMATeacher(nn.Sequential(self.backbone, self.head), teacher_momentum)
        self.base_momentum = teacher_momentum

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        a, b = views
        p_a, p_b = each(self.predict, forward_crops(self.backbone, (a, b)))  # B x D
        t_a, t_b = self.target(a), self.target(b)
        loss = (distance(p_a, t_b) + distance(p_b, t_a)).mean()
        with torch.no_grad():
            logs = {"alignment": (p_a * t_b).sum(1).mean(), "spread": losses.spread(t_a)}
        return Output(loss, carry=None, logs=logs)

    def predict(self, features: Tensor) -> Tensor:
        return l2_normalize(self.predictor(self.head(features)))

    @torch.no_grad()
    def target(self, view: Tensor) -> Tensor:
        return l2_normalize(self.teacher(view))

    @torch.no_grad()
    def set_progress(self, progress: Tensor) -> None:
        """The momentum rises along a cosine from its base to 1."""
        self.teacher.momentum.copy_(1 - (1 - self.base_momentum) * 0.5 * (torch.cos(math.pi * progress) + 1))

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        self.teacher.update(nn.ModuleList([self.backbone, self.head]))


def distance(p: Tensor, t: Tensor) -> Tensor:
    """The squared distance of unit vectors, |p - t|^2 = 2 - 2 p t, of each row."""
    return 2 - 2 * (p * t).sum(dim=1)
