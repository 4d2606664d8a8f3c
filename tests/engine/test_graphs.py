"""What a start tells while it lasts; the graphs themselves need a GPU (tests/gpu)."""

from __future__ import annotations

import pytest

from ressl.engine import graphs
from ressl.engine.graphs import Start

PARTS = ("compiling the views", "choosing convolutions", "compiling the step", "capturing it")


class Told:
    def __init__(self) -> None:
        self.parts: list[tuple[str, int, int]] = []
        self.said: list[str] = []

    def busy(self, what: str, done: int, total: int) -> None:
        self.parts.append((what, done, total))

    def message(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(("pace", "long"), [(2.5, True), (1.0, False)])
def test_every_part_is_told_and_a_long_start_is_accounted_for(
    pace: float, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(pace * i for i in range(10))
    monkeypatch.setattr(graphs.time, "monotonic", lambda: next(clock))
    for told in (Told(), None):
        start = Start(told)
        for what in PARTS:
            start.next(what)
        start.end()
        if told is not None:
            assert told.parts == [(what, i, 4) for i, what in enumerate(PARTS)]
            each = "compiling the views 2.5, choosing convolutions 2.5, compiling the step 2.5, capturing it 2.5"
            assert told.said == ([f"the step was ready after 10.0 s ({each})"] if long else [])
