"""Supervised training by cross-entropy: the ceiling that the paper's Table 1 shows first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl.methods.base import Method, Output


class Supervised(Method):
    """A linear classifier on the backbone, both trained with labels."""

    title: ClassVar[str] = "supervised"
    paper: ClassVar[str] = "arXiv:2107.09282"
    forwards: ClassVar[int] = 1
    fewest_views: ClassVar[int] = 1
    most_views: ClassVar[int | None] = 1
    wants: ClassVar[tuple[str, ...]] = ("labels",)

    def __init__(self, backbone: nn.Module, *, num_classes: int = 10) -> None:
        super().__init__()
        self.backbone = backbone
        width: int = backbone.features_dim  # type: ignore[assignment]
        self.classifier = nn.Linear(width, num_classes)
        self.classes = num_classes

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        labels = wanted["labels"]
        logits = self.classifier(self.backbone(views[0]))  # B x classes
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        with torch.no_grad():
            logs = {"accuracy": 100.0 * (logits.argmax(1) == labels).float().mean()}  # percent, like all others
        return Output(F.cross_entropy(logits, labels), carry=None, logs=logs)
