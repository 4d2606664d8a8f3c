"""How fast the linear evaluation goes over its data, and what each of its ideas is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ressl.bench.steps import pictures
from ressl.bench.timing import count_memory_anew, peak_memory_gb, seconds_per_call, wait
from ressl.data.views import View, Views
from ressl.engine.compiling import compiled
from ressl.engine.folding import fold
from ressl.engine.tuning import fastest
from ressl.engine.ways import Ways
from ressl.errors import ResslError
from ressl.evaluation.blocks import Blocks
from ressl.evaluation.classifier import Classifier
from ressl.evaluation.linear import learning_rate
from ressl.recipes.recipe import Recipe
from ressl.runs import build_method

CLASSES = 10
MOST = 10**9  # bytes of pictures
IDEAS = ("all ideas", "without paired pixels", "without inside pixels", "without our kernel")


def linear_speed(
    recipe: Recipe, device: torch.device, seconds: float, say: Callable[[str], None] = lambda text: None
) -> Iterator[dict[str, Any]]:
    """Epochs on random pictures as they are, and with one idea changed at a time."""
    on_gpu, side = device.type == "cuda", recipe.image_size
    count = min(50_000 if on_gpu else 2 * recipe.linear.batch_size, MOST // (3 * side**2))
    images = pictures(count, side).images.to(device)
    backbone = build_method(recipe).backbone.to(device).eval()
    for idea in IDEAS if on_gpu else IDEAS[:1]:
        count_memory_anew(device)
        each = _epoch(recipe, backbone, images, idea, seconds)
        hundred = round(100 * each, 3)
        say(f"linear evaluation, {idea}: {hundred:.1f} s for 100 epochs")
        yield {"linear": idea, "images_per_second": round(count / each, 1), "hundred_epochs_seconds": hundred,
               "pictures": count, "peak_memory_gb": peak_memory_gb(device)}  # fmt: skip


def _epoch(recipe: Recipe, backbone: nn.Module, images: Tensor, idea: str, seconds: float) -> float:
    """Seconds of an epoch. What it took is free again afterwards."""
    device, protocol, on_gpu = images.device, recipe.linear, images.is_cuda
    ways = Ways(paired=on_gpu and idea != "without paired pixels", inside=idea != "without inside pixels")
    net = fold(backbone, torch.bfloat16 if on_gpu else torch.float32, ways)
    if net is None:
        raise ResslError(f"the part 'linear' of the benchmark measures ResNets, and {recipe.backbone} is none")
    batch = min(protocol.batch_size, len(images))
    total = protocol.epochs * (len(images) // batch)
    width: int = backbone.features_dim  # type: ignore[assignment]
    classifier = Classifier(
        width, CLASSES, schedule=lambda step: learning_rate(protocol, step, total, batch),
        nesterov=protocol.nesterov, seed=0, device=device,
    )  # fmt: skip
    views = Views([View(size=recipe.image_size, crop=protocol.scale, flip=0.5)], recipe.mean, recipe.std, 0)
    labels = torch.arange(len(images), device=device) % CLASSES
    blocks = Blocks(net, views, images, labels, classifier, batch, 0)
    if idea == "without our kernel":
        blocks.show, blocks.look = blocks._show, compiled(blocks._look)
    with fastest(device):
        blocks.train_epoch()  # the start
        wait(device)
        return seconds_per_call(blocks.train_epoch, device, seconds, warm_up=1)
