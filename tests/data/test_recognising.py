"""A path is a named set only where that set really lies, and is what is there otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from saved import save

from ressl.data.recognising import holds
from ressl.data.sources import label_of, open_source, parse_data
from ressl.errors import ResslError

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FLOWERS = tuple(f"flower{i}" for i in range(10))


def by_class(root: Path, names: tuple[str, ...]) -> Path:
    for i, name in enumerate(names):
        save(root / "train" / name / "0.png", i)
        save(root / "test" / name / "0.png", i)
    return root


def test_class_folders_are_a_named_set_by_their_names(tmp_path: Path) -> None:
    assert holds(by_class(tmp_path / "a", CIFAR10), "cifar10")
    assert not holds(tmp_path / "a", "stl10")  # as many classes, others
    assert not holds(by_class(tmp_path / "b", FLOWERS), "cifar10")
    assert not holds(by_class(tmp_path / "c", CIFAR10[:9]), "cifar10")
    lines = [f"{name}.png {name}\n" for name in ("n01440764", "n01443537", "n15075141", *map(str, range(997)))]
    (tmp_path / "list.txt").write_text("".join(lines))
    assert holds(tmp_path / "list.txt", "imagenet")
    assert not holds(tmp_path / "list.txt", "tiny-imagenet")


@pytest.mark.parametrize(
    ("data", "file"),
    [
        ("cifar10", "cifar-10-batches-py/data_batch_1"),
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("cifar100", "train"),
        ("stl10", "stl10_binary/train_X.bin"),
        ("tiny-imagenet", "tiny-imagenet-200.zip"),
        ("imagenet", "ILSVRC2012_img_train.tar"),
    ],
)
def test_official_files_are_known(tmp_path: Path, data: str, file: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    known = ("cifar10", "cifar100", "stl10", "tiny-imagenet", "imagenet", "voc07", "shapes", "folder")
    assert [name for name in known if holds(tmp_path, name)] == [data]
    if file.endswith(("gz", "zip")):
        assert holds(tmp_path / file, data)
    assert parse_data(str(tmp_path), data) == (data, str(tmp_path))


def test_voc_is_known(tmp_path: Path, make_voc: Callable[[Path], Path]) -> None:
    assert holds(make_voc(tmp_path), "voc07")


def test_an_array_is_a_named_set_by_the_names_in_it(tmp_path: Path) -> None:
    arrays = {"x_train": np.zeros((10, 8, 8, 3), np.uint8), "y_train": np.arange(10)}
    np.savez(tmp_path / "digits.npz", **arrays)
    np.savez(tmp_path / "named.npz", classes=np.array(CIFAR10), **arrays)
    assert parse_data(str(tmp_path / "digits.npz"), "cifar10")[0] == "array"  # ten of anything
    assert parse_data(str(tmp_path / "named.npz"), "cifar10")[0] == "cifar10"


def test_what_a_path_is_and_what_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = str(by_class(tmp_path / "photos.v2", FLOWERS))
    for kind in ("shapes", "cifar10", "array", None):
        assert parse_data(photos, kind) == ("folder", photos)
    assert parse_data(photos, "cifar10", os.path.relpath(photos)) == ("cifar10", photos)  # where it was trained
    assert label_of("folder", photos) == "photos.v2"
    assert label_of("array", "/a/b.npz") == "b"
    assert label_of("cifar10", photos) == "cifar10"
    monkeypatch.chdir(photos)
    assert label_of("folder", ".") == "photos.v2"
    by_class(tmp_path / "x=y", FLOWERS)
    assert parse_data(str(tmp_path / "x=y"), "shapes")[0] == "folder"
    for text, says in (("gone", "there is no folder gone"), ("phots=x", "unknown data set 'phots'"), ("a\0", "path")):
        for kind in ("shapes", "cifar10", None):
            with pytest.raises(ResslError, match=says):
                parse_data(text, kind)
    with pytest.raises(ResslError, match=r"lie in no folder: leave .*photos\.v2 away"):
        open_source("shapes", "train", photos)
