"""MoCHi: Hard Negative Mixing for Contrastive Learning.

Kalantidis, Sariyildiz, Pion, Weinzaepfel and Larlus, NeurIPS 2020, arXiv:2010.01028.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ressl import losses
from ressl.methods.base import Output
from ressl.methods.moco_v2 import MoCoV2, contrast
from ressl.nn import Draws, l2_normalize


class MoCHi(MoCoV2):
    """MoCo v2 with harder negatives: mixtures of the queue's hardest ones, and of these with the query itself."""

    title: ClassVar[str] = "MoCHi"
    paper: ClassVar[str] = "arXiv:2010.01028"
    most_views: ClassVar[int | None] = 2

    mixing: Tensor

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
        hardest: int = 256,
        mixed: int = 256,
        mixed_with_query: int = 64,
        mix_from: float = 0.05,
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
        if not 0 < hardest <= queue_size:
            raise ValueError(
                f"hardest must be from 1 to queue_size, {queue_size}, not {hardest}; change --hardest or --queue-size"
            )
        self.N, self.s, self.s_query, self.mix_from = hardest, mixed, mixed_with_query, mix_from
        self.draws = Draws()
        self.register_buffer("mixing", torch.zeros(()))  # 1: mixtures take part

    @classmethod
    def lowered(cls, options: Mapping[str, Any], batch_size: int, given: Collection[str]) -> tuple[dict[str, Any], str]:
        queue, old = options["queue_size"], options["hardest"]
        new = max(1, queue // 4)  # of all of a queue, or most of it, none is hard
        if "hardest" in given or old <= new:
            return {}, ""
        mixtures = {name: options[name] for name in ("mixed", "mixed_with_query") if name not in given}
        # As many mixtures for each of the hardest as before, and none only where there were none.
        fewer = {name: -(-count * new // old) for name, count in mixtures.items()}
        told = ", ".join(f"{name} {count:,}" for name, count in {"hardest": new, **fewer}.items())
        was = ", ".join(f"{count:,}" for count in (old, *mixtures.values()))
        return {"hardest": new, **fewer}, f"with a queue of {queue:,}, {told} are taken, not {was}"

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        key, query = views
        q, k = self.embed(query), self.target(key)  # B x D
        with torch.no_grad():
            hard = self.queue.keys[losses.similarity(q, self.queue.keys).topk(self.N, dim=1).indices]  # B x N x D
            u = self.draws(len(q), 3 * self.s + 2 * self.s_query)
            h = mix(q, hard, u, self.s, self.s_query)  # B x (s + s') x D
        logits = [(q * k).sum(1, keepdim=True), losses.similarity(q, self.queue.keys), losses.similarity(q, h)]
        # Before their time mixtures stand so far away that they weigh nothing.
        logits[2] = logits[2] - 1e4 * (1 - self.mixing)
        loss = -(torch.cat(logits, 1) / self.tau).log_softmax(1)[:, 0].mean()
        return Output(loss, carry=k, logs=contrast(q, k))

    @torch.no_grad()
    def set_progress(self, progress: Tensor) -> None:
        self.mixing.copy_(progress >= self.mix_from)


def mix(q: Tensor, hard: Tensor, u: Tensor, s: int, s_query: int) -> Tensor:
    """s mixtures of two hard negatives, then s' of one and the query, whose share stays below a half.

    ``hard`` is B x N x D, ``u`` are B x (3 s + 2 s') uniform numbers: first, second, share; then which, share.
    """
    N = hard.shape[1]
    pick = lambda column: hard.gather(1, (column * N).long()[:, :, None].expand(-1, -1, hard.shape[2]))
    first, second, alpha, which, beta = u.split((s, s, s, s_query, s_query), 1)
    alpha, beta = alpha[:, :, None], 0.5 * beta[:, :, None]
    pairs = alpha * pick(first) + (1 - alpha) * pick(second)
    with_query = beta * q[:, None, :] + (1 - beta) * pick(which)
    return l2_normalize(torch.cat((pairs, with_query), 1))
