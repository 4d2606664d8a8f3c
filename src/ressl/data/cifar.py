"""CIFAR-10 and CIFAR-100 from any form in which they are handed around."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ressl.data.archives import Archive
from ressl.data.base import ArraySource
from ressl.data.decode import shown
from ressl.errors import ResslError

_PIXELS = 3 * 32 * 32
_PICKLE_LIMIT = 1 << 30  # bytes; the official files have at most 155 MB
_SITE = "https://www.cs.toronto.edu/~kriz/"


class Layout(NamedTuple):
    """One of the two official forms: pickles, or rows of a few label bytes and the pixels."""

    folder: str
    splits: dict[str, tuple[str, ...]]  # the files of each
    names: str  # the file with the class names
    key: str = ""  # of a pickle: labels are under key + "s", their names under key + "_names"
    label_bytes: int = 0  # of a binary row; the last of them counts


class Cifar(NamedTuple):
    name: str
    python: Layout
    binary: Layout
    archives: tuple[Archive, ...]  # the first is the one to download


def _archive(file: str, holds: str, md5: str) -> Archive:
    return Archive(file, holds, md5, _SITE + file)


_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))

CIFAR10 = Cifar(
    "cifar10",
    Layout("cifar-10-batches-py", {"train": _BATCHES, "test": ("test_batch",)}, "batches.meta", "label"),
    Layout(
        "cifar-10-batches-bin",
        {"train": tuple(f"{name}.bin" for name in _BATCHES), "test": ("test_batch.bin",)},
        "batches.meta.txt",
        label_bytes=1,
    ),
    (
        _archive("cifar-10-python.tar.gz", "cifar-10-batches-py", "c58f30108f718f92721af3b95e74349a"),
        _archive("cifar-10-binary.tar.gz", "cifar-10-batches-bin", "c32a1d4ab5d03f1284b67883e8d87530"),
    ),
)
CIFAR100 = Cifar(
    "cifar100",
    Layout("cifar-100-python", {"train": ("train",), "test": ("test",)}, "meta", "fine_label"),
    Layout(
        "cifar-100-binary",
        {"train": ("train.bin",), "test": ("test.bin",)},
        "fine_label_names.txt",
        label_bytes=2,  # coarse, then fine
    ),
    (
        _archive("cifar-100-python.tar.gz", "cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85"),
        _archive("cifar-100-binary.tar.gz", "cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8"),
    ),
)


def open_official(cifar: Cifar, root: Path, split: str) -> ArraySource | None:
    """The split from the unpacked official folder, in ``root`` or ``root`` itself; None when there is none."""
    for layout in (cifar.python, cifar.binary):
        for folder in (root / layout.folder, root):
            if (folder / layout.splits["train"][0]).is_file():
                return _open(cifar, layout, folder, split)
    return None


def _open(cifar: Cifar, layout: Layout, folder: Path, split: str) -> ArraySource:
    files = [folder / name for name in layout.splits[split]]
    for file in [*files, folder / layout.names]:
        if not file.is_file():
            raise ResslError(f"{shown(file)} is missing; unpack the official archive {cifar.archives[0].file} again.")
    if layout.label_bytes:
        classes = (folder / layout.names).read_text("utf-8", "replace").split()
        rows = [_read_rows(file, layout.label_bytes) for file in files]
        labels = np.concatenate([part[:, layout.label_bytes - 1] for part in rows]).astype(np.int64)
        pixels = np.concatenate([part[:, layout.label_bytes :] for part in rows])
    else:
        classes = _texts(load_pickle(folder / layout.names), layout.key + "_names", folder / layout.names)
        batches = [_read_batch(file, layout.key + "s") for file in files]
        labels = np.concatenate([batch[0] for batch in batches])
        pixels = np.concatenate([batch[1] for batch in batches])
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(classes):
        raise ResslError(f"{shown(folder)} has labels beyond its {len(classes)} classes; unpack the archive again.")
    images = torch.from_numpy(pixels.reshape(-1, 3, 32, 32))
    return ArraySource(cifar.name, images, torch.from_numpy(labels), classes)


def _read_rows(file: Path, label_bytes: int) -> NDArray[np.uint8]:
    data = np.fromfile(file, dtype=np.uint8)
    row = label_bytes + _PIXELS
    if not len(data) or len(data) % row:
        raise ResslError(f"{shown(file)} is cut short or no CIFAR file: {len(data):,} bytes are not rows of {row:,}.")
    return data.reshape(-1, row)


# --- pickles, without trusting them ---


class _Dtype:
    """Stands in for numpy.dtype: remembers its arguments, runs nothing."""

    def __init__(self, *arguments: object) -> None:
        self.code = arguments[0] if arguments else None

    def __setstate__(self, state: object) -> None:
        pass  # byte order and the like: meaningless for single bytes


class _Array:
    """Stands in for numpy.ndarray: the state numpy would restore, kept as it is."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


def _reconstruct(*arguments: object) -> _Array:
    return _Array()


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Python 3 writes bytes in the old protocol as the encoding of a text."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("an encoding other than latin1")
    return text.encode("latin1")


class _Unpickler(pickle._Unpickler):
    """Admits numpy arrays and plain data. Even those names lead to our own stand-ins, so nothing foreign ever runs.

    It is the unpickler written in Python, because the one in C obeys a file that asks for a memo of any size.
    """

    _ADMITTED: dict[tuple[str, str], Any] = {  # noqa: RUF012
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None


def load_pickle(file: Path) -> dict[str, object]:
    """A dictionary with text keys from a pickle of Python 2 or 3."""
    if file.stat().st_size > _PICKLE_LIMIT:
        raise ResslError(f"{shown(file)} is too large for a CIFAR file.")
    try:
        # From memory, where a declared length beyond the end of the file costs nothing.
        found = _Unpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        reason = shown(str(error))[:200] or type(error).__name__
        raise ResslError(f"{shown(file)} is no official CIFAR file and was not opened: {reason}.") from None
    if not isinstance(found, dict):
        raise ResslError(f"{shown(file)} is no official CIFAR file: it holds no dictionary.")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}


def _texts(found: dict[str, object], key: str, file: Path) -> list[str]:
    names = found.get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise ResslError(f"{shown(file)} is no official CIFAR file: it has no list '{key}'.")
    return [name.decode("latin1") if isinstance(name, bytes) else name for name in names]


def _read_batch(file: Path, label_key: str) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    found = load_pickle(file)
    labels, data = found.get(label_key), found.get("data")
    wrong = ResslError(f"{shown(file)} is no official CIFAR file: '{label_key}' and 'data' are not as expected.")
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise wrong
    if not isinstance(data, _Array) or not isinstance(data.state, tuple) or len(data.state) != 5:
        raise wrong
    _, shape, dtype, fortran_order, raw = data.state  # as numpy.ndarray.__reduce__ writes it
    if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", b"u1"):
        raise wrong
    if not isinstance(raw, bytes) or shape != (len(labels), _PIXELS) or len(raw) != len(labels) * _PIXELS:
        raise wrong
    pixels = np.frombuffer(raw, dtype=np.uint8).reshape(shape, order="F" if fortran_order else "C")
    return np.array(labels, dtype=np.int64), pixels
