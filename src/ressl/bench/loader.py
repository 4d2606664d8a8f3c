"""The loader alone, from JPEG files to crops on the device, and the step that it feeds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image

from ressl.bench.steps import pictures, step_speed
from ressl.bench.timing import peak_memory_gb, wait
from ressl.data.base import FileSource
from ressl.data.batches import Batch
from ressl.data.decode import decode
from ressl.data.streaming import StreamingLoader
from ressl.engine.accelerate import accelerate
from ressl.recipes.recipe import Recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

SIDES = (375, 500)  # a usual picture of ImageNet
FILES = 512


def jpegs(folder: Path, count: int, sides: tuple[int, int] = SIDES) -> FileSource:
    """Smooth random pictures as JPEG files of quality 90."""
    images = pictures(min(count, 64), max(sides)).images
    paths = []
    for i in range(count):
        path = folder / f"{i:05d}.jpg"
        pixels = images[i % len(images)].permute(1, 2, 0).numpy()[: sides[0], : sides[1]]
        Image.fromarray(np.ascontiguousarray(pixels)).save(path, quality=90)
        paths.append(str(path))
    return FileSource("random JPEG files", paths)


def loader_speed(recipe: Recipe, device: torch.device, workers: int, seconds: float) -> list[dict[str, Any]]:
    """Images per second: one core decoding whole files, the loader, the step fed by it, and the step without it."""
    on_gpu = device.type == "cuda"
    sides = SIDES if on_gpu else (96, 128)
    with TemporaryDirectory() as folder:
        source = jpegs(Path(folder), max(recipe.batch_size, FILES if on_gpu else 64), sides)
        rows = [_row("whole files decoded, one core", 1, _decode(source, seconds))]
        if on_gpu:
            rows.append(_row("whole files decoded by nvJPEG", 0, _nvjpeg(source, device, seconds)))
        fast = _stream(recipe, source, device, workers, seconds)
        rows.append(_row("loader: decode, crop, to the device", workers, fast))
        rows.append(_row("step fed by the loader", workers, _fed(recipe, source, device, workers, seconds)))
    alone = step_speed(recipe, device, "auto", "bf16" if on_gpu else "fp32", seconds)
    last = _row("step on resident pictures", 0, alone["images_per_second"])
    rows.append(last | {"peak_memory_gb": peak_memory_gb(device)})
    for row in rows:
        row["share_of_step"] = round(row["images_per_second"] / alone["images_per_second"], 3)
    return rows


def _row(name: str, workers: int, rate: float) -> dict[str, Any]:
    return {"loader": name, "workers": workers, "images_per_second": round(rate, 1)}


def _decode(source: FileSource, seconds: float) -> float:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        decode(source.paths[count % len(source)])
        count += 1
    return count / (time.perf_counter() - start)


def _nvjpeg(source: FileSource, device: torch.device, seconds: float, batch: int = 64) -> float:
    from torchvision.io import decode_jpeg, read_file

    data = [read_file(source.paths[i]) for i in range(min(batch, len(source)))]
    decode_jpeg(data, device=device)
    wait(device)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        decode_jpeg(data, device=device)
        wait(device)
        count += len(data)
    return count / (time.perf_counter() - start)


def _batches(loader: StreamingLoader) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from loader.iterate(epoch)
        epoch += 1


def _stream(recipe: Recipe, source: FileSource, device: torch.device, workers: int, seconds: float) -> float:
    loader = StreamingLoader(source, recipe.views, recipe.batch_size, device, recipe.seed, workers)
    batches = _batches(loader)
    next(batches)  # the workers have started
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < seconds:
        next(batches)
        count += recipe.batch_size
    wait(device)
    rate = count / (time.perf_counter() - start)
    loader.close()
    return rate


def _fed(recipe: Recipe, source: FileSource, device: torch.device, workers: int, seconds: float) -> float:
    loader = StreamingLoader(source, recipe.views, recipe.batch_size, device, recipe.seed, workers)
    precision = "bf16" if device.type == "cuda" else "fp32"
    step = build_step(recipe, build_method(recipe), loader, Settings(device=str(device), precision=precision), device)
    accelerate(step, "auto")
    step.begin_epoch(0)
    batches = _batches(loader)
    for _ in range(2):
        step.advance(next(batches))
    wait(device)
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < seconds:
        step.advance(next(batches))
        count += recipe.batch_size
    wait(device)
    rate = count / (time.perf_counter() - start)
    loader.close()
    return rate
