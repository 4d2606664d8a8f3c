"""The front door to data: a name and a place in, pictures out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ressl.data.arrays import array_splits, open_array
from ressl.data.base import UNLABELLED, ArraySource, FileSource, Source
from ressl.data.decode import BrokenImage, shown
from ressl.data.folders import open_folder, pictures, require_folder, split_folders
from ressl.data.lists import list_at, list_splits, open_list
from ressl.data.named import (
    Opener,
    file_splits,
    imagenet_splits,
    open_cifar10,
    open_cifar100,
    open_imagenet,
    open_stl10,
    open_tiny,
    stl10_splits,
    tiny_splits,
)
from ressl.data.recognising import holds
from ressl.data.shapes import open_shapes
from ressl.data.shards import is_shards, open_shards, shard_splits
from ressl.data.voc import open_voc, voc_splits
from ressl.errors import ResslError, unknown

__all__ = [
    "DATA_SETS",
    "UNLABELLED",
    "ArraySource",
    "BrokenImage",
    "DataSet",
    "FileSource",
    "Source",
    "default_root",
    "guess_data",
    "label_of",
    "open_source",
    "parse_data",
    "pretrain_split",
    "splits",
]

_BOTH = frozenset({"train", "test"})


class DataSet(NamedTuple):
    open: Opener
    splits: Callable[[Path], set[str]]
    pretrain: str = "train"  # the split to pre-train on
    needs_root: bool = False  # the user must say where it is


DATA_SETS: dict[str, DataSet] = {
    "array": DataSet(lambda root, split, download: open_array(root, split), array_splits, needs_root=True),
    "cifar10": DataSet(open_cifar10, file_splits),
    "cifar100": DataSet(open_cifar100, file_splits),
    "folder": DataSet(
        lambda root, split, download: open_folder(root, split), lambda root: set(split_folders(root)), needs_root=True
    ),
    "imagenet": DataSet(open_imagenet, imagenet_splits),
    "list": DataSet(lambda root, split, download: open_list(root, split), list_splits, needs_root=True),
    "shapes": DataSet(lambda root, split, download: open_shapes(split), lambda root: set(_BOTH)),
    "shards": DataSet(lambda root, split, download: open_shards(root, split), shard_splits, needs_root=True),
    "stl10": DataSet(open_stl10, stl10_splits, pretrain="train+unlabelled"),
    "tiny-imagenet": DataSet(open_tiny, tiny_splits),
    "voc07": DataSet(open_voc, voc_splits),
}


def _data_set(data: str) -> DataSet:
    if data not in DATA_SETS:
        raise unknown("data set", data, DATA_SETS)
    return DATA_SETS[data]


def default_root(data: str) -> Path:
    """Where a named set is looked for unless told: $RESSL_DATA/<name>, or data/<name> below the current folder."""
    return Path(os.environ.get("RESSL_DATA") or "data") / data


def _root(data: str, root: str | Path | None) -> Path:
    if root is not None and data == "shapes":
        raise ResslError(f"shapes are generated and lie in no folder: leave {shown(root)} away, or give it alone.")
    if root is not None:
        return Path(root)
    if _data_set(data).needs_root:
        what = "file" if data in ("array", "list") else "folder"
        raise ResslError(f"data '{data}' needs a place: say which {what} to read, by --data {what.upper()}.")
    return default_root(data)


def guess_data(path: str | Path) -> str:
    """'folder', 'shards', 'list' or 'array', from what is there."""
    path = Path(_named(path))
    try:
        return _kind_at(path)
    except PermissionError as error:  # met at a file that was looked for in it
        raise ResslError(f"{shown(path)} cannot be read: {error.strerror}; have its permissions changed.") from None


def _kind_at(path: Path) -> str:
    if _is_list(path):
        return "list"
    if is_shards(path) and not _pictures_in(path):
        return "shards"
    if path.suffix.lower() in (".npy", ".npz") and not path.is_dir():
        if not path.is_file():
            raise ResslError(f"there is no file {shown(path)}; give an array as .npy or .npz, or a folder of pictures.")
        return "array"
    require_folder(path)
    return "folder"


def _named(path: str | Path) -> str:
    if path == "":  # for Path it is the current folder, which nobody meant
        raise ResslError("the place of the data is empty; name a folder or a file ('.' is the current folder).")
    return str(path)


def parse_data(text: str, kind: str | None = None, place: str | None = None) -> tuple[str, str | None]:
    """(data set, where it lies) of ``NAME``, ``NAME=PATH`` or ``PATH``.

    A bare path is what is there: a folder, an array, a list or shards. It is of ``kind``, somebody's own data, if it is
    the ``place`` where that lies, or if that named set is there. A name comes first: write ./cifar10 for a folder that
    is called so.

    >>> parse_data("cifar100"), parse_data("cifar100=/data/c"), parse_data("/data/c", "cifar10", "/data/c")
    (('cifar100', None), ('cifar100', '/data/c'), ('cifar10', '/data/c'))
    """
    if text in DATA_SETS and not DATA_SETS[text].needs_root:
        return text, None
    name, equals, path = text.partition("=")
    if equals and name in DATA_SETS:
        return name, _named(path)
    if equals and os.sep not in name and not os.path.exists(text):
        raise unknown("data set", name, DATA_SETS)
    if "\0" in text:
        raise ResslError(f"{text!r} cannot be a path")
    own = place is not None and os.path.realpath(text) == os.path.realpath(place)
    if kind is not None and (own or holds(Path(text), kind)):
        return kind, text
    return guess_data(text), text


def is_named(kind: str) -> bool:
    """Whether it is a data set that has a name of its own, wherever it lies."""
    return not _data_set(kind).needs_root


def label_of(kind: str, place: str | None) -> str:
    """A short name for data that tells no path of this machine: a set's own, or that of its folder or file."""
    if place is None or is_named(kind):
        return kind
    path = Path(os.path.abspath(place))  # a dot has a name, too
    return shown(path.name if path.is_dir() else path.stem) or kind


def _held_as(data: str, where: Path) -> DataSet:
    """The set's own reader; or another's, where it lies as a list of files or as tar shards."""
    if data in ("imagenet", "tiny-imagenet") and (where.is_file() or where.is_dir()):
        if _is_list(where):
            return DATA_SETS["list"]
        if is_shards(where) and not _pictures_in(where):
            return DATA_SETS["shards"]
    return _data_set(data)


def _is_list(path: Path) -> bool:
    """A list, or a folder of lists: one that has pictures, too, is theirs."""
    return list_at(path) is not None and not _pictures_in(path)


def _pictures_in(path: Path) -> bool:
    return path.is_dir() and next(pictures(str(path)), None) is not None


def splits(data: str, root: str | Path | None = None) -> set[str]:
    """Which splits ``open_source`` would give. For a set that is not there yet: those it has officially."""
    where = _root(data, root)
    return _held_as(data, where).splits(where)


def pretrain_split(data: str) -> str:
    return _data_set(data).pretrain


def open_source(data: str, split: str = "train", root: str | Path | None = None, download: bool = True) -> Source:
    """A data set by name ('cifar10', ...) with its files in ``root``, or 'folder' or 'array' with ``root`` the path."""
    where = _root(data, root)
    data_set = _held_as(data, where)
    known = _BOTH | {data_set.pretrain} | ({"unlabelled"} if data == "stl10" else set())
    if split not in known:
        raise unknown(f"split of {data}", split, known)
    return data_set.open(where, split, download)
