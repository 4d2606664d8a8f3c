"""Damaged and hostile checkpoints: each is noticed, costs one sentence, and the one before is used."""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from child import Child, loop_of
from scale import draw, shards, share, times

from ressl import checkpoints as module
from ressl.checkpoints import Checkpoint, CheckpointFolder, load
from ressl.errors import ResslError

PARTS = len(shards(4, 2))


def damage(data: bytes, moments: random.Random) -> bytes:
    if moments.random() < 0.5:
        place = moments.randrange(8 * len(data))
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        return bytes(changed)
    return data[: moments.randrange(len(data))]


def test_every_flip_and_cut_is_noticed_and_the_one_before_is_used(tmp_path: Path) -> None:
    folder, moments = CheckpointFolder(tmp_path), draw("damage")
    for number in (1, 2):
        folder.save(number, Checkpoint({"method.a": torch.full((64,), float(number))}, {"step": number}))
    newest = folder.paths()[-1]
    data = newest.read_bytes()
    for case in range(times(4000, 400)):
        newest.write_bytes(damage(data, moments))
        found = folder.load_latest()
        assert found.facts["step"] == 1, case
        assert len(folder.damaged) == 1, case
        assert newest.name in folder.damaged[0]
        assert "\n" not in folder.damaged[0]
    folder.save(3, Checkpoint({}, {"step": 3}))
    assert [p.name for p in folder.paths()] == ["step-00000001.safetensors", "step-00000003.safetensors"]


# --- files made to hurt, with a right checksum ---


def seal(data: bytes) -> bytes:
    """Give a changed file the checksum it claims."""
    place = data.find(module._KEY)
    if place < 0:
        return data
    place += len(module._KEY)
    blank = data[:place] + b"0" * 64 + data[place + 64 :]
    return blank[:place] + hashlib.sha256(blank).hexdigest().encode() + blank[place + 64 :]


VALUES: list[Any] = [
    *(0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**30, 1.5, 1e308, None, True, "", "x", "F32", "I64", "BOOL"),
    *([], {}, [0], [0, 0], [0, 2**62], [-1, 4], [[[]]], {"a": {}}, "\x00", "../../x", "é" * 99),
]


def scramble(tree: Any, moments: random.Random) -> Any:
    """Change one thing somewhere in a JSON tree."""
    if isinstance(tree, dict) and tree and moments.random() < 0.85:
        key = moments.choice(list(tree))
        changed = dict(tree)
        if moments.random() < 0.15:
            changed.pop(key)
        elif moments.random() < 0.1:
            changed[str(moments.choice(VALUES))] = tree[key]
        else:
            changed[key] = scramble(tree[key], moments)
        return changed
    if isinstance(tree, list) and tree and moments.random() < 0.7:
        place = moments.randrange(len(tree))
        return [*tree[:place], scramble(tree[place], moments), *tree[place + 1 :]]
    if isinstance(tree, str) and tree.startswith("{") and moments.random() < 0.9:  # the facts
        return json.dumps(scramble(json.loads(tree), moments))
    return moments.choice(VALUES)


def mutate(data: bytes, moments: random.Random) -> bytes:
    end = 8 + struct.unpack("<Q", data[:8])[0]
    kind = moments.randrange(8)
    if kind < 3:
        text = json.dumps(scramble(json.loads(data[8:end]), moments), separators=(",", ":")).encode()
        return seal(struct.pack("<Q", len(text)) + text + data[end:])
    if kind == 3:  # a header of any claimed length
        return seal(struct.pack("<Q", moments.choice([0, 1, end, 2**20, 2**32, 2**63, 2**64 - 1])) + data[8:])
    if kind == 4:  # bytes of another kind in the header
        place = moments.randrange(8, end)
        return seal(data[:place] + moments.randbytes(moments.randrange(1, 9)) + data[place:])
    if kind == 5:  # NaN, Inf and denormals in the tensors
        place = moments.randrange(end, len(data) - 8)
        return seal(data[:place] + moments.choice([b"\xff" * 8, b"\x00\x00\x80\x7f" * 2, bytes(8)]) + data[place + 8 :])
    if kind == 6:
        deep = moments.choice([b"[", b'{"a":']) * moments.choice([10, 1000, 100_000])
        return seal(struct.pack("<Q", len(deep)) + deep + data[end:])
    return seal(damage(data, moments))


