"""Features of random views instead of the pictures as they are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ressl.data.unread import Unread
from ressl.data.views import Views
from ressl.evaluation.features import autocast, frozen


def view_features(
    backbone: nn.Module,
    views: Views,
    images: Tensor | Unread,
    *,
    step: int = 0,
    batch_size: int = 512,
    precision: torch.dtype = torch.float32,
) -> list[Tensor]:
    """N x D float32 per view, of uint8 pictures (N x 3 x H x W); the draws are those of ``step`` and the row."""
    device = next(backbone.parameters()).device
    found: list[list[Tensor]] = [[] for _ in views.views]
    with frozen(backbone), autocast(device, precision):
        for start in range(0, len(images), batch_size):
            batch = images[start : start + batch_size].to(device)
            rows = torch.arange(start, start + len(batch), device=device)
            for features, view in zip(found, views(batch, step, rows), strict=True):
                features.append(backbone(view).float())
    return [torch.cat(features) for features in found]
