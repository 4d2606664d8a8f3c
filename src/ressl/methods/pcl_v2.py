"""PCL v2: Prototypical Contrastive Learning of Unsupervised Representations.

Li, Zhou, Xiong and Hoi, ICLR 2021, arXiv:2005.04966.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Carry, Output, begun
from ressl.methods.moco_v2 import MoCoV2, contrast
from ressl.nn import MemoryBank, few_clusters, kmeans, l2_normalize
from ressl.nn.kmeans import cluster_sums

LEVEL = ("prototypes", "phi", "labels")  # what is kept of each granularity


class PCLV2(MoCoV2):
    """MoCo v2, and a query must also find the prototype of its picture's cluster, at several granularities.

    Clusters are made before every epoch from the momentum keys of all pictures, after a share of the training (the
    authors': 20 of 200 epochs). The keys are those of the epoch before, kept in a bank as they come; the authors run
    the momentum encoder over the data once more instead.
    """

    title: ClassVar[str] = "PCL v2"
    paper: ClassVar[str] = "arXiv:2005.04966"
    wants: ClassVar[tuple[str, ...]] = ("index",)
    most_views: ClassVar[int | None] = 2

    key: Tensor
    ready: Tensor

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
        bank_size: int = 50_000,
        granularities: tuple[int, ...] = (250, 500, 1000),
        cluster_from: float = 0.1,
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
        if not granularities or min(granularities) < 1:
            raise ValueError(f"granularities must be at least 1, not {granularities}")
        asked, granularities = granularities, tuple(few_clusters(k, bank_size) for k in granularities)
        if asked != granularities:
            self.remarks = (f"of {bank_size:,} pictures, {granularities} clusters are made, not {asked}",)
        self.samples, self.granularities, self.cluster_from = bank_size, granularities, cluster_from
        self.bank = MemoryBank(bank_size, output_dim, momentum=0.0)
        self.register_buffer("key", torch.randint(2**62, (), dtype=torch.int64))
        self.register_buffer("ready", torch.zeros(()))  # 1: there are clusters
        for m, k in enumerate(granularities):
            self.register_buffer(f"labels{m}", torch.zeros(bank_size, dtype=torch.int64))
            self.register_buffer(f"prototypes{m}", torch.zeros(k, output_dim))
            self.register_buffer(f"phi{m}", torch.full((k,), temperature))

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        index = wanted["index"]
        key, query = views
        q, k = self.embed(query), self.target(key)  # B x D
        instance = losses.info_nce(q, k, self.queue.keys, self.tau).mean()
        levels = [[getattr(self, f"{name}{m}") for name in LEVEL] for m in range(len(self.granularities))]
        proto = torch.stack([proto_nce(q, C, phi, labels[index]) for C, phi, labels in levels]).mean()
        logs = contrast(q, k) | {"proto_nce": proto.detach() * self.ready}
        return Output(instance + self.ready * proto, carry=(k, index), logs=logs)

    @torch.no_grad()
    def begin_epoch(self, epoch: int) -> None:
        if not begun(self.cluster_from, epoch, self.epochs):
            return
        M = len(self.granularities)
        for m, k in enumerate(self.granularities):
            found = kmeans(self.bank.vectors, k, key=self.key, round=epoch * M + m)
            self.get_buffer(f"labels{m}").copy_(found.labels)
            self.get_buffer(f"phi{m}").copy_(concentration(self.bank.vectors, found.centroids, found.labels, self.tau))
            self.get_buffer(f"prototypes{m}").copy_(l2_normalize(found.centroids))
        self.ready.fill_(1.0)

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, tuple)
        k, index = carry
        super().after_step(k)
        self.bank.update(index, k)


def proto_nce(q: Tensor, prototypes: Tensor, phi: Tensor, labels: Tensor) -> Tensor:
    """The own cluster's prototype against all others, each at the temperature of its own concentration."""
    return F.cross_entropy(losses.similarity(q, prototypes) / phi, labels)


def concentration(points: Tensor, centroids: Tensor, labels: Tensor, temperature: float, alpha: float = 10.0) -> Tensor:
    """phi of each cluster: the mean distance to its centroid over log (size + alpha), scaled to ``temperature``.

    As the authors do: clusters of one point take the largest, the outer tenths are cut off.
    """
    distance = (points - centroids[labels]).norm(dim=1, keepdim=True).double()
    total, count = cluster_sums(distance, labels, len(centroids))
    size = count.double()
    phi = total[:, 0] / size.clamp(min=1) / torch.log(size + alpha)
    phi = torch.where(size > 1, phi, phi.max())
    phi = phi.clamp(torch.quantile(phi, 0.1), torch.quantile(phi, 0.9))
    return (temperature * phi / phi.mean().clamp(min=1e-12)).to(points.dtype)
