"""The loader alone, from JPEG files to crops on the device, and the step that it feeds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import mean, median_low
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ressl.bench.steps import pictures, step_speed
from ressl.bench.timing import in_stock, peak_memory_gb, seconds_of_one, seconds_per_call
from ressl.data.base import FileSource, Source
from ressl.data.batches import Batch
from ressl.data.decode import Bitmap, BrokenImage, Picture
from ressl.data.sources import label_of, open_source, parse_data, pretrain_split
from ressl.data.streaming import StreamingLoader
from ressl.engine.accelerate import accelerate
from ressl.errors import ResslError
from ressl.memory import shown_bytes
from ressl.recipes.recipe import Recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

RANDOM = "random JPEG files"
SIDES = (375, 500)  # a usual picture of ImageNet
FILES = 512
STEPS = 1000  # of an epoch, at least
SAMPLE = 200  # files by which the others are described


def jpegs(folder: Path, count: int, sides: tuple[int, int] = SIDES) -> FileSource:
    """Smooth random pictures as JPEG files of quality 90."""
    images = pictures(min(count, 64), max(sides)).images
    paths = []
    for i in range(count):
        path = folder / f"{i:05d}.jpg"
        pixels = images[i % len(images)].permute(1, 2, 0).numpy()[: sides[0], : sides[1]]
        Image.fromarray(np.ascontiguousarray(pixels)).save(path, quality=90)
        paths.append(str(path))
    return FileSource(RANDOM, paths)


def files_of(data: str) -> FileSource:
    """The pictures to read: a folder, a list, shards, or a named set that lies as files."""
    kind, place = parse_data(data)
    source = open_source(kind, pretrain_split(kind), place)
    if not isinstance(source, FileSource):
        raise ResslError(f"{kind} holds no picture files to read; give a folder, a list.txt or shards to --data")
    return source


def described(source: FileSource, name: str) -> dict[str, Any]:
    """What was read, for the record: how fast files are decoded says little without their sizes."""
    sides, lengths = list[tuple[int, int]](), list[int]()
    for index in np.linspace(0, len(source) - 1, min(SAMPLE, len(source)), dtype=np.int64).tolist():
        with contextlib.suppress(BrokenImage, OSError):
            with source.open(index) as picture:
                side = picture.height, picture.width
            lengths.append(len(source.raw(index)))
            sides.append(side)
    found: dict[str, Any] = {"data": name, "pictures": len(source)}
    if sides:
        height, width = (median_low(side) for side in zip(*sides, strict=True))
        found |= {"median_height": height, "median_width": width, "mean_bytes": round(mean(lengths))}
    return found


def in_words(found: dict[str, Any]) -> str:
    """The same to be shown.

    >>> in_words({"data": "photos", "pictures": 3769})
    '3,769 files of photos'
    >>> in_words({"data": RANDOM, "pictures": 64, "median_height": 96, "median_width": 128, "mean_bytes": 2600})
    '64 random JPEG files, 96 x 128 at the median, 3 kB on average'
    """
    of = found["data"] if found["data"] == RANDOM else f"files of {found['data']}"
    what = f"{found['pictures']:,} {of}"
    if "mean_bytes" not in found:
        return what
    side = f"{found['median_height']} x {found['median_width']}"
    return f"{what}, {side} at the median, {shown_bytes(found['mean_bytes'])} on average"


class Repeated(Source):
    """The same pictures over and over: an epoch so long that its end, where workers wait, is not what is measured."""

    def __init__(self, source: Source, at_least: int) -> None:
        self.source, self.times = source, -(-at_least // len(source))
        self.name, self.classes = source.name, source.classes
        self.labels = None if source.labels is None else source.labels.repeat(self.times)

    def __len__(self) -> int:
        return len(self.source) * self.times

    def read(self, index: int) -> NDArray[np.uint8]:
        return self.source.read(index % len(self.source))

    def open(self, index: int) -> Picture | Bitmap:
        return self.source.open(index % len(self.source))

    def identify(self, index: int) -> str:
        return self.source.identify(index % len(self.source))

    @property
    def size(self) -> tuple[int, int] | None:
        return self.source.size


def loader_speed(
    recipe: Recipe, device: torch.device, workers: int, seconds: float, data: str | None = None
) -> Iterator[dict[str, Any]]:
    """Images per second: the step on pictures that lie on the device, one core decoding whole files, the loader, and
    the step fed by it.

    From the files of ``data``, else from random ones. They are streamed, also where they would fit on the device.
    """
    alone = step_speed(recipe, device, "auto", _precision(device), seconds)
    resident = _row("step on resident pictures", 0, alone["images_per_second"])
    resident |= {"peak_memory_gb": peak_memory_gb(device), "files": "random pictures on the device"}
    with TemporaryDirectory() as folder:
        if data is None:
            on_gpu = device.type == "cuda"
            files = jpegs(Path(folder), FILES, SIDES) if on_gpu else jpegs(Path(folder), 64, (96, 128))
            read = described(files, RANDOM)
        else:
            files = files_of(data)
            read = described(files, label_of(*parse_data(data)))
        of_files = (
            {"files": in_words(read)} | row | read for row in _from_files(recipe, files, device, workers, seconds)
        )
        for row in chain([resident], of_files):
            yield row | {"share_of_step": round(row["images_per_second"] / alone["images_per_second"], 3)}


def _from_files(
    recipe: Recipe, files: FileSource, device: torch.device, workers: int, seconds: float
) -> Iterator[dict[str, Any]]:
    yield _row("whole files decoded, one core", 1, _decode(files, seconds))
    if device.type == "cuda" and (rate := _nvjpeg(files, device, seconds)):
        yield _row("whole files decoded by nvJPEG", 0, rate)
    source = Repeated(files, STEPS * recipe.batch_size)
    if "bank_size" in recipe.options:
        recipe = recipe.replace(bank_size=len(source))
    yield _row("loader: decode, crop, to the device", workers, _stream(recipe, source, device, workers, seconds))
    rate, idle = _fed(recipe, source, device, workers, seconds)
    yield _row("step fed by the loader", workers, rate) | {"idle_share": round(idle, 3)}


def _precision(device: torch.device) -> str:
    return "bf16" if device.type == "cuda" else "fp32"


def _row(name: str, workers: int, rate: float) -> dict[str, Any]:
    return {"loader": name, "workers": workers, "images_per_second": round(rate, 1)}


def _decode(source: FileSource, seconds: float) -> float:
    start, count, read = time.perf_counter(), 0, 0
    while time.perf_counter() - start < seconds:
        with contextlib.suppress(BrokenImage):
            source.read(count % len(source))
            read += 1
        count += 1
    return read / (time.perf_counter() - start)


def _nvjpeg(source: FileSource, device: torch.device, seconds: float, batch: int = 64) -> float | None:
    """None where there are no JPEG files among the first, or none that it takes."""
    from torchvision.io import decode_jpeg

    data = []
    for i in range(min(batch, len(source))):
        with contextlib.suppress(BrokenImage, OSError):
            if (raw := source.raw(i)).startswith(b"\xff\xd8"):
                data.append(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    try:
        return len(data) / seconds_per_call(lambda: decode_jpeg(data, device=device), device, seconds) if data else None
    except RuntimeError:  # four colours, or no nvJPEG in this torchvision
        return None


def _batches(loader: StreamingLoader) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from loader.iterate(epoch)
        epoch += 1


def _stream(recipe: Recipe, source: Source, device: torch.device, workers: int, seconds: float) -> float:
    loader = StreamingLoader(source, recipe.views, recipe.batch_size, device, recipe.seed, workers)
    batches = _batches(loader)
    for _ in range(in_stock(workers)):
        next(batches)
    try:
        return recipe.batch_size / seconds_of_one(lambda: next(batches), device, seconds)
    finally:
        loader.close()


def _fed(recipe: Recipe, source: Source, device: torch.device, workers: int, seconds: float) -> tuple[float, float]:
    """Images/s of the step fed by the loader, and the share of that time in which it waits for a batch.

    That is one minus its time on a batch which lies on the device over its time when the loader brings each.
    """
    loader = StreamingLoader(source, recipe.views, recipe.batch_size, device, recipe.seed, workers)
    settings = Settings(device=str(device), precision=_precision(device))
    step = build_step(recipe, build_method(recipe), loader, settings, device)
    accelerate(step, "auto")
    step.begin_epoch(0)
    batches = _batches(loader)
    for _ in range(in_stock(workers)):
        held = next(batches)
        step.advance(held)
    try:
        fed = seconds_of_one(lambda: step.advance(next(batches)), device, seconds)
    finally:
        loader.close()
    alone = seconds_per_call(lambda: step.advance(held), device, seconds)
    return recipe.batch_size / fed, max(0.0, 1 - alone / fed)
