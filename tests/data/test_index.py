"""Lists of many files: found again in no time, made anew when anything changed, never trusted when damaged."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ressl.data import folders, index
from ressl.data.base import Paths
from ressl.data.index import Listing, cache_file, listing
from ressl.data.sources import open_source


@pytest.fixture
def walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every folder kept however small, in a cache of the test's own; and a note of every walk."""
    monkeypatch.setenv("RESSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "SMALLEST", 1)
    monkeypatch.setattr(index, "SETTLED", 0.0)
    walks: list[str] = []
    inner = folders.pictures

    def pictures(folder: str, visited: list[str] | None = None):  # type: ignore[no-untyped-def]
        if visited is not None:
            walks.append(folder)
        return inner(folder, visited)

    monkeypatch.setattr(folders, "pictures", pictures)
    return walks


def test_the_second_look_walks_no_folder_and_sees_the_same(walked: list[str], make_folder: Callable[..., Path]) -> None:
    root = make_folder(12)
    one, two = (open_source("folder", "train", root) for _ in range(2))
    assert len(walked) == 1
    assert list(one.paths) == list(two.paths)  # type: ignore[attr-defined]
    assert one.labels is not None
    assert two.labels is not None
    assert one.labels.tolist() == two.labels.tolist()
    assert one.classes == two.classes == ["a", "b", "c"]


def test_any_change_of_files_is_noticed(walked: list[str], make_folder: Callable[..., Path]) -> None:
    root = make_folder(12)
    count = lambda: len(open_source("folder", "train", root))
    assert count() == 12
    (root / "a" / "new.png").write_bytes((root / "a" / "000.png").read_bytes())
    assert count() == 13
    (root / "b" / "001.png").rename(root / "b" / "renamed.png")
    assert any(path.endswith("renamed.png") for path in open_source("folder", "train", root).paths)  # type: ignore[attr-defined]
    (root / "c" / "deep").mkdir()
    (root / "c" / "deep" / "x.png").write_bytes(b"")
    assert count() == 14
    (root / "c" / "deep" / "x.png").unlink()
    assert count() == 13
    assert len(walked) == 5
    assert count() == 13
    assert len(walked) == 5


def test_a_list_made_elsewhere_leads_to_the_files_from_here(
    walked: list[str], make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(12)
    for here in (root.parent, root / "a", root.parent):
        monkeypatch.chdir(here)
        found = open_source("folder", "train", os.path.relpath(root))
        assert all(os.path.isfile(path) for path in found.paths)  # type: ignore[attr-defined]
    assert len(walked) == 2


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": {"about": b"[" * 100_000},
    "folders": {"folders": 5},
    "names": {"folders": [5, 6, 7]},
    "numbers": {"first": np.zeros(12)},
    "beyond": {"first": np.full(12, -2, np.int32)},
    "square": {"first": np.zeros((12, 12), np.int32)},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_list_is_made_anew(walked: list[str], make_folder: Callable[..., Path], kind: str) -> None:
    root = make_folder(12)
    good = open_source("folder", "train", root)
    with np.load(where := cache_file(str(root))) as held:
        arrays = dict(held)
    about = json.loads(arrays["about"].tobytes())
    for key, value in HOSTILE[kind].items():
        if key in about:
            value, key = json.dumps(about | {key: value}).encode(), "about"
        arrays[key] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    np.savez(where, **arrays)
    again = open_source("folder", "train", root)
    assert len(walked) == 2
    assert again.labels is not None
    assert good.labels is not None
    assert again.labels.equal(good.labels)


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "other"])
def test_a_damaged_list_is_made_anew(walked: list[str], make_folder: Callable[..., Path], harm: str) -> None:
    root = make_folder(12)
    open_source("folder", "train", root)
    where = cache_file(str(root))
    data = bytearray(where.read_bytes())
    if harm == "flip":
        at = data.index(b"000.png")
        data[at] ^= 1
    harmed = {"cut": data[: len(data) // 2], "flip": data, "empty": b"", "other": b"{}"}[harm]
    where.write_bytes(harmed)
    assert sorted(os.path.basename(p) for p in open_source("folder", "train", root).paths)[0] == "000.png"  # type: ignore[attr-defined]
    assert len(walked) == 2


def test_a_folder_that_changes_this_moment_is_not_kept(
    walked: list[str], make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SETTLED", 60.0)
    root = make_folder(12)
    open_source("folder", "train", root)
    assert not cache_file(str(root)).exists()


def test_a_cache_that_cannot_be_written_costs_only_time(
    walked: list[str], make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert len(open_source("folder", "train", make_folder(12))) == 12


def test_a_million_files_are_found_in_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "SETTLED", 0.0)
    root = tmp_path / "many"
    visited = [str(root / f"n{i:08d}") for i in range(1000)]
    for folder in visited:
        os.makedirs(folder)
    letters = lambda names: np.array([list(name.encode()) for name in names], dtype=np.uint8)
    heads, tails = letters(visited), letters(f"/{i:08d}.JPEG" for i in range(1300))
    names = np.concatenate(  # folders x files x letters
        (np.repeat(heads[:, None], 1300, 1), np.repeat(tails[None], 1000, 0)), axis=2
    )
    paths = Paths.of_arrays(names.reshape(-1), np.arange(1_300_001, dtype=np.int64) * names.shape[2])
    first = np.repeat(np.arange(1000, dtype=np.int32), 1300)
    made = Listing(paths, first, [os.path.basename(folder) for folder in visited])
    index._save(cache_file(str(root)), str(root), made, [str(root), *visited])
    start = time.process_time()  # others may keep the cores busy
    found = listing(str(root), lambda *_: pytest.fail("walked"))
    assert time.process_time() - start < 5
    assert len(found.paths) == 1_300_000
    assert (found.paths[0], found.paths[-1]) == (f"{visited[0]}/00000000.JPEG", f"{visited[-1]}/00001299.JPEG")
