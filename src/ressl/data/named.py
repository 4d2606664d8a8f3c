"""The data sets of the paper, each from whatever form of it lies in its folder.

Looked for in this order: the unpacked official files, class folders of picture files, an .npz, the official archive
(checked and unpacked), and last the network.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ressl.data import cifar
from ressl.data.archives import Archive, alone, fetch, move_in, temporary, unpack
from ressl.data.arrays import array_splits, open_array
from ressl.data.base import UNLABELLED, ArraySource, FileSource, Source
from ressl.data.cifar import CIFAR10, CIFAR100, Cifar
from ressl.data.decode import shown
from ressl.data.folders import (
    TEST_NAMES,
    UNLABELLED_NAMES,
    class_names,
    open_folder,
    open_split,
    pictures,
    split_folders,
)
from ressl.errors import ResslError

Opener = Callable[[Path, str, bool], Source]  # where, which split, whether it may download

_FIND = "was not found in"
_STL10 = Archive(
    "stl10_binary.tar.gz",
    "stl10_binary",
    "91f7769df0f17e558f3565bffb0c7dfb",
    "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
)
_TINY = Archive("tiny-imagenet-200.zip", "tiny-imagenet-200")
_TAR = {"train": "ILSVRC2012_img_train.tar", "val": "ILSVRC2012_img_val.tar"}  # the official ones of ImageNet
_VAL_FIRST = ("val", "validation", "valid", "test")  # sets whose folder called test has no labels


def _as_files(name: str, root: Path, split: str, test_names: Sequence[str] = TEST_NAMES) -> Source | None:
    """The split from class folders or an .npz, if ``root`` is or holds such a thing."""
    if (npz := npz_of(root)) is not None:
        return open_array(npz, split, name)
    if has_pictures(root):
        return open_folder(root, split, name, test_names)
    return None


def npz_of(root: Path) -> Path | None:
    if root.is_file():
        return root if root.suffix == ".npz" else None
    found = sorted(root.glob("*.npz"))
    return found[0] if len(found) == 1 and not has_pictures(root) else None


def has_pictures(root: Path) -> bool:
    return root.is_dir() and next(pictures(str(root)), None) is not None


def _from_archive(root: Path, archives: Sequence[Archive], download: bool, advice: str) -> None:
    """Unpack the first archive that is there, else the first that can be had; else say what to do."""
    for archive in archives:
        if (root / archive.file).is_file():
            unpack(root, archive)
            return
    if not download:
        raise ResslError(advice)
    fetch(root, archives[0], advice)
    unpack(root, archives[0])


def _folder_of(root: Path, archives: Sequence[Archive]) -> Path:
    """``root``, or where it is one of the archives itself, its folder."""
    return root.parent if root.is_file() and root.name in {archive.file for archive in archives} else root


def file_splits(root: Path, test_names: Sequence[str] = TEST_NAMES) -> set[str]:
    """The splits of class folders or an .npz; when it is neither, those of the official files."""
    if (npz := npz_of(root)) is not None:
        return array_splits(npz)
    return set(split_folders(root, test_names)) if has_pictures(root) else {"train", "test"}


def stl10_splits(root: Path) -> set[str]:
    labelled = file_splits(root)
    more = _unlabelled_folder(root) is not None or not has_pictures(root)
    return labelled | {"train+unlabelled"} | ({"unlabelled"} if more else set())


def tiny_splits(root: Path) -> set[str]:
    return file_splits(_tiny_folder(root), _VAL_FIRST)


def imagenet_splits(root: Path) -> set[str]:
    tars = {part for part, file in (("train", "train"), ("test", "val")) if (root / _TAR[file]).is_file()}
    return file_splits(root, _VAL_FIRST) | tars


# --- CIFAR ---


def _open_cifar(which: Cifar, root: Path, split: str, download: bool) -> Source:
    root = _folder_of(root, which.archives)
    found = cifar.open_official(which, root, split) or _as_files(which.name, root, split)
    if found is None:
        file = which.archives[0].file
        advice = (
            f"{which.name} {_FIND} {shown(root)}: get {file} from https://www.cs.toronto.edu/~kriz/cifar.html and put "
            f"it there, or class folders as train/<class>/*.png and test/<class>/*.png."
        )
        _from_archive(root, which.archives, download, advice)
        found = cifar.open_official(which, root, split)
        if found is None:
            raise ResslError(f"{shown(root)} lacks files of {which.name} after unpacking; fetch {file} again.")
    return found


open_cifar10: Opener = partial(_open_cifar, CIFAR10)
open_cifar100: Opener = partial(_open_cifar, CIFAR100)


# --- STL-10 ---


def open_stl10(root: Path, split: str, download: bool) -> Source:
    root = _folder_of(root, [_STL10])
    if _stl10_folder(root) is None:
        if has_pictures(root) or npz_of(root) is not None:
            return _stl10_files(root, split)
        advice = (
            f"stl10 {_FIND} {shown(root)}: get {_STL10.file} from https://cs.stanford.edu/~acoates/stl10 and put it "
            f"there, or class folders as train/<class>/*.png, test/<class>/*.png and unlabelled/*.png."
        )
        _from_archive(root, [_STL10], download, advice)
    folder = _stl10_folder(root)
    if folder is None:
        raise ResslError(f"{shown(root)} lacks files of stl10 after unpacking; fetch {_STL10.file} again.")
    parts = [_stl10_part(folder, part) for part in split.split("+")]
    classes = _lines(folder / "class_names.txt")
    images = parts[0][0] if len(parts) == 1 else torch.cat([images for images, _ in parts])
    labels = torch.cat([labels for _, labels in parts])
    if len(classes) <= int(labels.max()):
        raise ResslError(f"{shown(folder)} has labels beyond its {len(classes)} classes; unpack {_STL10.file} again.")
    if split == "unlabelled":
        return ArraySource("stl10", images)
    return ArraySource("stl10", images, labels, classes)


def _stl10_folder(root: Path) -> Path | None:
    return next((f for f in (root / _STL10.holds, root) if (f / "train_X.bin").is_file()), None)


def _stl10_part(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """N x 3 x 96 x 96, a view of the mapped file, and N labels from 0."""
    official = "unlabeled" if part == "unlabelled" else part
    file = folder / f"{official}_X.bin"
    size = file.stat().st_size if file.is_file() else 0
    if size == 0 or size % (3 * 96 * 96):
        raise ResslError(f"{shown(file)} is missing or cut short; unpack {_STL10.file} again.")
    raw = np.memmap(file, dtype=np.uint8, mode="c").reshape(-1, 3, 96, 96)
    images = torch.from_numpy(raw).transpose(2, 3)  # stored column by column
    if part == "unlabelled":
        return images, torch.full((len(images),), UNLABELLED, dtype=torch.int64)
    labels_file = folder / f"{official}_y.bin"
    labels = np.fromfile(labels_file, dtype=np.uint8) if labels_file.is_file() else np.zeros(0, np.uint8)
    if len(labels) != len(images) or labels.min() < 1:  # counted from 1
        raise ResslError(f"{shown(labels_file)} does not have one label per picture; unpack {_STL10.file} again.")
    return images, torch.from_numpy(labels.astype(np.int64) - 1)


def _unlabelled_folder(root: Path) -> Path | None:
    return next((root / name for name in UNLABELLED_NAMES if (root / name).is_dir()), None)


def _stl10_files(root: Path, split: str) -> Source:
    unlabelled = _unlabelled_folder(root)
    if split == "unlabelled":
        if unlabelled is None:
            raise ResslError(f"{shown(root)} has no unlabelled split; it would be a folder 'unlabelled' in it.")
        return open_split("stl10", unlabelled, [])
    labelled = _as_files("stl10", root, split.removesuffix("+unlabelled"))
    assert labelled is not None
    if not split.endswith("+unlabelled"):
        return labelled
    if unlabelled is None or not isinstance(labelled, FileSource):
        warnings.warn(f"{shown(root)} has no folder 'unlabelled': using the labelled pictures alone", stacklevel=2)
        return labelled
    more = open_split("stl10", unlabelled, [])
    labels = None
    if labelled.labels is not None:
        labels = torch.cat([labelled.labels, torch.full((len(more),), UNLABELLED, dtype=torch.int64)])
    return FileSource("stl10", [*labelled.paths, *more.paths], labels, labelled.classes)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8", "replace").split()
    except OSError as error:
        raise ResslError(f"{shown(file)} cannot be read: {error.strerror}.") from None


# --- Tiny ImageNet and ImageNet ---


def open_tiny(root: Path, split: str, download: bool) -> Source:
    root = _folder_of(root, [_TINY])
    base = _tiny_folder(root)
    if (found := _open_tiny(base, split)) is not None:
        return found
    advice = (
        f"tiny-imagenet {_FIND} {shown(root)}: get http://cs231n.stanford.edu/{_TINY.file} and put it there, or class "
        f"folders as train/<class>/*.JPEG and val/<class>/*.JPEG."
    )
    _from_archive(root, [_TINY], download, advice)
    found = _open_tiny(_tiny_folder(root), split)
    if found is None:
        raise ResslError(f"{shown(root)} lacks files of tiny-imagenet after unpacking; fetch {_TINY.file} again.")
    return found


def _tiny_folder(root: Path) -> Path:
    return root / _TINY.holds if (root / _TINY.holds).is_dir() else root


def _open_tiny(base: Path, split: str) -> Source | None:
    annotations = base / "val" / "val_annotations.txt"
    if split != "test" or not annotations.is_file():
        return _as_files("tiny-imagenet", base, split, _VAL_FIRST)
    classes = class_names(base / "train")
    known = {label: place for place, label in enumerate(classes)}
    paths, labels = [], []
    for line in annotations.read_text("utf-8", "replace").splitlines():
        file, _, rest = line.partition("\t")
        label = rest.partition("\t")[0]
        if label not in known or Path(file).name != file:
            raise ResslError(f"{shown(annotations)} has a line that fits no class or file: '{shown(line)[:80]}'.")
        paths.append(str(base / "val" / "images" / file))
        labels.append(known[label])
    order = sorted(range(len(paths)), key=paths.__getitem__)
    return FileSource(
        "tiny-imagenet", [paths[i] for i in order], torch.tensor([labels[i] for i in order], dtype=torch.int64), classes
    )


def open_imagenet(root: Path, split: str, download: bool) -> Source:
    del download  # it asks for an account
    for part, subfolder in (("train", "train"), ("test", "val")):
        if part in ("train", split) and not (root / subfolder).is_dir():
            _unpack_imagenet(root, subfolder)
    found = _as_files("imagenet", root, split, _VAL_FIRST)
    if found is None:
        raise ResslError(
            f"imagenet {_FIND} {shown(root)}: get ILSVRC2012 from https://image-net.org/download and put its tar files "
            f"there, or class folders as train/<wnid>/*.JPEG and val/<wnid>/*.JPEG."
        )
    return found


def _unpack_imagenet(root: Path, subfolder: str) -> None:
    """From the official tars, if they are there, with torchvision's readers (which check them)."""
    from torchvision.datasets import imagenet  # here, because it takes seconds

    tar = root / _TAR[subfolder]
    if not tar.is_file():
        return
    with alone(tar), temporary(root) as folder:
        if (root / subfolder).is_dir():
            return
        inside = f"{folder.name}/{subfolder}"
        try:
            if subfolder == "train":
                imagenet.parse_train_archive(root, folder=inside)
            else:
                if not (root / imagenet.META_FILE).is_file():
                    imagenet.parse_devkit_archive(root)
                imagenet.parse_val_archive(root, folder=inside)
        except Exception as error:  # a missing devkit or scipy, a wrong checksum, a full disk
            raise ResslError(f"{shown(tar)} cannot be unpacked: {shown(str(error))[:200]}.") from None
        move_in(root / inside, root / subfolder)
