"""Folders of pictures, with everything that may lie in one; and what kind of data a path is."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from saved import fails, save

from ressl.data.base import Paths
from ressl.data.decode import BrokenImage
from ressl.data.sources import FileSource, Source, guess_data, open_source, pretrain_split, splits
from ressl.errors import ResslError


def names(source: Source) -> list[str]:
    return [Path(source.identify(i)).name for i in range(len(source))]


def test_flat_folder_is_unlabelled_and_sorted(tmp_path: Path) -> None:
    arrays = {name: save(tmp_path / name, seed) for seed, name in enumerate(["b.PNG", "a.png", "deep/er/c.bmp"])}
    save(tmp_path / ".hidden.png")
    (tmp_path / "notes.txt").write_text("no picture")
    source = open_source("folder", root=tmp_path)
    assert isinstance(source, FileSource)
    assert names(source) == ["a.png", "b.PNG", "c.bmp"]
    assert source.labels is None
    assert source.classes == []
    assert np.array_equal(source.read(0), arrays["a.png"])
    assert np.array_equal(source.read(2), arrays["deep/er/c.bmp"])
    assert source.size == (8, 8)
    assert splits("folder", tmp_path) == {"train"}
    fails("folder", "test", tmp_path, match="no test split")


def test_class_folders(tmp_path: Path) -> None:
    for seed, name in enumerate(["dog/2.png", "cat/nested/1.jpg", "cat/0.png", "empty/readme.txt"]):
        if name.endswith("txt"):
            (tmp_path / "empty").mkdir()
        else:
            save(tmp_path / name, seed)
    source = open_source("folder", root=tmp_path)
    assert source.classes == ["cat", "dog"]
    assert source.labels is not None
    assert source.labels.tolist() == [0, 0, 1]
    assert source.labels.dtype == torch.int64
    assert names(source) == ["0.png", "1.jpg", "2.png"]


def test_one_class_tells_nothing(tmp_path: Path) -> None:
    save(tmp_path / "only" / "a.png")
    assert open_source("folder", root=tmp_path).labels is None


@pytest.mark.parametrize("test_name", ["test", "val", "valid", "validation", "Val"])
def test_splits_share_the_training_classes(tmp_path: Path, test_name: str) -> None:
    for name in ("train/a/0.png", "train/b/1.png", "train/c/2.png", f"{test_name}/c/3.png"):
        save(tmp_path / name)
    assert splits("folder", tmp_path) == {"train", "test"}
    test = open_source("folder", "test", tmp_path)
    assert test.classes == ["a", "b", "c"]
    assert test.labels is not None
    assert test.labels.tolist() == [2]  # not 0, which it would be among the test folders alone
    save(tmp_path / test_name / "zebra" / "4.png")
    fails("folder", "test", tmp_path, match="zebra")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus/0.png", "car/1.png", "train/2.png"):
        save(tmp_path / name)
    assert open_source("folder", root=tmp_path).classes == ["bus", "car", "train"]
    assert splits("folder", tmp_path) == {"train"}


def test_train_alone_is_a_split(tmp_path: Path) -> None:
    for name in ("train/x/0.png", "train/y/2.png"):
        save(tmp_path / name)
    assert open_source("folder", root=tmp_path).classes == ["x", "y"]


def test_no_pictures(tmp_path: Path) -> None:
    fails("folder", root=tmp_path / "missing", match="missing")
    fails("folder", root=tmp_path, match="no pictures in")
    (tmp_path / "a.txt").write_text("x")
    fails("folder", root=tmp_path, match=r"expected files ending in \.jpg")
    fails("folder", root=tmp_path / "a.txt", match="is a file")
    fails("folder", match="needs a place: say which folder to read, by --data FOLDER")
    fails("foldr", root=tmp_path, match="did you mean 'folder'")
    fails("folder", "tset", tmp_path, match="did you mean 'test'")


def test_line_breaks_in_names_stay_out_of_messages(tmp_path: Path) -> None:
    fails("folder", root=tmp_path / "a\nb\x1b[31m", match=r"a\\nb\\x1b")


def test_links_fifos_and_sockets(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    save(root / "a" / "0.png")
    save(root / "b" / "1.png")
    save(outside / "2.png")
    (root / "a" / "up").symlink_to(root)  # a loop
    (root / "aa").symlink_to(root / "b")  # a sibling twice: must not take b's pictures away
    (root / "c").symlink_to(outside)  # a class kept elsewhere
    (outside / "back").symlink_to(tmp_path)  # and a loop through there
    (root / "a" / "dangling.png").symlink_to(tmp_path / "nothing.png")
    os.mkfifo(root / "a" / "fifo.png")
    (root / "a" / "linked.png").symlink_to(root / "a" / "fifo.png")
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as unix:
        os.chdir(root / "b")  # the length of a socket's path is limited
        try:
            unix.bind("socket.png")
        finally:
            os.chdir(here)
        with pytest.warns(UserWarning, match="cannot be read: .*not a regular file") as told:
            source = open_source("folder", root=root)
    assert names(source) == ["0.png", "dangling.png", "1.png", "2.png"]
    assert all(name in str(told[0].message) for name in ("fifo.png", "linked.png", "socket.png"))
    with pytest.raises(BrokenImage, match="No such file"):
        source.read(1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_folder_is_reported(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    save(tmp_path / "locked" / "b.png")
    (tmp_path / "locked").chmod(0)
    try:
        with pytest.warns(UserWarning, match="locked"):
            assert len(open_source("folder", root=tmp_path)) == 1
    finally:
        (tmp_path / "locked").chmod(0o700)


def test_a_folder_that_may_not_be_looked_into_is_named_itself() -> None:
    with tempfile.TemporaryDirectory() as name:  # not below tmp_path, which is hidden from others as a whole
        folder, me = Path(name), os.geteuid()
        folder.chmod(0)
        if me == 0:  # root reads everything
            os.seteuid(65534)
        try:
            with pytest.raises(ResslError) as caught:
                guess_data(folder)
        finally:
            os.seteuid(me)
            folder.chmod(0o700)
    assert str(caught.value) == f"{folder} cannot be read: Permission denied; have its permissions changed."


def test_paths_in_one_buffer() -> None:
    given = ["a", "", "grün/ö.png", os.fsdecode(b"\xff\xfe.png"), "z" * 300]
    paths = Paths(given)
    assert list(paths) == given
    assert paths[-1] == given[-1]
    assert paths[1:3] == given[1:3]
    with pytest.raises(IndexError):
        paths[5]


def test_guess(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((5, 6, 4, 3), np.uint8))
    assert guess_data(tmp_path / "a.npy") == "array"
    assert guess_data(str(tmp_path)) == "folder"
    for missing in ("x.npz", "nowhere"):
        with pytest.raises(ResslError, match="there is no"):
            guess_data(tmp_path / missing)
    assert pretrain_split("stl10") == "train+unlabelled"
    assert pretrain_split("folder") == "train"
