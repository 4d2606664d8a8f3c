"""The paper's two figures, from runs to a picture: neighbours of augmented queries, and maps side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ressl.errors import ResslError
from ressl.inspecting import map_of, neighbours_of
from ressl.measuring import Bench
from ressl.report import galleries, plots

Named = Sequence[tuple[str, Bench]]  # runs by the name that stands above them


def draw_neighbours(runs: Named, path: Path, rows: int = 3) -> Path:
    """Figure 2: the ten nearest training pictures of weakly and of strongly augmented queries."""
    _check_alike(runs)
    blocks, names = [], list[str]()
    for name, bench in runs:
        made = [neighbours_of(bench, kind, rows) for kind in ("weak", "contrastive")]
        known = bench.data.labelled
        blocks.append((name, [(n.kind, n.queries, n.found, n.right if known else None) for n in made]))
        names = made[0].names if known else [""] * rows
    title = "Nearest neighbours (red: another class)" if any(names) else "Nearest neighbours"
    return galleries.neighbour_blocks(blocks, path, title, names)


def draw_maps(runs: Named, path: Path, pictures: int = 2000) -> Path:
    """Figure 3: t-SNE of the test pictures, one panel per run."""
    _check_alike(runs)
    made = [(name, map_of(bench, pictures)) for name, bench in runs]
    panels = [(name, m.xy, m.labels) for name, m in made]
    return plots.maps(panels, runs[0][1].data.classes, path, "t-SNE of test pictures")


def _check_alike(runs: Named) -> None:
    """Raise where the names of one run's classes would stand beside the pictures of another."""
    (first, one), *others = runs
    for name, other in others:
        labels = one.data.test[1], other.data.test[1]
        if one.data.classes != other.data.classes or not torch.equal(*labels):
            raise ResslError(
                f"{first} is on {one.label} and {name} on {other.label}, which are not the same pictures: draw a "
                "figure of each, or add --data to show both on one data set"
            )
