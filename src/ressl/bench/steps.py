"""Images per second of the training step: our engines, and the way most people train today."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageFilter
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from ressl.bench.timing import (
    as_torch_comes,
    count_memory_anew,
    in_stock,
    peak_memory_gb,
    seconds_of_one,
    timed,
    wait,
)
from ressl.data.base import ArraySource
from ressl.data.loaders import ResidentLoader
from ressl.data.views import View
from ressl.engine.accelerate import ALL_IDEAS, Ideas, accelerate
from ressl.engine.graphs import GraphedBody
from ressl.engine.step import TrainStep
from ressl.methods import Method
from ressl.recipes.recipe import Recipe
from ressl.runs import build_method
from ressl.training import Settings, build_step

BANK_BYTES = 10**9  # of pictures at most, for the sake of a bank
FEW = 1024  # pictures that PIL gets, over and over
STEPS = 1000  # of an epoch of PIL's
STRETCH = 3  # times as long is measured what workers bring, which comes less evenly


def pictures(count: int, side: int, seed: int = 0) -> ArraySource:
    """Smooth random pictures: speed does not depend on what they show, but noise would compress and blur unlike any."""
    coarse = torch.randint(0, 256, (count, 3, max(2, side // 8), max(2, side // 8)), dtype=torch.uint8,
                           generator=torch.Generator().manual_seed(seed))  # fmt: skip
    images = F.interpolate(coarse.float(), size=(side, side), mode="bilinear")
    return ArraySource("random pictures", images.to(torch.uint8))


def _with_room(recipe: Recipe) -> tuple[Recipe, int]:
    """How many pictures to measure on; a bank of all samples has its true size where so many pictures fit."""
    few = max(4 * recipe.batch_size, 1024)
    bank = recipe.options.get("bank_size")
    if bank is None:
        return recipe, few
    if bank * 3 * recipe.image_size**2 > BANK_BYTES:
        bank = max(few, 4096)
        return recipe.replace(bank_size=bank), bank
    return recipe, bank


def on_random_pictures(recipe: Recipe, device: torch.device) -> tuple[Recipe, Method, ResidentLoader]:
    """What a step is built of: the recipe, its method, and random pictures that lie on the device."""
    recipe, count = _with_room(recipe)
    method = build_method(recipe)
    source = pictures(count, recipe.image_size)
    if "labels" in method.wants:
        source.labels = torch.arange(count) % method.classes
    return recipe, method, ResidentLoader(source, recipe.batch_size, device, recipe.seed)


def step_speed(
    recipe: Recipe,
    device: torch.device,
    engine: str,
    precision: str,
    seconds: float,
    ideas: Ideas = ALL_IDEAS,
    change: Callable[[TrainStep], int] = lambda step: 1,
) -> dict[str, Any]:
    """The whole step of a recipe, views and data included, on resident random pictures.

    ``change`` may change the step before it first runs, and says how many steps it then makes at once.
    """
    torch._dynamo.reset()  # so that nothing holds the last step, whose memory is none of this one's
    count_memory_anew(device)
    recipe, method, loader = on_random_pictures(recipe, device)
    data = peak_memory_gb(device)
    start = time.perf_counter()
    step = build_step(recipe, method, loader, Settings(device=str(device), precision=precision), device)
    notes: list[str] = []
    accelerate(step, engine, notes.append, ideas)
    at_once = change(step)
    step.begin_epoch(0)
    step.advance()
    wait(device)
    start_up = time.perf_counter() - start
    found = timed(step.advance, device, seconds)
    each = found.median / at_once
    memory = {"step_memory_gb": _step_memory_gb(step)} if device.type == "cuda" else {}
    return {
        "engine": step.engine,
        "precision": precision,
        "batch": recipe.batch_size,
        "images_per_second": round(recipe.batch_size / each, 1),
        "milliseconds": round(1000 * each, 3),
        "spread": round(found.spread, 4),
        "start_seconds": round(start_up, 2),
        "peak_memory_gb": peak_memory_gb(device),
        "data_memory_gb": data,
        **memory,
        **({"note": notes[0]} if notes and step.engine != engine else {}),  # why it is another
    }


def _step_memory_gb(step: TrainStep) -> float:
    """What a step takes once it runs, data included; starting up takes more, for a while."""
    if isinstance(step.body, GraphedBody) and step.body.graph is not None:
        pool = tuple(step.body.graph.pool())
        segments = [(tuple(s["segment_pool_id"]) == pool, s) for s in torch.cuda.memory_snapshot()]
        return round(sum(s["total_size"] if held else s["allocated_size"] for held, s in segments) / 1e9, 3)
    torch.cuda.reset_peak_memory_stats(step.device)
    step.advance()
    wait(step.device)
    return round(torch.cuda.max_memory_allocated(step.device) / 1e9, 3)


class _PilViews(Dataset[tuple[Tensor, Tensor]]):
    """Two views of a picture by PIL and torchvision, one sample at a time, as the usual training scripts make them."""

    def __init__(self, images: np.ndarray, count: int, recipe: Recipe) -> None:
        self.images, self.count = images, count
        self.recipes = [_pil(view, recipe.mean, recipe.std) for view in recipe.views[:2]]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = Image.fromarray(self.images[index % len(self.images)])
        return self.recipes[0](picture), self.recipes[1](picture)


class _Blur:
    """PIL's Gaussian blur of a random radius; a class, because worker processes must be able to unpickle it."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def __call__(self, picture: Image.Image) -> Image.Image:
        return picture.filter(ImageFilter.GaussianBlur(random.uniform(self.low, self.high)))


