"""What a page is made of: plain values, gathered elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Grid:
    """Queries and their neighbours, as uint8 pictures."""

    kind: str  # what was done to the query
    names: Sequence[str]
    queries: Tensor  # Q x 3 x H x W
    found: Tensor  # Q x n x 3 x h x w
    right: Tensor | None  # Q x n bool; None without labels


@dataclass(frozen=True)
class Plane:
    """Pictures on a plane."""

    xy: Tensor  # N x 2
    labels: Tensor  # N
    pictures: Tensor  # N x 3 x h x w uint8
    classes: Sequence[str]  # empty without labels


@dataclass(frozen=True)
class RunPage:
    """One run's part of a page."""

    name: str
    title: str
    lead: str
    tiles: Sequence[tuple[str, str]]  # (what, value)
    evaluations: Mapping[str, Mapping[str, Any]]
    paper: Mapping[str, float]
    metrics: Sequence[Mapping[str, Any]]
    queue_size: int | None
    recipe: Mapping[str, str]  # every setting, as text
    environment: Mapping[str, Any]
    grids: Sequence[Grid] = ()
    plane: Plane | None = None
    trained_on: str = ""  # tells its pictures and its last step from those of other runs
    notes: Sequence[str] = field(default_factory=tuple)  # what could not be shown, and why