def restore_many(where: str, part: int, total: int) -> int:
    """Load every one, put what loads into a real run, and train on."""
    moments, path = draw("hostile", part), Path(where) / "step-00000004.safetensors"
    loop, data = loop_of(Path(where))
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (pages + (1 << 30), resource.RLIM_INFINITY))
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = taken = 0
    for case in range(total):
        path.write_bytes(mutate(data, moments))
        said = None
        try:
            loop.step.first_bad.fill_(-1)
            loop.restore(load(path))
            if loop.step.done < loop.step.total_steps:
                loop.step.advance(None)
                loop.log()
                loop.save()
        except ResslError as error:
            said = str(error)
        except BaseException as error:
            raise AssertionError(f"case {case} of part {part}: {error!r}") from error
        assert said is None or "\n" not in said, case
        taken, refused = taken + (said is None), refused + (said is not None)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024
    print(f"{refused} refused, {taken} harmless, {grown:.0f} MB more at most")
    assert refused > 0.5 * total
    assert grown < 300, grown
    return 0


@pytest.mark.parametrize("part", shards(4, 2))
def test_a_hostile_checkpoint_is_one_typed_error(part: int, tmp_path: Path, spawn: type[Child]) -> None:
    total = len(share(times(20_000, 1000), part, PARTS))
    child = spawn(tmp_path / "log", restore_many, str(tmp_path), part, total).join(400)
    assert child.code == 0, child.output
    print(child.output)


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, Checkpoint({}, {"step": 1}))
    os.mkfifo(tmp_path / "step-00000002.safetensors")
    (tmp_path / "step-00000003.safetensors").mkdir()
    (tmp_path / "step-00000004.safetensors").symlink_to("step-00000004.safetensors")
    (tmp_path / "step-00000005.safetensors").symlink_to("/dev/zero")
    with open(tmp_path / "step-00000006.safetensors", "wb") as file:
        file.write(struct.pack("<Q", 100) + b" " * 100)
        file.truncate(1 << 43)  # a hole of 8 terabytes
    (tmp_path / "step-evil.safetensors").write_bytes(b"x")
    assert folder.load_latest().facts["step"] == 1
    assert len(folder.damaged) == 5


def test_one_that_cannot_be_removed_does_not_count_among_those_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, Checkpoint({}, {"step": 1}))
    (tmp_path / "step-00000009.safetensors").mkdir()
    for step in (2, 3, 4):
        assert folder.load_latest().facts["step"] == step - 1
        folder.save(step, Checkpoint({}, {"step": step}))
    folder.save(5, Checkpoint({}, {"step": 5}))
    assert [int(p.stem[5:]) for p in folder.paths()] == [4, 5, 9]


def test_one_by_a_later_name_does_not_hide_those_that_come(tmp_path: Path) -> None:
    """A copy by another name: as the newest it would be the place to go on from for ever."""
    folder = CheckpointFolder(tmp_path)
    folder.save(1, Checkpoint({}, {"step": 1}))
    folder.save(2, Checkpoint({}, {"step": 2})).rename(tmp_path / "step-00000099.safetensors")
    assert folder.load_latest().facts["step"] == 1
    assert [said.split("safetensors ")[1] for said in folder.damaged] == ["is of step 2, not of that in its name"]


def test_who_reads_while_another_trains_finds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both that were listed are gone by the time they are opened: two saves came between."""
    trains, reads, real = CheckpointFolder(tmp_path), CheckpointFolder(tmp_path), module.load
    for step in (1, 2):
        trains.save(step, Checkpoint({}, {"step": step}))

    def late(path: Path) -> Checkpoint:
        monkeypatch.setattr(module, "load", real)
        for step in (3, 4):
            trains.save(step, Checkpoint({}, {"step": step}))
        return real(path)

    monkeypatch.setattr(module, "load", late)
    assert reads.load_latest().facts["step"] == 4
    assert not reads.damaged
