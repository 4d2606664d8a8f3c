"""InstDisc: Unsupervised Feature Learning via Non-Parametric Instance Discrimination.

Wu, Xiong, Yu and Lin, CVPR 2018, arXiv:1805.01978.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Carry, Method, Output
from ressl.nn import Draws, MemoryBank, all_rows, l2_normalize

UNKNOWN = -1e30  # below every log Z; minus infinity would not pass for a sound checkpoint


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

    log_Z: Tensor

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
        self.samples, self.m, self.tau = bank_size, negatives, temperature
        self.log_shares = [math.log(m) if m > 0 else -math.inf for m in (normaliser_momentum, 1 - normaliser_momentum)]
        # The normaliser. The authors keep the first batch's; but a bank that first gathers in one place, as it does
        # when embeddings begin close together, leaves that behind by orders of magnitude. Its logarithm is kept: Z may
        # reach n e^(1 / tau), which for a million pictures is more than float32 holds from a temperature of 0.013 down.
        self.register_buffer("log_Z", torch.full((), UNKNOWN))

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        index, n = wanted["index"], self.samples
        v = l2_normalize(self.head(self.backbone(views[0])))  # B x D
        # m negatives for each row, drawn from all samples
        others = (self.draws(len(v), self.m).double() * n).long()  # B x m
        chosen = self.bank.vectors[torch.cat((index[:, None], others), 1)]  # B x (1 + m) x D, own first
        logits = losses.similarity(v, chosen) / self.tau
        with torch.no_grad():
            rows = all_rows(losses.log_sum(logits))
            estimate = rows.logsumexp(0) + math.log(n / (len(rows) * logits.shape[1]))
            kept, new = self.log_shares
            log_Z = torch.where(self.log_Z > UNKNOWN / 2, torch.logaddexp(self.log_Z + kept, estimate + new), estimate)
        loss = nce(logits, log_Z, n).mean()
        with torch.no_grad():
            logs = {"alignment": (v * chosen[:, 0]).sum(1).mean(), "spread": losses.spread(v)}
        return Output(loss, carry=(index, v.detach(), log_Z), logs=logs)

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, tuple)
        index, v, log_Z = carry
        self.bank.update(index, v)
        self.log_Z.copy_(log_Z)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        # Earlier versions kept Z itself, and -1 for none.
        if (Z := state_dict.pop(f"{prefix}Z", None)) is not None:
            state_dict[f"{prefix}log_Z"] = torch.where(Z > 0, Z.log(), UNKNOWN)
        super()._load_from_state_dict(state_dict, prefix, *args)


def nce(logits: Tensor, log_Z: Tensor, n: int) -> Tensor:
    """Own (column 0) against m draws of the uniform noise over n samples; h = P / (P + m / n) with P = e^logit / Z."""
    m = logits.shape[1] - 1
    # log odds of "data, not noise": log P - log (m / n)
    odds = logits - log_Z - math.log(m / n)
    return -F.logsigmoid(odds[:, 0]) - F.logsigmoid(-odds[:, 1:]).sum(1)
