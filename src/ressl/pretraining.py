"""From a recipe and data to a trained run: the place where the rooms meet."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ressl import console
from ressl.alike import check_kept, check_source
from ressl.continuing import LOG_LIMIT, continued, named, paced, restarted
from ressl.data.base import Source
from ressl.data.batches import check_share
from ressl.data.loaders import ResidentLoader, make_loader
from ressl.data.reading import check_broken
from ressl.data.sources import guess_data, open_source, pretrain_split
from ressl.data.streaming import StreamingLoader
from ressl.data.views import describe
from ressl.engine import scouts
from ressl.engine.accelerate import ENGINES
from ressl.engine.building import dismiss
from ressl.engine.compiling import keep_compiled, wake_compiler
from ressl.engine.launchers import launch, own_cores, restarts
from ressl.engine.loop import RHYTHM, Display, Rhythm, device_of
from ressl.engine.processes import Team, device_for, groups_here, joined
from ressl.engine.streams import on_device
from ressl.errors import ResslError, unknown
from ressl.evaluating import precision_of
from ressl.labelled import has_labels, labelling, no_labels
from ressl.methods import METHODS, Method
from ressl.nn.backbones import in_words
from ressl.recipes import Recipe, choose_recipe, method_options
from ressl.recipes.adapting import inherited, lowered
from ressl.recipes.baselines import SAMPLES
from ressl.runs import Run, build_method, default_out
from ressl.scouting import task, worth_it
from ressl.surveying import survey
from ressl.training import Settings, as_begun, check_fits, knn_while_training, now, peak_lr, train

ASKED = ("exact", "precision")  # what a run goes on with, unless told otherwise


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
    exact: bool = False,
    labelled: bool = False,
    display: Display | None = None,
    **changes: Any,
) -> Run:
    """Train and return the run.

    Args:
        recipe: a recipe, its name, or None to choose one from ``data``.
        data: where a named set lies; without a recipe, the folder of pictures or the .npy/.npz file to learn from.
        out: the run folder; ``runs/<recipe>-<time>`` by default.
        resume: continue the run in ``out`` where its last checkpoint left it.
        device: ``cpu``, ``cuda`` or ``cuda:1``; the GPU when there is one, unless told.
        engine: ``graph``, ``compile`` or ``eager``; by default what is fastest for device and length.
        precision: ``fp32`` or ``bf16``; bf16 on a GPU, unless told.
        workers: decoding processes; they change the speed and nothing else.
        rhythm: how often it logs and saves.
        exact: on a GPU, kernels that another process would choose as well, not the fastest of a trial.
        labelled: refuse pictures without labels: the run is to be measured by them.
        display: where progress goes; a bar or lines by default.
        changes: fields of the recipe or options of its method to change.
    """
    if data is not None and not isinstance(data, (str, os.PathLike)):
        raise ResslError(f"data wants a path, not {type(data).__name__}; save an array as .npy or .npz first")
    if "" in (data, out):
        raise ResslError(f"{'data' if data == '' else 'out'} is empty; name a place, or leave it away")
    settings = Settings(str(data) if data is not None else None, device, engine, precision, workers, rhythm, exact)
    try:
        with joined(device) as team:
            if display is None or not team.leads:
                with console.display(quiet=not team.leads) as shown:
                    return _pretrain(recipe, out, resume, settings, shown, changes, team, labelled)
            return _pretrain(recipe, out, resume, settings, display, changes, team, labelled)
    finally:
        dismiss()
        scouts.recall()


def _pretrain(
    recipe: str | Recipe | None,
    out: str | Path | None,
    resume: bool,
    settings: Settings,
    display: Display,
    changes: dict[str, Any],
    team: Team,
    labelled: bool,
) -> Run:
    place = device_for(device_of(settings.device), team)
    run = None
    again = team.agree(restarts())  # an agent whose own processes did not fail has not counted
    if team.leads:
        out, resume = restarted(out, resume, again)
        if again:
            display.message(f"restart {again} of this job")
        if not resume:
            Run.refuse_existing(out or default_out(None))
        run, chosen, settings = _what(recipe, out, resume, settings, place, display, changes)
        for warning in chosen.check():
            display.message(f"warning: {warning}")
    said = team.tell([chosen.to_json(), resume, asdict(settings)] if team.leads else None)
    chosen, resume = Recipe.from_json(said[0]), said[1]
    theirs = said[2] | {"rhythm": Rhythm(**said[2]["rhythm"])}
    settings = replace(settings, **{key: theirs[key] for key in ("data", "rhythm", "exact", "precision")})
    # All that can be wrong is looked at before anything is written or, which may take long, read.
    if settings.engine not in ENGINES:
        raise unknown("engine", settings.engine, ENGINES)
    precision_of(settings.precision, place)
    peak_lr(chosen)
    if settings.rhythm.log_steps > LOG_LIMIT:
        raise ResslError(f"log_steps (--log-steps) must be at most {LOG_LIMIT:,}: room is made for as many rows")
    compiled = place.type == "cuda" and settings.engine != "eager"
    if compiled and team.world == 1 and settings.engine != "compile":
        keep_compiled()
        scouts.send()
    else:
        dismiss()
        scouts.recall()
    if compiled:
        wake_compiler(place, helpers=not scouts.out())
    check_share(chosen.batch_size, team.world)
    method = build_method(chosen, groups_here(chosen.bn_groups, team.world))
    if not resume:
        method.check_start([view.size for view in chosen.views])
        _try_views(method, chosen)
    split = "train" if "labels" in method.wants else pretrain_split(chosen.data)  # unlabelled ones teach it nothing
    with team.first():
        source = open_source(chosen.data, split, settings.data)
        if labelled and not has_labels(chosen, settings.data):
            raise no_labels(chosen, settings.data, "train without --then")
    check_source(source, team)
    whole = SAMPLES.get(chosen.data, 0) if split == pretrain_split(chosen.data) else 0
    lacking = max(0, whole - len(source))
    if lacking:
        display.message(
            f"warning: {len(source):,} of the {whole:,} pictures of {chosen.data}; not the paper's experiment"
        )
    loader, broken = _loader(source, chosen, settings, place, display, team)
    check_kept(loader, broken, team)
    if not resume and (fitted := _fitted(chosen, method, loader)) != chosen:
        chosen = fitted
        method = build_method(chosen, groups_here(chosen.bn_groups, team.world))
    check_fits(chosen, method, loader)
    if worth_it(loader):
        scouts.assign(task(chosen, loader, settings, place))
    elif scouts.out():
        scouts.recall()
        wake_compiler(place)
    for remark in method.remarks:
        display.message(remark)
    evaluate = knn_while_training(method.backbone, chosen, source, loader, settings, place, display, team)
    if run is None and team.leads:
        facts: dict[str, Any] = {
            "data": str(Path(settings.data).resolve()) if settings.data else None,
            "started": now(),
        }
        facts |= {"lacking": lacking} if lacking else {}
        named = {"launch": launch()} if launch() else {}
        facts |= {"rhythm": asdict(settings.rhythm), "asked": {key: getattr(settings, key) for key in ASKED}}
        run = Run.create(out or default_out(chosen), chosen, {**facts, **named})
    run = Run(team.tell(str(run.path) if run else None))
    if broken:
        check_broken(broken, len(source), run.list_broken(broken) if team.leads else run.path / "broken.txt")
    _describe(chosen, loader, run, display, team)
    with on_device(place), run.claimed() if team.leads else nullcontext():
        return train(run, chosen, method, loader, evaluate, settings, place, display, resume, team)


def _what(
    recipe: str | Recipe | None,
    out: str | Path | None,
    resume: bool,
    settings: Settings,
    place: torch.device,
    display: Display,
    changes: dict[str, Any],
) -> tuple[Run | None, Recipe, Settings]:
    """The run to continue, if any, the recipe with its changes, and the settings with the run's own data and rhythm."""
    if resume:
        if out is None:
            raise ResslError("resume needs the run folder: --out RUN")
        run = Run.open(out)
        chosen = continued(run, recipe, changes)
        data = settings.data or run.facts.get("data")
        begun = as_begun(settings, run.facts.get("asked"))
        return run, chosen, replace(begun, data=data, rhythm=paced(run, settings.rhythm))
    if recipe is not None:
        return None, _changed(named(recipe), changes, display), settings
    if settings.data is None:
        raise ResslError("nothing to train on: name a recipe (see 'ressl recipes') or give --data FOLDER")
    kind = guess_data(settings.data)
    source = open_source(kind, "train", settings.data)
    chosen, reasons = choose_recipe(kind, survey(source, place.type == "cuda"), changes)
    reasons.append(labelling(source, settings.data))
    told = " but for what was told" if changes else ""
    display.message("\n".join([f"recipe chosen from the data{told}:", *(f"  - {reason}" for reason in reasons)]))
    return None, _changed(chosen, changes, display), settings


