"""From a recipe and data to a trained run: the place where the rooms meet."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ressl import console
from ressl.data.base import Source
from ressl.data.loaders import ResidentLoader, make_loader
from ressl.data.reading import check_broken
from ressl.data.sources import guess_data, open_source, pretrain_split
from ressl.data.streaming import StreamingLoader, lost_worker
from ressl.data.views import Views, describe
from ressl.engine.accelerate import ENGINES, accelerate, lay_out
from ressl.engine.loop import RHYTHM, Display, Loop, Rhythm, device_of
from ressl.engine.monitor import Collapse
from ressl.engine.optimisers import build_sgd
from ressl.engine.records import Records
from ressl.engine.schedules import warmup_cosine
from ressl.engine.signals import Interrupted
from ressl.engine.step import TrainStep
from ressl.environment import environment
from ressl.errors import ResslError, unknown
from ressl.evaluating import evaluation_data, knn_of, precision_of
from ressl.methods import Method
from ressl.recipes import Recipe, choose_recipe, get_recipe, method_options
from ressl.recipes.typed import plain
from ressl.runs import Run, build_method, default_out
from ressl.surveying import survey

KNN_LIMIT = 50_000  # labelled pictures per part that the kNN while training looks at


@dataclass(frozen=True)
class Settings:
    """Where and how a recipe runs. None of it is part of the experiment."""

    data: str | None = None  # where the data set lies, or the folder or array of pictures
    device: str = "auto"
    engine: str = "auto"
    precision: str = "auto"
    workers: int | None = None
    rhythm: Rhythm = RHYTHM


def pretrain(
    recipe: str | Recipe | None = None,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    engine: str = "auto",
    precision: str = "auto",
    workers: int | None = None,
    rhythm: Rhythm = RHYTHM,
    display: Display | None = None,
    **changes: Any,
) -> Run:
    """Train and return the run.

    Args:
        recipe: a recipe, its name, or None to choose one from ``data``.
        data: where a named set lies; without a recipe, the folder of pictures or the .npy/.npz file to learn from.
        out: the run folder; ``runs/<recipe>-<time>`` by default.
        resume: continue the run in ``out`` where its last checkpoint left it.
        device, engine, precision, workers, rhythm: where and how it runs, see :class:`Settings`.
        display: where progress goes; a bar or lines by default.
        changes: fields of the recipe or options of its method to change.
    """
    settings = Settings(str(data) if data is not None else None, device, engine, precision, workers, rhythm)
    if display is None:
        with console.display() as shown:
            return _pretrain(recipe, out, resume, settings, shown, changes)
    return _pretrain(recipe, out, resume, settings, display, changes)


def _pretrain(
    recipe: str | Recipe | None,
    out: str | Path | None,
    resume: bool,
    settings: Settings,
    display: Display,
    changes: dict[str, Any],
) -> Run:
    place = device_of(settings.device)
    run, chosen, settings = _what(recipe, out, resume, settings, place, display, changes)
    for warning in chosen.check():
        display.message(f"warning: {warning}")
    # All that can be wrong is looked at before anything is written or, which may take long, read.
    if settings.engine not in ENGINES:
        raise unknown("engine", settings.engine, ENGINES)
    precision_of(settings.precision, place)
    if run is None and out is not None:
        Run.refuse_existing(out)
    method = build_method(chosen)
    source = open_source(chosen.data, pretrain_split(chosen.data), settings.data)
    loader, broken = _loader(source, chosen, settings, place, display)
    if run is None:
        facts = {"data": str(Path(settings.data).resolve()) if settings.data else None, "started": _now()}
        run = Run.create(out or default_out(chosen), chosen, facts)
    if broken:
        check_broken(broken, len(source), run.list_broken(broken))
    _describe(chosen, loader, run, display)
    return _train(run, chosen, method, loader, settings, place, display, resume)


def _what(
    recipe: str | Recipe | None,
    out: str | Path | None,
    resume: bool,
    settings: Settings,
    place: torch.device,
    display: Display,
    changes: dict[str, Any],
) -> tuple[Run | None, Recipe, Settings]:
    """The run to continue, if any, the recipe with its changes, and the settings with the run's own data place."""
    if resume:
        if out is None:
            raise ResslError("resume needs the run folder: --out RUN")
        run = Run.open(out)
        chosen = run.recipe
        asked = _named(recipe).replace(**changes) if recipe is not None else chosen.replace(**changes)
        _same(chosen, asked, run)
        data = settings.data or run.facts.get("data")
        return run, chosen, Settings(**(vars(settings) | {"data": data}))
    if recipe is not None:
        return None, _named(recipe).replace(**changes), settings
    if settings.data is None:
        raise ResslError("nothing to train on: name a recipe (see 'ressl recipes') or give --data FOLDER")
    kind = guess_data(settings.data)
    found = survey(open_source(kind, "train", settings.data), place.type == "cuda")
    chosen, reasons = choose_recipe(kind, found)
    display.message("recipe chosen from the data:\n" + "\n".join(f"  - {reason}" for reason in reasons))
    return None, chosen.replace(**changes), settings


