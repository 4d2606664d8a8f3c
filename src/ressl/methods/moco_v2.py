"""MoCo v2: Improved Baselines with Momentum Contrastive Learning.

Chen, Fan, Girshick and He, 2020, arXiv:2003.04297.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Carry, Method, Output
from ressl.nn import BatchShuffle, EMATeacher, MemoryQueue, ProjectionHead, all_rows, groups_of, l2_normalize


class MoCoV2(Method):
    """A query must find its own key, made by the moving average from another view, among a queue of past keys.

    Views: the key's, then the query's.
    """

    title: ClassVar[str] = "MoCo v2"
    paper: ClassVar[str] = "arXiv:2003.04297"
    ema: ClassVar[bool] = True
    most_views: ClassVar[int | None] = 2

    def __init__(
        self,
        backbone: nn.Module,
        *,
        hidden_dim: int = 2048,
        output_dim: int = 128,
        queue_size: int = 4096,
        teacher_momentum: float = 0.99,
        temperature: float = 0.2,
        head_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        groups = groups_of(backbone)
        self.head = ProjectionHead(width, hidden_dim, output_dim, batch_norm=head_batch_norm, groups=groups)
        self.teacher = EMATeacher(nn.Sequential(self.backbone, self.head), teacher_momentum)
        self.queue = MemoryQueue(queue_size, output_dim)
        self.shuffle = BatchShuffle()
        self.tau = temperature

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        key, query = views
        q = self.embed(query)  # B x D
        k = self.target(key)  # B x D
        loss = losses.info_nce(q, k, self.queue.keys, self.tau).mean()
        return Output(loss, carry=k, logs=contrast(q, k))

    def embed(self, view: Tensor) -> Tensor:
        return self.project(self.backbone(view))

    def project(self, features: Tensor) -> Tensor:
        return l2_normalize(self.head(features))

    @torch.no_grad()
    def target(self, view: Tensor) -> Tensor:
        """The keys of a view, made from a shuffled batch."""
        return l2_normalize(self.shuffle.apart(self.teacher, view))

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, Tensor)
        self.teacher.update(nn.ModuleList([self.backbone, self.head]))
        self.queue.enqueue(all_rows(carry))


@torch.no_grad()
def contrast(q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """What to watch: how alike a query and its key are, and how spread the queries."""
    return {"alignment": (q * k).sum(dim=1).mean(), "spread": losses.spread(q)}
