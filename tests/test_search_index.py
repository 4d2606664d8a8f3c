"""The index: what it finds, what it has lost, and which file is never opened."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ressl import searching
from ressl.featurefiles import open_features
from ressl.searching import nearest_exact, nearest_indexed


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESSL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same graph every time; threads make another each time, in which 1 query of 1,500 misses its nearest."""
    index = pytest.importorskip("usearch.index").Index
    add = index.add
    monkeypatch.setattr(index, "add", lambda self, keys, rows, threads=1: add(self, keys, rows, threads=1))


@pytest.mark.usefixtures("one_thread")
def test_the_index_finds_what_the_exact_search_finds(random_features: Path) -> None:
    file, said = open_features(random_features), list[str]()
    shared = 0
    queries = np.random.default_rng(2).normal(size=(20, 16)).astype(np.float32)
    for query in queries:
        exact, cosines = nearest_exact(file, query, 10)
        found, values = nearest_indexed(file, query, 10, said.append)
        shared += len(set(exact) & set(found))
        assert (np.diff(values) <= 0).all()
        np.testing.assert_allclose(values[0], cosines[0], atol=1e-5)
    assert shared >= 0.95 * 200
    assert len(said) == 1  # made once, then loaded
    index = random_features.with_name("r.npy.usearch")
    index.write_bytes(index.read_bytes()[:100])  # damaged: made again
    assert len(nearest_indexed(file, queries[0], 10, said.append)[0]) == 10
    assert len(said) == 2


def test_the_index_loses_no_row_to_its_threads(random_features: Path) -> None:
    index = pytest.importorskip("usearch.index").Index(ndim=16, metric="cos", dtype="f32")
    rows = np.load(random_features)
    index.add(np.arange(1000), rows, threads=16)
    searching.add_lost(index, open_features(random_features))
    found = (index.search(rows, 10).keys == np.arange(1000)[:, None]).any(1)
    assert len(index) == 1000
    assert found.sum() >= 999  # a row of zeros has no neighbour


def test_a_row_that_is_lost_when_another_is_put_in_is_put_in_too(random_features: Path) -> None:
    """An index whose first repair costs another row its links, and its second none."""

    class Index:
        def __init__(self) -> None:
            self.lost = [{3, 4}, {5}, set[int]()]
            self.added = list[int]()

        def search(self, rows: np.ndarray, k: int) -> Any:
            gone = self.lost[0]
            return SimpleNamespace(keys=np.array([[-1 if row in gone else row] for row in range(len(rows))]))

        def remove(self, keys: np.ndarray) -> None: ...

        def add(self, keys: np.ndarray, rows: np.ndarray, threads: int) -> None:
            self.added += keys.tolist()
            self.lost.pop(0)

    index = Index()
    searching.add_lost(index, open_features(random_features))
    assert index.added == [3, 4, 5]


def test_an_index_is_opened_only_as_we_wrote_it(random_features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library trusts what it reads: of 400 damaged ones 38 ended the process by a signal."""
    index_of = pytest.importorskip("usearch.index").Index
    file, said, opened = open_features(random_features), list[str](), list[bytes]()
    index, note = (random_features.with_name(f"r.npy.usearch{ending}") for ending in ("", ".json"))
    monkeypatch.setattr(index_of, "load", lambda self, path: opened.append(Path(path).read_bytes()))
    nearest = lambda: nearest_indexed(file, np.ones(16, np.float32), 2, said.append)
    nearest()
    whole, stranger, draw = index.read_bytes(), note.read_bytes(), np.random.default_rng(3)
    for at in draw.integers(0, len(whole), 5):
        index.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        nearest()
    index.write_bytes(whole)
    note.write_bytes(stranger)  # both files are whole, but of a time or a user with another key
    (random_features.parent / "cache" / "key").write_bytes(bytes(32))
    nearest()
    assert len(said) == 7  # made each time
    assert not opened
    last = index.read_bytes()
    nearest()
    assert opened == [last]
    assert (random_features.parent / "cache" / "key").stat().st_size == 32


def test_the_key_is_this_users_and_one_that_is_cut_is_made_again(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "key"
    made = searching._key()
    assert (len(made), place.stat().st_mode & 0o777) == (32, 0o600)
    assert searching._key() == made
    place.write_bytes(made[:5])
    assert searching._key() not in (made, made[:5])
    assert searching._key() == place.read_bytes()
    place.unlink()
    place.mkdir()  # it cannot be kept
    assert searching._key() != searching._key()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("later", [True, False])
def test_an_index_of_other_features_is_made_again(random_features: Path, later: bool) -> None:
    """As many rows, and older or newer than the index: a file put in another's place brings its own time."""
    rows, said = np.load(random_features), list[str]()
    nearest = lambda: nearest_indexed(open_features(random_features), rows[400], 2, said.append)[0].tolist()
    assert nearest() == nearest() == [400, 500]
    np.save(random_features, rows[::-1].copy())
    index = random_features.with_name("r.npy.usearch")
    os.utime(random_features, ns=(index.stat().st_mtime_ns + (10**9 if later else -(10**9)),) * 2)
    assert nearest() == [499, 599]
    assert nearest() == [499, 599]
    assert len(said) == 2
    index.with_name("r.npy.usearch.json").write_text("{")
    assert nearest() == [499, 599]
    assert len(said) == 3
