"""Figures made of numbers: maps side by side, relations, confusion and accuracy by class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from ressl.report.figures import ACCENT, INK, brief, calm, draw_picture, plain_names

# Ten colours that differ in hue and lightness; more classes take them again, in a colour wheel.
COLOURS = (
    *("#1f6f8b", "#e08e2b", "#5b8c3a", "#b5443c", "#7a5aa6"),
    *("#8a6a4f", "#d277a8", "#7b8794", "#b5a832", "#35a7a0"),
)

LEGEND = 20  # classes at most that a map names


def class_colour(c: int, classes: int) -> Any:
    return COLOURS[c] if classes <= len(COLOURS) else matplotlib.colormaps["hsv"](c / classes)


@plain_names
def maps(panels: Sequence[tuple[str, Tensor, Tensor]], classes: Sequence[str], path: Path, title: str) -> Path:
    """The paper's Figure 3: (name, N x 2 places, N labels) side by side, coloured by class."""
    count = max(int(labels.max()) + 1 for _, _, labels in panels)
    width = 4.4 * len(panels)
    longest = max((len(brief(name, 20)) for name in classes), default=3)
    columns = max(1, min(5, count, int(width / (0.55 + 0.078 * longest))))  # inches of a legend's column at 8 points
    rows = -(-count // columns) if 1 < count <= LEGEND else 0
    figure = Figure(figsize=(width, 4.4 + 0.18 * rows), dpi=130, layout="constrained")
    for axis, (name, xy, labels) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for c in sorted(set(labels.tolist())):
            mine = xy[labels == c].numpy()
            label = brief(classes[c], 20) if c < len(classes) else str(c)
            axis.scatter(mine[:, 0], mine[:, 1], s=5, color=class_colour(c, count), linewidths=0, label=label)
        axis.set_title(name, fontsize=10, color=INK)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_aspect("equal", "datalim")
        for spine in axis.spines.values():
            spine.set_visible(False)
    if rows:
        handles, names = figure.axes[0].get_legend_handles_labels()
        look = {"fontsize": 8, "frameon": False, "markerscale": 2.5}
        figure.legend(handles, names, loc="outside lower center", ncols=columns, **look)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    figure.savefig(path)
    return path


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]
    look: Literal["", "main", "aside"] = ""  # the one that matters; or what the others are held against


def line_panels(
    panels: Sequence[tuple[str, Sequence[Line]]], path: Path, title: str, axes: tuple[str, str], log: bool = False
) -> Path:
    """(heading, lines) side by side; ``axes`` says what goes right and what goes up."""
    figure = Figure(figsize=(max(5.2, 3.9 * len(panels)), 3.6), dpi=130, layout="constrained")
    for axis, (heading, lines) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, line in enumerate(lines):
            colour = "#9aa5ae" if line.look == "aside" else COLOURS[number % len(COLOURS)]
            style = ":" if line.look == "aside" else ("-", "--")[number // len(COLOURS) % 2]
            width = 2.6 if line.look == "main" else 1.3
            x, y = zip(*line.points, strict=True)
            axis.plot(x, y, style, color=colour, linewidth=width, marker="o", markersize=2.5, label=line.name)
        if log:
            axis.set_xscale("log", base=2)
            ticks = sorted({x for line in lines for x, _ in line.points})
            axis.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axis.set_title(heading, fontsize=10, color=INK, loc="left")
        axis.set_xlabel(axes[0], fontsize=9, color=INK)
        axis.set_ylabel(axes[1], fontsize=9, color=INK)
        calm(axis)
        look = {"bbox_to_anchor": (1.01, 1), "loc": "upper left"} if len(lines) > 6 else {}
        axis.legend(fontsize=7, frameon=False, **look)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    figure.savefig(path, metadata={"Software": None})  # the same bytes from the same records
    return path


def relations(
    pictures: Tensor, before: Tensor, after: Tensor, taus: tuple[float, float], path: Path, title: str
) -> Path:
    """A row per picture: it, and its relation to the queue's entries from the nearest on, at tau_s and at tau_t."""
    n, K = before.shape
    figure = Figure(figsize=(7.6, 1.35 * n + 0.9), dpi=120, layout="constrained")
    axes = figure.subplots(n, 2, squeeze=False, gridspec_kw={"width_ratios": [1, 5]})
    place = np.arange(1, K + 1)
    for i in range(n):
        draw_picture(axes[i][0], pictures[i], None)
        axis = axes[i][1]
        axis.plot(
            place, before[i].numpy(), color=INK, linewidth=1.2, linestyle=":", label=f"before: tau_s = {taus[0]:g}"
        )
        axis.plot(place, after[i].numpy(), color=ACCENT, linewidth=1.8, label=f"sharpened: tau_t = {taus[1]:g}")
        axis.axhline(1 / K, color="#9aa5ae", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylim(bottom=1e-3 / K)
        calm(axis)
        if i == 0:
            axis.legend(fontsize=8, frameon=False, loc="lower left")
    axes[-1][1].set_xlabel("entry of the queue, nearest first (grey line: uniform)", fontsize=8, color=INK)
    figure.suptitle(title, fontsize=10, color=INK, x=0.01, ha="left")
    figure.savefig(path)
    return path


@plain_names
def class_figure(
    accuracy: Sequence[float | None],
    classes: Sequence[str],
    counts: Sequence[Sequence[int]] | None,
    path: Path,
    title: str,
) -> Path:
    """Accuracy by class, worst first, and beside it the confusion (row: what it is) where it was written down."""
    classes = [brief(name, 28) for name in classes]
    known = sorted((a, c) for a, c in zip(accuracy, classes, strict=False) if a is not None)[:40]
    side = max(3.6, 0.32 * len(known) + 1.2)
    panels = 1 if counts is None else 2
    figure = Figure(figsize=(5.0 + (side + 0.8 if counts is not None else 0), side), dpi=120, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    axes[0].barh(range(len(known)), [a for a, _ in known], color=ACCENT, height=0.62)
    axes[0].set_yticks(range(len(known)), [c for _, c in known], fontsize=8)
    for i, (a, _) in enumerate(known):
        axes[0].annotate(f" {a:.0f}", (a, i), va="center", fontsize=8, color=INK)
    axes[0].invert_yaxis()
    axes[0].set_xlim(0, 108)
    axes[0].set_title("accuracy by class, %", fontsize=9, color=INK, loc="left")
    calm(axes[0])
    if counts is not None:
        share = np.asarray(counts, dtype=float)
        share = 100 * share / np.maximum(share.sum(1, keepdims=True), 1)
        axes[1].imshow(share, cmap="Blues", vmin=0, vmax=100)
        for (i, j), value in np.ndenumerate(share):
            if value >= 0.5:
                axes[1].text(
                    j, i, f"{value:.0f}", ha="center", va="center", fontsize=6, color="w" if value > 55 else INK
                )
        axes[1].set_xticks(range(len(classes)), classes, fontsize=7, rotation=60, ha="right")
        axes[1].set_yticks(range(len(classes)), classes, fontsize=7)
        axes[1].set_title("taken for, % of the row's class", fontsize=9, color=INK, loc="left")
        axes[1].tick_params(length=0, colors=INK)
        for spine in axes[1].spines.values():
            spine.set_visible(False)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    figure.savefig(path)
    return path
