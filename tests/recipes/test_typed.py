"""The one reader of values: what it takes, what it refuses, and how it says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ressl.errors import ResslError
from ressl.recipes.typed import build, convert, plain, wants


@dataclass(frozen=True)
class Inner:
    size: int = 3
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = Inner()
    many: tuple[Inner, ...] = ()
    pair: tuple[int, float] = (1, 2.0)
    maybe: int | None = None
    share: tuple[float, float] | None = None
    on: bool = False
    words: Mapping[str, float] = field(default_factory=dict)


GOOD = [
    (int, "12", 12),
    (int, -3, -3),
    (float, "1e-3", 0.001),
    (float, 2, 2.0),
    (bool, "yes", True),
    (bool, "OFF", False),
    (bool, True, True),
    (str, "text", "text"),
    (int | None, "none", None),
    (int | None, None, None),
    (int | None, "4", 4),
    (tuple[float, float] | None, "None", None),
    (tuple[float, float] | None, "0.1,0.5", (0.1, 0.5)),
    (tuple[float, float], "(0.1, 0.5)", (0.1, 0.5)),
    (tuple[float, float], [1, 2], (1.0, 2.0)),
    (tuple[float, ...], "0.6,0.8,0.9", (0.6, 0.8, 0.9)),
    (tuple[float, ...], "", ()),
    (Literal["step", "cosine"], "step", "step"),
    (Mapping[str, float], {"a": "1"}, {"a": 1.0}),
    (Any, [1], [1]),
]


@pytest.mark.parametrize(("kind", "value", "expected"), GOOD, ids=str)
def test_good_values_are_read(kind: Any, value: Any, expected: Any) -> None:
    got = convert(kind, value, "key")
    assert got == expected
    assert type(got) is type(expected)


BAD = [
    (int, "1.5"), (int, 1.5), (int, True), (int, "x"), (int, None), (int, ""), (int, [1]), (int, "9" * 5000),
    (float, "x"), (float, "nan"), (float, "inf"), (float, True), (float, None), (float, [1]), (float, 10**400),
    (bool, 1), (bool, "maybe"), (bool, None), (str, 3), (str, None),
    (tuple[float, float], "0.1"), (tuple[float, float], "1,2,3"), (tuple[float, float], 5), (tuple[float, ...], "1,x"),
    (Literal["step", "cosine"], "stop"), (Literal["step", "cosine"], ["step"]),
    (int | None, "nothing"), (Inner, 5), (Inner, {"size": "big"}), (Inner, {"sice": 3}), (Mapping[str, float], 5),
    (Mapping[str, float], {"a": "x"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), BAD, ids=lambda v: str(v)[:40])
def test_bad_values_are_refused_in_one_sentence_that_names_the_key(kind: Any, value: Any) -> None:
    with pytest.raises(ResslError) as caught:
        convert(kind, value, "the_key")
    text = str(caught.value)
    assert "\n" not in text
    assert any(name in text for name in ("the_key", "sice", "size"))


def test_nested_dataclasses_are_built_from_json() -> None:
    values = {
        "name": "x",
        "inner": {"size": 4, "kind": "b"},
        "many": [{"size": 1}, {"kind": "b"}],
        "pair": [3, 4],
        "share": [0.1, 0.2],
        "on": True,
        "words": {"w": 1},
    }
    made = build(Outer, values, "the file")
    assert made == Outer("x", Inner(4, "b"), (Inner(1), Inner(3, "b")), (3, 4.0), None, (0.1, 0.2), True, {"w": 1.0})
    assert build(Outer, plain(made), "again") == made


def test_the_nearest_key_is_offered_and_missing_ones_are_named() -> None:
    with pytest.raises(ResslError, match=r"unknown key in the file 'nane'; did you mean 'name'\?"):
        build(Outer, {"nane": "x"}, "the file")
    with pytest.raises(ResslError, match="the file lacks name"):
        build(Outer, {}, "the file")
    with pytest.raises(ResslError, match=r"unknown value for kind 'c'"):
        build(Outer, {"name": "x", "inner": {"kind": "c"}}, "the file")


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KINDS = [int, float, bool, str, int | None, tuple[int, float], tuple[float, ...], Inner, Outer, Literal["a", "b"],
         tuple[Inner, ...], Mapping[str, int], tuple[float, float] | None]  # fmt: skip
kinds = st.sampled_from(KINDS)


@settings(max_examples=300, deadline=None)
@given(kind=kinds, value=json_like)
def test_anything_is_read_or_refused_politely(kind: Any, value: Any) -> None:
    text = ""
    try:
        convert(kind, value, "key")
    except ResslError as error:
        text = str(error)
    assert "\n" not in text


@pytest.mark.parametrize("name", ["\n", "a\r\nb", "\ud800", "\x1b[31m"])
def test_a_wrong_name_cannot_break_the_line(name: str) -> None:
    with pytest.raises(ResslError) as error:
        convert(Inner, {name: 1}, "key")
    assert str(error.value).isprintable()


def test_types_are_told_in_words() -> None:
    assert wants(int) == "whole number"
    assert wants(int | None) == "whole number or none"
    assert wants(tuple[float, float]) == "number,number"
    assert wants(Literal["a", "b"]) == "a | b"
