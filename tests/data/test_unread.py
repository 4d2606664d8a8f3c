"""Pictures that stay in their files until they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ressl.data import unread
from ressl.data.base import FileSource
from ressl.data.unread import Part, Unread
from ressl.errors import ResslError


def test_a_part_of_a_part_is_a_part(make_folder: Callable[..., Path]) -> None:
    source = FileSource("here", [str(p) for p in sorted(make_folder(12, side=20).rglob("*.png"))])
    part = Part(Part(source, torch.tensor([5, 3, 8])), torch.tensor([2, 0]))
    assert [part.identify(i) for i in range(2)] == [source.paths[8], source.paths[5]]
    pictures = Unread(part, 18, 16)
    assert (pictures.shape, pictures.bytes) == ((2, 3, 18, 18), 2 * 3 * 18 * 18)
    assert torch.equal(pictures.take(torch.tensor([1]))[:], pictures[torch.tensor([1])])
    Path(source.paths[8]).write_bytes(b"")
    with pytest.raises(ResslError, match=Path(source.paths[8]).name):
        pictures[:]


def test_what_torch_keeps_of_earlier_work_is_room_for_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "ram", lambda: 100)
    assert unread.may_be_held(torch.device("cpu")) == 50
    for name, value in {"mem_get_info": (20, 80), "memory_reserved": 50, "memory_allocated": 10}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert unread.may_be_held(torch.device("cuda")) == (20 + 40) // 2
    monkeypatch.setattr(unread, "ram", lambda: 30)
    assert unread.may_be_held(torch.device("cuda")) == 15
