"""An index of features: the same every time, and no row is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ressl import searching
from ressl.featurefiles import open_features


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """1,000 rows around 20 centres, one of them zero."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(20, 16)).repeat(50, 0) + 0.5 * draw.normal(size=(1000, 16))
    rows[17] = 0
    np.save(tmp_path / "r.npy", rows.astype(np.float32))
    return tmp_path / "r.npy"


def test_an_index_of_few_rows_is_the_same_every_time(features: Path) -> None:
    """Several threads that add at once make another one each time, and in some of them a row cannot be found."""
    pytest.importorskip("usearch")
    rows, made = np.load(features), []
    for _ in range(3):
        index = searching._open_index(open_features(features), lambda text: None)
        made.append(index.search(rows, 50).keys.tolist())
        features.with_name("r.npy.usearch").unlink()
    assert len(made[0]) == 1000
    assert made[0] == made[1] == made[2]


def test_a_row_that_the_index_lost_is_put_in_again(features: Path) -> None:
    """As threads lose one: no link leads to it. Here its place in the index is another's."""
    index = pytest.importorskip("usearch.index").Index(ndim=16, metric="cos", dtype="f32")
    rows = np.load(features)
    found = lambda: (index.search(rows, 10).keys == np.arange(1000)[:, None]).any(1)
    elsewhere, lost = rows.copy(), [3, 222, 999]
    elsewhere[lost] = -rows[lost]
    index.add(np.arange(1000), elsewhere, threads=1)
    assert not found()[lost].any()
    searching.add_lost(index, open_features(features))
    assert len(index) == 1000
    assert found()[lost].all()
    assert found().sum() >= 999  # a row of zeros has no neighbour
