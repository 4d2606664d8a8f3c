"""HTML by construction: whatever is not made by ``tag`` is escaped, so no name from outside becomes markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

_VOID = {"img", "meta", "br", "hr", "line", "circle", "polyline", "rect", "path"}


class Html(str):
    """Text that is markup already."""


Child = str | Html | None | Iterable[Any]


def tag(element: str, /, *children: Child, **attributes: Any) -> Html:
    """An element. ``class_`` is class, ``data_x`` is data-x; None and False leave an attribute out.

    >>> tag("p", "a < b", tag("b", "c"), class_="x")
    '<p class="x">a &lt; b<b>c</b></p>'
    """
    inside = "".join(
        f" {_name(key)}" if value is True else f' {_name(key)}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if element in _VOID and not children:
        return Html(f"<{element}{inside}>" if element in ("img", "meta", "br", "hr") else f"<{element}{inside}/>")
    return Html(f"<{element}{inside}>{join(children)}</{element}>")


def td(*children: Child, **attributes: Any) -> Html:
    return tag("td", *children, **attributes)


def th(*children: Child, **attributes: Any) -> Html:
    return tag("th", *children, **attributes)


def table(head: Iterable[Html | None] | None, rows: Iterable[Iterable[Html | None]], class_: str | None = None) -> Html:
    """A table that scrolls by itself where it is wider than the page."""
    top = None if head is None else tag("thead", tag("tr", head))
    made = tag("table", top, tag("tbody", [tag("tr", row) for row in rows]), class_=class_)
    return tag("div", made, class_="scroll")


def breakable(name: str) -> list[Child]:
    """A name that may go on in a new line after each underscore, and is copied without a break.

    >>> join(breakable("weight_decay"))
    'weight_<wbr>decay'
    """
    first, *rest = name.split("_")
    return [first, *((Html("_<wbr>"), part) for part in rest)]


def join(children: Iterable[Any]) -> Html:
    """Children one after the other; lists are opened, None is nothing, plain text is escaped."""
    parts = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(html.escape(child))
        elif isinstance(child, Iterable):
            parts.append(join(child))
        else:
            parts.append(html.escape(str(child)))
    return Html("".join(parts))


def data_block(name: str, value: Any) -> Html:
    """JSON for the page's script; no ``<`` is left in it, so nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")
    return Html(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")
