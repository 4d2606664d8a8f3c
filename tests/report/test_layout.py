"""The page on small screens, in a real browser: nothing is cut, and what has to scroll says so."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invented_runs import make_run
from PIL import Image

from ressl.recipes import get_recipe
from ressl.report.page import render
from ressl.reporting import settings

NAMES = ("cifar10-teacher-temperature-0.04-seed-0", "cifar10_with_byol_and_a_name_of_many_words", "w" * 60)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CUT = "s => [...s].filter(e => e.scrollWidth > e.clientWidth).map(e => e.closest('section').textContent.slice(0, 40))"
OPEN = "d => d.forEach(e => { e.open = true; })"


def page_of(*names: str) -> str:
    """A page of one run for each name, with all that makes its tables wide."""
    recipes = [get_recipe("cifar10"), get_recipe("cifar10").replace(method="byol")]
    draws = [{"shots": 16, "mean": 60.0, "std": 1.0, "half": 11.25, "n": 5}, {"shots": None, "mean": 80.0, "n": 1}]
    counts = [[100 if a == b else 7 for b in range(10)] for a in range(10)]
    measured = {
        "linear": {"protocol": "linear", "last": 68.9453, "best": 69.8, "best_epoch": 12},
        "svm": {"protocol": "svm", "measure": "mAP", "by_shots": draws},
        "geometry": {"alignment": 0.12, "uniformity": -0.5, "effective_rank": 26.5, "dimensions": 64},
        "classes": {"classes": CLASSES, "accuracy": [100.0] * 10, "confusion": counts, "mistaken": [["cat", "dog", 9]]},
    }
    runs = [make_run(name, evaluations=measured, recipe=settings(recipes[i % 2])) for i, name in enumerate(names)]
    papers = {"cifar10": settings(recipes[0]), "cifar10, byol": settings(recipes[1])}
    seeds = {"linear": "68.95 ± 10.25"} if len(runs) > 1 else None
    return render(runs, papers if len(runs) > 1 else {"cifar10": papers["cifar10"]}, "1 January 2030", seeds)


def opened(browser: Any, folder: Path, text: str, width: int, scheme: str = "light") -> Any:
    """The page in the browser, with all that is folded away."""
    (folder / "page.html").write_text(text)
    page = browser.new_page(viewport={"width": width, "height": 850}, color_scheme=scheme)
    page.goto((folder / "page.html").as_uri())
    page.eval_on_selector_all("details", OPEN)
    return page


@pytest.mark.parametrize("width", [390, 640, 880, 1280])
@pytest.mark.parametrize("names", [NAMES[:1], NAMES[2:], NAMES[:2], NAMES[1:]], ids=len)
def test_no_table_of_one_run_or_two_is_cut(tmp_path: Path, browser: Any, names: tuple[str, ...], width: int) -> None:
    page = opened(browser, tmp_path, page_of(*names), width)
    assert page.eval_on_selector_all(".scroll", CUT) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_the_halves_of_classes_stand_side_by_side_where_both_fit(tmp_path: Path, browser: Any) -> None:
    for width, beside in ((1280, True), (640, False)):
        page = opened(browser, tmp_path, page_of("run"), width)
        left, right = (page.locator(".halves > div").nth(i).bounding_box() for i in range(2))
        assert (right["y"] < left["y"] + left["height"]) == beside
        page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_has_to_scroll_has_a_shadow_where_it_goes_on(tmp_path: Path, browser: Any, scheme: str) -> None:
    page = opened(browser, tmp_path, page_of(*(f"run-{i}" for i in range(8))), 390, scheme)
    table = page.locator(".scroll:has(td.value)").first

    def shaded() -> tuple[bool, bool]:
        """Whether most of the left and of the right edge is not of the page's colour."""
        drawn = np.asarray(Image.open(io.BytesIO(table.screenshot())).convert("RGB")).astype(int)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        apart = np.abs(drawn - ground).max(2) > 16
        return bool(apart[:, 0].mean() > 0.8), bool(apart[:, -1].mean() > 0.8)

    assert shaded() == (False, True)
    table.evaluate("e => { e.scrollLeft = (e.scrollWidth - e.clientWidth) / 2; }")
    assert shaded() == (True, True)
    table.evaluate("e => { e.scrollLeft = e.scrollWidth; }")
    assert shaded() == (True, False)
    page.close()
