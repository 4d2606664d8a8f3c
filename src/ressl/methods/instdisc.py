"""InstDisc: Unsupervised Feature Learning via Non-Parametric Instance Discrimination.

Wu, Xiong, Yu and Lin, CVPR 2018, arXiv:1805.01978.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Carry, Method, Output
from ressl.nn import Draws, MemoryBank, l2_normalize, mean_over_processes


class InstDisc(Method):
    """Every picture is a class of its own, kept in a memory bank; noise-contrastive estimation tells it from others.

    One view.
    """

    title: ClassVar[str] = "InstDisc"
    paper: ClassVar[str] = "arXiv:1805.01978"
    forwards: ClassVar[int] = 1
    fewest_views: ClassVar[int] = 1
    most_views: ClassVar[int | None] = 1
    wants: ClassVar[tuple[str, ...]] = ("index",)

    Z: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        output_dim: int = 128,
        bank_size: int = 50_000,
        bank_momentum: float = 0.5,
        negatives: int = 4096,
        temperature: float = 0.07,
        normaliser_momentum: float = 0.9,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        self.head = nn.Linear(width, output_dim)
        self.bank = MemoryBank(bank_size, output_dim, bank_momentum)
        self.draws = Draws()
        self.samples, self.m, self.tau, self.z_momentum = bank_size, negatives, temperature, normaliser_momentum
        # The normaliser. The authors keep the first batch's; but a bank that first gathers in one place, as it does
        # when embeddings begin close together, leaves that behind by orders of magnitude.
        self.register_buffer("Z", torch.full((), -1.0))

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        index, n = wanted["index"], self.samples
        v = l2_normalize(self.head(self.backbone(views[0])))  # B x D
        # m negatives for each row, drawn from all samples
        others = (self.draws(len(v), self.m).double() * n).long()  # B x m
        chosen = self.bank.vectors[torch.cat((index[:, None], others), 1)]  # B x (1 + m) x D, own first
        logits = losses.similarity(v, chosen) / self.tau
        with torch.no_grad():
            estimate = mean_over_processes(logits.exp().mean()) * n
            Z = torch.where(self.Z < 0, estimate, self.Z * self.z_momentum + estimate * (1 - self.z_momentum))
        loss = nce(logits, Z, n).mean()
        with torch.no_grad():
            logs = {"alignment": (v * chosen[:, 0]).sum(1).mean(), "spread": losses.spread(v)}
        return Output(loss, carry=(index, v.detach(), Z), logs=logs)

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, tuple)
        index, v, Z = carry
        self.bank.update(index, v)
        self.Z.copy_(Z)


def nce(logits: Tensor, Z: Tensor, n: int) -> Tensor:
    """Own (column 0) against m draws of the uniform noise over n samples; h = P / (P + m / n) with P = e^logit / Z."""
    m = logits.shape[1] - 1
    # log odds of "data, not noise": log P - log (m / n)
    odds = logits - torch.log(Z) - torch.log(torch.full_like(Z, m / n))
    return -F.logsigmoid(odds[:, 0]) - F.logsigmoid(-odds[:, 1:]).sum(1)
