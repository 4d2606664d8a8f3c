"""Pictures that were read are not read again in the same process, as long as their files are the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from saved import save

from ressl.data import reading, remembered
from ressl.data.base import FileSource, Source
from ressl.data.reading import pack, read_all
from ressl.data.remembered import Remembered
from ressl.data.sources import open_source
from ressl.data.unread import Part
from ressl.evaluating import evaluate
from ressl.pretraining import pretrain
from ressl.recipes import Recipe


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> Remembered:
    monkeypatch.setattr(remembered, "FEW", 1)
    known = Remembered()
    monkeypatch.setattr(reading, "REMEMBERED", known)
    return known


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were decoded."""
    found: list[str] = []
    for name in ("read", "open"):
        plain = getattr(FileSource, name)

        def noting(self: FileSource, index: int, plain: Callable[..., Any] = plain) -> Any:
            found.append(Path(self.paths[index]).name)
            return plain(self, index)

        monkeypatch.setattr(FileSource, name, noting)
    return found


def folder(place: Path, count: int = 6) -> Source:
    for i in range(count):
        save(place / f"{i}.png", i)
        os.utime(place / f"{i}.png", (1e9, 1e9))  # long before anybody reads them
    return open_source("folder", root=place)


def test_they_are_decoded_once_and_are_the_same(tmp_path: Path, reads: list[str]) -> None:
    source = folder(tmp_path)
    first, _ = pack(source)
    before = len(reads)
    again, broken = pack(open_source("folder", root=tmp_path))
    assert len(reads) == before >= 6
    assert not broken
    assert torch.equal(again.images, first.images)
    assert np.array_equal(first.images[3].permute(1, 2, 0).numpy(), source.read(3))


def test_another_way_to_read_them_is_another_thing(tmp_path: Path, reads: list[str]) -> None:
    source = folder(tmp_path)
    whole, _, _ = read_all(source)
    small, _, _ = read_all(source, 4)
    assert (whole.shape[-1], small.shape[-1]) == (8, 4)
    reads.clear()
    assert torch.equal(read_all(source)[0], whole)
    assert torch.equal(read_all(source, 4)[0], small)
    assert not torch.equal(read_all(source, 4, 6)[0], small)  # the middle of a larger one
    reads.clear()
    assert not torch.equal(read_all(source, 4, 6)[0], small)
    assert not reads
    some, index, _ = read_all(Part(source, torch.tensor([4, 2]), torch.tensor([7, 9])))
    assert torch.equal(some, whole[[4, 2]])
    assert index is not None
    assert index.tolist() == [7, 9]
    assert sorted(set(reads)) == ["2.png", "4.png"]
    reads.clear()
    assert torch.equal(read_all(Part(source, torch.tensor([4, 2])))[0], some)
    assert torch.equal(read_all(Part(source, torch.tensor([2, 4])))[0], some.flip(0))  # in another order: other names
    assert sorted(set(reads)) == ["2.png", "4.png"]


@pytest.mark.parametrize("how", ["other pixels", "another time", "gone"])
def test_a_file_that_changed_is_read_again(tmp_path: Path, how: str) -> None:
    source = folder(tmp_path)
    before = pack(source)[0].images.clone()
    if how == "other pixels":
        save(tmp_path / "3.png", 99)
    elif how == "another time":
        os.utime(tmp_path / "3.png", (1.1e9, 1.1e9))
    else:
        (tmp_path / "3.png").unlink()
        assert [Path(error.path).name for error in read_all(source)[2]] == ["3.png"]
        return
    after = pack(folder_again := open_source("folder", root=tmp_path))[0].images
    assert np.array_equal(after[3].permute(1, 2, 0).numpy(), folder_again.read(3))
    assert torch.equal(after[3], before[3]) == (how == "another time")


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, plain = folder(tmp_path), FileSource.read

    def changing(self: FileSource, index: int) -> Any:
        found = plain(self, index)
        if index == 3:
            save(tmp_path / "3.png", 99)
            os.utime(tmp_path / "3.png", (1e9, 1e9))  # as a copy that keeps its times
        return found

    monkeypatch.setattr(FileSource, "read", changing)
    before = pack(source)[0].images
    monkeypatch.setattr(FileSource, "read", plain)
    after = pack(source)[0].images
    assert not torch.equal(after[3], before[3])
    assert np.array_equal(after[3].permute(1, 2, 0).numpy(), source.read(3))


