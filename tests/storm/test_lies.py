"""Arrays and tables that lie about themselves: one sentence at every door, and no memory for what is not there."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest
from scale import draw, times

from ressl.data import arrays
from ressl.errors import ResslError
from ressl.featurefiles import Part, open_features, write_features

DOORS: dict[str, Any] = {
    "pictures": lambda path: arrays.open_array(path, "train"),
    "streamed": lambda path: arrays.open_streamed(path, "a"),
    "features": open_features,
}
BODY = bytes(40 * 16 * 16 * 3)


def write(path: Path, header: bytes, version: int = 1) -> Path:
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + header + BODY)
    return path


def header(shape: str, kind: str = "'|u1'", order: str = "False") -> bytes:
    return f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()


LIES = {
    "negative": header("(-1, 16, 16, 3)"),
    "twice negative": header("(-2, -16, 16, 3)"),
    "truth": header("(True, 16, 16, 3)"),
    "beyond a word": header("(99999999999999999999, 16, 16, 3)"),
    "more than there is": header("(4000, 16, 16, 3)"),
    "more in each": header("(4, 16, 16, 3)", "('u1', (1000000000,))"),
    "objects": header("(4,)", "'|O'"),
    "objects within": header("(4, 16, 16, 3)", "[('a', 'u1'), ('b', 'O')]"),
    "fractions": header("(1.5, 16, 16, 3)"),
    "no order": header("(4, 16, 16, 3)", order="'x'"),
    "deep": header("(" + "-" * 9000 + "1,)"),
    "deeper": header("(" * 4000 + ")" * 4000),
    "no tuple": header("5"),
    "text": b"\xff" * 100,
    "nothing": b"",
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_costs_a_sentence(lie: str, door: str, tmp_path: Path) -> None:
    for version in (1, 2):
        with pytest.raises(ResslError) as caught:
            DOORS[door](write(tmp_path / "a.npy", LIES[lie], version))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


def test_mutated_headers_are_read_or_refused(tmp_path: Path) -> None:
    moments = draw("headers")
    good = [header("(40, 16, 16, 3)"), header("(40, 48)", "'<f4'"), header("(3, 16, 16)", "'>f8'", "True")]
    read, said = 0, list[str]()
    for _ in range(times(5000, 500)):
        path = write(tmp_path / "a.npy", mutated(moments.choice(good), moments), moments.choice([1, 1, 2, 3]))
        for door in DOORS.values():
            try:
                read += len(door(path)) > 0
            except ResslError as error:
                said.append(str(error))
    assert read
    assert not [text for text in said if "\n" in text]


def mutated(text: bytes, moments: random.Random) -> bytes:
    for _ in range(moments.randrange(1, 4)):
        at = moments.randrange(len(text))
        more = moments.choice([b"", b"9", b"-", b"(", b")", b",", b"'", b"True", b"1e9", b"\0", b"\xff", b"None", b"O"])
        text = text[:at] + more + text[at + moments.randrange(3) :]
    return text


def test_floats_that_fill_the_memory_as_bytes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hole costs nothing on the disk; converted it would be there."""
    path = write(tmp_path / "a.npy", header("(40, 16, 16, 3)", "'<f2'"))
    monkeypatch.setattr(arrays, "ram", lambda: len(BODY))
    with open(path, "ab") as file:
        file.truncate(path.stat().st_size + len(BODY))
    with pytest.raises(ResslError, match=r"the floats in .*a\.npy take 0\.0 GB, more than half of the memory here"):
        arrays.open_array(path, "train")
    assert len(arrays.open_streamed(path, "a")) == 40  # by pieces
    monkeypatch.setattr(arrays, "ram", lambda: 2 * len(BODY))
    assert len(arrays.open_array(path, "train")) == 40


def test_mutated_tables_are_read_or_refused(tmp_path: Path) -> None:
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("pyarrow")
    path, moments = tmp_path / "f.parquet", draw("tables")
    part = Part(torch.arange(50), torch.rand(50, 4), {})
    write_features(path, lambda: iter([part]), lambda i: f"{i}.png", {})
    whole, read, said = path.read_bytes(), 0, list[str]()
    path.write_bytes(whole.replace(b"path", b"hath"))  # no such column
    with pytest.raises(ResslError, match="cannot be read as features"):
        open_features(path)
    for _ in range(times(3000, 300)):
        data = bytearray(whole[: moments.randrange(len(whole))] if moments.random() < 0.2 else whole)
        for _ in range(moments.randrange(1, 6)):
            data[moments.randrange(len(data))] ^= 1 << moments.randrange(8)
        path.write_bytes(data)
        try:
            for start, block in open_features(path).blocks():
                assert (start, block.shape[1]) == (0, 4)
            read += 1
        except ResslError as error:
            said.append(str(error))
    assert read
    assert said
    assert not [text for text in said if "\n" in text]
