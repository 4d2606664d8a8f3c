"""The page: what it says is what was given, nothing from outside becomes markup, nothing asks the network."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from ressl.report.charts import POINTS, Series, line_chart, thin, ticks
from ressl.report.contents import Grid, Plane, RunPage
from ressl.report.markup import data_block, tag
from ressl.report.numbers import rows_of
from ressl.report.page import render
from ressl.report.sections import recipes

NASTY = "</script><img src=x onerror=alert(1)>\"'&"


def pictures(*shape: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (*shape, 3, 8, 8), dtype=torch.uint8, generator=draw)


def make_run(name: str = "run", classes: tuple[str, str] = ("cat", "dog"), **changes: Any) -> RunPage:
    facts: dict[str, Any] = {
        "name": name,
        "title": f"ReSSL on {name}",
        "lead": "a lead",
        "tiles": [("linear, top-1", "68.95 %")],
        "evaluations": {
            "linear": {"protocol": "linear", "last": 68.9453, "best": 69.8, "best_epoch": 12},
            "classes": {
                "protocol": "classes", "classes": list(classes), "accuracy": [50.0, 75.0], "top1": 62.5,
                "mistaken": [[classes[0], classes[1], 2]], "confusion": [[2, 2], [1, 3]],
            },
        },
        "paper": {"linear": 90.2},
        "metrics": [{"epoch": e, "loss": 5 - e, "knn": 10.0 * e, "teacher_entropy": 2.0} for e in range(1, 4)],
        "queue_size": 16,
        "recipe": {"epochs": "3", "data": name},
        "environment": {"torch": "2.15", "cpu": "a cpu"},
        "grids": [Grid("as it is", list(classes), pictures(2), pictures(2, 10), torch.arange(20).view(2, 10) % 3 > 0)],
        "plane": Plane(torch.randn(12, 2), torch.arange(12) % 2, pictures(12), list(classes)),
    }  # fmt: skip
    return RunPage(**(facts | changes))


class Reader(HTMLParser):
    """Elements and texts, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(*runs: RunPage) -> str:
    return render(runs, {"cifar10": {"epochs": "200", "data": "cifar10"}}, "1 January 2030")


def test_numbers_stand_beside_the_paper_s() -> None:
    text = re.sub(r"<[^>]+>", "|", page_of(make_run()))
    assert re.search(r"linear\|+68\.95\|+90\.20\|+best 69\.80 \(epoch 12\)", text)
    assert re.search(r"epochs\|+3\|+200", text)  # the recipe beside the paper's


def test_wrong_neighbours_are_framed_and_only_they() -> None:
    found = Reader(page_of(make_run())).elements
    assert sum(1 for name, a in found if name == "img" and a.get("class") == "wrong") == 7  # multiples of 3 below 20
    assert sum(1 for name, a in found if name == "img" and a.get("class") == "query") == 2


def test_two_runs_are_compared() -> None:
    page = page_of(make_run("first"), make_run("second", evaluations={}))
    text = re.sub(r"<[^>]+>", "|", page)
    assert re.search(r"linear\|+68\.95\|+–\|+90\.20", text)
    assert page.count('class="map"') == 2
    assert {"map-0", "map-1"} <= {a.get("id") for _, a in Reader(page).elements}


def test_a_comparison_has_the_paper_s_number_and_recipe_of_every_run() -> None:
    runs = (make_run("first", evaluations={}), make_run("second", evaluations={}, paper={"linear": 85.82}))
    text = re.sub(r"<[^>]+>", "|", page_of(*runs, make_run("third", evaluations={})))
    assert re.search(r"linear\|+–\|+–\|+–\|+90\.20 / 85\.82\|", text)
    papers = {"cifar10": {"lr": "0.06", "epochs": "3"}, "cifar10, byol": {"lr": "1.0", "epochs": "3"}}
    settings = [{"lr": lr, "epochs": "3"} for lr in ("0.06", "1.0")]
    text = re.sub(r"<[^>]+>", "|", recipes([replace(r, recipe=s) for r, s in zip(runs, settings, strict=True)], papers))
    shown, everything = text.split("All 2 settings")
    assert re.search(r"setting\|+first\|+second\|+paper: cifar10\|+paper: cifar10, byol\|", shown)
    assert re.search(r"lr\|+0\.06\|+1\.0\|+0\.06\|+1\.0\|", shown)
    assert "epochs" not in shown  # all alike
    assert "epochs" in everything


