"""From a recipe, a method and a loader to a trained run: where the engine's parts are put together."""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ressl.data.base import ArraySource, Source
from ressl.data.loaders import RaggedLoader, ResidentLoader
from ressl.data.sources import pretrain_split
from ressl.data.streaming import LostWorker, StreamingLoader, TooManyBroken, lost_worker
from ressl.data.views import Views
from ressl.engine.accelerate import accelerate, lay_out
from ressl.engine.launchers import restarting
from ressl.engine.loop import RHYTHM, Display, Loop, Rhythm
from ressl.engine.monitor import Collapse
from ressl.engine.optimisers import build_optimiser
from ressl.engine.processes import ALONE, LostContact, Team, averager, parallel, shared
from ressl.engine.records import Records
from ressl.engine.schedules import warmup_cosine
from ressl.engine.signals import Interrupted
from ressl.engine.step import TrainStep
from ressl.environment import environment
from ressl.errors import ResslError
from ressl.evaluating import evaluation_data, kept_as_is, knn_of, precision_of
from ressl.files import sweep
from ressl.methods import Method
from ressl.nn.batchnorm import share_batch_norm
from ressl.recipes import Recipe, method_options
from ressl.recipes.typed import plain
from ressl.runs import Run

KNN_LIMIT = 50_000  # labelled pictures per part that the kNN while training looks at
KNN_LIMIT_STREAMED = 10_000  # where each must first be decoded


@dataclass(frozen=True)
class Settings:
    """Where and how a recipe runs. None of it is part of the experiment."""

    data: str | None = None  # where the data set lies, or the folder or array of pictures
    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"
    workers: int | None = None
    rhythm: Rhythm = RHYTHM
    exact: bool = False  # on a GPU: kernels that another process would choose as well, not the fastest of a trial


def train(
    run: Run,
    recipe: Recipe,
    method: Method,
    loader: ResidentLoader | StreamingLoader,
    evaluate: Callable[[], dict[str, float]] | None,
    settings: Settings,
    place: torch.device,
    display: Display,
    resume: bool,
    team: Team = ALONE,
) -> Run:
    """Train ``method`` to the end of its recipe, from the run's last checkpoint if ``resume``."""
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)  # another run in this process may have had more
    found = run.checkpoints.load_latest() if team.leads and resume and run.checkpoints.paths() else None
    checkpoint = team.share_checkpoint(found)
    for text in run.checkpoints.damaged:
        display.message(f"warning: {text}; using the one before")
    facts = checkpoint.facts if checkpoint else {}
    settings = as_begun(settings, facts)
    step = build_step(recipe, method, loader, settings, place)
    if team.world > 1:
        share_batch_norm(method, whole=recipe.bn_groups == 1)
        step.call, step.average = parallel(method, place), averager(method, team.world)
    accelerate(step, _engine(settings, facts, place), display.message, exact=settings.exact, watcher=display)
    if resume and team.leads:
        for folder in (run.path, run.checkpoints.folder):  # a finished run will not save again, and sweep there
            sweep(folder)
    loop = Loop(
        step,
        epochs=recipe.epochs,
        records=None,
        checkpoints=run.checkpoints,
        facts={"recipe": plain(recipe), "pictures": loader.samples, **_as_it_runs(settings, step, facts)},
        display=display,
        collapse=_collapse(recipe, recipe.warmup_epochs * loader.steps_per_epoch),
        evaluate=evaluate,
        evaluate_every=recipe.knn_every,
        rhythm=settings.rhythm,
        team=team,
    )
    if checkpoint is not None:
        run.refuse_alien(checkpoint, recipe)
        if (before := facts.get("pictures", loader.samples)) != loader.samples:
            raise ResslError(
                f"the run {run.path} began with {before} pictures, now there are {loader.samples:,}; "
                "bring back its data, or start a new run with another --out"
            )
        loop.restore(checkpoint)
        display.message(f"resumed after step {step.done} of {step.total_steps}")
    # Not before: it takes back rows, and what is not of this run must not.
    loop.records = records = Records(run.path, facts.get("step", 0), facts.get("rows")) if team.leads else None
    start, earlier = time.monotonic(), max(run.facts.get("seconds", 0.0), _logged_seconds(run, step.done, recipe))
    try:
        loop.run()
        if isinstance(loader, StreamingLoader):
            for broken in team.gather(loader.broken):
                loader.broken |= broken
    except Interrupted:
        display.message(
            f"saved after step {step.done}; continue with: ressl pretrain --resume --out {shlex.quote(str(run.path))}"
        )
        raise
    except torch.OutOfMemoryError as error:
        raise ResslError(f"{place} has not enough memory for this recipe; lower batch_size or queue_size") from error
    except TooManyBroken as error:
        if not team.leads:  # the list is rank 0's, of what it met
            raise
        raise ResslError(f"{str(error).rstrip('.')}; they are listed in {run.path / 'broken.txt'}") from None
    except (LostWorker, RuntimeError) as error:
        sentence = error if isinstance(error, LostWorker) else lost_worker(error)
        if sentence is None:
            raise
        if restarting():
            sentence.exit_code = LostContact.exit_code  # not a user's mistake, which would not be tried again
        raise sentence from None
    finally:
        loader.close()
        if records is not None:
            seconds = time.monotonic() - start
            with contextlib.suppress(OSError):  # a full disk: what ended the run is the better sentence
                records.close()
                _list_broken(run, loader, display)
                run.note({"seconds": round(earlier + seconds, 2)})
            if loop.checkpoint_count:
                share = 100 * loop.checkpoint_seconds / max(seconds, 1e-9)
                display.message(f"checkpoints: {loop.checkpoint_count}, {share:.2f} % of the time")
    # If nothing was trained, when and with what it was stays as it is.
    trained = checkpoint is None or checkpoint.facts["step"] < step.done
    if team.leads and (trained or "finished" not in run.facts):
        run.note(_ending(loop, place) | ({"processes": team.world} if team.world > 1 else {}))
    team.wait()  # the others may open the folder, too
    return run