def _changed(recipe: Recipe, changes: dict[str, Any], display: Display) -> Recipe:
    """With its changes and the options that follow from others: another's network, for example."""
    new = recipe.replace(**changes)
    new = new.replace(options=METHODS[new.method].completed(new.options, changes))
    if new.method == recipe.method:  # a recipe that has this method already is taken at its word
        return new
    for adapted in (inherited, lowered):
        new, remark = adapted(new, changes)
        if remark:
            display.message(remark)
    return new


def _fitted(recipe: Recipe, method: Method, loader: ResidentLoader | StreamingLoader) -> Recipe:
    """With what the data decide, where nobody said it: room for every picture, an answer for every class."""
    asks = {"bank_size": (method.samples, loader.samples), "num_classes": (method.classes, loader.classes)}
    known = method_options(recipe.method)
    found = {name: there for name, (here, there) in asks.items() if here and there and name in known}
    return recipe.replace(**{name: there for name, there in found.items() if name not in recipe.options})


def _try_views(method: Method, recipe: Recipe) -> None:
    """A network that takes pictures of one size only, as some of timm do, is told from the others by trying it."""
    from ressl.nn.resnet import SlimResNet  # here, because it takes seconds to import

    if isinstance(method.backbone, SlimResNet):  # takes all
        return
    for size in sorted({view.size for view in recipe.views}):
        try:
            with torch.no_grad():
                method.backbone.eval()(torch.zeros(1, 3, size, size))
        except (AssertionError, RuntimeError, ValueError) as error:
            first = str(error).split("\n")[0].rstrip(".")
            raise ResslError(
                f"{recipe.backbone} does not take what {recipe.method} shows it of views of {size} px ({first}); "
                "choose another --backbone or --image-size"
            ) from error


