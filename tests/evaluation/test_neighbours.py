"""Nearest neighbours against a search by hand."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ressl.evaluation.neighbours import nearest


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 30), d=st.integers(1, 6), count=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_nearest_is_what_a_sort_of_all_cosines_gives(n: int, d: int, count: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    bank, queries = torch.randn(n, d, generator=draw), 5 * torch.randn(4, d, generator=draw)
    index, cosine = nearest(bank, queries, count)
    assert index.shape == cosine.shape == (4, min(count, n))
    for q in range(4):
        a = queries[q].tolist()
        cosines = []
        for row in bank.tolist():
            dot = sum(x * y for x, y in zip(a, row, strict=True))
            cosines.append(dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in row)))
        best = sorted(cosines, reverse=True)[:count]
        torch.testing.assert_close(cosine[q], torch.tensor(best), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(
            torch.tensor([cosines[i] for i in index[q]]), torch.tensor(best), rtol=1e-4, atol=1e-4
        )
        assert len(set(index[q].tolist())) == len(index[q])
