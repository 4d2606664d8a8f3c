"""Features of many pictures: stopped, killed and continued, kept or made again, in bounded memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ressl import embedding
from ressl.data.base import Source
from ressl.data.sources import open_source
from ressl.embedding import embed
from ressl.encoder import Encoder
from ressl.errors import ResslError
from ressl.loading import Transform
from ressl.runs import Run

Model = tuple[torch.nn.Module, Transform]


# Slow on purpose, so that a kill falls between two parts.
SLOW = """
import sys, time
from ressl import embedding
embedding.PART, real = 8, embedding.centre
def slow(*args):
    time.sleep(0.02)
    return real(*args)
embedding.centre = slow
embedding.embed(sys.argv[1], sys.argv[2], sys.argv[3], workers=1, batch_size=4, device="cpu")
"""


@pytest.mark.usefixtures("small_parts")
def test_after_a_kill_it_goes_on_and_ends_the_same(
    make_run: Callable[..., Run],
    make_folder: Callable[..., Path],
    tmp_path: Path,
    memory: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run().path
    folder, out = make_folder(80, mixed=True, broken=(5,)), tmp_path / "f.npy"
    parts = tmp_path / "f.npy.parts"
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(run), str(folder), str(out)])
    deadline = time.monotonic() + 120
    while len(list(parts.glob("part-*"))) < 3 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = sorted(parts.glob("part-*"))
    assert 3 <= len(left) < 10
    assert not out.exists()
    # One of them rots; it is noticed and made again, the others are kept.
    left[1].write_bytes(left[1].read_bytes()[:-3] + b"abc")
    made = []
    real = embedding._Job.parts
    monkeypatch.setattr(embedding._Job, "parts", lambda self, numbers: (made.extend(numbers), real(self, numbers))[1])
    shown = memory()
    embed(run, folder, out, workers=3, batch_size=4, device="cpu", display=shown)
    kept = {int(p.stem.removeprefix("part-")) for p in left} - {1}
    assert made == [number for number in range(10) if number not in kept]
    assert f"{len(kept)} of 10 parts are there already; going on" in shown.said
    embed(run, folder, tmp_path / "g.npy", workers=0, batch_size=4, device="cpu")
    for ending in (".npy", ".paths.txt", ".npy.json", ".npy.broken.txt"):
        assert out.with_suffix(ending).read_bytes() == (tmp_path / f"g{ending}").read_bytes()
    assert not parts.exists()


def test_what_is_there_is_kept_and_nothing_else_is_taken_for_it(
    model: Model, make_folder: Callable[..., Path], tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = make_folder(10), tmp_path / "f.npy"
    first = np.array(embed(model, folder, out).features)
    assert not any(p.is_cuda or not p.requires_grad for p in model[0].parameters())  # the caller's model is as it was
    shown = memory()
    monkeypatch.setattr(embedding._Job, "parts", lambda *a: pytest.fail("computed again"))
    np.testing.assert_array_equal(embed(model, folder, out, display=shown).features, first)
    assert "is there already and up to date" in shown.said
    picture = next(folder.rglob("*.png"))
    os.utime(picture, ns=(1, 1))
    with pytest.raises(ResslError, match="by another model or with other settings; choose another -o"):
        embed(model, folder, out)


@pytest.mark.parametrize("form", ["npy", "npz", "memory", "tensor"])
def test_a_changed_array_is_not_taken_for_the_old_one(model: Model, tmp_path: Path, memory: Any, form: str) -> None:
    """One pixel of a row that no sample would look at."""
    pictures = np.random.default_rng(0).integers(0, 256, (200, 6, 6, 3), dtype=np.uint8)
    place, out = tmp_path / f"a.{form}", tmp_path / "f.npy"

    def given() -> Any:
        if form in ("npy", "npz"):
            np.save(place, pictures) if form == "npy" else np.savez(place, x=pictures)
            return place
        return pictures if form == "memory" else torch.from_numpy(pictures)

    images, shown = given(), memory()
    embed(model, images, out, device="cpu")
    embed(model, images, out, device="cpu", display=shown)
    assert "is there already and up to date" in shown.said
    pictures[1, 2, 3, 0] ^= 255
    with pytest.raises(ResslError, match="was made from other pictures"):
        embed(model, given(), out, device="cpu")


def test_a_changed_shard_is_not_taken_for_the_old_one(model: Model, tmp_path: Path, memory: Any) -> None:
    """Its pictures have the same names and, being bitmaps, lie in the same places."""
    place, out, shown = tmp_path / "a.tar", tmp_path / "f.npy", memory()

    def packed(shade: int) -> Source:
        with tarfile.open(place, "w") as tar:
            for name in ("x.bmp", "y.bmp"):
                Image.new("RGB", (12, 12), (shade, 0, 0)).save(tmp_path / name)
                tar.add(tmp_path / name, name)
        return open_source("shards", root=place)

    source = packed(20)
    embed(model, source, out, device="cpu")
    embed(model, source, out, device="cpu", display=shown)
    assert "is there already and up to date" in shown.said
    source = packed(200)
    os.utime(place, ns=(1, 1))  # a clock may be coarse
    with pytest.raises(ResslError, match="was made from other pictures"):
        embed(model, source, out, device="cpu")


class Watched(Encoder):
    """It counts what it is shown, and is stopped when it has seen enough."""

    def __init__(self, model: Model, enough: int) -> None:
        super().__init__(model, "cpu")
        self.enough, self.sizes = enough, list[int]()

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if sum(self.sizes) >= self.enough:
            raise KeyboardInterrupt
        self.sizes.append(len(images))
        return super().__call__(images)


@pytest.mark.parametrize(("batch_size", "kept"), [(256, 1024), (700, 1400), (2048, 2048)])
def test_who_is_stopped_keeps_all_but_a_thousand_in_whole_batches(
    model: Model, tmp_path: Path, batch_size: int, kept: int
) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2100, 4, 4, 3), dtype=np.uint8)
    model = model[0], Transform(4, 4, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    first, second = Watched(model, 1400), Watched(model, 3000)
    with pytest.raises(KeyboardInterrupt):
        embed(first, pixels, tmp_path / "f.npy", batch_size=batch_size)
    assert set(first.sizes) == {batch_size}
    found = embed(second, pixels, tmp_path / "f.npy", batch_size=batch_size)
    assert sum(second.sizes) == 2100 - kept
    np.testing.assert_array_equal(found.features, embed(model, pixels, batch_size=batch_size, device="cpu").features)


def test_who_is_stopped_does_not_wait_for_pictures_that_nobody_will_see(
    model: Model, make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "_TASK", 1)
    opened, real = [], embedding._Job._read
    monkeypatch.setattr(
        embedding._Job, "_read", lambda self, *a: (opened.append(a), time.sleep(0.05), real(self, *a))[2]
    )
    with pytest.raises(KeyboardInterrupt):
        embed(Watched(model, 0), make_folder(60), workers=1, batch_size=10)
    assert len(opened) < 20  # of the 30 that were asked for


def test_the_list_of_broken_files_is_that_of_the_last_try(
    model: Model, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out, other = tmp_path / "f.npy", tmp_path / "f.parquet"
    embed(model, make_folder(9, broken=(3,)), out)
    embed(model, make_folder(9, broken=(4, 5), name="others"), other)
    assert len(embed(model, tmp_path / "photos", out).broken) == 1
    assert len(embed(model, tmp_path / "others", other).broken) == 2
    out.unlink()
    embed(model, make_folder(9), out)  # mended
    assert sorted(p.name for p in tmp_path.glob("*.broken.txt")) == ["f.parquet.broken.txt"]


def test_memory_does_not_grow_with_the_number_of_pictures(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no time are more pictures decoded than the batches ahead hold."""
    monkeypatch.setattr(embedding, "PART", 64)
    alive, most = set[int](), 0
    real_read, real_collect = embedding._Job._read, embedding._collect

    def read(self: Any, first: int, last: int) -> Any:
        nonlocal most
        alive.update(range(first, last))
        most = max(most, len(alive))
        return real_read(self, first, last)

    def collect(tasks: Any) -> Any:
        result = real_collect(tasks)
        alive.difference_update(result[0].tolist())
        return result

    monkeypatch.setattr(embedding._Job, "_read", read)
    monkeypatch.setattr(embedding, "_collect", collect)
    embed(model, np.zeros((512, 12, 12, 3), np.uint8), tmp_path / "f.npy", workers=2, batch_size=8)
    assert 8 <= most <= 8 * embedding._AHEAD


class Weighed(Encoder):
    """It notes the most memory that Python and numpy have taken until the last batch."""

    most = 0

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        self.most = tracemalloc.get_traced_memory()[1]
        return torch.zeros(len(images), 2)


@pytest.mark.parametrize(("dtype", "ending", "side"), [("u1", "npz", 64), ("f4", "npy", 64), ("f4", "npz", 48)])
def test_nor_with_the_size_of_an_array(model: Model, tmp_path: Path, dtype: str, ending: str, side: int) -> None:
    """Measured. A side of 64 is taken as it is, one of 48 is resized."""
    place, array = tmp_path / f"a.{ending}", np.full((1024, side, side, 3), 1, dtype)
    np.save(place, array) if ending == "npy" else np.savez(place, images=array)
    encoder = Weighed((model[0], Transform(64, 64, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))), "cpu")
    tracemalloc.start()
    try:
        embed(encoder, place, tmp_path / "f.npy", workers=1, batch_size=32)
    finally:
        tracemalloc.stop()
    assert 0 < encoder.most < array.nbytes / 4
