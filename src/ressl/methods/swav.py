"""SwAV: Unsupervised Learning of Visual Features by Contrasting Cluster Assignments.

Caron, Misra, Mairal, Goyal, Bojanowski and Joulin, NeurIPS 2020, arXiv:2006.09882.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Carry, Method, Output
from ressl.nn import MLP, MemoryQueue, all_rows, each, forward_crops, groups_of, l2_normalize, my_rows

FEWEST = 8  # prototypes that are taken for a small batch


class SwAV(Method):
    """The codes of one full view, prototypes shared out evenly over the batch, are predicted from every other view.

    Views: two full ones, then any number of small ones (multi-crop), which predict but are not asked for codes.
    """

    title: ClassVar[str] = "SwAV"
    paper: ClassVar[str] = "arXiv:2006.09882"
    backprops: ClassVar[int] = 6  # four of them small views, at about a quarter each; the paper counts 2, without these
    forwards: ClassVar[int] = 6

    started: Tensor
    learning: Tensor

    def __init__(
        self,
        backbone: nn.Module,
        *,
        hidden_dim: int = 2048,
        output_dim: int = 128,
        prototypes: int = 100,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        sinkhorn_iterations: int = 3,
        queue_size: int = 3840,
        queue_from: float = 0.075,
        prototypes_from: float = 0.005,
        output_batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        self.head = MLP(width, hidden_dim, output_dim, groups=groups_of(backbone), last_norm=output_batch_norm)
        self.prototypes = nn.Parameter(l2_normalize(torch.randn(prototypes, output_dim)))  # P x D
        self.queue1, self.queue2 = (MemoryQueue(queue_size, output_dim) for _ in range(2))  # one per full view
        self.tau, self.epsilon, self.iterations = temperature, epsilon, sinkhorn_iterations
        self.queue_from, self.prototypes_from = queue_from, prototypes_from  # shares of the training
        self.register_buffer("started", torch.zeros(()))  # 1: the queues take part in the codes
        self.register_buffer("learning", torch.zeros(()))  # 1: the prototypes learn

    @classmethod
    def lowered(cls, options: Mapping[str, Any], batch_size: int, given: Collection[str]) -> tuple[dict[str, Any], str]:
        old, new = options["prototypes"], max(FEWEST, batch_size // 2)
        # Where a queue takes part, its embeddings share the prototypes with the batch.
        if "prototypes" in given or options["queue_from"] < 1 or old <= new:
            return {}, ""
        remark = f"with a batch of {batch_size:,} and no queue, {new:,} prototypes are taken, not {old:,}"
        return {"prototypes": new}, remark

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        z = each(self.project, forward_crops(self.backbone, views))  # B x D each
        # Held still at first: only the gradient is switched, so that the step is the same program throughout.
        C = self.prototypes * self.learning + self.prototypes.detach() * (1 - self.learning)
        scores = [losses.similarity(v, C) for v in z]  # B x P each
        log_p = [(s / self.tau).log_softmax(1) for s in scores]
        terms = []
        for i, queue in enumerate((self.queue1, self.queue2)):
            code = self.codes(scores[i].detach(), queue.keys, C.detach())  # B x P
            terms += [-(code * log_p[v]).sum(1).mean() for v in range(len(views)) if v != i]
        with torch.no_grad():
            used = code.mean(0)
            logs = {"spread": losses.spread(z[0]), "prototype_entropy": -(used * (used + 1e-12).log()).sum()}
        return Output(torch.stack(terms).mean(), carry=(z[0].detach(), z[1].detach()), logs=logs)

    def project(self, features: Tensor) -> Tensor:
        return l2_normalize(self.head(features))

    @torch.no_grad()
    def codes(self, scores: Tensor, queue: Tensor, C: Tensor) -> Tensor:
        """This process's rows of the assignment of the whole batch and, once started, of the queue."""
        batch = all_rows(scores)  # N x P
        every = torch.cat((batch, losses.similarity(queue, C)))
        weight = torch.cat((batch.new_ones(len(batch)), self.started.expand(len(queue))))
        return my_rows(sinkhorn(every, weight, self.epsilon, self.iterations)[: len(batch)])

    @torch.no_grad()
    def set_progress(self, progress: Tensor) -> None:
        self.started.copy_(progress >= self.queue_from)
        self.learning.copy_(progress >= self.prototypes_from)

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        assert isinstance(carry, tuple)
        self.prototypes.copy_(l2_normalize(self.prototypes))
        for queue, z in zip((self.queue1, self.queue2), carry, strict=True):
            queue.enqueue(all_rows(z))


def sinkhorn(scores: Tensor, weight: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Codes of each row (N x P) whose weighted sums over the rows are equal for all prototypes.

    ``weight`` (N) is how much a row takes part, 1 or 0.
    """
    with torch.autocast(scores.device.type, enabled=False):
        Q = torch.exp((scores - scores.amax()) / epsilon) * weight[:, None]
        for _ in range(iterations):
            Q = Q / Q.sum(0, keepdim=True).clamp(min=1e-30)  # prototypes share evenly
            Q = Q / Q.sum(1, keepdim=True).clamp(min=1e-30)  # a row is one distribution
        return Q
