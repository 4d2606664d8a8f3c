"""Mutated pictures, bombs and wrong types: named and counted, each within a second and bounded memory."""

from __future__ import annotations

import hashlib
import os
import random
import resource
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from child import Child
from pictures import bombs, holes, mutate, seeds, special
from PIL import Image
from scale import draw, shards, share, times

from ressl.data.base import FileSource
from ressl.data.decode import BrokenImage, decode
from ressl.data.folders import open_folder, pictures
from ressl.data.streaming import StreamingLoader
from ressl.data.views import View

PARTS = len(shards(4, 2))
SECONDS = 1.0  # of this process's own time: others may be using the machine


def bound_memory(more: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (pages + more, resource.RLIM_INFINITY))


def outcome(path: str) -> str:
    """What became of a file: a digest of its pixels, or the reason; anything but those two is an error."""
    start = time.process_time()
    try:
        pixels = decode(path)
        found = f"{pixels.shape} {hashlib.md5(pixels.tobytes()).hexdigest()}"
    except BrokenImage as error:
        found = f"broken: {error.reason}"
    took = time.process_time() - start
    assert took < SECONDS, f"{took:.2f} s: {found}"
    assert "\n" not in found
    return found


def decode_many(where: str, part: int, total: int) -> int:
    good, moments, counts, slowest = seeds(), draw("pictures", part), [0, 0], 0.0
    for ending, data in good:
        (Path(where) / f"good.{ending}").write_bytes(data)
        assert not outcome(f"{where}/good.{ending}").startswith("broken"), ending
    bound_memory(1 << 30)
    for case in range(total):
        ending, data = mutate(good, moments)
        path = f"{where}/case.{ending}"
        with open(path, "wb") as file:
            file.write(data)
        signal.alarm(30)  # a hang ends the process, and the test with it
        start = time.process_time()
        try:
            found = outcome(path)
        except BaseException as error:
            os.replace(path, f"{where}/bad.{ending}")
            raise AssertionError(f"case {case} of part {part}: {error!r}") from error
        slowest = max(slowest, time.process_time() - start)
        counts[found.startswith("broken")] += 1
    signal.alarm(0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{counts[0]} read, {counts[1]} broken, slowest {slowest:.3f} s, peak {peak:.0f} MB")
    assert min(counts) > total // 20
    return 0


@pytest.mark.parametrize("part", shards(4, 2))
def test_a_mutated_picture_is_read_or_named(part: int, tmp_path: Path, spawn: type[Child]) -> None:
    total = len(share(times(100_000, 4000), part, PARTS))
    child = spawn(tmp_path / "log", decode_many, str(tmp_path), part, total).join(500)
    assert child.code == 0, child.output
    print(child.output)


def decode_bombs(where: str) -> int:
    for name, data in bombs().items():
        (Path(where) / name).write_bytes(data)
    holes(Path(where))
    bound_memory(1 << 30)
    for path in sorted(Path(where).iterdir()):
        start = time.process_time()
        print(path.name, path.stat().st_size, outcome(str(path)), f"{time.process_time() - start:.2f} s", flush=True)
    return 0


def test_bombs_and_wrong_types(tmp_path: Path, spawn: type[Child]) -> None:
    (tmp_path / "files").mkdir()
    child = spawn(tmp_path / "log", decode_bombs, str(tmp_path / "files")).join(200)
    print(child.output)
    assert child.code == 0, child.output
    for name in (
        "declared.png",
        "wide.png",
        "scans.jpg",
        "canvas.gif",
        "huge.bmp",
        "huge.ppm",
        "large.png",
        "wide.tif",
        "endless.gif",
        "padded.jpg",
        "comment.ppm",
    ):
        line = next(line for line in child.output.splitlines() if line.startswith(name))
        assert "broken:" in line, line
    assert not (tmp_path / "canary").exists()
    assert not Path("canary").exists()


def test_links_pipes_and_folders_with_picture_names(tmp_path: Path) -> None:
    special(tmp_path)
    for name in ("a.png", "folder.jpg/b.png", "deep/c.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / name)
    signal.alarm(30)
    names = sorted(Path(p).name for p in pictures(str(tmp_path)))
    assert names == ["a.png", "b.png", "c.png", "loop.jpg", "nothing.png"]
    found = open_folder(tmp_path, "train")
    broken = 0
    for i in range(len(found)):
        try:
            found.read(i)
        except BrokenImage:
            broken += 1
    for name in ("pipe.jpg", "folder.jpg", "zeros.png", "loop.jpg"):
        with pytest.raises(BrokenImage):
            decode(str(tmp_path / name))
    signal.alarm(0)
    assert broken == 2


def mixed(folder: Path, moments: random.Random, n: int = 240) -> FileSource:
    """One picture in 14 mutated, and so mostly broken."""
    good, noise, paths = seeds(), np.random.default_rng(3), []
    for i in range(n):
        ending, data = mutate(good, moments) if i % 14 == 3 else ("png", b"")
        path = folder / f"{i:03d}.{ending}"
        if data:
            path.write_bytes(data)
        else:
            Image.fromarray(noise.integers(0, 256, (12 + i % 5, 14, 3), dtype=np.uint8)).save(path)
        paths.append(str(path))
    return FileSource("mixed", paths, torch.arange(n) % 3, list("abc"))


def test_the_result_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    source, views = mixed(tmp_path, draw("workers and pictures")), [View(size=8), View(size=6)]
    results = []
    for workers in (0, 1, 2, 3):
        loader, found = StreamingLoader(source, views, 24, "cpu", seed=5, workers=workers), hashlib.sha256()
        for epoch in range(2):
            for batch in loader.iterate(epoch):
                for tensor in (batch.index, *(batch.crops or []), batch.labels):
                    assert tensor is not None
                    found.update(tensor.contiguous().numpy().tobytes())
        loader.close()
        results.append((found.hexdigest(), sorted(loader.broken.items())))
    assert all(result == results[0] for result in results)
    assert len(results[0][1]) >= 5
