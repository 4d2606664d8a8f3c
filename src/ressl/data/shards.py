"""Tar files of pictures ("shards") as WebDataset has them: ``key.jpg`` beside ``key.cls``, or class folders.

An index of where each picture's bytes lie gives any picture in one read, so shards are shuffled, shared by processes
and resumed exactly as folders are. (The webdataset library reads shards from front to back through a shuffle buffer:
neither the same order for any number of workers nor a resume in the middle of an epoch can be had from that.)
Nothing is ever unpacked.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ressl.data.base import UNLABELLED, FileSource, Paths
from ressl.data.decode import EXTENSIONS, SIZE_LIMIT, BrokenImage, Picture, shown
from ressl.data.folders import TEST_NAMES
from ressl.data.index import FORMAT, cache_folder
from ressl.errors import ResslError

_HEADER_LIMIT = 1 << 20  # bytes of a long name or of attributes


class ShardSource(FileSource):
    """Pictures inside tar files; their paths are ``shard.tar/name``."""

    def __init__(self, shards: list[str], place: NDArray[np.int64], paths: Paths, labels: Tensor | None,
                 classes: list[str]) -> None:  # fmt: skip
        super().__init__("shards", paths, labels, classes)
        self.shards, self.place = shards, place  # place: N x 3, of shard, offset, size

    def open(self, index: int) -> Picture:
        return Picture(self.paths[index], self.raw(index))

    def raw(self, index: int) -> bytes:
        shard, offset, size = self.place[index].tolist()
        name = self.paths[index]
        try:
            with open(self.shards[shard], "rb") as file:
                file.seek(offset)
                data = file.read(size)
        except OSError as error:
            raise BrokenImage(name, error.strerror or "cannot be read") from None
        if len(data) < size:
            raise BrokenImage(name, "the shard is cut short")
        return data

    def read(self, index: int) -> NDArray[np.uint8]:
        with self.open(index) as picture:
            return np.array(picture.load())

    def take(self, index: Tensor) -> ShardSource:
        labels = None if self.labels is None else self.labels[index]
        paths = Paths(self.paths[i] for i in index.tolist())
        return ShardSource(self.shards, self.place[index.numpy()], paths, labels, self.classes)


def is_shards(path: Path) -> bool:
    return path.suffix == ".tar" if path.is_file() else bool(_tars(path) or _splits(path))


def shard_splits(root: Path) -> set[str]:
    return set(_splits(root)) or {"train"}


def _tars(folder: Path) -> list[str]:
    """Not ImageNet's own archives, which hold tar files in a tar file."""
    found = folder.glob("*.tar") if folder.is_dir() else ()
    return sorted(str(path) for path in found if path.is_file() and not path.name.startswith("ILSVRC2012_"))


def _splits(root: Path) -> dict[str, list[str]]:
    """``train/*.tar`` beside ``val/*.tar``; ``train-00.tar`` beside ``val-00.tar``, or such words within the names."""
    here = _tars(root)
    for find in (
        lambda name: _tars(root / name),
        lambda name: [t for t in here if Path(t).name.startswith(name)],
        lambda name: [t for t in here if name in re.split("[^a-z]+", Path(t).stem.lower())],
    ):
        if train := find("train"):
            test = next((tars for name in TEST_NAMES if (tars := find(name))), [])
            return {"train": train} | ({"test": test} if test else {})
    return {}


