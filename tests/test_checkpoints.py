"""Checkpoints: bit-exact, whole or not there, and aware of every flipped bit."""

from __future__ import annotations

import errno
import os
import pickle
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch.utils._python_dispatch import TorchDispatchMode

from ressl import checkpoints as module
from ressl.checkpoints import KEEP, Checkpoint, CheckpointFolder, DamagedCheckpoint, DiskFull, load, not_finite, save
from ressl.errors import ResslError
from ressl.files import write_atomically

FACTS = {"step": 7, "text": 'a "sha256":"' + "0" * 64 + '" of its own, and ünicode', "list": [1, 2.5, None, True]}


def example(seed: int = 0, step: int = 7) -> Checkpoint:
    draw = torch.Generator().manual_seed(seed)
    special = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    tensors = {
        "method.weight": torch.randn(3, 5, generator=draw),
        "method.sha256": torch.randn(2, dtype=torch.float64, generator=draw),
        "method.count": torch.tensor(2**62 + 1),
        "optimiser.half": torch.randn(4, generator=draw).bfloat16(),
        "random.cpu": torch.randint(0, 256, (16,), dtype=torch.uint8, generator=draw),
        "special": special,
        "channels": torch.randn(2, 3, 4, 4, generator=draw).to(memory_format=torch.channels_last),
    }
    return Checkpoint(tensors, FACTS | {"step": step})


SMALL = Checkpoint({"method.a": torch.arange(40.0), "method.b": torch.tensor(3)}, {"step": 7})


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(a: Checkpoint, b: Checkpoint) -> None:
    assert a.facts == b.facts
    assert a.tensors.keys() == b.tensors.keys()
    for name, tensor in a.tensors.items():
        other = b.tensors[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape)
        assert bits(tensor) == bits(other), name


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path / "a.safetensors", example())
    assert_same(load(tmp_path / "a.safetensors"), example())


def test_a_part_is_what_lies_below_its_prefix() -> None:
    assert set(example().part("method.")) == {"weight", "sha256", "count"}


def test_the_file_is_an_ordinary_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save(path, example())
    plain = safetensors.torch.load_file(path)
    assert bits(plain["method.weight"]) == bits(example().tensors["method.weight"])
    with safe_open(path, "pt") as file:
        assert file.metadata()["format"] == module.FORMAT


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, bytes, int]:
    """(path, its bytes, where the header ends)."""
    path = tmp_path / "a.safetensors"
    save(path, SMALL)
    data = path.read_bytes()
    return path, data, 8 + struct.unpack("<Q", data[:8])[0]


def noticed(path: Path) -> bool:
    """As pytest.raises does, but thousands of times in a second."""
    try:
        load(path)
    except DamagedCheckpoint:
        return True
    return False


def test_every_flipped_bit_of_the_header_is_noticed(file: tuple[Path, bytes, int]) -> None:
    path, data, end = file
    for place in range(end * 8):
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert noticed(path), f"bit {place}"


