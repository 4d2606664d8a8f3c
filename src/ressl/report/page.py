"""One self-contained HTML page of one run or several.

Nothing in it asks the network: styles, script and pictures are inside, and a content security policy forbids the rest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources

from ressl.report import sections
from ressl.report.contents import RunPage
from ressl.report.markup import Html, join, table, tag, td, th


def render(
    runs: Sequence[RunPage],
    papers: Mapping[str, Mapping[str, str]],
    made: str,
    seeds: Mapping[str, str] | None = None,
) -> str:
    """The page; ``papers`` are the paper's recipes by name, setting by setting; ``seeds`` are means over the runs."""
    style, script = _part("page.css"), _part("page.js")
    policy = (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    )
    name = runs[0].title if len(runs) == 1 else _together(runs)
    said = sections.remark(runs, papers)
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", name),
        Html(f"<style>{style}</style>"),
    ]
    main = [
        tag("header", tag("h1", name), _intro(runs, said)),
        _section("Numbers", sections.numbers(runs, seeds, said)),
        _section("Against the beginning", sections.beginnings(runs)),
        _section("Curves", sections.curves(runs)),
        _section("Neighbours", sections.neighbours(runs)),
        _section("Map", sections.maps(runs)),
        _section("Classes", sections.classes(runs)),
        _section("Recipe", sections.recipes(runs, papers)),
        _section("Versions and hardware", sections.versions(runs)),
        [tag("p", note, class_="soft small") for run in runs for note in run.notes],
        tag("footer", f"Made by ressl on {made}. This page needs no network."),
    ]
    tip = tag("div", tag("canvas", width=224, height=224), tag("span"), id="tip", hidden=True)
    body = tag("body", tag("main", main), tip, Html(f"<script>{script}</script>"))
    return f"<!doctype html>\n{tag('html', tag('head', head), body, lang='en')}\n"


def _intro(runs: Sequence[RunPage], said: str) -> Html:
    words = lambda what: f"{what}, {said}" if said and what.startswith("the paper's") else what
    if len(runs) == 1:
        tiles = [tag("div", tag("b", value), tag("span", words(what)), class_="tile") for what, value in runs[0].tiles]
        return join([tag("p", runs[0].lead, class_="lead"), tag("div", tiles, class_="tiles")])
    whats = list(dict.fromkeys(what for run in runs for what, _ in run.tiles))
    head = [th(), *(sections.head_of(i, run) for i, run in enumerate(runs))]
    rows = [[td(words(what), class_="soft"), *(td(dict(run.tiles).get(what, "–")) for run in runs)] for what in whats]
    alike = len({run.title for run in runs}) == 1  # then it is the heading
    told = [run.lead if alike else f"{run.title}, {run.lead}" for run in runs]
    leads = [tag("p", tag("b", sections.name_of(i, run)), f": {told[i]}") for i, run in enumerate(runs)]
    return join([leads, table(head, rows)])


def _together(runs: Sequence[RunPage]) -> str:
    """One heading for several runs: what they share, then who they are."""
    titles = dict.fromkeys(run.title for run in runs)
    names = ", ".join(run.name for run in runs[:-1]) + f" and {runs[-1].name}"
    return f"{next(iter(titles))}: {names}" if len(titles) == 1 else names


def _section(title: str, content: Html | None) -> Html | None:
    return None if content is None else tag("section", tag("h2", title), content)


def _part(name: str) -> str:
    return resources.files("ressl.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
