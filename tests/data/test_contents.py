"""Somebody's own pictures have changed, or not, without a look into them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ressl.data.contents import contents


@pytest.fixture
def lists(make_folder: Callable[..., Path]) -> Path:
    """A folder with the lists of two splits, and the pictures beside them; one of these is not there."""
    folder = make_folder(6)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))
    (folder / "train.txt").write_text("".join(f"{name} {i % 2}\n" for i, name in enumerate([*names[:4], "gone.png"])))
    (folder / "test.txt").write_text("".join(f"{name} {i % 2}\n" for i, name in enumerate(names[4:])))
    return folder


@pytest.mark.parametrize("place", [".", "train.txt"])
@pytest.mark.parametrize("which", ["train.txt", "test.txt", "a picture"])
def test_a_list_its_test_split_or_what_they_name_has_changed(lists: Path, place: str, which: str) -> None:
    before = contents("list", str(lists / place))
    assert before is not None
    assert contents("list", str(lists / place)) == before
    path = sorted(lists.rglob("*.png"))[-1] if which == "a picture" else lists / which
    path.write_bytes(path.read_bytes() + b"\n")
    assert contents("list", str(lists / place)) != before


def test_where_nothing_lies_there_is_nothing_to_compare(lists: Path) -> None:
    assert contents("list", str(lists / "none.txt")) is None
    assert contents("array", str(lists / "none.npy")) is None
    assert contents("folder", str(lists)) is not None
    assert contents("cifar10", str(lists)) is None
    (lists / "train.txt").write_text("no picture\n")
    assert contents("list", str(lists)) is None
