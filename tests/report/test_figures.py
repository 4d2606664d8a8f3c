"""Figures: what is drawn is what was given."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from ressl.report import figures, plots


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were saved."""
    seen: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (seen.append(self), save(self, *a, **k))[1])
    return seen


ROWS: list[dict[str, Any]] = [
    {"step": 1, "epoch": 0.5, "loss": 4.0, "teacher_entropy": 3.0},
    {"step": 2, "epoch": 1.0, "loss": 3.0, "teacher_entropy": 2.5},
    {"step": 2, "epoch": 1, "knn": 40.0},
]


def test_curves_show_the_rows_they_are_given(tmp_path: Path, drawn: list[Figure]) -> None:
    path = figures.curves(ROWS, tmp_path / "curves.png", "a title", queue_size=1024)
    assert Image.open(path).format == "PNG"
    loss, knn, entropy = drawn[0].axes
    assert loss.lines[0].get_xydata().tolist() == [[0.5, 4.0], [1.0, 3.0]]
    assert knn.lines[0].get_xydata().tolist() == [[1.0, 40.0]]
    assert entropy.lines[0].get_xydata().tolist() == [[0.5, 3.0], [1.0, 2.5]]
    assert entropy.lines[1].get_ydata() == pytest.approx([math.log(1024)] * 2)
    assert [axis.get_title(loc="left") for axis in drawn[0].axes] == ["loss", "kNN accuracy", "teacher entropy"]


def test_panels_without_data_are_left_out(tmp_path: Path, drawn: list[Figure]) -> None:
    figures.curves(ROWS[2:], tmp_path / "a.png", "only kNN")
    assert [axis.get_title(loc="left") for axis in drawn[0].axes] == ["kNN accuracy"]


def test_no_rows_are_an_empty_picture_and_not_an_error(tmp_path: Path, drawn: list[Figure]) -> None:
    figures.curves([], tmp_path / "a.png", "nothing yet")
    assert (tmp_path / "a.png").stat().st_size > 0
    assert [len(axis.lines) for axis in drawn[0].axes] == [0]


def test_neighbours_show_the_pictures_and_mark_the_wrong_ones(tmp_path: Path, drawn: list[Figure]) -> None:
    draw = torch.Generator().manual_seed(0)
    queries = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8, generator=draw)
    found = torch.randint(0, 256, (2, 3, 3, 8, 8), dtype=torch.uint8, generator=draw)
    right = torch.tensor([[True, False, True], [True, True, False]])
    path = figures.neighbours(queries, found, right, tmp_path / "n.png", "t", ["one", "two"])
    assert Image.open(path).format == "PNG"
    axes = np.array(drawn[0].axes).reshape(2, 5)
    for q in range(2):
        assert np.array_equal(axes[q, 0].images[0].get_array(), queries[q].permute(1, 2, 0))
        assert axes[q, 0].get_title() == ["one", "two"][q]
        for n in range(3):
            axis = axes[q, n + 2]
            assert np.array_equal(axis.images[0].get_array(), found[q, n].permute(1, 2, 0))
            framed = axis.spines["left"].get_visible()
            assert framed is not bool(right[q, n])
            if framed:
                assert to_rgb(axis.spines["left"].get_edgecolor()) == to_rgb(figures.WRONG)


@pytest.mark.parametrize("count", [4, 20])
@pytest.mark.parametrize("panels", [1, 2])
def test_the_names_below_a_map_are_not_cut(tmp_path: Path, drawn: list[Figure], count: int, panels: int) -> None:
    names = [f"American pit bull terrier {i}" for i in range(count)]
    one = torch.randn(60, 2), torch.arange(60) % count
    plots.maps([(f"run {i}", *one) for i in range(panels)], names, tmp_path / "map.png", "a map")
    (figure,) = drawn
    (legend,) = figure.legends
    box, page = legend.get_window_extent(), figure.bbox
    assert page.x0 <= box.x0 < box.x1 <= page.x1
    assert page.y0 <= box.y0 < box.y1 <= page.y1
    for axis in figure.axes:  # the map is not squeezed by its names
        assert axis.get_window_extent().height > 0.5 * 4.4 * figure.dpi