def _named(recipe: str | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    return Recipe.from_file(recipe) if recipe.endswith(".json") else get_recipe(recipe)


def _same(old: Recipe, new: Recipe, run: Run) -> None:
    """A run continues with the recipe it began with; anything else would be another experiment."""
    was, asked = plain(old), plain(new)
    for key in ("name", "summary", "paper", "linear", "knn_every", "knn_k", "knn_temperature"):
        was.pop(key), asked.pop(key)
    for key, value in was.items():
        if asked[key] != value:
            raise ResslError(
                f"the checkpoint in {run.path} is of another recipe: its {key} is {value!r}, not {asked[key]!r}; "
                "resume without that change, or start a new run with another --out"
            )


def _loader(
    source: Source, recipe: Recipe, settings: Settings, place: torch.device, display: Display
) -> tuple[ResidentLoader | StreamingLoader, dict[str, str]]:
    workers = default_workers() if settings.workers is None else settings.workers
    opened = make_loader(source, recipe.views, recipe.batch_size, place, recipe.seed, workers)
    broken = {str(item.path): item.reason for item in opened.broken}
    skipped = f"; {len(broken)} broken files skipped, listed in broken.txt" if broken else ""
    display.message(opened.why + skipped)
    return opened.loader, broken


def default_workers() -> int:
    """Decoding processes: one per core this process may use, and not more than a loader can feed."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(16, cores)


def _describe(recipe: Recipe, loader: ResidentLoader | StreamingLoader, run: Run, display: Display) -> None:
    teacher, *students = recipe.views
    lines = [
        f"{recipe.method} on {recipe.data}: {recipe.backbone} ({recipe.stem} stem, width {recipe.width}), "
        f"{recipe.epochs} epochs of {loader.steps_per_epoch} steps, batch {recipe.batch_size}",
        f"  teacher view {describe(teacher)}",
        *(f"  student view {describe(view)}" for view in students),
        f"run folder {run.path}",
    ]
    display.message("\n".join(lines))


def _train(
    run: Run,
    recipe: Recipe,
    method: Method,
    loader: ResidentLoader | StreamingLoader,
    settings: Settings,
    place: torch.device,
    display: Display,
    resume: bool,
) -> Run:
    torch.manual_seed(recipe.seed)  # for what draws from torch's own generators: dropout, a method of the user's
    lay_out(method.train(), place)
    optimiser = build_sgd(
        method,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        decay_norm_and_bias=recipe.decay_norm_and_bias,
    )
    per_epoch = loader.steps_per_epoch
    total, warmup, precision = (
        recipe.epochs * per_epoch,
        recipe.warmup_epochs * per_epoch,
        precision_of(settings.precision, place),
    )
    peak = recipe.lr * recipe.batch_size / 256
    step = TrainStep(
        method,
        # The seed as a tensor: a compiled step is then the same program for every seed.
        Views(recipe.views, recipe.mean, recipe.std, torch.tensor(recipe.seed, device=place)),
        loader,
        optimiser,
        lambda s: warmup_cosine(s, peak=peak, warmup_steps=warmup, total_steps=total),
        total,
        precision=precision,
        log_capacity=max(settings.rhythm.log_steps, 1),
    )
    engine, why = accelerate(step, settings.engine)
    if why:
        display.message(f"engine {engine}, because {why}")
    checkpoint = run.checkpoint() if resume and run.checkpoints.paths() else None
    for text in run.checkpoints.damaged:
        display.message(f"warning: {text}; using the one before")
    records = Records(run.path, checkpoint.facts["step"] if checkpoint else 0)
    loop = Loop(
        step,
        epochs=recipe.epochs,
        records=records,
        checkpoints=run.checkpoints,
        facts={"recipe": plain(recipe), "pictures": loader.samples},
        display=display,
        collapse=_collapse(recipe, warmup),
        evaluate=_knn(method.backbone, recipe, settings, place, precision, display),
        evaluate_every=recipe.knn_every,
        rhythm=settings.rhythm,
    )
    if checkpoint is not None:
        if (before := checkpoint.facts.get("pictures", loader.samples)) != loader.samples:
            raise ResslError(
                f"the run {run.path} began with {before:,} pictures, now there are {loader.samples:,}; "
                "bring back its data, or start a new run with another --out"
            )
        loop.restore(checkpoint)
        display.message(f"resumed after step {step.done} of {total}")
    start, earlier = time.monotonic(), run.facts.get("seconds", 0.0)
    try:
        loop.run()
    except Interrupted:
        display.message(f"saved after step {step.done}; continue with: ressl pretrain --resume --out {run.path}")
        raise
    except RuntimeError as error:
        if (sentence := lost_worker(error)) is None:
            raise
        raise sentence from None
    finally:
        records.close()
        loader.close()
        if isinstance(loader, StreamingLoader) and loader.broken:
            run.list_broken(loader.broken)
        run.note({"seconds": round(earlier + time.monotonic() - start, 2)})
    run.note(_ending(loop, place, precision, engine))
    return run


def _ending(loop: Loop, place: torch.device, precision: torch.dtype, engine: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "finished": _now(),
        "checkpoint_seconds": round(loop.checkpoint_seconds, 2),
        "steps": loop.step.done,
        "precision": str(precision).removeprefix("torch."),
        "engine": engine,
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


def _knn(
    backbone: torch.nn.Module,
    recipe: Recipe,
    settings: Settings,
    place: torch.device,
    precision: torch.dtype,
    display: Display,
) -> Callable[[], dict[str, float]] | None:
    data = evaluation_data(recipe, settings.data, KNN_LIMIT)
    if data is None:
        display.message("no labels, so no kNN while training")
        return None
    data = data.to(place)
    return lambda: {"knn": knn_of(backbone, data, recipe, precision)}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