def test_names_that_mean_other_files_by_now_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, first in (("a", 0), ("b", 50)):
        for i in range(6):
            save(tmp_path / name / "pics" / f"{i}.png", first + i)
            os.utime(tmp_path / name / "pics" / f"{i}.png", (1e9, 1e9))
    pixels = lambda place: pack(open_source("folder", root=place))[0].images
    monkeypatch.chdir(tmp_path / "a")
    first = pixels("pics")
    monkeypatch.chdir(tmp_path / "b")
    assert not torch.equal(pixels("pics"), first)
    (tmp_path / "now").symlink_to("a")
    assert torch.equal(pixels(tmp_path / "now" / "pics"), first)
    (tmp_path / "now").unlink()
    (tmp_path / "now").symlink_to("b")
    assert not torch.equal(pixels(tmp_path / "now" / "pics"), first)


def test_sources_that_make_something_else_of_files_are_not_taken_for_plain_ones(tmp_path: Path) -> None:
    class Negative(FileSource):
        def read(self, index: int) -> Any:
            return 255 - super().read(index)

    source = folder(tmp_path)
    plain = pack(source)[0].images
    other = Negative("negative", list(source.files()))
    assert torch.equal(pack(other)[0].images, 255 - plain)
    assert torch.equal(pack(other)[0].images, 255 - plain)


def test_a_few_are_not_worth_it_and_what_vanishes_is_no_matter(
    tmp_path: Path, reads: list[str], mine: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder(tmp_path)
    stamps = mine.stamps(source.files())
    (tmp_path / "1.png").unlink()
    assert stamps
    assert mine.stamps(source.files()) == ""
    save(tmp_path / "1.png", 1)
    monkeypatch.setattr(remembered, "FEW", 7)
    for _ in range(2):
        reads.clear()
        pack(source)
        assert len(reads) >= 6
    monkeypatch.setattr(remembered, "FEW", 1)
    assert mine.find(source.files(), None) is None


def test_sets_with_broken_files_are_read_again(tmp_path: Path, reads: list[str]) -> None:
    source = folder(tmp_path, 20)
    (tmp_path / "7.png").write_bytes(b"nothing")
    os.utime(tmp_path / "7.png", (1e9, 1e9))
    for _ in range(2):
        reads.clear()
        assert len(pack(source)[1]) == 1
        assert len(reads) >= 19


def test_there_is_an_end_to_what_is_kept(tmp_path: Path, mine: Remembered, monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of_one = 6 * 3 * 8 * 8
    monkeypatch.setattr(remembered, "ram", lambda: 2 * bytes_of_one * remembered.SHARE)
    sources = [folder(tmp_path / name) for name in "abc"]
    find = lambda: [mine.find(source.files(), None) is not None for source in sources]
    pack(sources[0])
    pack(sources[1])
    assert find() == [True, True, False]
    pack(sources[0])  # used again, it stays
    pack(sources[2])
    assert find() == [True, False, True]
    monkeypatch.setattr(remembered, "local_processes", lambda: 4)  # who share the memory
    pack(sources[1])
    assert find() == [True, False, True]  # more than its share: not even begun
    mine.forget()
    assert find() == [False, False, False]


def test_what_a_run_was_trained_on_is_not_read_again_for_its_evaluation(
    tiny: Callable[..., Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: Any
) -> None:
    for split, count in (("train", 32), ("test", 8)):
        for i in range(count):
            save(tmp_path / "photos" / split / "ab"[i % 2] / f"{split}{i}.png", i, 16, 16)
            os.utime(tmp_path / "photos" / split / "ab"[i % 2] / f"{split}{i}.png", (1e9, 1e9))
    decoded: list[str] = []
    plain = FileSource.read
    monkeypatch.setattr(FileSource, "read", lambda self, i: (decoded.append(self.paths[i]), plain(self, i))[1])
    own = tiny(data="folder").linear
    recipe = tiny(data="folder", linear=replace(own, resize=None))  # pictures as they are, as in the paper's small sets
    run = pretrain(recipe, data=tmp_path / "photos", out=tmp_path / "run", device="cpu", display=memory())
    found = [evaluate(run, "knn", device="cpu", again=True)["top1"] for _ in range(2)]
    assert len(decoded) == len(set(decoded)) == 40
    reading.REMEMBERED.forget()
    assert evaluate(run, "knn", device="cpu", again=True)["top1"] == found[0] == found[1]
    assert len(decoded) == 80
