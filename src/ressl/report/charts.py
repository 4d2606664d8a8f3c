"""Line charts as inline SVG; the page's script adds a readout where the pointer is."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from ressl.report.markup import Html, tag

WIDTH, HEIGHT = 340, 210
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 12, 26
POINTS = 240  # of a line at most


class Series(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


def line_chart(title: str, unit: str, series: Sequence[Series], reference: tuple[str, float] | None = None) -> Html:
    """One panel: a line per run against the epoch; ``reference`` is a dotted line with a word."""
    lines = [Series(s.name, thin([p for p in s.points if all(map(math.isfinite, p))])) for s in series]
    values = [y for s in lines for _, y in s.points]
    epochs = [x for s in lines for x, _ in s.points]
    if not values:
        return Html("")
    high = max(values) if reference is None else max(*values, reference[1])
    low = min(values)
    pad = 0.06 * (high - low) or 0.5
    y_ticks, x_ticks = ticks(low - pad, high + pad, 4), ticks(0, max(epochs), 5)
    y0, y1, x1 = low - pad, high + pad, max(epochs) or 1.0
    X = lambda x: LEFT + (WIDTH - LEFT - RIGHT) * x / x1
    Y = lambda y: HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - y0) / (y1 - y0)
    parts: list[Html] = []
    for t in y_ticks:
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{Y(t):.1f}", y2=f"{Y(t):.1f}", class_="grid"))
        parts.append(tag("text", f"{t:g}", x=LEFT - 6, y=f"{Y(t) + 3.5:.1f}", class_="tick end"))
    for t in x_ticks:
        parts.append(tag("text", f"{t:g}", x=f"{X(t):.1f}", y=HEIGHT - 8, class_="tick mid"))
    if reference is not None:
        at = f"{Y(reference[1]):.1f}"
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="reference"))
        parts.append(tag("text", reference[0], x=WIDTH - RIGHT, y=f"{Y(reference[1]) + 12:.1f}", class_="tick end"))
    for i, s in enumerate(lines):
        path = " ".join(f"{X(x):.1f},{Y(y):.1f}" for x, y in s.points)
        parts.append(tag("polyline", points=path, class_=f"line run{i % 6}"))
        if 0 < len(s.points) <= 30:
            for x, y in s.points:
                parts.append(tag("circle", cx=f"{X(x):.1f}", cy=f"{Y(y):.1f}", r=2.2, class_=f"dot run{i % 6}"))
    told = [[s.name, [[round(X(x), 1), round(Y(y), 1), x, y] for x, y in s.points]] for s in lines]
    drawing = tag(
        "svg", *parts, tag("line", class_="cursor", y1=TOP, y2=HEIGHT - BOTTOM, x1=-9, x2=-9),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=f"{title} against the epoch",
    )  # fmt: skip
    heading = tag("figcaption", tag("b", title), f" {unit}" if unit else None, tag("span", class_="readout"))
    return tag("figure", heading, drawing, class_="chart", data_series=json.dumps(told, separators=(",", ":")))


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most ``POINTS`` of them, evenly spaced, first and last among them."""
    if len(points) <= POINTS:
        return list(points)
    step = (len(points) - 1) / (POINTS - 1)
    return [points[round(i * step)] for i in range(POINTS)]


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between low and high, some ``about`` of them.

    >>> ticks(0, 16, 5)
    [0.0, 5.0, 10.0, 15.0]
    """
    span = high - low
    if span <= 0:
        return [low]
    raw = span / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next((m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw), 10 * unit)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) + 0.0 for i in range(first, math.floor(high / step + 1e-9) + 1)]
