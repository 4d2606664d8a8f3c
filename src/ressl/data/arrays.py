"""Arrays of pictures: mapped from an .npy, and from an .npz that is not packed.

A packed .npz is read whole, after a look at how much it would unpack to.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl.data.base import UNLABELLED, ArraySource, Source
from ressl.data.decode import shown
from ressl.errors import ResslError
from ressl.files import open_regular
from ressl.memory import ram

_HEADER_LIMIT = 1 << 16  # bytes; numpy takes 10,000
_IMAGES = {"train": ("images", "x", "x_train"), "test": ("x_test", "images_test")}
_LABELS = {"train": ("labels", "y", "y_train"), "test": ("y_test", "labels_test")}
_CLASSES = "classes"
_SHAPES = "expected uint8 (or float in 0..1) of shape N x H x W x 3, N x 3 x H x W or N x H x W"


def array_splits(path: Path) -> set[str]:
    if path.suffix.lower() != ".npz":
        return {"train"}
    keys = set(_sizes(path))
    return {split for split, names in _IMAGES.items() if keys & set(names)}


def array_classes(path: Path) -> list[str]:
    """The names of the classes, [] without labels; no picture is read."""
    return _labels(path, "train", _sizes(path))[1] if path.suffix.lower() == ".npz" else []


def open_array(path: Path, split: str, name: str = "array") -> ArraySource:
    """The pictures as bytes; floats are converted, all of them."""
    images = _pictures(_pixels(path, split), path)
    if path.suffix.lower() != ".npz":
        return ArraySource(name, images)
    labels, classes = _labels(path, split, _sizes(path))
    if labels is not None and len(labels) != len(images):
        raise ResslError(f"{shown(path)} has {len(images)} pictures but {len(labels)} labels ({split}).")
    return ArraySource(name, images, labels, classes)


class FloatSource(Source):
    """Pictures of floats in 0..1, turned into bytes as they are asked for."""

    def __init__(self, name: str, array: NDArray[np.generic], path: Path) -> None:
        self.name, self.labels, self.classes = name, None, []
        self._images, self._path = _arranged(array, path), path

    def __len__(self) -> int:
        return len(self._images)

    def block(self, first: int, last: int) -> Tensor:
        """n x 3 x H x W uint8."""
        return torch.from_numpy(_to_bytes(self._images[first:last], self._path)).expand(-1, 3, -1, -1)

    def read(self, index: int) -> NDArray[np.uint8]:
        picture: NDArray[np.uint8] = self.block(index, index + 1)[0].permute(1, 2, 0).contiguous().numpy()
        return picture

    @property
    def size(self) -> tuple[int, int]:
        return self._images.shape[2], self._images.shape[3]


def open_streamed(path: Path, name: str) -> ArraySource | FloatSource:
    """The pictures without their labels, for who looks at each once: floats are converted one by one."""
    array = _pixels(path, "train")
    if array.dtype.kind == "f":
        return FloatSource(name, array, path)
    return ArraySource(name, _pictures(array, path))


def _pixels(path: Path, split: str) -> NDArray[np.generic]:
    """The array of a split as it lies in the file."""
    if not path.is_file():
        raise ResslError(f"there is no file {shown(path)}; give an array as .npy or .npz.")
    if path.suffix.lower() == ".npz":
        sizes = _sizes(path)
        key = _first(_IMAGES[split], sizes)
        if key is None:
            wanted = "' or '".join(_IMAGES[split])
            raise ResslError(f"{shown(path)} has no {split} split; expected an array called '{wanted}' in it.")
        mapped = _mapped(path, key)
        return _member(path, key, sizes[key]) if mapped is None else mapped
    if split != "train":
        raise ResslError(f"{shown(path)} has no {split} split; an .npz with x_test (and y_test) has one.")
    try:
        check_header(path)
        # Copy on write: the file stays untouched, and torch does not complain about memory it may not write.
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, MemoryError, OverflowError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(array, np.ndarray):  # a zip by another name
        raise ResslError(f"{shown(path)} is no .npy file; call it .npz if it is one.")
    return array


def _labels(path: Path, split: str, sizes: dict[str, int]) -> tuple[Tensor | None, list[str]]:
    """Labels may be any integers: their sorted values in the training part are the classes, in both splits.

    ``classes`` in the file names them, in that order.
    """
    train_key, key = _first(_LABELS["train"], sizes), _first(_LABELS[split], sizes)
    if train_key is None or key is None:
        return None, []
    train = _integers(_member(path, train_key, sizes[train_key]), path)
    known = np.unique(train[train != UNLABELLED])
    values = train if key == train_key else _integers(_member(path, key, sizes[key]), path)
    names = [str(value) for value in known]
    if _CLASSES in sizes:
        given = _member(path, _CLASSES, sizes[_CLASSES])
        if given.dtype.kind != "U" or given.shape != (len(known),):
            raise ResslError(
                f"'{_CLASSES}' in {shown(path)} is {given.dtype} of shape {given.shape}; "
                f"expected {len(known)} names, one for each label."
            )
        names = [str(name) for name in given]
    return _numbered(values, known, path), names


def _unreadable(path: Path, error: Exception) -> ResslError:
    return ResslError(f"{shown(path)} cannot be read as an array: {shown(str(error))[:200]}.")


def _first(names: Sequence[str], present: dict[str, int]) -> str | None:
    return next((name for name in names if name in present), None)


def _sizes(path: Path) -> dict[str, int]:
    """The arrays in an .npz and the bytes each would take, read from their headers alone."""
    try:
        sizes = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.namelist():
                if member.endswith(".npy"):
                    with archive.open(member) as file:
                        sizes[member.removesuffix(".npy")] = _declared(file).bytes
        return sizes
    # zipfile raises RuntimeError for an encrypted member and NotImplementedError for an odd compression.
    except Exception as error:
        raise _unreadable(path, error) from None


def check_header(path: Path) -> None:
    """Raise ValueError where an .npy's header is too long or lies; numpy would take all of it into memory to find the
    one out, and ends in as many ways as there are lies on the other."""
    with open_regular(path) as file:
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            file.seek(0)
            found, size = _declared(file), os.fstat(file.fileno()).st_size
            if not found.dtype.hasobject and found.end + found.bytes > size:
                raise ValueError(f"it claims {found.end + found.bytes:,} bytes and has {size:,}")


def _header(file: IO[bytes]) -> IO[bytes]:
    """The header alone, at most so long; what is no header is found out by numpy."""
    start = file.read(12)
    length = int.from_bytes(start[8:10] if start[6:7] == b"\x01" else start[8:12], "little")
    if length > _HEADER_LIMIT:
        raise ValueError(f"its header claims {length:,} bytes")
    return io.BytesIO(start + file.read(length))


class _Declared(NamedTuple):
    """What an .npy's header says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    end: int  # of the header

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize  # Python integers: a hostile shape must not overflow