def _pil(view: View, mean: tuple[float, ...], std: tuple[float, ...]) -> Callable[[Image.Image], Tensor]:
    from torchvision import transforms  # here, because it takes seconds

    jitter = transforms.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(view.size, view.crop or (1.0, 1.0), view.ratio),
            transforms.RandomHorizontalFlip(view.flip),
            *([transforms.RandomApply([jitter], view.jitter)] if view.jitter else []),
            *([transforms.RandomGrayscale(view.gray)] if view.gray else []),
            *([transforms.RandomApply([_Blur(*view.blur_sigma)], view.blur)] if view.blur else []),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )


def pil_loader(recipe: Recipe, workers: int, count: int) -> DataLoader[tuple[Tensor, Tensor]]:
    """An epoch of ``count`` pictures, of which those behind the first repeat."""
    images = pictures(min(count, FEW), recipe.image_size).images.permute(0, 2, 3, 1).contiguous().numpy()
    pin = torch.cuda.is_available()
    dataset = _PilViews(images, count, recipe)
    return DataLoader(dataset, recipe.batch_size, shuffle=True, drop_last=True, num_workers=workers, pin_memory=pin)


def pil_batches(recipe: Recipe, workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of an epoch without an end, where workers would start anew."""
    return chain.from_iterable(repeat(pil_loader(recipe, workers, STEPS * recipe.batch_size)))


def reference_speed(recipe: Recipe, device: torch.device, workers: int, seconds: float) -> dict[str, Any]:
    """The plain training script: PIL views in loader workers, float32, eager, two forwards, SGD."""
    torch._dynamo.reset()
    count_memory_anew(device)
    batches = pil_batches(recipe, workers)
    method = build_method(recipe).to(device).train()
    student = nn.Sequential(method.backbone, method.head)  # type: ignore[arg-type]
    teacher = copy.deepcopy(student).requires_grad_(False)
    options = dict(recipe.options)
    queue = F.normalize(torch.randn(options["queue_size"], options["output_dim"], device=device), dim=1)
    optimiser = torch.optim.SGD(student.parameters(), 0.06, momentum=0.9, weight_decay=5e-4)

    def step() -> None:
        nonlocal queue
        weak, strong = next(batches)
        with torch.no_grad():
            for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
                t.lerp_(s, 0.01)
            z1 = F.normalize(teacher(weak.to(device, non_blocking=True)), dim=1)
        z2 = F.normalize(student(strong.to(device, non_blocking=True)), dim=1)
        target = F.softmax(z1 @ queue.T / 0.04, 1)
        loss = -(target * F.log_softmax(z2 @ queue.T / 0.1, 1)).sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        queue = torch.cat([z1, queue])[: len(queue)]

    with as_torch_comes():
        for _ in range(in_stock(workers)):  # by steps, whose first take longer: workers fill the stock meanwhile
            step()
        rate = recipe.batch_size / seconds_of_one(step, device, STRETCH * seconds)
    return {"engine": "PIL workers, eager", "precision": "fp32", "batch": recipe.batch_size, "workers": workers,
            "images_per_second": round(rate, 1), "steady": True, "peak_memory_gb": peak_memory_gb(device)}  # fmt: skip
