"""Markup in file, class, run and option names: the page keeps its tags and attributes, and asks nobody outside."""

from __future__ import annotations

import random
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from scale import draw, shards, times

page = pytest.importorskip("ressl.report.page")
contents = pytest.importorskip("ressl.report.contents")

PIECES = [
    *("<script>alert(1)</script>", "</script><script>alert(1)//", "<img src=x onerror=alert(1)>", "<!--", "-->"),
    *('"', "'", "`", "&", "&lt;", "&#60;script&#62;", "&quot;", "<", ">", "</", "/>", "</title>", "</style>", "]]>"),
    *("javascript:alert(1)", "http://outside.example/x", "//outside.example", "data:text/html,x", "<svg/onload=x>"),
    *('" onmouseover="alert(1)', "' style='x", "{{7*7}}", "${x}", "\\u003cscript\\u003e", "<base href=//outside>"),
    *("<iframe srcdoc='x'>", "<meta http-equiv=refresh content='0;url=//outside.example'>", "\x00", "\u2028"),
    *("\u202e", "\ufeff", "\ud800", "é", "日本", "\n", "\t", "\r", "a", "b c", "<plaintext>", "<textarea>"),
    *("<noscript>", "url(//outside.example)", "<a href=http://outside.example>"),
]


def nasty(moments: random.Random) -> str:
    return "".join(moments.choice(PIECES) for _ in range(moments.choice([1, 1, 2, 3, 6])))


def pictures(*shape: int) -> torch.Tensor:
    return torch.full((*shape, 3, 4, 4), 9, dtype=torch.uint8)


def run_page(text: Any) -> Any:
    """A run with every kind of content; ``text()`` gives the next name."""
    classes = [text(), text()]
    return contents.RunPage(
        name=text(),
        title=text(),
        lead=text(),
        tiles=[(text(), text())],
        evaluations={
            "linear": {"protocol": "linear", "last": 1.0, "best": 2.0, "best_epoch": 1, "test": text()},
            "classes": {
                "protocol": "classes", "classes": classes, "accuracy": [50.0, 75.0], "top1": 62.5,
                "mistaken": [[classes[0], classes[1], 2]], "confusion": [[2, 2], [1, 3]],
            },
        },
        paper={"linear": 1.0},
        metrics=[{"epoch": e, "loss": 5 - e, "knn": 10.0 * e} for e in range(1, 4)],
        queue_size=16,
        recipe={text(): text(), text(): text()},
        environment={text(): text()},
        grids=[contents.Grid(text(), classes, pictures(2), pictures(2, 3), torch.ones(2, 3, dtype=torch.bool))],
        plane=contents.Plane(torch.ones(4, 2), torch.arange(4) % 2, pictures(4), classes),
        notes=[text()],
    )  # fmt: skip


class Skeleton(HTMLParser):
    """Tags and the names of their attributes, as a browser would see them, and all addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.outside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, tuple(key for key, _ in attributes)))
        for key, value in attributes:
            if key in ("src", "href", "action", "srcset", "xlink:href", "style") and value is not None:
                inside = value.startswith(("data:image/", "#")) or (key == "style" and "url" not in value)
                self.outside += [] if inside else [value]

    def handle_endtag(self, name: str) -> None:
        self.tags.append((f"/{name}", ()))

    def handle_comment(self, data: str) -> None:
        self.tags.append(("comment", ()))


def rendered(*runs: Any) -> str:
    made: str = page.render(runs, {"cifar10": {"epochs": "200"}}, "today")
    return made


@pytest.mark.parametrize("part", shards(2))
def test_the_page_keeps_its_shape(part: int) -> None:
    moments, used, case = draw("markup", part), 0, 0
    plain = iter(range(10**9))
    harmless = lambda: f"n{next(plain)}"
    one, two = (Skeleton(rendered(*(run_page(harmless) for _ in range(n)))) for n in (1, 2))
    assert one.outside == two.outside == []

    def text() -> str:
        nonlocal used
        used += 1
        return f"n{used} {nasty(moments)}"  # names differ, as the harmless ones do

    while used < times(3000, 400) // len(shards(2)):
        case += 1
        for runs, expected in ((1, one), (2, two)):
            made = rendered(*(run_page(text) for _ in range(runs)))
            found = Skeleton(made)
            assert found.tags == expected.tags, f"page {case}"
            assert found.outside == [], f"page {case}"
