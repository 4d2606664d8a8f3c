"""Loaders: who gets which sample, the same for any number of processes and workers, through breakage and resumption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF
from PIL import Image
from saved import arrays, files, smooth
from torch import Tensor

from ressl import rng
from ressl.data import loaders
from ressl.data.base import ArraySource, FileSource
from ressl.data.loaders import (
    Batch,
    ResidentLoader,
    StreamingLoader,
    choose_residency,
    make_loader,
)
from ressl.data.views import View
from ressl.errors import ResslError

VIEWS = [View(size=16), View(size=12, crop=(0.1, 0.5))]


def same(a: Batch, b: Batch) -> bool:
    assert a.crops is not None
    assert b.crops is not None
    pairs = [(a.index, b.index), (a.labels, b.labels), *zip(a.crops, b.crops, strict=True)]
    return all(x is not None and y is not None and torch.equal(x, y) for x, y in pairs)


# --- resident ---


def test_resident_epoch_visits_each_sample_once() -> None:
    source = arrays(50)
    loader = ResidentLoader(source, 8, "cpu", seed=3)
    assert loader.steps_per_epoch == 6  # 48 of 50: the incomplete batch is dropped
    epochs = [torch.cat([batch.index for batch in loader.iterate(epoch)]) for epoch in (0, 1)]
    for epoch, seen in enumerate(epochs):
        assert len(seen.unique()) == 48
        assert torch.equal(seen, rng.permutation(3, epoch, 50, rng.ORDER, "cpu")[:48])
    assert not torch.equal(epochs[0], epochs[1])
    batch = loader.batch(1, 2)
    assert batch.images is not None
    assert batch.labels is not None
    assert batch.crops is None
    assert torch.equal(batch.images, source.images[batch.index])
    assert torch.equal(batch.labels, batch.index % 3)
    with pytest.raises(IndexError):
        loader.batch(0, 6)


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_share_the_global_batch(world: int, tmp_path: Path) -> None:
    source = files(tmp_path, 20)
    whole = ResidentLoader(arrays(20), 8, "cpu", seed=1)
    streamed = list(StreamingLoader(source, VIEWS, 8, "cpu", seed=1).iterate(1))
    for rank in range(world):
        part = ResidentLoader(arrays(20), 8, "cpu", seed=1, rank=rank, world=world)
        assert part.rows.tolist() == [j * world + rank for j in range(8 // world)]
        for step in range(2):
            assert torch.equal(part.batch(1, step).index, whole.batch(1, step).index[rank::world])
        shares = StreamingLoader(source, VIEWS, 8, "cpu", seed=1, rank=rank, world=world).iterate(1)
        for mine, all_of_it in zip(shares, streamed, strict=True):
            assert mine.crops is not None
            assert all_of_it.crops is not None
            for a, b in zip(mine.crops, all_of_it.crops, strict=True):
                assert torch.equal(a, b[rank::world])  # the same crops, too


def test_impossible_batches() -> None:
    with pytest.raises(ResslError, match="does not fit 5 pictures"):
        ResidentLoader(arrays(5), 8, "cpu", seed=0)
    with pytest.raises(ResslError, match="shared evenly by 3"):
        ResidentLoader(arrays(50), 8, "cpu", seed=0, world=3)


# --- streaming ---


def test_streaming_crops_are_those_of_the_view(tmp_path: Path) -> None:
    """Against the definition: the box from the pure random numbers, cut and resized by torchvision."""
    source = files(tmp_path, 9)
    loader = StreamingLoader(source, VIEWS, 4, "cpu", seed=7)
    epoch, step = 2, 1
    batch = list(loader.iterate(epoch))[step]
    assert batch.crops is not None
    assert batch.images is None
    assert torch.equal(batch.index, ResidentLoader(arrays(9), 4, "cpu", seed=7).batch(epoch, step).index)
    global_step = epoch * loader.steps_per_epoch + step
    for v, view in enumerate(VIEWS):
        u = rng.uniform(7, global_step, torch.arange(4), View.COLUMNS, rng.VIEWS + v)
        for row, index in enumerate(batch.index.tolist()):
            picture = torch.from_numpy(source.read(index)).permute(2, 0, 1)
            top, left, height, width = view.boxes(u[row : row + 1], *picture.shape[1:])[0].tolist()
            expected = TF.resized_crop(picture, top, left, height, width, [view.size] * 2, antialias=True)
            assert (batch.crops[v][row].int() - expected.int()).abs().max() <= 1


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_change_nothing_and_resuming_neither(tmp_path: Path, workers: int) -> None:
    source = files(tmp_path, 26, broken=(3, 11))
    alone, many = (StreamingLoader(source, VIEWS, 5, "cpu", seed=2, workers=w) for w in (0, workers))
    for epoch in (0, 1):  # the second goes through the persistent workers' restart
        expected = list(alone.iterate(epoch))
        assert all(same(a, b) for a, b in zip(expected, many.iterate(epoch), strict=True))
    half = many.iterate(0)
    next(half)
    del half  # given up in the middle, as an interrupted epoch is
    assert all(same(a, b) for a, b in zip(expected[2:], many.iterate(1, start_step=2), strict=True))
    assert alone.broken == many.broken
    assert {Path(p).name for p in many.broken} == {"003.png", "011.png"}
    many.close()


def test_the_global_random_state_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(StreamingLoader(files(tmp_path, 6), VIEWS, 3, "cpu", seed=0).iterate(0))
    assert torch.equal(before, torch.get_rng_state())


def test_a_broken_file_is_replaced_by_the_next(tmp_path: Path) -> None:
    source = files(tmp_path, 24, broken=(4, 23))  # 23 wraps to 0
    loader = StreamingLoader(source, VIEWS, 24, "cpu", seed=0)
    (batch,) = loader.iterate(0)
    asked = loader.order(0)
    expected = [{4: 5, 23: 0}.get(i, i) for i in asked.tolist()]
    assert batch.index.tolist() == expected
    assert batch.labels is not None
    assert batch.labels.tolist() == [i % 4 for i in expected]
    assert len(loader.broken) == 2


def test_too_many_broken_files_stop_the_run(tmp_path: Path) -> None:
    loader = StreamingLoader(files(tmp_path, 30, broken=(1, 8, 15, 22)), VIEWS, 10, "cpu", seed=0)
    with pytest.raises(ResslError, match=r"more than 10%") as caught:
        list(loader.iterate(0))
    assert "\n" not in str(caught.value)
    assert len(loader.broken) == 4
    for workers in (0, 1):  # all of them: must not search through a million files
        none = StreamingLoader(files(tmp_path, 30, broken=tuple(range(30))), VIEWS, 10, "cpu", seed=0, workers=workers)
        with pytest.raises(ResslError, match="pictures in a row cannot be read") as caught:
            list(none.iterate(0))
        assert "\n" not in str(caught.value)
        assert none.broken
        none.close()


class _Slow(View):
    def boxes(self, u: Tensor, height: int | Tensor, width: int | Tensor) -> Tensor:
        time.sleep(0.2)
        return super().boxes(u, height, width)


def test_a_killed_worker_is_named(tmp_path: Path) -> None:
    loader = StreamingLoader(files(tmp_path, 40), [_Slow(size=8)], 2, "cpu", seed=0, workers=1)
    batches = loader.iterate(0)
    next(batches)
    worker = loader._loader._iterator._workers[0].pid  # type: ignore[union-attr]
    os.kill(worker, signal.SIGINT)  # ignored: Ctrl-C is the main process's business
    next(batches)

    def rest() -> None:
        # Also the wait is inside: torch raises from its signal handler, wherever the main thread is.
        os.kill(worker, signal.SIGKILL)
        try:
            time.sleep(0.5)
            for _ in batches:
                pass
        except RuntimeError as error:
            raise loaders.lost_worker(error) or error from None

    with pytest.raises(ResslError, match=f"loader worker {worker} died .*resume the run") as caught:
        rest()
    assert "\n" not in str(caught.value)
    loader.close()
    assert loaders.lost_worker(RuntimeError("CUDA out of memory")) is None


UNFINISHED = """
import multiprocessing.util, sys, time, torch  # in this order torch's exit comes before that of multiprocessing
from ressl.data.base import ArraySource
from ressl.data.loaders import StreamingLoader
from ressl.data.views import View

