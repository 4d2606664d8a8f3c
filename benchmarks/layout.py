"""Words, numbers and tables as Markdown, for the pages that are made from records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import fill

WORDS = {"why", "expected"}  # columns that are read, not compared


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    headings = list(headings)
    yield ""
    yield "| " + " | ".join(headings) + " |"
    yield "|" + "|".join("---" if i == 0 or name in WORDS else "---:" for i, name in enumerate(headings)) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"
    yield ""


def prose(*sentences: str) -> str:
    return fill(" ".join(sentences), 120)


def number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
