"""Pictures as arrays: layouts, labels, and files that are none."""

from __future__ import annotations

import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from saved import fails

from ressl.data.arrays import open_array, open_streamed
from ressl.data.sources import ArraySource, open_source, splits
from ressl.errors import ResslError


def _nhwc(n: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 6, 4, 3), dtype=np.uint8)


def test_npy_layouts(tmp_path: Path) -> None:
    array = _nhwc()
    expected = torch.from_numpy(array).permute(0, 3, 1, 2)
    forms = {"nhwc": array, "nchw": array.transpose(0, 3, 1, 2), "float": array.astype(np.float32) / 255}
    for name, form in forms.items():
        np.save(tmp_path / f"{name}.npy", form)
        source = open_source("array", root=tmp_path / f"{name}.npy")
        assert isinstance(source, ArraySource)
        assert torch.equal(source.images, expected), name
        assert np.array_equal(source.read(3), array[3])
        assert source.size == (6, 4)
        assert source.identify(3) == "array[3]"
    np.save(tmp_path / "gray.npy", array[..., 0])
    gray = open_source("array", root=tmp_path / "gray.npy")
    assert np.array_equal(gray.read(1), np.repeat(array[1, :, :, :1], 3, 2))


def test_npz_with_labels_and_test_split(tmp_path: Path) -> None:
    array = _nhwc(6)
    path = tmp_path / "a.npz"
    np.savez(path, x_train=array[:4], y_train=[[7], [3], [7], [-1]], x_test=array[4:], y_test=[7, 3])
    train, test = open_source("array", "train", path), open_source("array", "test", path)
    assert splits("array", path) == {"train", "test"}
    assert train.classes == test.classes == ["3", "7"]
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.tolist() == [1, 0, 1, -1]
    assert test.labels.tolist() == [1, 0]
    assert np.array_equal(test.read(0), array[4])
    np.savez(path, images=array[:2], labels=[7, 3], classes=["cat", "dog"])
    named = open_source("array", "train", path)
    assert [named.classes[label] for label in named.labels] == ["dog", "cat"]
    np.savez(path, images=array[:2], labels=[7, 3], classes=["cat"])
    fails("array", root=path, match="expected 2 names, one for each label")
    np.savez(path, images=array)
    assert open_source("array", root=path).labels is None
    assert splits("array", path) == {"train"}


def test_bad_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for bad in (
        np.zeros((4, 8, 8, 5), np.uint8),
        np.zeros((8, 8, 3), np.uint8),
        np.zeros((0, 8, 8, 3), np.uint8),
        np.zeros((4, 8, 8, 3), np.int32),
        np.full((4, 8, 8, 3), 2.0),
        np.full((4, 8, 8, 3), np.nan, np.float32),
    ):
        np.save(path, bad)
        fails("array", root=path, match="expected uint8")
    np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    fails("array", root=path, match="cannot be read as an array")
    np.save(path, _nhwc())
    path.write_bytes(path.read_bytes()[:200])
    fails("array", root=path, match="cannot be read as an array")
    fails("array", root=tmp_path / "none.npy", match="no file")
    fails("array", "test", path, match="no test split")
    npz = tmp_path / "a.npz"
    npz.write_bytes(b"PK\x03\x04 not a zip")
    fails("array", root=npz, match="cannot be read as an array")
    np.savez(npz, pictures=_nhwc())
    fails("array", root=npz, match="'images' or 'x' or 'x_train'")
    np.savez(npz, x=_nhwc(5), y=[0, 1])
    fails("array", root=npz, match="5 pictures but 2 labels")
    np.savez(npz, x=_nhwc(2), y=[0.5, 1])
    fails("array", root=npz, match="expected N integers")


def test_npz_that_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999, 1000, 1000, 3), }"
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    fails("array", root=path, match="unpacks to")


LAYOUTS = {
    "bytes": _nhwc(),
    "columns first": np.asfortranarray(_nhwc()),
    "channels first": np.ascontiguousarray(_nhwc().transpose(0, 3, 1, 2)),
    "gray": _nhwc()[..., 0],
    "floats": _nhwc().astype(np.float32) / 255,
    "halves": (_nhwc() / 255).astype(np.float16),
    "other end first": (_nhwc() / 255).astype(">f4"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ending", ["npy", "npz", "packed.npz"])
def test_streamed_pictures_are_the_same(tmp_path: Path, layout: str, ending: str) -> None:
    path, array = tmp_path / f"a.{ending}", LAYOUTS[layout]
    save = {"npy": np.save, "npz": np.savez, "packed.npz": np.savez_compressed}[ending]
    save(path, array) if ending == "npy" else save(path, y=[3] * 5, x=array)
    whole, streamed = open_array(path, "train"), open_streamed(path, "a.npy")
    assert (len(streamed), streamed.size, streamed.identify(2)) == (5, (6, 4), "a.npy[2]")
    gray = np.repeat(_nhwc()[..., :1], 3, 3)
    for source in (whole, streamed):
        found = np.stack([source.read(i) for i in range(5)])
        assert np.array_equal(found, gray if layout == "gray" else _nhwc())


@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_streaming_takes_no_memory_for_what_nobody_asks(tmp_path: Path, ending: str, dtype: type) -> None:
    path, array = tmp_path / f"a.{ending}", np.zeros((2000, 32, 32, 3), dtype)
    np.save(path, array) if ending == "npy" else np.savez(path, x=array)
    tracemalloc.start()
    try:
        source = open_streamed(path, "a")
        for index in range(0, len(source), 100):
            source.read(index)
        assert tracemalloc.get_traced_memory()[1] < array.nbytes / 20
    finally:
        tracemalloc.stop()


def test_a_member_that_is_not_what_the_zip_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.save(tmp_path / "x.npy", _nhwc())
    content = (tmp_path / "x.npy").read_bytes()
    for bad in (content[:-1], content + b"0"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", bad)
        fails("array", root=path, match="cannot be read as an array")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", content)
    path.write_bytes(path.read_bytes().replace(content[200:], b""))  # cut in the middle, its table of contents is whole
    fails("array", root=path, match="cannot be read as an array")
    np.savez(path, x=np.array([{"a": 1}], dtype=object))
    fails("array", root=path, match="cannot be read as an array")


def test_floats_outside_are_said_when_they_are_met(tmp_path: Path) -> None:
    array = np.zeros((3, 4, 4, 3), np.float32)
    array[2] = 7
    np.save(tmp_path / "a.npy", array)
    source = open_streamed(tmp_path / "a.npy", "a")
    assert source.read(1).max() == 0
    with pytest.raises(ResslError, match=r"holds floats outside 0\.\.1"):
        source.read(2)
