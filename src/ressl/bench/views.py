"""The views alone: ours on the device, PIL in workers, torchvision v2 and (where installed) kornia."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ressl.bench.steps import STRETCH, pictures, pil_batches
from ressl.bench.timing import in_stock, seconds_of_one, seconds_per_call
from ressl.data.views import View, Views
from ressl.engine.compiling import compiled
from ressl.recipes.recipe import Recipe


def views_speed(
    recipe: Recipe, device: torch.device, workers: int, seconds: float, say: Callable[[str], None] = lambda text: None
) -> list[dict[str, Any]]:
    """Images per second for both views of a recipe; one picture counts once, whatever its number of views."""
    B = recipe.batch_size
    images = pictures(B, recipe.image_size).images.to(device)
    rows = torch.arange(B, device=device)
    ours = Views(recipe.views, recipe.mean, recipe.std, torch.tensor(0, device=device))
    step = torch.zeros((), dtype=torch.int64, device=device)
    measured = [_row("ressl, eager", B, seconds_per_call(lambda: ours(images, step, rows), device, seconds))]
    if device.type == "cuda":
        fast = compiled(lambda: ours(images, step, rows))
        measured.append(_row("ressl, compiled", B, seconds_per_call(fast, device, seconds)))
    measured.append(_row("torchvision v2, per sample", B, _v2(recipe, images, device, seconds)))
    kornia = _kornia(recipe, images, device, seconds)
    if kornia is None:
        say("views by kornia are not measured: it is not installed (pip install kornia)")
    else:
        measured.append(_row("kornia", B, kornia))
    measured.append(_pil(recipe, workers, device, seconds))
    return measured


def _row(name: str, batch: int, each: float) -> dict[str, Any]:
    return {"views": name, "batch": batch, "images_per_second": round(batch / each, 1)}


def _pil(recipe: Recipe, workers: int, device: torch.device, seconds: float) -> dict[str, Any]:
    batches = pil_batches(recipe, workers)
    for _ in range(in_stock(workers)):
        next(batches)
    each = seconds_of_one(lambda: next(batches), device, STRETCH * seconds)
    return _row(f"PIL, {workers} workers", recipe.batch_size, each) | {"steady": True}


def _v2(recipe: Recipe, images: Tensor, device: torch.device, seconds: float) -> float:
    """torchvision draws one set of parameters per call, so per-sample views are a loop."""
    makers = [_v2_view(view, recipe) for view in recipe.views[:2]]
    few = images[: min(len(images), 32)]
    each = seconds_per_call(
        lambda: [torch.stack([make(i) for i in few]) for make in makers], device, seconds, warm_up=1
    )
    return each * len(images) / len(few)


def _v2_view(view: View, recipe: Recipe) -> nn.Module:
    from torchvision.transforms import v2  # here, because it takes seconds

    jitter = v2.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue)
    return v2.Compose(
        [
            v2.RandomResizedCrop(view.size, view.crop or (1.0, 1.0), view.ratio, antialias=True),
            v2.RandomHorizontalFlip(view.flip),
            *([v2.RandomApply([jitter], view.jitter)] if view.jitter else []),
            *([v2.RandomGrayscale(view.gray)] if view.gray else []),
            *([v2.RandomApply([v2.GaussianBlur(13, view.blur_sigma)], view.blur)] if view.blur else []),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(list(recipe.mean), list(recipe.std)),
        ]
    )


def _kornia(recipe: Recipe, images: Tensor, device: torch.device, seconds: float) -> float | None:
    try:
        import kornia.augmentation as K
    except ImportError:
        return None

    def view_of(view: View) -> nn.Module:
        size = (view.size, view.size)
        return nn.Sequential(
            K.RandomResizedCrop(size, view.crop or (1.0, 1.0), view.ratio),
            K.RandomHorizontalFlip(p=view.flip),
            *(
                [K.ColorJitter(view.brightness, view.contrast, view.saturation, view.hue, p=view.jitter)]
                if view.jitter
                else []
            ),
            *([K.RandomGrayscale(p=view.gray)] if view.gray else []),
            *([K.RandomGaussianBlur((13, 13), view.blur_sigma, p=view.blur)] if view.blur else []),
            K.Normalize(torch.tensor(recipe.mean), torch.tensor(recipe.std)),
        ).to(device)

    makers = [view_of(view) for view in recipe.views[:2]]
    return seconds_per_call(lambda: [make(images.float() / 255) for make in makers], device, seconds)
