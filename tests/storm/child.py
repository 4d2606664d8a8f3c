"""What runs in the storm's child processes, and how a test holds one. Preloaded by the process that forks them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.utils.tensorboard
from mutants import switch_off
from scale import MUTANT
from torch import Tensor, nn
from torch.nn import functional as F

import ressl.commands.pretrain
import ressl.commands.recipes
import ressl.nn.resnet
import ressl.pretraining  # noqa: F401 - loaded once, for all children
from ressl import cli, runs
from ressl.checkpoints import CheckpointFolder
from ressl.console import Silent
from ressl.data.base import ArraySource
from ressl.data.loaders import ResidentLoader
from ressl.engine.loop import Loop
from ressl.engine.monitor import Collapse
from ressl.engine.records import Records
from ressl.methods import METHODS
from ressl.methods.ressl import ReSSL
from ressl.nn.batchnorm import group_batch_norm
from ressl.recipes import Recipe, get_recipe
from ressl.recipes.typed import plain
from ressl.runs import Run
from ressl.training import Settings, build_step

torch.set_num_threads(1)


class Drawing(ReSSL):
    """ReSSL with dropout in the student's head: it draws from torch's own generator, as a user's method may."""

    def forward(self, views: Any, **wanted: Tensor) -> Any:
        hook = self.head.register_forward_hook(lambda _, __, z: F.dropout(z, 0.2, self.training))
        try:
            return super().forward(views, **wanted)
        finally:
            hook.remove()


def speck(name: str, stem: str, width: int, bn_groups: int, stem_init: str) -> nn.Module:
    """A backbone of one layer, so that a whole run takes a quarter of a second."""
    found = nn.Sequential(nn.Conv2d(3, width, 3, 2, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(2))
    found.append(nn.AdaptiveAvgPool1d(1)).append(nn.Flatten())
    found.features_dim = width  # type: ignore[assignment]
    return group_batch_norm(found, bn_groups)


@contextlib.contextmanager
def tiny_parts() -> Iterator[None]:
    """The method and the backbone above, known to the program. Other tests run in the same process as the storm's."""
    backbone, known = runs.build_backbone, dict(METHODS)
    METHODS["drawing"], runs.build_backbone = Drawing, speck  # type: ignore[assignment]
    try:
        yield
    finally:
        METHODS.clear()
        METHODS.update(known)
        runs.build_backbone = backbone


_TINY: dict[str, Any] = {
    **{"backbone": "resnet10", "stem": "medium", "width": 6, "image_size": 16, "batch_size": 16, "bn_groups": 2},
    **{"hidden_dim": 16, "output_dim": 8, "queue_size": 32, "epochs": 6, "warmup_epochs": 1.0, "knn_every": 2},
    **{"knn_k": 5, "data": "array", "lr": 0.3},
}
RECIPE = plain(get_recipe("demo").replace(**_TINY)) | {"method": "drawing"}
STEPS = 24
EVERY = 3  # steps between two checkpoints


def digest(out: Path) -> str:
    """Of student, teacher, queue, optimiser, random states, and every step's losses: all that a run comes to."""
    run, found = Run.open(out), hashlib.sha256()
    checkpoint = run.checkpoint()
    assert checkpoint.facts["step"] == STEPS
    names = checkpoint.tensors.keys()
    for name in sorted(names):
        found.update(name.encode() + checkpoint.tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    rows = [{k: v for k, v in row.items() if k != "images_per_second"} for row in run.metrics()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, STEPS + 1))
    found.update(repr((rows, sorted(checkpoint.facts.items(), key=lambda item: item[0]))).encode())
    return found.hexdigest()


class Child:
    """A forked process with its output in a file."""

    context: ClassVar[Any]
    number: ClassVar[int] = 0

    def __init__(self, log: Path, function: Callable[..., Any], *args: Any) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self.process = self.context.Process(target=_run, args=(str(log), function, args))
        self.start = time.monotonic()
        self.process.start()

    @classmethod
    def train(cls, out: Path, ground: Path, *more: str, before: Callable[..., Any] | None = None) -> Child:
        cls.number += 1
        return cls(out.with_suffix(f".{cls.number}.log"), train, str(out), str(ground), more, before)

    def join(self, seconds: float = 120.0) -> Child:
        self.process.join(seconds)
        self.seconds = time.monotonic() - self.start
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"a child hangs:\n{self.output}")
        return self

    @property
    def code(self) -> int | None:
        return self.process.exitcode

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")


def _run(log: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    multiprocessing.set_start_method("fork", force=True)  # for loader workers, as in a process of the user's
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(handle, standard)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    if MUTANT:
        switch_off(MUTANT, setattr)
    with tiny_parts():
        sys.exit(function(*args))


def main() -> int:
    """The command line in a process of its own."""
    with tiny_parts():
        return cli.main()


def train(out: str, ground: str, more: tuple[str, ...], before: Callable[..., Any] | None) -> int:
    """The command line, from the start or from where the run in ``out`` is."""
    if before is not None:
        before()
    words = ["pretrain", "--out", out, "--data", f"{ground}/pictures.npz", "--device", "cpu", "--log-steps", "1"]
    words += ["--checkpoint-steps", str(EVERY), *more]
    words += ["--resume"] if os.path.exists(f"{out}/recipe.json") else [f"{ground}/recipe.json"]
    return cli.main([words[0], *words[-1:], *words[1:-1]])


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return True
    return False


def loop_of(folder: Path) -> tuple[Loop, bytes]:
    """A loop of the tiny run in this process, and its own checkpoint after four steps."""
    with tiny_parts():
        recipe = Recipe.from_json(json.dumps(RECIPE))
        method = runs.build_method(recipe)
    images = torch.randint(0, 256, (72, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    loader = ResidentLoader(ArraySource("a", images), recipe.batch_size, "cpu", 0)
    place = torch.device("cpu")
    step = build_step(recipe, method, loader, Settings(), place)
    checkpoints = CheckpointFolder(folder / "own")
    loop = Loop(step, epochs=recipe.epochs, records=Records(folder), checkpoints=checkpoints, facts={"recipe": RECIPE},
                display=Silent(), collapse=Collapse(None, None, 0))  # fmt: skip
    step.begin_epoch(0)
    for _ in range(4):
        step.advance(None)
    loop.save()
    return loop, checkpoints.paths()[-1].read_bytes()