def open_shards(root: Path, split: str) -> ShardSource:
    parts = {"train": [str(root)]} if root.is_file() else _splits(root) or {"train": _tars(root)}
    if not parts.get("train"):
        raise ResslError(f"there are no tar files in {shown(root)}; give a folder of *.tar shards, or one of them.")
    if split not in parts:
        raise ResslError(f"{shown(root)} has no {split} split; it would be tar files in 'test' beside 'train'.")
    train = _indexed(parts["train"])
    names: list[str] = sorted({name for name in train[2] if name is not None}, key=_number_first)
    known = {name: place for place, name in enumerate(names)}
    place, paths, labels = train if split == "train" else _indexed(parts[split])
    if not len(paths):
        raise ResslError(f"there are no pictures in the shards of {shown(root)}; expected {', '.join(EXTENSIONS)}.")
    if strange := {name for name in labels if name is not None} - known.keys():
        raise ResslError(f"the {split} shards have the label '{shown(min(strange))}', which those of training do not.")
    if len(names) < 2:
        return ShardSource(parts[split], place, paths, None, [])
    numbers = torch.tensor([UNLABELLED if name is None else known[name] for name in labels], dtype=torch.int64)
    return ShardSource(parts[split], place, paths, numbers, names)


def _number_first(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isascii() and name.isdigit() else (1, 0, name)


def _indexed(shards: list[str]) -> tuple[NDArray[np.int64], Paths, list[str | None]]:
    """Where each picture lies, its name and its label, over all shards in order."""
    places, names, labels = [], list[str](), list[str | None]()
    for number, shard in enumerate(shards):
        found, file = _cached(shard), os.path.basename(shard)
        places += [(number, offset, size) for _, _, offset, size in found]
        names += [f"{file}/{name}" for name, *_ in found]
        labels += [label for _, label, *_ in found]
    return np.array(places, dtype=np.int64).reshape(-1, 3), Paths(names), labels


def _cached(shard: str) -> list[Any]:
    """The index of one shard: [name, label, offset, size] of each picture; kept while size and time of it stay."""
    status = os.stat(shard)
    key = f"{FORMAT} {os.path.abspath(shard)} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    where = cache_folder() / "index" / f"{hashlib.sha256(os.fsencode(key)).hexdigest()[:32]}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        held = json.loads(where.read_bytes())
        if held["key"] == key:
            return list(held["pictures"])
    found = _scan(shard)
    with contextlib.suppress(OSError):
        where.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=where.parent, prefix=".index-")
        with os.fdopen(handle, "w") as file:
            json.dump({"key": key, "pictures": found}, file)
        os.replace(temporary, where)
    return found


class _Sober:
    """A file that tarfile reads: it would take a long name or attributes whole, however long they say they are."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.tell, self.seek = file, file.tell, file.seek

    def read(self, size: int) -> bytes:
        if size > _HEADER_LIMIT:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        return self._file.read(size)


def _scan(shard: str) -> list[list[Any]]:
    pictures, said = list[list[Any]](), dict[str, str]()
    try:
        with open(shard, "rb") as file, tarfile.open(fileobj=_Sober(file), mode="r:") as tar:  # type: ignore[call-overload]
            for member in tar:
                if not member.isreg() or member.size > SIZE_LIMIT:
                    continue  # links, devices and folders hold no pixels
                key, _, ending = member.name.rpartition("/")[2].partition(".")
                if not key:
                    continue  # hidden, as ._000.jpg that a Mac's tar puts beside 000.jpg
                key = f"{member.name.rpartition('/')[0]}/{key}"
                if member.name.lower().endswith(EXTENSIONS):
                    folder = member.name.rpartition("/")[0].rpartition("/")[2]
                    pictures.append([member.name, key, folder if folder not in ("", ".") else None,
                                     member.offset_data, member.size])  # fmt: skip
                elif ending == "cls" and member.size <= 64:
                    content = tar.extractfile(member)
                    assert content is not None
                    said[key] = content.read().decode("utf-8", "replace").strip()
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE).strip(b"\0"):  # tarfile takes a header that it cannot read for the end
                raise tarfile.ReadError(f"the header at byte {tar.offset:,} is damaged or cut short")
    except (tarfile.TarError, OSError, EOFError, ValueError, MemoryError) as error:
        raise ResslError(
            f"the shard {shown(shard)} cannot be read as an uncompressed tar file: {shown(str(error))}."
        ) from None
    # Where labels are said, a folder's name is none, not even for a picture of which nothing is said.
    return [[name, said.get(key) if said else folder, offset, size] for name, key, folder, offset, size in pictures]
