"""The views of the next step, made while this one is under way.

Views are a function of where they are used (seed, step, sample), so they can be made before. They are many small
kernels, none of which fills a card by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ressl.data.batches import Batch
from ressl.engine.compiling import compiled
from ressl.engine.step import TrainStep
from ressl.engine.streams import beside, join


class LookAhead:
    """Stands in for ``step.prepare``; ``finish`` is to be called in every step once its views have been used."""

    def __init__(self, step: TrainStep, compiled: Any) -> None:
        self.step = step
        self.side = torch.cuda.Stream(step.device) if step.device.type == "cuda" else None
        self.make = compiled(self._make)
        self.begin = compiled(step.begin)
        number = lambda value: torch.full((), value, dtype=torch.int64, device=step.device)
        self.this, self.next = number(0), number(1)
        self.views: list[Tensor] = []  # of this step, always in the same place
        self.coming: list[Tensor] = []  # of the next
        self.black = False  # as long as views are not ready to be made

    def _make(self, ahead: Tensor) -> list[Tensor]:
        return self.step.make_views(self.step.step + ahead, None)

    @torch.no_grad()  # here, because a compiled function is compiled again in the other mode
    def __call__(self, batch: Batch | None) -> tuple[list[Tensor], Tensor]:
        if self.black:
            self.coming = self.views
            return self.views, self.step.begin()
        lr = self.begin()
        if not self.views:
            self.catch_up()
        with beside(self.side):
            self.coming = self.make(self.next)
        return self.views, lr

    @contextmanager
    def in_the_dark(self) -> Iterator[None]:
        """Within, views are black: the rest of a step can be taken before they can be made."""
        sides, pictures = [view.size for view in self.step.views.views], self.step.loader.batch_size
        black = lambda side: torch.zeros(pictures, 3, side, side, dtype=self.step.precision, device=self.step.device)
        self.views = [black(side).contiguous(memory_format=self.step.memory_format) for side in sides]
        self.black = True
        try:
            yield
        finally:
            self.views, self.coming, self.black = [], [], False

    def finish(self) -> None:
        """Before the step is counted, and when nothing reads its views any more."""
        join(self.side)
        self._take(self.coming)

    @torch.no_grad()
    def catch_up(self) -> None:
        """The views of this step, where what came before did not see it coming: a new epoch, a resumed run."""
        self._take(self.make(self.this))
        self.step.turned = False

    def _take(self, views: list[Tensor]) -> None:
        self.views = self.views or [torch.empty_like(view) for view in views]
        torch._foreach_copy_(self.views, views)


def look_ahead(step: TrainStep, compiled: Any = compiled) -> None:
    """Let ``step`` find its views ready, from the second step on."""
    ahead, collect = LookAhead(step, compiled), step.collect

    def collected() -> None:
        collect()
        ahead.finish()

    step.prepare = ahead  # type: ignore[method-assign]
    step.collect, step.catch_up = collected, ahead.catch_up
