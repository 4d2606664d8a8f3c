"""SIGKILL or a full disk at any byte of a save: the checkpoint before is there, and nothing else."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from child import Child, digest
from scale import draw, shards, share, times

from ressl import checkpoints, files
from ressl.checkpoints import Checkpoint, CheckpointFolder, DiskFull

PARTS = len(shards(2))
STAGES = ("fsync", "replace", "renamed", "pruning")  # the places behind the last byte


def example(number: int) -> Checkpoint:
    draw = torch.Generator().manual_seed(number)
    tensors = {"method.a": torch.randn(500, generator=draw), "method.b": torch.randn(9, 7, generator=draw)}
    return Checkpoint(tensors, {"step": number, "text": "x" * 200})


def cases(what: str, part: int) -> list[Any]:
    """Bytes n of the file, its edges first, and the stages after them."""
    moments, size = draw(what, part), len(checkpoints.encode(example(3)))
    edges: list[Any] = [0, 1, 7, 8, 9, *STAGES]
    total = len(share(times(1000, 60), part, PARTS))
    return [*edges, *(moments.randrange(size) for _ in range(total))][:total]


class Deadly:
    """A file that lets n bytes through and then kills the process."""

    def __init__(self, file: Any, n: int) -> None:
        self.file, self.n = file, n

    def __enter__(self) -> Deadly:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: bytes) -> int:
        if len(data) > self.n:
            self.file.write(data[: self.n])
            self.file.flush()
            die()
        self.n -= len(data)
        return int(self.file.write(data))


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(function: Any) -> Any:
    return lambda *args, **more: (die(), function(*args, **more))


def after(function: Any) -> Any:
    return lambda *args, **more: (function(*args, **more), die())


def deadly(at: Any) -> None:
    if isinstance(at, int):
        files.open = lambda path, mode: Deadly(open(path, mode), at)  # type: ignore[attr-defined]  # noqa: SIM115
    elif at == "fsync":
        os.fsync = before(os.fsync)
    elif at == "replace":
        os.replace = before(os.replace)
    elif at == "renamed":
        os.replace = after(os.replace)
    else:
        Path.unlink = before(Path.unlink)  # type: ignore[method-assign]


def same(found: Checkpoint, number: int) -> bool:
    wanted = example(number)
    return found.facts == wanted.facts and all(torch.equal(t, found.tensors[n]) for n, t in wanted.tensors.items())


def kill_many(where: str, points: list[Any]) -> int:
    for case, at in enumerate(points):
        folder = CheckpointFolder(Path(where) / str(case))
        for number in (1, 2):
            folder.save(number, example(number))
        pid = os.fork()
        if not pid:
            deadly(at)
            folder.save(3, example(3))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL, at
        whole = at in ("renamed", "pruning")
        restarted = CheckpointFolder(folder.folder)
        assert same(restarted.load_latest(), 3 if whole else 2), at
        assert restarted.damaged == [], at  # nothing half written was ever visible
        restarted.save(4, example(4))
        assert [p.name for p in sorted(folder.folder.iterdir())] == [
            *([] if whole else ["step-00000002.safetensors"]), *(["step-00000003.safetensors"] if whole else []),
            "step-00000004.safetensors",
        ], at  # fmt: skip
    return 0


def fill_many(where: str, points: list[int]) -> int:
    """A limit on file sizes is a disk that is full at byte n, without one."""
    for case, at in enumerate(points):
        folder = CheckpointFolder(Path(where) / str(case))
        for number in (1, 2):
            folder.save(number, example(number))
        resource.setrlimit(resource.RLIMIT_FSIZE, (at, resource.RLIM_INFINITY))
        try:
            folder.save(3, example(3))
            raise AssertionError(f"{at} bytes were enough")
        except DiskFull as error:
            said = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert "step-00000002" in said
        assert "\n" not in said
        names = [p.name for p in sorted(folder.folder.iterdir())]
        assert names == ["step-00000001.safetensors", "step-00000002.safetensors"], (at, names)
        assert same(CheckpointFolder(folder.folder).load_latest(), 2)
    return 0


@pytest.mark.parametrize("part", shards(2))
def test_a_process_killed_at_byte_n_leaves_the_checkpoint_before(part: int, tmp_path: Path, spawn: type[Child]) -> None:
    child = spawn(tmp_path / "log", kill_many, str(tmp_path), cases("kill", part)).join(300)
    assert child.code == 0, child.output


@pytest.mark.parametrize("part", shards(2))
def test_a_disk_full_at_byte_n_leaves_the_checkpoint_before(part: int, tmp_path: Path, spawn: type[Child]) -> None:
    points = [at if isinstance(at, int) else 17 for at in cases("full", part)]
    child = spawn(tmp_path / "log", fill_many, str(tmp_path), points).join(300)
    assert child.code == 0, child.output


# --- a whole run ---


def limit(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class Limit:
    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self) -> None:
        limit(self.size)


def test_a_run_whose_disk_is_full_stops_in_a_sentence_and_goes_on_later(
    tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    out = tmp_path / "run"
    child = spawn.train(out, ground, before=Limit(8_000)).join()
    assert child.code == 2, child.output
    assert "checkpoint after step 3 cannot be written: File too large" in child.output
    assert "Traceback" not in child.output
    assert not list(out.rglob("*.tmp"))
    child = spawn.train(out, ground).join()
    assert child.code == 0, child.output
    assert digest(out) == undisturbed[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_small_disk_is_warned_of_before_it_is_full(
    tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=750k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("cannot mount here")
    try:
        out = disk / "run"
        child = spawn.train(out, ground).join()
        assert child.code == 0, child.output
        assert "warning: the disk of" in child.output
        (disk / "other").write_bytes(bytes(400_000))
        child = spawn.train(disk / "run2", ground).join()
        assert child.code == 2, child.output
        assert "make room, then resume" in child.output
        assert not list(disk.rglob("*.tmp"))
        (disk / "other").unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", disk], check=True)
        child = spawn.train(disk / "run2", ground).join()
        assert child.code == 0, child.output
        assert digest(disk / "run2") == undisturbed[0]
    finally:
        subprocess.run(["umount", disk], check=True)
