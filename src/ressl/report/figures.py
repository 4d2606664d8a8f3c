"""Figures as PNG files: training curves and nearest neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from torch import Tensor

from ressl.errors import printable
from ressl.report.fonts import families

# One calm look for all figures: thin lines, no box, one accent.
INK, ACCENT, WRONG, GRID = "#22303c", "#1f6f8b", "#c0392b", "#e3e8ec"

# Names of runs and classes come from anywhere: dollars in them begin no formula, and they may be in any script.
# (A decorator of what draws names.)
plain_names = matplotlib.rc_context({"text.parse_math": False, "font.family": families()})


def brief(name: str, most: int) -> str:
    """A name fit for a figure.

    >>> brief("wheaten_terrier", 8)
    'wheaten…'
    """
    name = printable(name)
    return name if len(name) <= most else f"{name[: most - 1]}…"


@plain_names
def curves(rows: Sequence[dict[str, Any]], path: Path, title: str, queue_size: int | None = None) -> Path:
    """Loss, kNN accuracy, and the teacher's entropy under its ceiling, against the epoch."""
    panels: list[tuple[str, str, str]] = [
        ("loss", "loss", "nats"),
        ("knn", "kNN accuracy", "%"),
        ("teacher_entropy", "teacher entropy", "nats"),
    ]
    panels = [panel for panel in panels if any(panel[0] in row for row in rows)]
    figure = Figure(figsize=(4.2 * max(len(panels), 1), 3.2), dpi=120, layout="constrained")
    axes = figure.subplots(1, max(len(panels), 1), squeeze=False)[0]
    for axis, (name, label, unit) in zip(axes, panels, strict=False):
        points = [(row["epoch"], row[name]) for row in rows if name in row]
        few = len(points) <= 40
        axis.plot(*zip(*points, strict=True), color=ACCENT, linewidth=1.6, marker="o" if few else None, markersize=3)
        if name == "teacher_entropy" and queue_size:
            axis.axhline(math.log(queue_size), color=INK, linewidth=0.8, linestyle=":")
            axis.annotate("log K: knows nothing", (0.98, math.log(queue_size)), xycoords=("axes fraction", "data"),
                          ha="right", va="bottom", fontsize=8, color=INK)  # fmt: skip
        axis.set_title(label, fontsize=10, color=INK, loc="left")
        axis.set_xlabel("epoch", fontsize=9, color=INK)
        axis.set_ylabel(unit, fontsize=9, color=INK)
        calm(axis)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    figure.savefig(path)
    return path


def bars(tables: Sequence[tuple[str, str, Sequence[Any]]], path: Path, title: str) -> Path:
    """One panel of horizontal bars per table of (name, images/s, ...)."""
    panels = max(len(tables), 1)
    height = 0.9 + sum(0.55 + 0.28 * len(rows) for _, _, rows in tables)
    figure = Figure(figsize=(7.2, height), dpi=120, layout="constrained")
    ratios = [len(rows) + 1.5 for _, _, rows in tables] or [1]
    axes = figure.subplots(panels, 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    for axis, (heading, _, rows) in zip(axes, tables, strict=False):
        names, speeds = [row[0] for row in rows], [row[1] for row in rows]
        axis.barh(range(len(rows)), speeds, color=ACCENT, height=0.6)
        for i, speed in enumerate(speeds):
            axis.annotate(f" {speed:,.0f}", (speed, i), va="center", fontsize=8, color=INK)
        axis.set_yticks(range(len(rows)), names, fontsize=8)
        axis.set_ylim(max(len(rows), 2) - 0.5, -0.5)  # downwards; a single bar is no block
        axis.set_xlim(0, 1.18 * max(speeds))
        axis.set_title(fill(f"{heading} (images/s)", 72), fontsize=9, color=INK, loc="left")
        calm(axis)
        axis.set_xticklabels([])
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    figure.savefig(path)
    return path


@plain_names
def neighbours(
    queries: Tensor, found: Tensor, right: Tensor | None, path: Path, title: str, names: Sequence[str] = ()
) -> Path:
    """A row per query: the picture, then its nearest neighbours; a red frame marks another class.

    ``queries`` is Q x 3 x H x W and ``found`` Q x n x 3 x H x W, both uint8; ``right`` is Q x n bool.
    """
    rows, columns = found.shape[0], found.shape[1]
    figure = Figure(figsize=(0.82 * (columns + 1.6), 0.86 * rows + 0.6), dpi=120, layout="constrained")
    ratios = [1.0, 0.25, *[1.0] * columns]
    axes = figure.subplots(rows, columns + 2, squeeze=False, gridspec_kw={"width_ratios": ratios})
    for q in range(rows):
        draw_picture(axes[q][0], queries[q], INK)
        if names:
            axes[q][0].set_title(names[q], fontsize=7, color=INK, pad=2)
        axes[q][1].axis("off")
        for n in range(columns):
            wrong = right is not None and not bool(right[q, n])
            draw_picture(axes[q][n + 2], found[q, n], WRONG if wrong else None)
    figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
    figure.savefig(path)
    return path


def draw_picture(axis: Any, image: Tensor, frame: str | None) -> None:
    axis.imshow(image.permute(1, 2, 0).cpu().numpy())
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(frame is not None)
        spine.set_color(frame or INK)
        spine.set_linewidth(2.0)


def calm(axis: Any) -> None:
    axis.grid(True, color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8, colors=INK, length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