def _loader(
    source: Source, recipe: Recipe, settings: Settings, place: torch.device, display: Display, team: Team
) -> tuple[ResidentLoader | StreamingLoader, dict[str, str]]:
    workers = default_workers() if settings.workers is None else settings.workers
    tell = lambda done, total: display.busy("reading pictures", done, total)
    opened = make_loader(
        source, recipe.views, recipe.batch_size, place, recipe.seed, workers, team.rank, team.world, progress=tell,
        agreed=lambda mine: not team.agree(not mine),
    )  # fmt: skip
    broken = {str(item.path): item.reason for item in opened.broken}
    skipped = f"; {len(broken)} broken files skipped, listed in broken.txt" if broken else ""
    display.message(opened.why + skipped)
    return opened.loader, broken


def default_workers() -> int:
    """Decoding processes: one per core this process may use (shared with others of the job), at most 16."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(16, own_cores(cores))


def _describe(recipe: Recipe, loader: ResidentLoader | StreamingLoader, run: Run, display: Display, team: Team) -> None:
    lines = [
        f"{recipe.method} on {recipe.data}: {in_words(recipe.backbone, recipe.stem, recipe.width)}, "
        f"{recipe.epochs} epochs of {loader.steps_per_epoch} steps, batch {recipe.batch_size}",
        *(f"  {name} view {describe(view)}" for name, view in zip(_names(recipe), recipe.views, strict=True)),
        *([_shared(recipe, team)] if team.world > 1 else []),
        f"run folder {run.path}",
    ]
    display.message("\n".join(lines))


def _names(recipe: Recipe) -> list[str]:
    """What the views are for: the first is the teacher's where there is one."""
    first = "teacher" if METHODS[recipe.method].ema else "student"
    return [first, *["student"] * (len(recipe.views) - 1)]


def _shared(recipe: Recipe, team: Team) -> str:
    if recipe.bn_groups == 1:
        share = recipe.batch_size // team.world
        return f"  shared by {team.world} processes: {share} samples each, batch-norm statistics over all of them"
    here = groups_here(recipe.bn_groups, team.world)
    more = f" instead of the recipe's {recipe.bn_groups}" if here * team.world != recipe.bn_groups else ""
    return (
        f"  shared by {team.world} processes: {recipe.batch_size // team.world} samples and "
        f"{here} batch-norm {'group' if here == 1 else 'groups'} each, {here * team.world} in all{more}"
    )
