"""ReSSL: Relational Self-Supervised Learning with Weak Augmentation.

Zheng, You, Wang, Qian, Zhang, Wang and Xu, NeurIPS 2021, arXiv:2107.09282.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.losses import spread
from ressl.methods.base import Carry, Method, Output
from ressl.nn import BatchShuffle, EMATeacher, MemoryQueue, ProjectionHead, all_rows, each, forward_crops, l2_normalize


class ReSSL(Method):
    """The student's relation to the queue learns to match the teacher's sharper one.

    Views: the teacher's weak view first, then one or more student views (multi-crop), each matched with it.
    """

    title: ClassVar[str] = "ReSSL"
    paper: ClassVar[str] = "arXiv:2107.09282"
    ema: ClassVar[bool] = True

    def __init__(
        self,
        backbone: nn.Module,
        *,
        hidden_dim: int = 2048,
        output_dim: int = 128,
        queue_size: int = 4096,
        teacher_momentum: float = 0.99,
        student_temperature: float = 0.1,
        teacher_temperature: float = 0.04,
        head_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        self.head = ProjectionHead(width, hidden_dim, output_dim, batch_norm=head_batch_norm)
        self.teacher = EMATeacher(nn.Sequential(self.backbone, self.head), teacher_momentum)
        self.queue = MemoryQueue(queue_size, output_dim)
        self.shuffle = BatchShuffle()
        self.tau_s = student_temperature
        self.tau_t = teacher_temperature

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        weak, *strong = views
        Q = self.queue.keys  # K x D; no copy: it only changes in after_step, when the backward is done
        z2 = each(self.project, forward_crops(self.backbone, strong))  # B x D each
        z1 = self.target(weak)
        with torch.no_grad():
            log_p1 = losses.log_relation(z1, Q, self.tau_t)  # B x K, equation 3
        logits = [losses.similarity(z, Q) / self.tau_s for z in z2]  # B x K each; their softmax is equation 4
        loss = torch.stack([losses.cross_entropy(log_p1, l2).mean() for l2 in logits]).mean()  # equation 5
        with torch.no_grad():
            logs = {
                "teacher_entropy": losses.entropy(log_p1).mean(),
                "agreement": (losses.highest(log_p1) == losses.highest(logits[0])).float().mean(),
                "spread": spread(z2[0]),
            }
        return Output(loss, carry=z1, logs=logs)

    def project(self, h: Tensor) -> Tensor:
        return l2_normalize(self.head(h))

    @torch.no_grad()
    def target(self, weak: Tensor) -> Tensor:
        """The teacher's embeddings z1 of its own view, made from a shuffled batch."""
        return l2_normalize(self.shuffle.apart(self.teacher, weak))  # B x D

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, Tensor)
        self.teacher.update(nn.ModuleList([self.backbone, self.head]))
        self.queue.enqueue(all_rows(carry))
