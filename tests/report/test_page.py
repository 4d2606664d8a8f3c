"""The page: what it says is what was given, nothing from outside becomes markup, nothing asks the network."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from invented_runs import make_run, page_of

import ressl
from ressl import environment
from ressl.recipes import get_recipe
from ressl.report.charts import POINTS, Series, line_chart, thin, ticks
from ressl.report.markup import data_block, tag
from ressl.report.numbers import rows_of
from ressl.report.page import render
from ressl.report.sections import recipes, remark, versions
from ressl.reproduce.tables import LOWSHOT

NASTY = "</script><img src=x onerror=alert(1)>\"'&"


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


def test_numbers_stand_beside_the_paper_s() -> None:
    text = re.sub(r"<[^>]+>", "|", page_of(make_run()))
    assert re.search(r"linear\|+68\.95\|+90\.20\|+best 69\.80 \(epoch 12\)", text)
    assert re.search(r"epochs\|+3\|+200", text)  # the recipe beside the paper's


def test_the_paper_s_number_is_marked_where_the_recipe_is_another() -> None:
    paper = {"epochs": "200", "width": "64", "seed": "0", "knn_every": "10"}
    tiles = [("linear, top-1", "68.95 %"), ("the paper's linear", "90.20 %")]
    pages = lambda *changes: render([make_run(recipe=paper | c, tiles=tiles) for c in changes], {"p": paper}, "today")
    texts = lambda *changes: html.unescape(re.sub(r"<[^>]+>", "|", pages(*changes)))
    for change, mark in (
        ({"seed": "3", "knn_every": "1"}, ""),
        ({"seed": "3", "epochs": "1"}, ", with 200 epochs"),
        ({"epochs": "1", "width": "8"}, ", with its own recipe"),
    ):
        for text in (texts(change), texts({}, change)):
            assert f"|the paper's linear{mark}|" in text
            assert f"|paper{mark}|" in text
            assert "|linear, top-1|" in text
    assert "|paper, with its own recipe|" in texts({"epochs": "1"}, {"width": "8"})
    assert remark([make_run(recipe={"epochs": "1"}, paper={})], {"p": paper}) == ""  # nothing to be said of nothing
    assert remark([make_run()], {}) == ""


def test_the_best_epoch_is_spoken_of_where_it_is_shown() -> None:
    assert "The last epoch counts; the best one stands beside it." in page_of(make_run())
    both = page_of(make_run(), make_run("other"))
    assert "The last epoch counts.<" in both
    assert "69.80" not in both
    assert "The last epoch" not in page_of(make_run(evaluations={"knn": {"top1": 1.0, "settings": {"k": 5}}}))


def test_a_share_that_rounds_to_nothing_leaves_its_cell_empty() -> None:
    counts = [[199, 1], [3, 197]]  # 0.5 and 1.5 %
    found = {"classes": ["cat", "dog"], "accuracy": [99.5, 98.5], "confusion": counts}
    cells = re.findall(
        r"<td[^>]*>([^<]*)</td>", page_of(make_run(evaluations={"classes": found})).split("Row: what")[1]
    )
    assert cells[:4] == ["100", "", "2", "98"]


@pytest.mark.parametrize(
    ("told", "shown"),
    [("0.1.0", "0.1.0"), ("0.1.0 from source", "0.1.0 from source"), ("not installed", "from source"),
     (None, "from source")],
)  # fmt: skip
def test_the_page_says_which_ressl_a_run_was_made_with(told: str | None, shown: str) -> None:
    run = make_run(environment={"ressl": told, "torchvision": None})
    text = re.sub(r"<[^>]+>", "|", versions([run, make_run("older", environment={})]))
    assert re.search(rf"\|ressl\|+{shown}\|+–\|+torchvision\|+–\|+–\|", text)


def test_a_program_that_is_not_installed_says_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_version", lambda package: None)
    assert environment.environment(torch.device("cpu"))["ressl"] == f"{ressl.__version__} from source"


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
    assert rows_of("svm-on-voc07", svm)[0].paper == ""
    other = {"protocol": "linear", "last": 1.0, "best": 1.0, "best_epoch": 1, "own_data": False, "data": "x"}
    assert rows_of("linear-on-x", other, {"linear": 90.0})[0].paper == ""  # the paper did not measure that
    assert rows_of("anything", {}) == []


def test_table_9_stands_beside_svms_on_voc07() -> None:
    paper = get_recipe("imagenet-r50").paper
    table = {cell.shots: cell.paper for cell in LOWSHOT.cells if cell.row == "ReSSL"}
    draws = [{"shots": shots, "mean": 60.0} for shots in (16, 32, 64, None, 8)]
    svm = {"protocol": "svm", "measure": "mAP", "own_data": False, "data": "voc07", "by_shots": draws}
    shown = [f"{table[shots]:.2f}" for shots in (16, 32, 64, None)]
    assert [row.paper for row in rows_of("svm-on-voc07", svm, paper)] == [*shown, ""]
    for change in ({"data": "pets"}, {"measure": "top-1"}, {"changed": {"cost": 2.0}}):
        assert {row.paper for row in rows_of("svm", svm | change, paper)} == {""}
    to = [{"data": data, "mAP": 80.0, "test_pictures": 9} for data in ("voc07", "other")]
    assert [row.paper for row in rows_of("transfer", {"to": to}, paper)] == ["86.31", ""]
    assert "86.31" in re.sub(r"<[^>]+>", "|", page_of(make_run(evaluations={"svm-on-voc07": svm}, paper=paper)))
    for name in ("imagenet-r18", "imagenet-r50-4crops"):  # whose features the paper did not measure there
        assert set(get_recipe(name).paper) == {"linear"}
