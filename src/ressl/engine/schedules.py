"""Schedules: pure functions of the step, on device tensors, so that no step waits for the host."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def warmup_cosine(step: Tensor, *, peak: float, warmup_steps: float, total_steps: int) -> Tensor:
    """Linear from 0 to ``peak`` over the warm-up, then half a cosine down to 0 (float32, 0-dim)."""
    s = step.to(torch.float64)  # float64: exact step numbers, and the same value on every device
    warm = s / max(warmup_steps, 1e-12)
    fall = ((s - warmup_steps) / max(total_steps - warmup_steps, 1e-12)).clamp(0.0, 1.0)
    return (peak * torch.where(s < warmup_steps, warm, 0.5 + 0.5 * torch.cos(math.pi * fall))).float()


def step_decay(step: Tensor, *, peak: float, milestones: tuple[float, ...], total_steps: int) -> Tensor:
    """``peak``, a tenth of it after each milestone (a fraction of all steps)."""
    passed = sum(((step >= m * total_steps).to(torch.float64) for m in milestones), torch.zeros_like(step).double())
    return (peak * 0.1**passed).float()