source = ArraySource("a", torch.zeros(40, 3, 16, 16, dtype=torch.uint8))
loader = StreamingLoader(source, [View(size=8)], 4, "cpu", seed=0, workers=4)
batches = loader.iterate(0)
next(batches)
worker = loader._loader._iterator._workers[0]
kill = type(worker).kill
type(worker).kill = lambda self: (kill(self), time.sleep(0.05))  # torch's handler has time to look
if "close" in sys.argv:
    loader.close()
    assert not worker.is_alive()
    loader.close()
    print(len(list(loader.iterate(1))))
print("left")
"""


@pytest.mark.parametrize(("words", "said"), [([], "left\n"), (["close"], "10\nleft\n")])
def test_python_ends_although_somebody_still_holds_an_epoch(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "unfinished.py").write_text(UNFINISHED)
    start = time.monotonic()
    run = subprocess.run(
        [sys.executable, tmp_path / "unfinished.py", *words], capture_output=True, text=True, timeout=60
    )
    assert (run.returncode, run.stdout) == (0, said), run.stderr
    assert "Traceback" not in run.stderr
    assert time.monotonic() - start < 20  # no worker is waited for until a time is up, of ten seconds each


def test_streaming_from_an_array_and_large_jpegs(tmp_path: Path) -> None:
    images = torch.from_numpy(np.stack([smooth(i, 40, 40) for i in range(4)])).permute(0, 3, 1, 2)
    (batch,) = StreamingLoader(ArraySource("a", images), VIEWS, 4, "cpu", seed=0).iterate(0)
    assert batch.labels is None
    assert batch.crops is not None
    assert [tuple(crop.shape) for crop in batch.crops] == [(4, 3, 16, 16), (4, 3, 12, 12)]
    # A JPEG decoded at a fraction of its size gives nearly the same crops as its full-size pixels.
    paths = []
    for i in range(4):
        paths.append(str(tmp_path / f"{i}.jpg"))
        Image.fromarray(smooth(i, 301, 403)).save(paths[-1], quality=95)
    jpegs = FileSource("j", paths)
    pixels = torch.from_numpy(np.stack([jpegs.read(i) for i in range(4)])).permute(0, 3, 1, 2)
    (fast,) = StreamingLoader(jpegs, VIEWS, 4, "cpu", seed=0).iterate(0)
    (exact,) = StreamingLoader(ArraySource("p", pixels), VIEWS, 4, "cpu", seed=0).iterate(0)
    assert fast.crops is not None
    assert exact.crops is not None
    for a, b in zip(fast.crops, exact.crops, strict=True):
        assert not torch.equal(a, b)  # the shorter way was taken
        assert (a.int() - b.int()).abs().float().mean() < 1.5


# --- choosing, packing, reading ---


def test_choice_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big = ArraySource("c", torch.zeros(1, 3, 32, 32, dtype=torch.uint8).expand(50_000, -1, -1, -1))
    assert choose_residency(big, [View(size=32)], "cpu") == (
        True,
        "resident: 50,000 pictures of 32 x 32 are 154 MB on cpu",
    )
    monkeypatch.setattr(loaders, "room", lambda device: 10**8)
    assert choose_residency(big, [View(size=32)], "cpu") == (
        False,
        "streaming: 50,000 pictures of 32 x 32 are 154 MB, more than the 100 MB set aside on cpu",
    )
    assert choose_residency(files(tmp_path, 8, size=(32, 32)), [View(size=32)], "cpu")[0]
    resident, why = choose_residency(files(tmp_path, 2, size=(300, 20)), [View(size=32)], "cpu")
    assert not resident
    assert "much larger than views of 32" in why
    assert choose_residency(files(tmp_path, 2, size=(300, 20)), [View(size=224)], "cpu")[0]


def test_broken_files_are_left_out_of_what_is_held(tmp_path: Path) -> None:
    opened = make_loader(files(tmp_path, 20, broken=(3,), size=(8, 8)), VIEWS, 10, "cpu", seed=0)
    assert isinstance(opened.loader, ResidentLoader)
    assert opened.why == "resident: 20 pictures of 8 x 8 are 4 kB on cpu"
    assert len(opened.broken) == 1
