"""Small methods, and the parts of their equations that many share, written out with loops over Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ressl.methods import METHODS, Method

B, D, N = 6, 5, 20  # batch, embedding, pictures in the bank
SMALL: dict[str, dict[str, Any]] = {
    "ressl": {"hidden_dim": 7, "output_dim": D, "queue_size": 11},
    "moco-v2": {"hidden_dim": 7, "output_dim": D, "queue_size": 11},
    "simclr": {"hidden_dim": 7, "output_dim": D},
    "byol": {"hidden_dim": 7, "output_dim": D},
    "simsiam": {"output_dim": D, "predictor_dim": 3},
    "supervised": {"num_classes": 4},
    "swav": {"hidden_dim": 7, "output_dim": D, "prototypes": 4, "queue_size": 8},
    "instdisc": {"output_dim": D, "bank_size": N, "negatives": 9},
    "localagg": {"output_dim": D, "bank_size": N, "background": 8, "clusters": 4, "clusterings": 2},
    "mochi": {"hidden_dim": 7, "output_dim": D, "queue_size": 11, "hardest": 4, "mixed": 5, "mixed_with_query": 3},
    "cpc-v2": {"patch": 4, "stride": 2, "rows_ignored": 0, "hidden_dim": 6, "output_dim": D},
    "pcl-v2": {"hidden_dim": 7, "output_dim": D, "queue_size": 11, "bank_size": N, "granularities": (3, 5)},
    "adco": {"hidden_dim": 7, "output_dim": D, "negatives": 11},
    "clsa": {"hidden_dim": 7, "output_dim": D, "queue_size": 11},
    "clsa-multi": {"hidden_dim": 7, "output_dim": D, "queue_size": 11},
    "seed": {"hidden_dim": 7, "output_dim": D, "queue_size": 11, "teacher_backbone": "resnet10", "teacher_width": 4,
             "teacher_hidden_dim": 6},
}  # fmt: skip


class Plain(nn.Module):
    """A backbone of two layers: fast, and any picture size will do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.features_dim = nn.Conv2d(3, 6, 3), 6

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x)).mean((2, 3))


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    method = METHODS[name](Plain(), **(SMALL[name] | options)).double().train()
    method.set_progress(torch.tensor(0.5, dtype=torch.float64))
    return method


def pictures(count: int, side: int = 8) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(B, 3, side, side, dtype=torch.float64, generator=draw) for _ in range(count)]


Vector = list[float]


def unit(x: Tensor) -> list[Vector]:
    return [[v / math.sqrt(sum(w**2 for w in row)) for v in row] for row in x.tolist()]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(logits: Sequence[float]) -> Vector:
    e = [math.exp(v) for v in logits]
    return [v / sum(e) for v in e]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def rows(x: Tensor) -> list[Vector]:
    found: list[Vector] = x.tolist()
    return found


def contrastive(q: Vector, k: Vector, negatives: Sequence[Vector], tau: float) -> float:
    return -math.log(softmax([dot(q, k) / tau, *(dot(q, n) / tau for n in negatives)])[0])


def student(twin: Any, view: Tensor) -> list[Vector]:
    return unit(twin.head(twin.backbone(view)))


def teacher(twin: Any, view: Tensor) -> list[Vector]:
    return unit(twin.teacher.module(view))


def moco(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any = None) -> float:
    q, k, Q = student(twin, views[1]), teacher(twin, views[0]), rows(twin.queue.keys)
    return mean([contrastive(q[i], k[i], Q, 0.2) for i in range(B)])


def wanted_by(method: Method) -> dict[str, Tensor]:
    given = {"index": torch.tensor([3, 0, 19, 7, 11, 2]), "labels": torch.tensor([0, 3, 1, 1, 2, 0])}
    return {name: given[name] for name in method.wants}