def _logged_seconds(run: Run, step: int, recipe: Recipe) -> float:
    """What the first ``step`` steps took, as their log tells: a process that was killed could not note its time."""
    rows = [row for row in run.metrics() if row.get("images_per_second") and row["step"] <= step]
    steps = [after["step"] - before for after, before in zip(rows, [0, *(row["step"] for row in rows)], strict=False)]
    return sum(n * recipe.batch_size / row["images_per_second"] for n, row in zip(steps, rows, strict=True))


def _as_it_runs(settings: Settings, step: TrainStep, before: Mapping[str, Any]) -> dict[str, Any]:
    """What the numbers depend on besides the recipe, for the checkpoint; a run is exact if it has been all the time."""
    exact = settings.exact and before.get("exact", not before) is True
    return {"exact": exact, "precision": "bf16" if step.precision == torch.bfloat16 else "fp32", "engine": step.engine}


def as_begun(settings: Settings, facts: object) -> Settings:
    """A resumed run goes on as it was begun, unless told otherwise. ``facts``: its checkpoint's, or its own."""
    told: dict[str, Any] = facts if isinstance(facts, dict) else {}  # anybody may have written it
    exact = settings.exact or told.get("exact") is True
    begun = told.get("precision") if settings.precision == "auto" else None
    return replace(settings, exact=exact, precision=begun if begun in ("bf16", "fp32") else settings.precision)


def _engine(settings: Settings, facts: Mapping[str, Any], place: torch.device) -> str:
    """A run on a CPU goes on with the engine it was begun with: another one rounds otherwise."""
    begun = facts.get("engine", "eager") if facts and place.type == "cpu" else None  # older ones do not say: eager
    return begun if settings.engine == "auto" and begun in ("eager", "compile") else settings.engine


def _list_broken(run: Run, loader: ResidentLoader | StreamingLoader, display: Display) -> None:
    if isinstance(loader, StreamingLoader) and loader.broken:
        where = run.list_broken(loader.broken)
        display.message(f"{len(loader.broken)} broken files skipped, listed in {where}")


