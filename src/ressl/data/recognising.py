"""Whether what lies at a path is one of the named sets: its official files, or pictures of its classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ressl.data.arrays import array_classes
from ressl.data.cifar import CIFAR10, CIFAR100, Cifar
from ressl.data.folders import class_names, require_folder, split_folders
from ressl.data.lists import list_at, open_list
from ressl.data.named import has_pictures, npz_of
from ressl.data.shards import is_shards, open_shards


def _files(which: Cifar) -> Iterator[str]:
    for layout in (which.python, which.binary):
        first = layout.splits["train"][0]
        yield from (f"{layout.folder}/{first}", first)
    yield from (archive.file for archive in which.archives)


_OFFICIAL = {  # files that only the official form has
    "cifar10": tuple(_files(CIFAR10)),
    "cifar100": tuple(_files(CIFAR100)),
    "stl10": ("stl10_binary/train_X.bin", "train_X.bin", "stl10_binary.tar.gz"),
    "tiny-imagenet": ("tiny-imagenet-200/val/val_annotations.txt", "val/val_annotations.txt", "tiny-imagenet-200.zip"),
    "imagenet": ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"),
    "voc07": tuple(f"{above}ImageSets/Main/trainval.txt" for above in ("", "VOC2007/", "VOCdevkit/VOC2007/")),
}
_CLASSES = {  # how many, and some that others hardly have. Bare numbers as names tell nothing
    "cifar10": (10, {"airplane", "automobile", "frog"}),
    "cifar100": (100, {"aquarium_fish", "lawn_mower", "willow_tree"}),
    "stl10": (10, {"airplane", "car", "monkey"}),
    "tiny-imagenet": (200, {"n01443537", "n02124075", "n07920052"}),
    "imagenet": (1000, {"n01440764", "n01443537", "n15075141"}),
}


def holds(path: Path, data: str) -> bool:
    """Whether the named set ``data`` lies at ``path``."""
    official = _OFFICIAL.get(data, ())
    if any((path / file).is_file() for file in official):
        return True
    if path.is_file() and path.suffix in (".gz", ".zip"):
        return path.name in official
    if data not in _CLASSES:
        return False
    count, some = _CLASSES[data]
    found = _classes(path)
    return len(found) == count and some <= set(found)


def _classes(path: Path) -> list[str]:
    """The names of the classes of what lies there, as far as they can be had without a look at the pictures."""
    if (npz := npz_of(path)) is not None:
        return array_classes(npz)
    if has_pictures(path):
        folder = split_folders(path)["train"]
        require_folder(folder)
        return class_names(folder)
    if list_at(path) is not None:
        return open_list(path, "train").classes
    return open_shards(path, "train").classes if is_shards(path) else []
