"""STL-10, Tiny ImageNet and ImageNet in their official formats, written small and read back exactly."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ressl.data.sources import ArraySource, default_root, open_source, splits
from ressl.errors import ResslError

NAMES10 = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def fails(*arguments: object, match: str) -> None:
    with pytest.raises(ResslError, match=match) as caught:
        open_source(*arguments, download=False)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


# --- STL-10 ---


def test_stl10_is_stored_by_columns(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    pictures = {p: np.random.default_rng(i).integers(0, 256, (n, 3, 96, 96), dtype=np.uint8)
                for i, (p, n) in enumerate({"train": 3, "test": 2, "unlabeled": 4}.items())}  # fmt: skip
    for part, array in pictures.items():
        (folder / f"{part}_X.bin").write_bytes(array.transpose(0, 1, 3, 2).tobytes())
    (folder / "train_y.bin").write_bytes(bytes([1, 10, 2]))
    (folder / "test_y.bin").write_bytes(bytes([3, 3]))
    (folder / "class_names.txt").write_text("\n".join(NAMES10))
    train = open_source("stl10", "train", tmp_path, download=False)
    assert isinstance(train, ArraySource)
    assert np.array_equal(train.images.numpy(), pictures["train"])
    assert train.labels is not None
    assert train.labels.tolist() == [0, 9, 1]
    assert train.classes == NAMES10
    both = open_source("stl10", "train+unlabelled", folder, download=False)
    assert isinstance(both, ArraySource)
    assert np.array_equal(both.images.numpy(), np.concatenate([pictures["train"], pictures["unlabeled"]]))
    assert both.labels is not None
    assert both.labels.tolist() == [0, 9, 1, -1, -1, -1, -1]
    assert np.array_equal(both.read(3), pictures["unlabeled"][0].transpose(1, 2, 0))
    assert open_source("stl10", "unlabelled", tmp_path, download=False).labels is None
    assert splits("stl10", tmp_path) == {"train", "test", "unlabelled", "train+unlabelled"}
    (folder / "test_y.bin").write_bytes(bytes([3]))
    fails("stl10", "test", tmp_path, match="one label per picture")
    (folder / "test_X.bin").write_bytes(b"abc")
    fails("stl10", "test", tmp_path, match="cut short")


def test_stl10_class_folders(tmp_path: Path) -> None:
    def put(name: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)

    for name in ("train/a/0.png", "train/b/1.png"):
        put(name)
    with pytest.warns(UserWarning, match="labelled pictures alone"):
        assert len(open_source("stl10", "train+unlabelled", tmp_path, download=False)) == 2
    put("unlabelled/2.png")
    both = open_source("stl10", "train+unlabelled", tmp_path, download=False)
    assert both.labels is not None
    assert both.labels.tolist() == [0, 1, -1]
    assert both.classes == ["a", "b"]
    fails("stl10", "test", tmp_path, match="no test split")


# --- Tiny ImageNet and ImageNet ---


def write_tiny(base: Path) -> dict[str, np.ndarray]:
    arrays = {}
    for i, wnid in enumerate(["n02", "n01"]):
        folder = base / "train" / wnid / "images"
        folder.mkdir(parents=True)
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text("x")
        arrays[wnid] = np.full((64, 64, 3), 40 * i, np.uint8)
        Image.fromarray(arrays[wnid]).save(folder / f"{wnid}_0.JPEG")
    (base / "val" / "images").mkdir(parents=True)
    (base / "test" / "images").mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(base / "test" / "images" / "test_0.JPEG")
    for i in range(3):
        Image.new("RGB", (64, 64), (90 * i, 0, 0)).save(base / "val" / "images" / f"val_{i}.JPEG")
    lines = ["val_2.JPEG\tn02\t0\t0\t9\t9", "val_0.JPEG\tn01\t0\t0\t9\t9", "val_1.JPEG\tn01\t0\t0\t9\t9"]
    (base / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (base / "wnids.txt").write_text("n02\nn01\n")
    (base / "words.txt").write_text("n01\tfish\nn02\tbird\n")
    return arrays


def check_tiny(root: Path) -> None:
    train, test = (open_source("tiny-imagenet", split, root, download=False) for split in ("train", "test"))
    assert train.classes == test.classes == ["n01", "n02"]
    assert train.labels is not None
    assert test.labels is not None
    assert train.labels.tolist() == [0, 1]
    assert train.read(0)[0, 0, 0] == 40
    assert test.labels.tolist() == [0, 0, 1]
    assert [int(test.read(i)[0, 0, 0]) // 80 for i in range(3)] == [0, 1, 2]
    assert splits("tiny-imagenet", root) == {"train", "test"}


def test_tiny_imagenet_tree(tmp_path: Path) -> None:
    base = tmp_path / "tiny-imagenet-200"
    write_tiny(base)
    check_tiny(tmp_path)
    check_tiny(base)
    (base / "val" / "val_annotations.txt").write_text("../../x.JPEG\tn01\t0\n")
    fails("tiny-imagenet", "test", tmp_path, match="fits no class or file")


def test_tiny_imagenet_zip(tmp_path: Path) -> None:
    base, root = tmp_path / "make" / "tiny-imagenet-200", tmp_path / "root"
    write_tiny(base)
    root.mkdir()
    with zipfile.ZipFile(root / "tiny-imagenet-200.zip", "w") as archive:
        for path in sorted(base.rglob("*")):
            archive.write(path, path.relative_to(base.parent))
    check_tiny(root)
    assert sorted(p.name for p in root.iterdir()) == ["tiny-imagenet-200", "tiny-imagenet-200.zip"]


@pytest.mark.parametrize("name", ["tiny-imagenet", "imagenet"])
def test_imagenet_class_folders_prefer_val(tmp_path: Path, name: str) -> None:
    for path in ("train/n1/a.JPEG", "train/n2/b.JPEG", "val/n2/c.JPEG", "test/d.JPEG"):
        (tmp_path / path).parent.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / path)
    test = open_source(name, "test", tmp_path, download=False)
    assert test.classes == ["n1", "n2"]
    assert test.labels is not None
    assert test.labels.tolist() == [1]
    assert splits(name, tmp_path) == {"train", "test"}


def test_imagenet_tars_go_through_torchvision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(root: Path, folder: str) -> None:
        for name in ("n1/a.JPEG", "n2/b.JPEG"):
            (root / folder / name).parent.mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(root / folder / name)

    (tmp_path / "ILSVRC2012_img_train.tar").write_bytes(b"not the real one")
    fails("imagenet", "train", tmp_path, match="cannot be unpacked")
    assert [p.name for p in tmp_path.iterdir()] == ["ILSVRC2012_img_train.tar"]
    monkeypatch.setattr("torchvision.datasets.imagenet.parse_train_archive", parse)
    assert open_source("imagenet", "train", tmp_path).classes == ["n1", "n2"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ILSVRC2012_img_train.tar", "train"]


# --- nothing there ---


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz"),
        ("stl10", "stl10_binary.tar.gz"),
        ("tiny-imagenet", "cs231n.stanford.edu/tiny-imagenet-200.zip"),
        ("imagenet", "image-net.org"),
    ],
)
def test_missing_sets_say_where_to_get_them(tmp_path: Path, name: str, where: str) -> None:
    fails(name, "train", tmp_path / "place", match=f"place: get .*{where.replace('.', '[.]')}|{where}")
    assert not (tmp_path / "place").exists()
    assert splits(name, tmp_path / "place") >= {"train", "test"}


def test_failed_download_is_one_sentence_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(url: str, root: str, filename: str, md5: str) -> None:
        assert md5 == "c58f30108f718f92721af3b95e74349a"
        (Path(root) / filename).write_bytes(b"half")
        raise OSError("the line\nwent dead")

    monkeypatch.setattr("torchvision.datasets.utils.download_url", half)
    with pytest.raises(ResslError, match=r"cs\.toronto\.edu.*went dead") as caught:
        open_source("cifar10", "train", tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESSL_DATA", raising=False)
    assert default_root("cifar10") == Path("data/cifar10")
    monkeypatch.setenv("RESSL_DATA", "/sets")
    assert default_root("stl10") == Path("/sets/stl10")
