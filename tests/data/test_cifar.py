"""CIFAR's formats, byte for byte as they were published; hostile pickles refused."""

from __future__ import annotations

import hashlib
import os
import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ressl.data import cifar, named
from ressl.data.archives import Archive
from ressl.data.sources import ArraySource, open_source, splits
from ressl.errors import ResslError

NAMES10 = ["plane", "car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def rows(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


# --- CIFAR's pickles, byte for byte as Python 2 wrote them: protocol 2, str opcodes, numpy.core names ---


def _short(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text if len(text) < 256 else b"T" + struct.pack("<i", len(text)) + text


def _array2(array: np.ndarray) -> bytes:
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    shape = b"".join(b"M" + struct.pack("<H", side) for side in array.shape)
    dtype = b"cnumpy\ndtype\n" + _short(b"u1") + b"K\x00K\x01\x87R(K\x03" + _short(b"|") + b"NNN"
    dtype += b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    start = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + _short(b"b") + b"\x87R"
    raw = array.tobytes("F" if fortran else "C")
    return start + b"(K\x01" + shape + b"\x86" + dtype + (b"\x88" if fortran else b"\x89") + _short(raw) + b"tb"


def python2_pickle(fields: dict[str, object]) -> bytes:
    out = b"\x80\x02}("
    for key, value in fields.items():
        out += _short(key.encode())
        if isinstance(value, np.ndarray):
            out += _array2(value)
        elif isinstance(value, list):
            items = (_short(item.encode()) if isinstance(item, str) else b"K" + bytes([item]) for item in value)
            out += b"](" + b"".join(items) + b"e"
        else:
            out += _short(str(value).encode())
    return out + b"u."


def write_cifar10(folder: Path) -> tuple[np.ndarray, list[int]]:
    """The python form; returns the training rows and labels."""
    folder.mkdir(parents=True)
    data, labels = [rows(4, i) for i in range(6)], [[i, 9, 0, 3] for i in range(6)]
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        fields = {"batch_label": name, "labels": labels[i], "data": data[i], "filenames": ["a.png"] * 4}
        (folder / name).write_bytes(python2_pickle(fields))
    (folder / "batches.meta").write_bytes(python2_pickle({"label_names": NAMES10, "num_vis": "3072"}))
    return np.concatenate(data[:5]), [label for batch in labels[:5] for label in batch]


def fails(*arguments: object, match: str) -> None:
    with pytest.raises(ResslError, match=match) as caught:
        open_source(*arguments, download=False)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def check(name: str, root: Path, split: str, data: np.ndarray, labels: list[int]) -> ArraySource:
    source = open_source(name, split, root, download=False)
    assert isinstance(source, ArraySource)
    assert np.array_equal(source.images.numpy(), data.reshape(-1, 3, 32, 32))
    assert source.labels is not None
    assert source.labels.tolist() == labels
    return source


def test_the_writer_writes_what_pickle_reads() -> None:
    data = rows(3, 0)
    found = pickle.loads(python2_pickle({"data": data, "labels": [1, 2]}), encoding="bytes")
    assert np.array_equal(found[b"data"], data)


def test_cifar10_python(tmp_path: Path) -> None:
    data, labels = write_cifar10(tmp_path / "cifar-10-batches-py")
    source = check("cifar10", tmp_path, "train", data, labels)
    assert source.classes == NAMES10
    assert np.array_equal(source.read(2), data[2].reshape(3, 32, 32).transpose(1, 2, 0))
    check("cifar10", tmp_path / "cifar-10-batches-py", "train", data, labels)  # the folder itself
    check("cifar10", tmp_path, "test", rows(4, 5), [5, 9, 0, 3])
    assert splits("cifar10", tmp_path) == {"train", "test"}
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    fails("cifar10", "train", tmp_path, match="data_batch_3 is missing")


def test_cifar100_python_takes_fine_labels_and_fortran_order(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    data = {"train": rows(5, 0), "test": rows(2, 1)}
    for split, part in data.items():
        fine, coarse = list(range(len(part))), [7] * len(part)
        part = np.asfortranarray(part) if split == "train" else part
        fields = {"fine_labels": fine, "coarse_labels": coarse, "data": part}
        (folder / split).write_bytes(python2_pickle(fields))
    names = [f"fine{i}" for i in range(100)]
    (folder / "meta").write_bytes(python2_pickle({"fine_label_names": names, "coarse_label_names": ["c"]}))
    assert check("cifar100", tmp_path, "train", data["train"], [0, 1, 2, 3, 4]).classes == names
    check("cifar100", tmp_path, "test", data["test"], [0, 1])


def test_pickles_of_python_3(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    for protocol in (2, 4):
        fields = {b"labels": [1, 2], b"data": rows(2, 9)}
        (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(pickle.dumps(fields, protocol=protocol))
        check("cifar10", tmp_path, "test", rows(2, 9), [1, 2])


def test_cifar_binary(tmp_path: Path) -> None:
    ten, hundred = tmp_path / "10" / "cifar-10-batches-bin", tmp_path / "100" / "cifar-100-binary"
    ten.mkdir(parents=True)
    hundred.mkdir(parents=True)
    for i, name in enumerate([*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]):
        (ten / name).write_bytes(np.c_[np.full((3, 1), i, np.uint8), rows(3, i)].tobytes())
    (ten / "batches.meta.txt").write_text("\n".join(NAMES10) + "\n\n")
    train = np.concatenate([rows(3, i) for i in range(5)])
    assert check("cifar10", tmp_path / "10", "train", train, [i for i in range(5) for _ in range(3)]).classes == NAMES10
    check("cifar10", tmp_path / "10", "test", rows(3, 5), [5] * 3)
    for split in ("train", "test"):
        labels = np.array([[19, 98], [3, 4]], np.uint8)  # coarse, fine
        (hundred / f"{split}.bin").write_bytes(np.c_[labels, rows(2, 8)].tobytes())
    (hundred / "fine_label_names.txt").write_text("\n".join(f"f{i}" for i in range(100)))
    check("cifar100", tmp_path / "100", "train", rows(2, 8), [98, 4])
    with open(ten / "test_batch.bin", "ab") as file:
        file.write(b"x")
    fails("cifar10", "test", tmp_path / "10", match="cut short")


def test_cifar_from_class_folders_and_npz(tmp_path: Path) -> None:
    for i, path in enumerate(["train/cat/0.png", "train/dog/1.png", "test/dog/2.png"]):
        (tmp_path / path).parent.mkdir(parents=True)
        Image.fromarray(rows(1, i).reshape(32, 32, 3)).save(tmp_path / path)
    train, test = (open_source("cifar10", split, tmp_path, download=False) for split in ("train", "test"))
    assert train.classes == test.classes == ["cat", "dog"]
    assert test.labels is not None
    assert test.labels.tolist() == [1]
    assert train.name == "cifar10"
    assert np.array_equal(train.read(0), rows(1, 0).reshape(32, 32, 3))
    other = tmp_path / "npz"
    other.mkdir()
    np.savez(other / "images.npz", images=rows(3, 0).reshape(-1, 32, 32, 3), labels=[0, 1, 0])
    assert len(open_source("cifar10", "train", other, download=False)) == 3
    assert splits("cifar10", other) == {"train"}
    assert len(open_source("cifar10", "train", other / "images.npz", download=False)) == 3


# --- hostile pickles ---


class _Runs:
    def __init__(self, call: tuple[object, ...]) -> None:
        self.call = call

    def __reduce__(self) -> tuple[object, ...]:
        return self.call


def test_hostile_pickles_never_run(tmp_path: Path) -> None:
    folder, canary = tmp_path / "cifar-10-batches-py", tmp_path / "canary"
    write_cifar10(folder)
    original = (folder / "test_batch").read_bytes()
    texts = [f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode(), f"(S'touch {canary}'\nios\nsystem\n.".encode()]
    calls: list[tuple[object, ...]] = [
        (os.system, (f"touch {canary}",)),
        (eval, (f"open({str(canary)!r}, 'w')",)),
        (exec, (f"open({str(canary)!r}, 'w')",)),
        (open, (str(canary), "w")),
        (np.save, (str(canary), 1)),
    ]
    hostile = texts + [pickle.dumps({"data": _Runs(call)}, protocol=p) for call in calls for p in (0, 2, 4)]
    pickle.loads(hostile[0])  # the canary does sing when the door is open
    assert canary.exists()
    canary.unlink()
    damaged = [b"", b"junk", original[:-100], b"\x80\x02]r\xff\xff\xff\x7f.", b"\x80\x04\x8e" + b"\xff" * 7 + b"\x00."]
    damaged += [pickle.dumps(x, protocol=2) for x in ([], {}, {"labels": 1}, {"labels": [1], "data": np.zeros(3072)})]
    damaged += [python2_pickle({"labels": [1, 2], "data": rows(3, 0)}), python2_pickle({"labels": [1], "data": "x"})]
    for content in hostile + damaged:
        (folder / "test_batch").write_bytes(content)
        fails("cifar10", "test", tmp_path, match="no official CIFAR file")
        assert not canary.exists()
    (folder / "test_batch").write_bytes(python2_pickle({"labels": [200], "data": rows(1, 0)}))
    fails("cifar10", "test", tmp_path, match="labels beyond its 10 classes")


# --- archives ---


def _tar(path: Path, folder: Path) -> str:
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_cifar_archive_is_checked_and_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, labels = write_cifar10(tmp_path / "make" / "cifar-10-batches-py")
    root = tmp_path / "root"
    root.mkdir()
    md5 = _tar(root / "cifar-10-python.tar.gz", tmp_path / "make" / "cifar-10-batches-py")
    fails("cifar10", "train", root, match="md5")
    assert [p.name for p in root.iterdir()] == ["cifar-10-python.tar.gz"]  # nothing left behind
    official = Archive("cifar-10-python.tar.gz", "cifar-10-batches-py", md5, None)
    monkeypatch.setattr(named, "CIFAR10", cifar.CIFAR10._replace(archives=(official,)))
    (root / ".unfinished-old").mkdir()  # of a killed process
    which = named.CIFAR10
    for place in (root / "cifar-10-python.tar.gz", root):
        source = named._open_cifar(which, place, "train", False)
        assert isinstance(source, ArraySource)
        assert np.array_equal(source.images.numpy(), data.reshape(-1, 3, 32, 32))
        assert source.labels is not None
        assert source.labels.tolist() == labels
    assert sorted(p.name for p in root.iterdir()) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]


def test_download_then_unpack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, labels = write_cifar10(tmp_path / "make" / "cifar-10-batches-py")
    md5 = _tar(tmp_path / "a.tar.gz", tmp_path / "make" / "cifar-10-batches-py")

    def served(url: str, root: str, filename: str, md5: str) -> None:
        (Path(root) / filename).write_bytes((tmp_path / "a.tar.gz").read_bytes())

    monkeypatch.setattr("torchvision.datasets.utils.download_url", served)
    archive = cifar.CIFAR10.archives[0]._replace(md5=md5)
    source = named._open_cifar(cifar.CIFAR10._replace(archives=(archive,)), tmp_path / "root", "train", True)
    assert source.labels is not None
    assert torch.equal(source.labels, torch.tensor(labels))
    assert len(source) == len(data)