def _declared(file: IO[bytes]) -> _Declared:
    header = _header(file)
    version = np.lib.format.read_magic(header)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        found = _Declared(*read(header), header.tell())
    except Exception as error:  # it is parsed as Python, which a hostile one can drive to any end
        raise ValueError(str(error)) from None
    if any(type(n) is not int or n < 0 for n in found.shape):  # numpy lets True pass, and -1
        raise ValueError(f"its shape {found.shape} is none")
    return found


def _mapped(path: Path, key: str) -> NDArray[np.generic] | None:
    """An array of an .npz where it lies in the file; None where it is packed there."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(f"{key}.npy")
        with open_regular(path) as file:
            file.seek(info.header_offset)
            local = file.read(30)  # of a zip's member; its name and more follow, of lengths that stand at its end
            begin = info.header_offset + 30 + sum(struct.unpack("<HH", local[26:]))
            file.seek(begin)
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:  # packed, or encrypted
                return None
            found = _declared(file)
        if found.dtype.hasobject or found.bytes == 0:
            return None  # refused, or said, by those who read it
        if found.end + found.bytes != info.file_size:
            raise ValueError(f"'{key}' has {info.file_size:,} bytes, not {found.end + found.bytes:,}")
        order: Literal["F", "C"] = "F" if found.fortran else "C"
        return np.memmap(path, found.dtype, "c", begin + found.end, found.shape, order)
    except Exception as error:
        raise _unreadable(path, error) from None


def _member(path: Path, key: str, size: int) -> NDArray[np.generic]:
    if size > ram() // 2:
        raise ResslError(
            f"'{key}' in {shown(path)} unpacks to {size / 1e9:,.1f} GB, more than half of the memory here."
        )
    try:
        with np.load(path, allow_pickle=False) as arrays:
            array: NDArray[np.generic] = arrays[key]
        return array
    except Exception as error:
        raise _unreadable(path, error) from None


def _pictures(array: NDArray[np.generic], path: Path) -> Tensor:
    """N x 3 x H x W uint8, without a copy where the file already holds bytes."""
    found = _arranged(array, path)
    if found.dtype.kind == "f" and found.size > ram() // 2:  # bytes stay in the file, but floats are converted
        size = f"{found.size / 1e9:,.1f} GB, more than half of the memory here"
        raise ResslError(
            f"the floats in {shown(path)} take {size}, as bytes; save them as uint8, which stay in the file."
        )
    return torch.from_numpy(_to_bytes(found, path) if found.dtype.kind == "f" else found).expand(-1, 3, -1, -1)


def _arranged(array: NDArray[np.generic], path: Path) -> NDArray[np.generic]:
    """The array seen as N x 3 x H x W or N x 1 x H x W."""
    shape = array.shape
    if (array.dtype == np.uint8 or array.dtype.kind == "f") and 0 not in shape:
        if len(shape) == 4 and shape[3] in (1, 3):
            return array.transpose(0, 3, 1, 2)
        if len(shape) == 4 and shape[1] in (1, 3):
            return array
        if len(shape) == 3 and shape[2] != 3:  # N x H x 3 is far more likely one picture, H x W x 3
            return array[:, None]
    raise ResslError(f"{shown(path)} holds {array.dtype} of shape {shape}; {_SHAPES}.")


def _to_bytes(array: NDArray[np.generic], path: Path, chunk: int = 1024) -> NDArray[np.uint8]:
    out = np.empty(array.shape, dtype=np.uint8)
    for start in range(0, len(array), chunk):
        part = np.asarray(array[start : start + chunk], dtype=np.float32)
        if not (part.min(initial=0) >= 0 and part.max(initial=0) <= 1):  # also false for not-a-number
            raise ResslError(f"{shown(path)} holds floats outside 0..1; {_SHAPES}.")
        out[start : start + chunk] = (part * 255 + np.float32(0.5)).astype(np.uint8)
    return out


def _integers(array: NDArray[np.generic], path: Path) -> NDArray[np.int64]:
    if array.ndim == 2 and array.shape[1] == 1:  # as Keras stores them
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iub":
        raise ResslError(f"labels in {shown(path)} are {array.dtype} of shape {array.shape}; expected N integers.")
    return array.astype(np.int64)


def _numbered(values: NDArray[np.int64], known: NDArray[np.int64], path: Path) -> Tensor:
    places = np.searchsorted(known, values)
    places[values == UNLABELLED] = UNLABELLED
    labelled = values != UNLABELLED
    if not np.isin(values[labelled], known).all():
        raise ResslError(f"{shown(path)} has test labels that do not occur among its training labels.")
    return torch.from_numpy(places.astype(np.int64))