@pytest.mark.parametrize("where", ["name", "class", "recipe", "lead", "environment", "note"])
def test_names_from_outside_are_text(where: str) -> None:
    run = {
        "name": lambda: make_run(NASTY),
        "class": lambda: make_run(classes=(NASTY, "dog")),
        "recipe": lambda: make_run(recipe={NASTY: NASTY}),
        "lead": lambda: make_run(lead=NASTY),
        "environment": lambda: make_run(environment={NASTY: NASTY}),
        "note": lambda: make_run(notes=[NASTY]),
    }[where]()
    for page in (page_of(run), page_of(run, make_run("b"))):
        found = Reader(page)
        assert not [a for _, a in found.elements if "onerror" in a]
        assert {a.get("src", "")[:16] for name, a in found.elements if name == "img"} == {"data:image/webp;"}
        assert NASTY in "".join(found.text) or where == "class"
        assert sum(name == "script" for name, _ in found.elements) == 1 + page.count('class="map"')


def test_data_blocks_cannot_be_left() -> None:
    value = {"names": [NASTY, "<!--", "]]>"]}
    block = data_block("d", value)
    inside = block[block.index(">") + 1 : block.rindex("<")]
    assert "<" not in inside
    assert json.loads(inside) == value


def test_nothing_asks_the_network() -> None:
    page = page_of(make_run(), make_run("other"))
    policy = next(a["content"] for name, a in Reader(page).elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    assert not re.search(r"(src|href|action)=\"(?!data:)", page)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp", page)
    assert ' style="' not in page  # the policy would drop it
    assert not re.search(r"<[^>]+ on\w+=", page)


def test_an_empty_run_is_a_page_too(tmp_path: Path) -> None:
    bare = make_run(evaluations={}, paper={}, metrics=[], grids=[], plane=None, tiles=[], notes=["gone"])
    text = page_of(bare)
    assert "Nothing has been measured yet" in text
    assert "gone" in text
    assert "<h2>Map</h2>" not in text


def test_a_chart_draws_its_points_and_no_more_than_it_can_show() -> None:
    points = [(float(x), float(x) ** 2) for x in range(1000)]
    assert len(thin(points)) == POINTS
    assert thin(points)[0] == points[0]
    assert thin(points)[-1] == points[-1]
    chart = line_chart("t", "%", [Series("a", [(1, 10.0), (2, 20.0), (3, float("nan"))])])
    told = Reader(chart).elements[0][1]["data-series"]
    assert told is not None
    ((name, drawn),) = json.loads(told)
    assert name == "a"
    assert [point[2:] for point in drawn] == [[1, 10.0], [2, 20.0]]
    (x1, y1, *_), (x2, y2, *_) = drawn
    assert x1 < x2
    assert y1 > y2  # up is more
    assert line_chart("t", "%", [Series("a", [])]) == ""
    assert ticks(0, 1, 4) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(3, 3, 4) == [3]


def test_markup_escapes_what_it_did_not_make() -> None:
    assert tag("p", "<b>", tag("b", "x"), 3, None, title='"') == '<p title="&quot;">&lt;b&gt;<b>x</b>3</p>'


def test_rows_of_every_kind() -> None:
    draws = [
        {"shots": 16, "mean": 60.0, "std": 1.0, "half": 1.25, "n": 5},
        {"shots": None, "mean": 80.0, "half": None, "n": 1},
    ]
    svm = {"protocol": "svm", "measure": "mAP", "own_data": False, "data": "voc07", "by_shots": draws}
    assert [(r.what, r.value) for r in rows_of("svm-on-voc07", svm)] == [
        ("SVM mAP, 16 per class on voc07", "60.00 ± 1.25"),
        ("SVM mAP, all labels on voc07", "80.00"),
    ]
    other = {"protocol": "linear", "last": 1.0, "best": 1.0, "best_epoch": 1, "own_data": False, "data": "x"}
    assert rows_of("linear-on-x", other, {"linear": 90.0})[0].paper == ""  # the paper did not measure that
    assert rows_of("anything", {}) == []