def test_flips_and_cuts_of_the_body_are_noticed(file: tuple[Path, bytes, int]) -> None:
    path, data, end = file
    draw = random.Random(0)
    for _ in range(200):
        damaged = bytearray(data)
        damaged[draw.randrange(end, len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedCheckpoint):
            load(path)
    for length in [*range(0, 20), end - 1, end, len(data) - 1, *(draw.randrange(len(data)) for _ in range(80))]:
        path.write_bytes(data[:length])
        with pytest.raises(DamagedCheckpoint):
            load(path)
    for tail in (b"\0", b"more", data):
        path.write_bytes(data + tail)
        with pytest.raises(DamagedCheckpoint):
            load(path)
    path.write_bytes(data)
    assert_same(load(path), SMALL)


def test_swapped_tensors_are_noticed(file: tuple[Path, bytes, int]) -> None:
    """The same bytes at another place: a checksum by parts would miss it."""
    path, data, end = file
    path.write_bytes(data[:end] + data[end + 8 : end + 16] + data[end : end + 8] + data[end + 16 :])
    with pytest.raises(DamagedCheckpoint, match="checksum"):
        load(path)


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/ressl-evil",)


def foreign(kind: str) -> bytes:
    if kind == "safetensors":
        return safetensors.torch.save({"weight": torch.zeros(3)})
    if kind == "safetensors with metadata":
        return safetensors.torch.save({"weight": torch.zeros(3)}, {"format": "pt"})
    if kind == "ours without a digest":
        return safetensors.torch.save({"weight": torch.zeros(3)}, {"format": module.FORMAT, "facts": "{}"})
    if kind == "pickle":
        return pickle.dumps(Evil())
    if kind == "deep":
        return struct.pack("<Q", 200_000) + b"[" * 200_000
    if kind == "list":
        return struct.pack("<Q", 2) + b"[]"
    if kind == "huge":
        return struct.pack("<Q", 2**63) + b"{}"
    return {"empty": b"", "text": b"hello, this is a note", "zeros": bytes(1000)}[kind]


KINDS = ["safetensors", "safetensors with metadata", "ours without a digest", "pickle", "deep", "list", "huge",
         "empty", "text", "zeros"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_file_is_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "step-00000001.safetensors"
    path.write_bytes(foreign(kind))
    with pytest.raises(DamagedCheckpoint) as caught:
        load(path)
    assert "checkpoint" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("/tmp/ressl-evil").exists()


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ResslError, match="cannot read the checkpoint"):
        load(tmp_path / "none.safetensors")


# --- writing ---


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    folder = CheckpointFolder(tmp_path)
    path = folder.save(1, example())
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, broken, fail)
    for step in (1, 2):
        with pytest.raises(DiskFull, match=r"No space left on device; the last checkpoint is .*step-00000001"):
            folder.save(step, example(1))
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_the_data_is_on_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """fsync of the file, then the rename, then fsync of the folder."""
    seen: list[str] = []
    sync, replace = os.fsync, os.replace
    is_folder = lambda fd: os.path.isdir(f"/proc/self/fd/{fd}")
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append("folder" if is_folder(fd) else "file"), sync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append("rename"), replace(a, b))[1])
    write_atomically(tmp_path / "x", b"data")
    assert seen == ["file", "rename", "folder"]
    assert (tmp_path / "x").read_bytes() == b"data"


def test_only_the_newest_stay_and_litter_of_a_killed_process_goes(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    (tmp_path / ".step-00000003.safetensors.99.tmp").write_bytes(b"half")
    for step in (5, 40, 300):
        folder.save(step, example(step))
    assert KEEP == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000040.safetensors", "step-00000300.safetensors"]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.float8_e5m2])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_one_number_that_is_none_is_found(kind: torch.dtype, value: float) -> None:
    good = {"a": torch.zeros(0, dtype=kind), "b": torch.ones(3, 5).to(kind), "c": torch.tensor(2**62)}
    assert not_finite(good) is None
    assert not_finite({}) is None
    bad = torch.ones(3, 5)
    bad[1, 2] = value
    assert not_finite(good | {"d": bad.to(kind), "e": torch.ones(2)}) == "d"


class _Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[operation.overloadpacket.__name__] += 1
        return operation(*args, **(kwargs or {}))


def test_looking_at_many_takes_little_more_than_an_operation_each() -> None:
    """Before every save, on a GPU: ten small kernels for each tensor would take as long as the copy."""
    kinds = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    many = {f"{kind}{i}": torch.full((2,), torch.finfo(kind).max, dtype=kind) for kind in kinds for i in range(50)}
    with _Counting() as counting:
        assert not_finite(many) is None
    views = {"detach", "unsqueeze", "view"}  # no kernel
    assert counting.seen["aminmax"] == len(many)
    assert sum(count for name, count in counting.seen.items() if name not in views) < len(many) + 20


def test_one_that_is_not_finite_counts_as_damaged(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    spoilt = Checkpoint({"method.a": torch.tensor([1.0, float("nan")])}, {"step": 8})
    folder.save(7, SMALL)
    path = folder.save(8, spoilt)
    assert_same(folder.load_latest(), SMALL)
    assert folder.damaged == [f"the checkpoint {path} is damaged: its method.a is not finite"]
    folder.paths()[0].unlink()
    with pytest.raises(ResslError, match=r"no checkpoint in .* can be used: .*its method\.a is not finite"):
        CheckpointFolder(tmp_path).load_latest()


def test_the_newest_good_one_is_loaded(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    older, newer = folder.save(9, example(1, 9)), folder.save(10, example(2, 10))
    assert_same(folder.load_latest(), example(2, 10))
    assert folder.damaged == []
    newer.write_bytes(newer.read_bytes()[:-1])
    assert_same(folder.load_latest(), example(1, 9))
    assert len(folder.damaged) == 1
    assert newer.name in folder.damaged[0]
    older.write_bytes(b"")
    with pytest.raises(ResslError, match=r"no checkpoint in .* can be used"):
        CheckpointFolder(tmp_path).load_latest()


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ResslError, match="there is no checkpoint"):
        CheckpointFolder(tmp_path / "none").load_latest()
