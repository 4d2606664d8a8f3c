"""The paper's figures: which runs they show, and how they are drawn of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ressl.drawing import draw_maps, draw_neighbours
from ressl.engine.loop import Display
from ressl.evaluating import bench_of
from ressl.reproduce.tables import TABLE1, Cell
from ressl.runs import Run
from ressl.subjects import subject_of


@dataclass(frozen=True)
class Figure:
    """A picture of a few runs, side by side."""

    name: str
    title: str
    cells: tuple[Cell, ...]  # of any data set; those of Table 1, so that its runs are not made twice
    only: str  # the paper's choice among them
    kind: Literal["neighbours", "map"]
    quick_epochs: int = 20

    def draw(
        self,
        runs: Sequence[tuple[str, Run, str | None]],
        path: Path,
        device: str = "auto",
        display: Display | None = None,
    ) -> Path:
        """Draw (name, run, where its data lies; None: where the run found it) into a PNG file."""
        benches = [(name, bench_of(subject_of(run), data, device, "auto", display)) for name, run, data in runs]
        path.parent.mkdir(parents=True, exist_ok=True)
        return draw_neighbours(benches, path) if self.kind == "neighbours" else draw_maps(benches, path)


def _rows(*rows: str) -> tuple[Cell, ...]:
    return tuple(cell for cell in TABLE1.cells if cell.row in rows)


NEIGHBOURS = Figure(
    "figure-neighbours",
    "Figure 2: ten nearest neighbours of weakly and of strongly augmented queries (STL-10)",
    _rows("ReSSL"),
    "STL-10",
    "neighbours",
)
TSNE = Figure(
    "figure-tsne", "Figure 3: t-SNE of MoCo v2 and of ReSSL (CIFAR-10)", _rows("MoCo v2", "ReSSL"), "CIFAR-10", "map"
)

FIGURES: dict[str, Figure] = {figure.name: figure for figure in (NEIGHBOURS, TSNE)}
