"""AdCo: Adversarial Contrast for Efficient Learning of Unsupervised Representations from Self-Trained Negatives.

Hu, Wang, Hu and Qi, CVPR 2021, arXiv:2011.08435.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Carry, Method, Output
from ressl.methods.moco_v2 import contrast
from ressl.nn import BatchShuffle, EMATeacher, ProjectionHead, all_rows, groups_of, l2_normalize


class AdCo(Method):
    """MoCo v2 whose negatives are no past keys but parameters, trained to make the contrast as hard as they can.

    Views: the key's, then the query's.
    """

    title: ClassVar[str] = "AdCo"
    paper: ClassVar[str] = "arXiv:2011.08435"
    ema: ClassVar[bool] = True
    most_views: ClassVar[int | None] = 2

    filled: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        hidden_dim: int = 2048,
        output_dim: int = 128,
        negatives: int = 4096,
        teacher_momentum: float = 0.99,
        temperature: float = 0.12,
        negatives_temperature: float = 0.02,
        negatives_lr_scale: float = 50.0,
        negatives_decay: float = 1e-4,
        head_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        groups = groups_of(backbone)
        self.head = ProjectionHead(width, hidden_dim, output_dim, batch_norm=head_batch_norm, groups=groups)
        self.teacher = EMATeacher(nn.Sequential(self.backbone, self.head), teacher_momentum)
        self.shuffle = BatchShuffle()
        self.negatives = nn.Parameter(l2_normalize(torch.randn(negatives, output_dim)))  # K x D
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64))
        self.tau, self.tau_n = temperature, negatives_temperature
        self.lr_scale, self.decay = negatives_lr_scale, negatives_decay

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.negatives], "lr_scale": self.lr_scale, "weight_decay": self.decay}]

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        key, query = views
        q, k = l2_normalize(self.head(self.backbone(query))), self.target(key)  # B x D
        n = l2_normalize(self.negatives)
        loss = losses.info_nce(q, k, n.detach(), self.tau).mean()  # the network's side: minimise
        hard = losses.info_nce(q.detach(), k, n, self.tau_n).mean()  # the negatives' side: maximise
        # Both gradients in one backward; the value stays the network's loss.
        return Output(loss - (hard - hard.detach()), carry=k, logs=contrast(q, k) | {"hardness": hard.detach()})

    @torch.no_grad()
    def target(self, view: Tensor) -> Tensor:
        """The keys of a view, made from a shuffled batch."""
        return l2_normalize(self.shuffle.apart(self.teacher, view))

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, Tensor)
        self.teacher.update(nn.ModuleList([self.backbone, self.head]))
        # The first keys are where the negatives begin: from anywhere else, at so low a temperature, nothing pulls them.
        K = len(self.negatives)
        keys = all_rows(carry)[:K].to(self.negatives.dtype)
        slots = self.filled + torch.arange(len(keys), device=keys.device)
        begun = (slots >= K)[:, None]
        slots = slots % K
        self.negatives.index_copy_(0, slots, torch.where(begun, self.negatives[slots], keys))
        self.filled.copy_((self.filled + len(keys)).clamp(max=K))
        self.negatives.copy_(l2_normalize(self.negatives))
