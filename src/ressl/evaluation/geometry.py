"""The shape of a set of features: alignment and uniformity (Wang and Isola, 2020) and effective rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ressl.errors import ResslError


@dataclass(frozen=True)
class GeometryProtocol:
    pictures: int = 4096  # test pictures at most

    def check(self) -> None:
        if self.pictures < 2:
            raise ResslError(f"pictures must be at least 2, not {self.pictures}")


@torch.no_grad()
def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance between the unit features of two views of the same pictures; 0 is the best."""
    return (F.normalize(first, dim=1) - F.normalize(second, dim=1)).square().sum(1).mean().item()


@torch.no_grad()
def uniformity(features: Tensor, t: float = 2.0, chunk: int = 1024) -> float:
    """log of the mean of exp(-t |a - b|^2) over all pairs of unit features; 0: all the same, lower is more even."""
    z = F.normalize(features, dim=1).double()
    n = len(z)
    if n < 2:
        raise ValueError("uniformity needs at least two features")
    total = torch.zeros((), dtype=torch.float64, device=z.device)
    for start in range(0, n, chunk):
        part = z[start : start + chunk]
        distance = (2 - 2 * part @ z.T).clamp_min(0)
        weight = torch.exp(-t * distance)
        own = torch.arange(len(part), device=z.device)
        weight[own, own + start] = 0
        total += weight.sum()
    return (total / (n * (n - 1))).log().item()


@torch.no_grad()
def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the normalised singular values (Roy and Vetterli, 2007): 1 to the number of dimensions."""
    s = torch.linalg.svdvals(features.double())
    p = s / s.sum().clamp_min(1e-300)
    return torch.special.entr(p).sum().exp().item()
