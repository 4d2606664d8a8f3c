"""The counter-based random numbers against SplitMix64 in Python's own integers, and against what random means."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ressl import rng

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    """The finaliser of SplitMix64, as in the reference C of Vigna (unsigned 64-bit integers)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def reference(seed: int, step: int, row: int, column: int, stream: int) -> int:
    key = mix((seed & MASK) ^ mix((stream + 1) * GOLDEN & MASK))
    key = mix((key + step) & MASK)
    key = mix((key + row) & MASK)
    return mix((key + (column + 1) * GOLDEN) & MASK)


def test_the_reference_mixer_is_the_published_splitmix64() -> None:
    """The first outputs for seed 1234567, which many implementations quote."""
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + GOLDEN) & MASK
        outputs.append(mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


signed = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=80, deadline=None)
@given(seed=signed, step=st.integers(0, 2**62), rows=st.lists(st.integers(0, 2**62), min_size=1, max_size=5),
       columns=st.integers(1, 6), stream=st.integers(0, 60))  # fmt: skip
def test_bits_are_splitmix64_bit_for_bit(seed, step, rows, columns, stream):  # type: ignore[no-untyped-def]
    ours = rng.bits(seed, step, torch.tensor(rows), columns, stream)
    assert ours.shape == (len(rows), columns)
    for (r, row), c in itertools.product(enumerate(rows), range(columns)):
        assert int(ours[r, c]) & MASK == reference(seed, step, row, c, stream)


def test_uniform_is_the_top_24_bits() -> None:
    u = rng.uniform(5, 7, torch.arange(100), 3, rng.VIEWS)
    expected = [[(reference(5, 7, r, c, rng.VIEWS) >> 40) / 2**24 for c in range(3)] for r in range(100)]
    assert u.dtype == torch.float32
    assert u.tolist() == expected


def test_several_streams_at_once_are_each_of_them() -> None:
    rows, step = torch.tensor([0, 5, 2**40]), torch.tensor(7)
    found = rng.uniforms(3, step, rows, 4, first=16, streams=3)
    assert found.shape == (3, 3, 4)
    for stream, one in enumerate(found, 16):
        assert torch.equal(one, rng.uniform(3, step, rows, 4, stream))
    compiled = torch.compile(rng.uniforms, fullgraph=True)
    assert torch.equal(compiled(3, step, rows, 4, 16, 3), found)  # its 64-bit products, too


def test_tensors_and_numbers_give_the_same_draws() -> None:
    rows = torch.arange(10)
    assert torch.equal(rng.bits(3, 4, rows, 2, 1), rng.bits(torch.tensor(3), torch.tensor(4), rows, 2, 1))


@pytest.mark.parametrize(("seed", "step", "stream"), [(0, 0, rng.ORDER), (1, 0, rng.VIEWS), (0, 12345, rng.VIEWS + 1)])
def test_numbers_are_uniform_and_stay_below_one(seed: int, step: int, stream: int) -> None:
    u = rng.uniform(seed, step, torch.arange(4000), 5, stream).numpy().astype(np.float64)
    assert u.min() >= 0.0
    assert u.max() < 1.0
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-4
    for column in u.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4


def test_neighbouring_rows_columns_steps_streams_and_seeds_are_independent() -> None:
    """Correlation of 20,000 pairs has deviation 0.007; five of those would be a dependence."""
    rows, draw = (
        torch.arange(20_000),
        lambda **k: rng.uniform(**({"seed": 1, "step": 1, "columns": 2, "stream": 16} | k)),
    )
    base = draw(rows=rows)
    others = {
        "next row": draw(rows=rows + 1)[:, 0],
        "next column": base[:, 1],
        "next step": draw(rows=rows, step=2)[:, 0],
        "next stream": draw(rows=rows, stream=17)[:, 0],
        "next seed": draw(rows=rows, seed=2)[:, 0],
    }
    first = base[:, 0].numpy()
    for name, other in others.items():
        assert abs(np.corrcoef(first, other.numpy())[0, 1]) < 0.035, name
        table = np.histogram2d(first, other.numpy(), bins=8, range=[[0, 1], [0, 1]])[0]
        assert stats.chisquare(table.ravel()).pvalue > 1e-5, name


def test_nearby_coordinates_share_no_number() -> None:
    """4 seeds x 4 steps x 4 streams x 64 rows x 4 columns, all different: no coordinate is mistaken for another."""
    seen = [
        rng.bits(seed, step, torch.arange(64), 4, stream).flatten()
        for seed in range(4)
        for step in range(4)
        for stream in (0, 1, 16, 17)
    ]
    everything = torch.cat(seen)
    assert len(everything.unique()) == len(everything)


@settings(max_examples=30, deadline=None)
@given(keep=st.lists(st.integers(0, 99), min_size=1, max_size=20))
def test_a_row_draws_the_same_whoever_asks_with_it(keep: list[int]) -> None:
    whole = rng.uniform(9, 3, torch.arange(100), 4, rng.VIEWS)
    assert torch.equal(rng.uniform(9, 3, torch.tensor(keep), 4, rng.VIEWS), whole[keep])


def test_fewer_columns_are_the_first_ones() -> None:
    assert torch.equal(rng.bits(1, 2, torch.arange(9), 2, 0), rng.bits(1, 2, torch.arange(9), 7, 0)[:, :2])


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 300), seed=signed, step=st.integers(0, 10**6))
def test_a_permutation_is_one(n: int, seed: int, step: int) -> None:
    assert sorted(rng.permutation(seed, step, n, rng.ORDER, "cpu").tolist()) == list(range(n))


def test_permutations_are_fair_and_change_with_the_step() -> None:
    orders = torch.stack([rng.permutation(0, step, 8, rng.ORDER, "cpu") for step in range(4000)])
    assert len({tuple(o) for o in orders.tolist()}) > 3500  # of 40,320: the birthday leaves about 3,800
    for place in range(8):  # every number is equally often at every place
        assert stats.chisquare(torch.bincount(orders[:, place], minlength=8).numpy()).pvalue > 1e-5


@pytest.mark.parametrize("n", [1, 2, 7, 256, 1000])
def test_a_small_permutation_is_the_sorted_one_with_its_inverse(n):
    shuffle, inverse = rng.small_permutation(5, 9, n, rng.SHUFFLE, "cpu")
    assert torch.equal(shuffle, rng.permutation(5, 9, n, rng.SHUFFLE, "cpu"))
    assert torch.equal(shuffle[inverse], torch.arange(n))


def test_equal_keys_keep_their_order(monkeypatch):
    monkeypatch.setattr(rng, "bits", lambda *a: torch.tensor([3, 1, 3, 1])[:, None])
    assert rng.small_permutation(0, 0, 4, 0, "cpu")[0].tolist() == [1, 3, 0, 2]
