"""Convolutions that a step will ask for are known, and can be asked for, before it is taken."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
import torch
from torch import nn

from ressl.engine import ahead
from ressl.engine.accelerate import calls_of
from ressl.engine.ahead import Call, Rehearsal, sketched
from ressl.methods import METHODS
from ressl.nn import build_backbone
from ressl.recipes import get_recipe

SHAPE, WIDTH = (8, 3, 32, 32), 24  # no layer of 64 channels, which asks for others (see pairing)


def asked(calls: Iterable[Call]) -> set[tuple[str, ...]]:
    """What is asked of the library, behind the first layer: shapes and types and numbers."""
    found = set()
    for call in calls:
        tensors = [x for x in call.args if isinstance(x, torch.Tensor)]
        if tensors[-1].shape[1] >= WIDTH:  # the weight's; the first layer is ours, with padded channels
            shapes = [f"{tuple(x.shape)} {x.dtype}" for x in tensors]
            found.add((str(call.operation), *shapes, str(call.args[len(tensors) + 1 : -1])))
    return found


@pytest.mark.parametrize("stem", ["small", "imagenet"])
def test_a_sketch_tells_which_convolutions_a_step_asks_for(stem: str) -> None:
    pytest.importorskip("triton")
    backbone = build_backbone("resnet18", stem, width=WIDTH, bn_groups=2).train().to(memory_format=torch.channels_last)
    found = sketched(backbone, SHAPE, torch.bfloat16).convolutions
    for part in backbone.modules():
        if isinstance(part, nn.Conv2d):
            part.to(torch.bfloat16)
    pictures = torch.zeros(SHAPE, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    with ahead._Noting() as noting, torch.autocast("cpu", dtype=torch.bfloat16):
        backbone(pictures).sum().backward()
    assert asked(noting.found.values()) == asked(found)
    assert len(asked(found)) > 15
    for call in found:
        tensors = [x for x in call.args if isinstance(x, torch.Tensor)]
        assert all(x.is_contiguous(memory_format=torch.channels_last) for x in tensors)


def test_they_are_asked_for_where_they_will_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    backbone = build_backbone("resnet10", "small", width=8, bn_groups=2)
    rehearsal = Rehearsal(backbone, SHAPE, torch.bfloat16)
    made: list[tuple[object, threading.Thread]] = []
    again = Call.again

    def noted(call: Call, device: torch.device) -> None:
        again(call, device)
        made.append((call.operation, threading.current_thread()))

    monkeypatch.setattr(Call, "again", noted)
    rehearsal.choose()
    assert len(made) == len(rehearsal.convolutions) > 10
    assert {operation for operation, _ in made} == {*ahead._CONVOLUTIONS}
    # On a CPU all in this thread; on a GPU autograd has one of its own, where a hook is called.
    assert {thread for operation, thread in made} == {threading.main_thread()}


@pytest.mark.parametrize(
    ("recipe", "method", "expected"),
    [
        ("cifar10", "ressl", [(32, 1)]),
        ("cifar10", "simclr", [(32, 2)]),
        ("cifar10", "byol", [(32, 2), (32, 1)]),  # the student's views at once, the teacher's one by one
        ("cifar10", "swav", [(32, 2), (16, 4)]),
        ("imagenet-r50-4crops", "ressl", [(224, 1), (160, 1), (128, 1), (96, 1)]),
    ],
)
def test_every_call_of_a_network_is_rehearsed(recipe: str, method: str, expected: list[tuple[int, int]]) -> None:
    chosen = get_recipe(recipe).replace(method=method)
    assert calls_of(METHODS[method], [view.size for view in chosen.views]) == expected  # type: ignore[arg-type]
