"""Lists of picture files: a text file with a path and, if known, a label on each line.

    photos/a.jpg
    photos/b.jpg    cat
    /elsewhere/c d.png    3

Paths are relative to the list's own folder. The label is what follows a tab, or the last word where the line does not
end like a picture's name. Empty lines and lines that begin with # do not count. ``train.txt`` beside ``test.txt`` or
``val.txt`` are two splits; the folder that holds them may be given instead.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from ressl.data.base import UNLABELLED, FileSource
from ressl.data.decode import EXTENSIONS, shown
from ressl.data.folders import TEST_NAMES
from ressl.errors import ResslError
from ressl.files import read_bytes

SUFFIXES = (".txt", ".tsv", ".lst", ".list")
BOM = b"\xef\xbb\xbf"  # what editors on Windows put before the first line
LIMIT = 1 << 30  # bytes; ten million pictures take about as many


def list_at(path: Path) -> Path | None:
    """The list that ``path`` is, or ``train.txt`` in it."""
    if path.suffix.lower() in SUFFIXES and path.is_file():
        return path
    return next((file for suffix in SUFFIXES if (file := path / f"train{suffix}").is_file()), None)


def list_splits(path: Path) -> set[str]:
    path = list_at(path) or path
    return {"train"} | ({"test"} if _test_list(path) is not None else set())


def _test_list(path: Path) -> Path | None:
    for name in TEST_NAMES if path.stem == "train" else ():
        if (other := path.with_name(f"{name}{path.suffix}")).is_file():
            return other
    return None


def open_list(path: Path, split: str) -> FileSource:
    path = list_at(path) or path
    paths, names = _read(path)
    # Labels mean the same in both splits: those of the training pictures.
    classes = sorted({name for name in names if name is not None}, key=_number_first)
    if split == "test":
        other = _test_list(path)
        if other is None:
            raise ResslError(
                f"{shown(path)} has no test split; it would be test{path.suffix} beside train{path.suffix}."
            )
        paths, names = _read(other)
        if strange := {name for name in names if name is not None} - set(classes):
            raise ResslError(
                f"{shown(other)} has the label '{shown(min(strange))}', which {shown(path)} does not have."
            )
    if not paths:
        raise ResslError(f"{shown(path)} lists no pictures; write one path on each line.")
    if not classes:
        return FileSource("list", paths)
    known = {name: place for place, name in enumerate(classes)}
    labels = [UNLABELLED if name is None else known[name] for name in names]
    return FileSource("list", paths, torch.tensor(labels, dtype=torch.int64), classes)


def listed(path: Path) -> list[str]:
    """The lists of both splits and every file that they name."""
    path = list_at(path) or path
    lists = [path, *filter(None, (_test_list(path),))]
    return [file for one in lists for file in (str(one), *_read(one)[0])]


def _number_first(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isascii() and name.isdigit() else (1, 0, name)


def _read(path: Path) -> tuple[list[str], list[str | None]]:
    try:
        text = read_bytes(path, LIMIT)
    except FileNotFoundError:
        raise ResslError(f"there is no file {shown(path)}; give a list of pictures, one path on each line.") from None
    except OSError as error:
        raise ResslError(f"the list {shown(path)} cannot be read: {error.strerror}.") from None
    if b"\0" in text[:65536]:
        raise ResslError(f"{shown(path)} is no list of pictures; write one path on each line.")
    paths, labels = list[str](), list[str | None]()
    folder = "" if path.parent == Path() else str(path.parent)  # a list here names pictures as it does, without ./
    for number, line in enumerate(os.fsdecode(text.removeprefix(BOM)).splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, label = _parts(line)
        if not name.lower().endswith(EXTENSIONS):
            raise ResslError(
                f"line {number} of {shown(path)} names no picture: '{shown(line)[:80]}'; write a path and, after it, "
                "perhaps a label."
            )
        paths.append(os.path.join(folder, name))
        labels.append(label)
    return paths, labels


def _parts(line: str) -> tuple[str, str | None]:
    name, tab, label = line.partition("\t")
    if tab:
        return name.strip(), label.strip() or None
    if line.lower().endswith(EXTENSIONS):
        return line, None
    words = line.rsplit(maxsplit=1)
    return (words[0], words[1]) if len(words) == 2 else (line, None)
