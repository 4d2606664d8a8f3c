"""Figures made of pictures: neighbours under two augmentations, and the views a run trains on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from ressl.report.figures import ACCENT, INK, WRONG, brief, draw_picture, plain_names

# kind, queries Q x 3 x H x W, found Q x n x 3 x h x w, right Q x n or, without labels, None
Block = tuple[str, Tensor, Tensor, Tensor | None]


@plain_names
def neighbour_blocks(
    panels: Sequence[tuple[str, Sequence[Block]]], path: Path, title: str, names: Sequence[str]
) -> Path:
    """The paper's Figure 2: one panel per run, in it one block per augmentation, in that one row per query.

    A red frame marks a neighbour of another class; the block's heading says how many are right.
    """
    blocks = max(len(made) for _, made in panels)
    Q, n = panels[0][1][0][2].shape[:2]
    cell = 0.62
    height = cell * 1.02 * Q * blocks + 0.5 * blocks + 0.6
    figure = Figure(figsize=(cell * (n + 1.5) * len(panels), height), dpi=120, layout="constrained")
    columns = figure.subfigures(1, len(panels), squeeze=False)[0]
    for column, (name, made) in zip(columns, panels, strict=True):
        column.suptitle(name, fontsize=10, color=INK)
        for part, (kind, queries, found, right) in zip(
            column.subfigures(blocks, 1, squeeze=False)[:, 0], made, strict=False
        ):
            share = "" if right is None else f", {100 * right.float().mean().item():.0f} % right"
            part.suptitle(f"query: {kind}{share}", fontsize=8, color=INK, x=0.02, ha="left")
            axes = part.subplots(Q, n + 2, squeeze=False, gridspec_kw={"width_ratios": [1.0, 0.25, *[1.0] * n]})
            for q in range(Q):
                draw_picture(axes[q][0], queries[q], ACCENT)
                axes[q][0].set_ylabel(brief(names[q], 12), fontsize=6, color=INK)
                axes[q][1].axis("off")
                for i in range(n):
                    wrong = right is not None and not bool(right[q, i])
                    draw_picture(axes[q][i + 2], found[q, i], WRONG if wrong else None)
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    figure.savefig(path)
    return path


@plain_names
def views_grid(originals: Sequence[Tensor], views: Sequence[tuple[str, Tensor]], path: Path, title: str) -> Path:
    """A row per picture: the original, then every draw of every view. Views are n x draws x 3 x s x s uint8."""
    rows, draws = len(originals), views[0][1].shape[1]
    columns = 1 + len(views) * draws
    ratios = [1.0]
    for _ in views:
        ratios += [0.15, *[1.0] * draws]
    figure = Figure(figsize=(0.85 * sum(ratios), 0.85 * rows + 0.35 + 0.2 * len(views)), dpi=120, layout="constrained")
    axes = figure.subplots(rows, columns + len(views), squeeze=False, gridspec_kw={"width_ratios": ratios})
    for r in range(rows):
        draw_picture(axes[r][0], originals[r], None)
        at = 1
        for _, made in views:
            axes[r][at].axis("off")
            for d in range(draws):
                draw_picture(axes[r][at + 1 + d], made[r, d], None)
            at += 1 + draws
    headings = ["original", *(label.split(":")[0] for label, _ in views)]
    for place, heading in zip([0, *(2 + v * (draws + 1) for v in range(len(views)))], headings, strict=True):
        axes[0][place].set_title(heading, fontsize=8, color=INK, loc="left", pad=3)
    lines = "\n".join(label for label, _ in views)
    figure.suptitle(f"{title}\n{lines}", fontsize=8, color=INK, x=0.01, ha="left")
    figure.savefig(path)
    return path
