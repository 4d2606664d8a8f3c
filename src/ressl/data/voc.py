"""PASCAL VOC 2007 classification in its official layout: several labels per picture.

    VOC2007/JPEGImages/000005.jpg
    VOC2007/ImageSets/Main/trainval.txt          one number a line
    VOC2007/ImageSets/Main/cat_trainval.txt      number and 1 (present), -1 (absent) or 0 (only difficult ones)

VOC2007 may lie in the given folder, in VOCdevkit below it, or be the folder itself.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ressl.data.base import FileSource
from ressl.data.decode import shown
from ressl.errors import ResslError

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
_PARTS = {"train": "trainval", "test": "test"}  # the paper trains on trainval


class MultiLabelSource(FileSource):
    """Picture files with several labels each: ``targets`` is N x C int64 of 1, -1 and 0 (difficult)."""

    def __init__(self, name: str, paths: list[str], targets: Tensor, classes: list[str]) -> None:
        super().__init__(name, paths, None, classes)
        self.targets = targets


def _folder(root: Path) -> Path | None:
    places = (root, root / "VOC2007", root / "VOCdevkit" / "VOC2007")
    return next((place for place in places if (place / "ImageSets" / "Main").is_dir()), None)


def voc_splits(root: Path) -> set[str]:
    folder = _folder(root)
    if folder is None:
        return set(_PARTS)
    return {split for split, part in _PARTS.items() if (folder / "ImageSets" / "Main" / f"{part}.txt").is_file()}


def open_voc(root: Path, split: str, download: bool = False) -> MultiLabelSource:
    del download  # the official server is often away; two files by hand are quick
    folder = _folder(root)
    part = _PARTS[split]
    lists = None if folder is None else folder / "ImageSets" / "Main"
    if folder is None or lists is None or not (lists / f"{part}.txt").is_file():
        tar = "VOCtrainval_06-Nov-2007.tar" if split == "train" else "VOCtest_06-Nov-2007.tar"
        raise ResslError(
            f"voc07 ({part}) was not found in {shown(root)}: get {tar} from "
            "http://host.robots.ox.ac.uk/pascal/VOC/voc2007 and unpack it there (it makes VOCdevkit/VOC2007)."
        )
    numbers = [line.split()[0] for line in _lines(lists / f"{part}.txt")]
    place = {number: i for i, number in enumerate(numbers)}
    targets = torch.full((len(numbers), len(VOC_CLASSES)), -1, dtype=torch.int64)
    for c, name in enumerate(VOC_CLASSES):
        file_of_class = lists / f"{name}_{part}.txt"
        seen = 0
        for line in _lines(file_of_class):
            number, _, value = line.strip().partition(" ")
            if number not in place or value.strip() not in ("1", "-1", "0"):
                raise ResslError(
                    f"{shown(file_of_class)} has a line that fits no picture or label: '{shown(line)[:80]}'."
                )
            targets[place[number], c] = int(value)
            seen += 1
        if seen != len(numbers):
            raise ResslError(
                f"{shown(file_of_class)} has {seen:,} lines for {len(numbers):,} pictures; unpack it again."
            )
    if any(Path(number).name != number for number in numbers):
        raise ResslError(f"{shown(lists / f'{part}.txt')} names a picture outside its folder.")
    paths = [str(folder / "JPEGImages" / f"{number}.jpg") for number in numbers]
    return MultiLabelSource("voc07", paths, targets, list(VOC_CLASSES))


def _lines(file: Path) -> list[str]:
    try:
        return [line for line in file.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError as error:
        raise ResslError(f"{shown(file)} cannot be read: {error.strerror}.") from None
