"""Evaluation of pictures that are too many to hold: read chunk by chunk, or cropped by worker processes batch by batch.

Only features stay. Several processes share the reading, too: it is most of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ressl.data.base import Source
from ressl.data.reading import Progress
from ressl.data.streaming import StreamingLoader
from ressl.data.unread import Unread
from ressl.data.views import View, Views
from ressl.engine.folding import fold
from ressl.engine.processes import ALONE, Team
from ressl.errors import ResslError
from ressl.evaluation.features import autocast, extract, frozen
from ressl.evaluation.linear import STEP, LinearProtocol, LinearResult, classroom_of, common
from ressl.nn.processes import all_rows


class Taken(NamedTuple):
    features: Tensor  # n x D float32 on the network's device, of those that could be read, in order
    kept: Tensor  # which those are, int64 on the same device
    broken: dict[str, str]  # the others: path and reason


def extract_unread(
    network: nn.Module,
    pictures: Unread,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    size: int | None = None,
    resize: int | None = None,
    precision: torch.dtype = torch.float32,
    progress: Progress | None = None,
    team: Team = ALONE,
) -> Taken:
    """As :func:`ressl.evaluation.features.extract`, of pictures in their files; broken ones are left out."""
    device, total = next(network.parameters()).device, len(pictures)
    rows = -(-total // team.world)  # of each process; the last ones may read a picture that another reads too
    mine = (torch.arange(rows) * team.world + team.rank) % total
    features: Tensor | None = None
    there, broken, done = torch.zeros(rows, dtype=torch.int64, device=device), dict[str, str](), 0
    with closing((pictures if team.world == 1 else pictures.take(mine)).chunks()) as chunks:
        for chunk in chunks:
            broken |= {error.path: error.reason for error in chunk.broken}
            done += len(chunk.ids) + len(chunk.broken)
            if len(chunk.ids):
                made = extract(
                    network, chunk.images, mean=mean, std=std, size=size, resize=resize, precision=precision
                )  # fmt: skip
                if features is None:  # in place: to join the parts at the end would take twice the room
                    features = torch.zeros(rows, made.shape[1], device=device)
                where = chunk.ids.to(device)
                features[where], there[where] = made, 1
            if progress is not None:
                progress(min(done * team.world, total), total)
    width = team.agree(0 if features is None else features.shape[1])
    for found in team.gather(broken):
        broken |= found
    if not width:
        first = next(iter(broken.items()), ("", ""))
        raise ResslError(f"none of the {total:,} pictures can be read (the first: {first[0]}: {first[1]}).")
    if features is None:
        features = torch.zeros(rows, width, device=device)
    if team.world > 1:  # row j of process r is picture j * world + r
        features, there = all_rows(features)[:total], all_rows(there)[:total]
    kept = torch.nonzero(there)[:, 0]
    return Taken(features if len(kept) == total else features[kept], kept, broken)


def linear_streamed(
    backbone: nn.Module,
    train: Source,
    test: tuple[Tensor, Tensor],
    *,
    protocols: Sequence[LinearProtocol] = (STEP,),
    mean: tuple[float, ...] = (0.0, 0.0, 0.0),
    std: tuple[float, ...] = (1.0, 1.0, 1.0),
    image_size: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
    precision: torch.dtype = torch.float32,
    workers: int = 0,
    progress: Callable[[int, int, dict[str, float]], None] | None = None,
    team: Team = ALONE,
) -> tuple[list[LinearResult], dict[str, str]]:
    """Linear evaluations on random views of labelled pictures in their files; ``test`` are features and labels.

    Worker processes cut the views out of the whole pictures, and however many they are, the results are the same. Also
    the broken files that were met, path and reason.
    """
    protocol = common(protocols)
    if protocol.standardize:
        raise ResslError("standardize needs features that are taken once; add augment=false")
    assert train.labels is not None
    start, device, (held, truth) = time.monotonic(), torch.device(device), test
    batch = min(protocol.batch_size, len(train))
    share = (team.rank, team.world) if batch % team.world == 0 else (0, 1)  # else each process does all of it
    view = View(size=image_size, crop=protocol.scale, flip=0.5)
    views, loader = Views([view], mean, std, seed), StreamingLoader(train, [view], batch, device, seed, workers, *share)
    steps = loader.steps_per_epoch
    total = steps * protocol.epochs
    classes = max(int(train.labels.max()), int(truth.max())) + 1
    classroom = classroom_of(protocols, held.shape[1], classes, steps, batch, seed, device)
    network: Callable[[Tensor], Tensor] = (fold(backbone, precision) if device.type == "cuda" else None) or backbone
    together = all_rows if share[1] > 1 else lambda rows: rows
    curves, values, start_seconds = list[list[float]](), dict[str, float](), 0.0
    try:
        with frozen(backbone):
            for epoch in range(protocol.epochs):
                for number, found in enumerate(loader.iterate(epoch), epoch * steps):
                    assert found.crops is not None
                    assert found.labels is not None
                    with autocast(device, precision):
                        features = network(views.finish(found.crops, number, loader.rows)[0]).float()
                    classroom.learn(together(features), together(found.labels))
                    values["epoch"] = (number + 1) / steps
                    if progress is not None:
                        progress(number + 1, total, values)
                curves.append(classroom.accuracy(held, truth).tolist())
                values["accuracy"] = max(curves[-1])
                start_seconds = start_seconds or time.monotonic() - start
        if progress is not None:
            progress(total, total, values)
    finally:
        loader.close()
    broken = {path: reason for seen in team.gather(loader.broken) for path, reason in seen.items()}
    took = time.monotonic() - start
    return [LinearResult.of(list(curve), took, start_seconds) for curve in zip(*curves, strict=True)], broken