def build_step(
    recipe: Recipe, method: Method, loader: ResidentLoader | StreamingLoader, settings: Settings, place: torch.device
) -> TrainStep:
    """The training step of a recipe on a device, not yet accelerated."""
    check_fits(recipe, method, loader)
    torch.manual_seed(recipe.seed)  # for what draws from torch's own generators: dropout, a method of the user's
    lay_out(method.train(), place)
    optimiser = build_optimiser(
        recipe.optimiser,
        method,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        decay_norm_and_bias=recipe.decay_norm_and_bias,
    )
    total, warmup = recipe.epochs * loader.steps_per_epoch, recipe.warmup_epochs * loader.steps_per_epoch
    peak = peak_lr(recipe)
    return TrainStep(
        method,
        # The seed as a tensor: a compiled step is then the same program for every seed.
        Views(recipe.views, recipe.mean, recipe.std, torch.tensor(recipe.seed, device=place)),
        loader,
        optimiser,
        lambda s: warmup_cosine(s, peak=peak, warmup_steps=warmup, total_steps=total),
        total,
        precision=precision_of(settings.precision, place),
        log_capacity=max(1, min(settings.rhythm.log_steps, total)),
    )


def peak_lr(recipe: Recipe) -> float:
    """The highest learning rate of a run: the recipe's is for a batch of 256."""
    try:
        peak = recipe.lr * recipe.batch_size / 256
    except OverflowError:
        peak = math.inf
    if peak > torch.finfo(torch.float32).max:  # what a step counts in
        raise ResslError(
            f"lr {recipe.lr:g} (of a batch of 256) is more than a step can count with at this batch_size; lower lr"
        )
    return peak


def check_fits(recipe: Recipe, method: Method, loader: ResidentLoader | StreamingLoader) -> None:
    """Raise where the method does not fit the data."""
    if "labels" in method.wants and not loader.labelled:
        raise ResslError(
            f"{recipe.method} learns from labels, and these pictures have none; sort them into class folders"
        )
    if method.samples and method.samples != loader.samples:
        raise ResslError(
            f"{recipe.method} keeps a memory of {method.samples:,} pictures, and there are {loader.samples:,}; "
            f"use --bank-size {loader.samples}"
        )
    if method.classes and loader.classes > method.classes:
        raise ResslError(
            f"{recipe.method} tells {method.classes} classes apart, and there are {loader.classes}; "
            f"use --num-classes {loader.classes}"
        )


def _ending(loop: Loop, place: torch.device) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "finished": now(),
        "checkpoints": loop.checkpoint_count,
        "checkpoint_seconds": round(loop.checkpoint_seconds, 2),
        "steps": loop.step.done,
        "precision": str(loop.step.precision).removeprefix("torch."),
        "engine": loop.step.engine,
        "environment": environment(place),
    }
    if place.type == "cuda":
        facts["peak_memory_gb"] = round(torch.cuda.max_memory_allocated(place) / 1e9, 3)
    return facts


def _collapse(recipe: Recipe, warmup: float) -> Collapse:
    options = {name: default for name, (_, default) in method_options(recipe.method).items()} | dict(recipe.options)
    taus = (options.get("teacher_temperature"), options.get("student_temperature"))
    pair = (float(taus[0]), float(taus[1])) if taus[0] is not None and taus[1] is not None else None
    return Collapse(options.get("queue_size"), pair, max(int(warmup), 50))


def knn_while_training(
    backbone: torch.nn.Module,
    recipe: Recipe,
    source: Source,
    loader: ResidentLoader | StreamingLoader,
    settings: Settings,
    place: torch.device,
    display: Display,
    team: Team = ALONE,
) -> Callable[[], dict[str, float]] | None:
    """kNN accuracy as a function of no arguments, or None where there are no labels."""
    here, limit = None, KNN_LIMIT_STREAMED  # here: the training pictures, where they are on the device already
    if not isinstance(loader, StreamingLoader | RaggedLoader):
        limit = KNN_LIMIT
        if pretrain_split(recipe.data) == "train" and kept_as_is(source, recipe):
            here = ArraySource(source.name, loader.images, loader.labels, source.classes)
    data = evaluation_data(recipe, settings.data, limit, here)
    if data is None:
        display.message("no labels, so no kNN while training")
        return None
    data, precision = data.to(place), precision_of(settings.precision, place)
    network = shared(backbone, team)
    return lambda: {"knn": knn_of(network, data, recipe, precision)}


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
