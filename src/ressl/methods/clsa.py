"""CLSA: Contrastive Learning with Stronger Augmentations.

Wang and Qi, 2021, arXiv:2104.07713.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Output
from ressl.methods.moco_v2 import MoCoV2, contrast
from ressl.nn import each, forward_crops


class CLSA(MoCoV2):
    """MoCo v2, and stronger views must relate to the key and the queue as the query does.

    Views: the key's, the query's, then one stronger view (CLSA-Single) or several of different sizes (CLSA-Multi).
    """

    title: ClassVar[str] = "CLSA"
    paper: ClassVar[str] = "arXiv:2104.07713"
    backprops: ClassVar[int] = 2
    forwards: ClassVar[int] = 3
    fewest_views: ClassVar[int] = 3
    most_views: ClassVar[int | None] = None

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
        divergence: float = 1.0,
    ) -> None:
        super().__init__(
            backbone,
            hidden_dim=hidden_dim,
            output_dim=output_dim,
            queue_size=queue_size,
            teacher_momentum=teacher_momentum,
            temperature=temperature,
            head_batch_norm=head_batch_norm,
        )
        self.beta = divergence

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        key, query, *stronger = views
        q, *strong = each(self.project, forward_crops(self.backbone, [query, *stronger]))  # B x D each
        k = self.target(key)
        log_p = self.relation(q, k)  # B x (1 + K)
        target = log_p.detach()
        divergence = torch.stack([losses.cross_entropy(target, self.relation(s, k)).mean() for s in strong]).mean()
        loss = -log_p[:, 0].mean() + self.beta * divergence  # InfoNCE and the distributional divergence
        return Output(loss, carry=k, logs=contrast(q, k) | {"divergence": divergence.detach()})

    def relation(self, z: Tensor, k: Tensor) -> Tensor:
        """The log-distribution of z over its key (first) and the queue."""
        positive = (z * k).sum(1, keepdim=True)
        return (torch.cat((positive, losses.similarity(z, self.queue.keys)), 1) / self.tau).log_softmax(1)


class CLSAMulti(CLSA):
    """CLSA with stronger views of five sizes."""

    title: ClassVar[str] = "CLSA-Multi"
    backprops: ClassVar[int] = 6
    forwards: ClassVar[int] = 7
    fewest_views: ClassVar[int] = 4
