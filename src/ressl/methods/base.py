"""The one abstraction: a method turns views into a loss and looks after its own state.

Compile, graphs, precision and processes are applied from outside; a method knows none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

Carry = Tensor | tuple[Tensor, ...] | None


class Output(NamedTuple):
    """What a forward gives the engine."""

    loss: Tensor
    carry: Carry  # what after_step needs, e.g. the keys to enqueue
    logs: dict[str, Tensor]  # 0-dim tensors that stay on the device; no .item() in the step


class Method(nn.Module):
    """Base of every method.

    Views come teacher first and may differ in size. Hyper-parameters are keyword arguments of the constructor, and the
    recipe's ``options`` are checked against them. Everything that must survive a restart is a parameter or a
    persistent buffer. A method may have a ``target(view)``: the part of its forward that has no gradient and does not
    depend on the student; the engine may then run it beside the rest.

    A method that needs more than pixels says so in ``wants``: ``index`` (B sample numbers in 0..samples-1, the same in
    every epoch) and ``labels`` (B class numbers) then come as keyword arguments of ``forward``.
    """

    backbone: nn.Module  # what evaluation freezes

    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    backprops: ClassVar[int] = 1  # views that carry a gradient per step (the paper's "BackProp" column)
    forwards: ClassVar[int] = 2  # views that go through a network per step, with a gradient or without
    ema: ClassVar[bool] = False  # whether a moving average of the student takes part
    fewest_views: ClassVar[int] = 2
    most_views: ClassVar[int | None] = None  # None: it has a use for any number
    wants: ClassVar[tuple[str, ...]] = ()

    epochs: int = 0  # of the training; the engine says so before the first
    samples: int = 0  # the pictures that its memory bank has room for; 0: it has none
    classes: int = 0  # the classes that it can tell apart; 0: it does not ask
    remarks: tuple[str, ...] = ()  # what it made of its options, where that is not what they say

    @classmethod
    def completed(cls, options: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
        """The options of a new run, where some follow from others; ``given`` are those that the user named."""
        return dict(options)

    @classmethod
    def inherited(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a new run's recipe that another network asks for."""
        return {}

    @classmethod
    def lowered(cls, options: Mapping[str, Any], batch_size: int, given: Collection[str]) -> tuple[dict[str, Any], str]:
        """Of ``options``, all of a new run's, those that are too high beside others and that the user did not name
        (``given``), as they should be; and a remark on them."""
        return {}, ""

    def check_start(self, sizes: Sequence[int]) -> None:
        """Raise a ResslError for what a new run lacks, before it is written; ``sizes`` are its views' in pixels."""

    def forward(self, views: Sequence[Tensor], **wanted: Tensor) -> Output:
        raise NotImplementedError

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameters with a learning rate or decay of their own: ``params``, ``lr_scale``, ``weight_decay``."""
        return []

    @torch.no_grad()
    def begin_epoch(self, epoch: int) -> None:
        """Called before an epoch's first step (not when resuming within one): cluster a bank, for example."""

    @torch.no_grad()
    def after_step(self, carry: Carry) -> None:
        """Called after the optimiser's step: move the teacher, fill the queue."""

    @torch.no_grad()
    def set_progress(self, progress: Tensor) -> None:
        """Called before each step with the fraction of training done (a device tensor), for schedules of its own."""


def begun(share: float, epoch: int, epochs: int) -> bool:
    """Whether what begins after a ``share`` of ``epochs`` has begun with this one: with that which starts nearest to
    it, but not before anything was learned.

    >>> [next(epoch for epoch in range(n) if begun(0.1, epoch, n)) for n in (2, 20, 200)]
    [1, 2, 20]
    """
    return epoch + 0.5 >= share * epochs and (epoch > 0 or share == 0)
