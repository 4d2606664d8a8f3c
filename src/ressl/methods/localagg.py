"""LocalAgg: Local Aggregation for Unsupervised Learning of Visual Embeddings.

Zhuang, Zhai and Yamins, ICCV 2019, arXiv:1903.12355.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Carry, Method, Output, begun
from ressl.nn import MemoryBank, few_clusters, kmeans, l2_normalize


class LocalAgg(Method):
    """A picture is drawn to its close neighbours (those that share a cluster) among its background neighbours.

    One view. After a share of the training, clusters are made anew before every epoch, several times over the memory
    bank; before the first time, a picture's only close neighbour is itself.
    """

    title: ClassVar[str] = "LocalAgg"
    paper: ClassVar[str] = "arXiv:1903.12355"
    forwards: ClassVar[int] = 1
    fewest_views: ClassVar[int] = 1
    most_views: ClassVar[int | None] = 1
    wants: ClassVar[tuple[str, ...]] = ("index",)

    clusters: Tensor
    key: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        output_dim: int = 128,
        bank_size: int = 50_000,
        bank_momentum: float = 0.5,
        background: int = 4096,
        clusterings: int = 3,
        clusters: int = 1000,
        cluster_from: float = 0.05,
        temperature: float = 0.07,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        self.head = nn.Linear(width, output_dim)
        self.bank = MemoryBank(bank_size, output_dim, bank_momentum)
        if background < 1 or clusters < 1:
            raise ValueError(f"background and clusters must be at least 1, not {background} and {clusters}")
        self.samples, self.k, self.tau = bank_size, min(background, bank_size), temperature
        self.count, self.cluster_from = few_clusters(clusters, bank_size), cluster_from  # a share of the training
        if (self.k, self.count) != (background, clusters):
            self.remarks = (
                f"of {bank_size:,} pictures, {self.k:,} background neighbours and {self.count:,} clusters are taken",
            )
        self.register_buffer("clusters", torch.arange(bank_size).repeat(clusterings, 1))  # H x N
        self.register_buffer("key", torch.randint(2**62, (), dtype=torch.int64))

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        index = wanted["index"]
        v = l2_normalize(self.head(self.backbone(views[0])))  # B x D
        s = losses.similarity(v, self.bank.vectors)  # B x N
        with torch.no_grad():
            # Itself always belongs to the background, so that the close neighbours are never none.
            B = s.scatter(1, index[:, None], 2.0).topk(self.k, dim=1).indices  # B x k
            C = (self.clusters[:, B] == self.clusters[:, index][:, :, None]).any(0)  # B x k: which of them are close
        near = s.gather(1, B) / self.tau
        loss = aggregation(near, C).mean()
        with torch.no_grad():
            own = s.gather(1, index[:, None]).mean()
            logs = {"alignment": own, "spread": losses.spread(v), "close": C.sum(1).float().mean()}
        return Output(loss, carry=(index, v.detach()), logs=logs)

    @torch.no_grad()
    def begin_epoch(self, epoch: int) -> None:
        if begun(self.cluster_from, epoch, self.epochs):
            for h in range(len(self.clusters)):
                found = kmeans(self.bank.vectors, self.count, key=self.key, round=epoch * len(self.clusters) + h)
                self.clusters[h].copy_(found.labels)

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, tuple)
        self.bank.update(*carry)


def aggregation(logits: Tensor, close: Tensor) -> Tensor:
    """-log P(C and B | v) / P(B | v) of each row, from its logits to B (rows x k) and which of B are in C."""
    return logits.logsumexp(1) - logits.masked_fill(~close, -torch.inf).logsumexp(1)
