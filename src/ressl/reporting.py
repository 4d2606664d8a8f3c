"""From run folders to one page: what is there is read, what is missing and can be made is made and kept."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ressl.console import Silent
from ressl.data.sources import label_of
from ressl.data.views import describe
from ressl.engine.loop import Display
from ressl.errors import ResslError, printable
from ressl.evaluating import bench_of, evaluate
from ressl.evaluation.intervals import interval
from ressl.files import write_atomically
from ressl.inspecting import KINDS, map_of, neighbours_of, thumbs
from ressl.labelled import evaluation_data, unlabelled_data
from ressl.measuring import Bench, place_of
from ressl.methods import METHODS
from ressl.nn.backbones import in_words
from ressl.recipes import Recipe, get_recipe, method_options
from ressl.recipes.paper import PAPER
from ressl.recipes.typed import plain
from ressl.report import sections
from ressl.report.contents import Grid, Plane, RunPage
from ressl.report.numbers import epochs_in_words, rows_of
from ressl.report.page import render
from ressl.runs import Run
from ressl.subjects import subject_of_run

LIMIT = 50_000  # pictures per part that neighbours are looked for in
_WORDS = ("name", "summary", "paper", "views", "options", "linear")  # written out another way, or no setting


def report(
    runs: Sequence[Run | str | Path] | Run | str | Path,
    out: str | Path | None = None,
    *,
    data: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    pictures: int = 2000,
    display: Display | None = None,
    again: bool = False,
) -> Path:
    """Write one self-contained HTML page, of several runs a comparison; by default it is the first's report.html."""
    runs = [runs] if isinstance(runs, (Run, str, Path)) else runs
    opened = [run if isinstance(run, Run) else Run.open(run) for run in runs]
    if not opened:
        raise ResslError("a report needs at least one run folder")
    shown = display or Silent()
    names = _names(opened)
    papers = {name: settings(known) for name, known in (nearest_paper(run.recipe) for run in opened)}
    pages = []
    for i, (run, name) in enumerate(zip(opened, names, strict=True), 1):
        shown.message(f"{i} of {len(opened)}: {name}")
        pages.append(_page(run, name, data, device, precision, pictures, shown, again))
    path = opened[0].path / "report.html" if out is None else Path(out)
    made = time.strftime("%d %B %Y", time.gmtime()).lstrip("0")
    text = render(pages, papers, made, over_seeds(pages))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode("utf-8", "replace"))  # what is no text may stand in anybody's recipe.json
    except OSError as error:
        raise ResslError(f"{path} cannot be written: {error.strerror}; choose another --out") from None
    return path


def over_seeds(pages: Sequence[RunPage]) -> dict[str, str] | None:
    """Mean and 95 % interval of every measure, where the runs are one recipe on one data set with different seeds."""
    but_seed = [{k: v for k, v in page.recipe.items() if k != "seed"} | {"data": page.trained_on} for page in pages]
    seeds = {page.recipe.get("seed") for page in pages}
    if len(pages) < 2 or len(seeds) < len(pages) or any(recipe != but_seed[0] for recipe in but_seed):
        return None
    values: dict[str, list[float]] = {}
    for page in pages:
        for name, result in page.evaluations.items():
            for row in rows_of(name, result):
                if row.number is not None:
                    values.setdefault(row.what, []).append(row.number)
    full = {what: interval(found) for what, found in values.items() if len(found) == len(pages)}
    return {what: f"{found.mean:.2f} ± {found.half:.2f}" for what, found in full.items()}


def _names(runs: Sequence[Run]) -> list[str]:
    """The folders' names, made different."""
    plain_names = [printable(run.path.resolve().name) for run in runs]
    return [name if plain_names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(plain_names)]


def _page(
    run: Run, name: str, data: str | None, device: str, precision: str, pictures: int, shown: Display, again: bool
) -> RunPage:
    recipe, facts, metrics = run.recipe, run.facts, run.metrics()
    grids: list[Grid] = []
    plane, by_class, notes = None, None, []
    try:
        bench = bench_of(subject_of_run(run), data, device, precision, shown, again)
        labelled = _load(bench)
        for kind in KINDS:
            found = neighbours_of(bench, kind, 8)
            right = found.right if labelled else None
            names = found.names if labelled else [""] * len(found.names)
            grids.append(Grid(kind, names, thumbs(found.queries), _small(found.found), right))
        if labelled and not bench.data.several and bench.own_data:
            by_class = evaluate(run, "classes", data=data, device=device, precision=precision)
        made = map_of(bench, pictures)
        plane = Plane(made.xy, made.labels, made.pictures, bench.data.classes if labelled else [])
        if not bench.own_data:
            notes.append(f"Neighbours and map of {name} show pictures of {bench.label}.")
    except ResslError as error:
        notes.append(f"Some pictures of {name} could not be shown: {error}.")
    evaluations, left_out = run.evaluations()
    if by_class is not None:
        evaluations.setdefault("classes", by_class)  # in a folder that may not be written to, it is not there
    for unfit in [name for name, result in evaluations.items() if not can_be_shown(name, result)]:
        del evaluations[unfit]
        left_out.append(f"The evaluation {unfit}, which cannot be read,")
    notes += [f"{text} of {name} is left out." for text in left_out]
    return RunPage(
        name=name,
        title=f"{method_name(recipe)} on {data_name(run)}",
        lead=_lead(recipe, facts, run.epochs_done),
        tiles=_tiles(run, recipe, facts, metrics, evaluations),
        evaluations=evaluations,
        paper=dict(recipe.paper),
        metrics=metrics,
        queue_size=_options(recipe).get("queue_size"),
        recipe=settings(recipe),
        environment=_environment(facts),
        grids=grids,
        plane=plane,
        trained_on=_trained_on(run),
        notes=notes,
    )


def _trained_on(run: Run) -> str:
    """Two folders of pictures share a recipe, and so do a run that is over and one that is not."""
    place = run.facts.get("data")
    with contextlib.suppress(ResslError):  # of a path that cannot be one
        return f"{place_of(run.recipe.data, place)}, step {run.last_step}"
    return str(run.path)


def data_name(run: Run) -> str:
    """A set's own, or that of the folder or file that it learned from."""
    place = run.facts.get("data")
    return label_of(run.recipe.data, place if isinstance(place, str) and "\0" not in place else None)


def _load(bench: Bench) -> bool:
    """Put the pictures on the bench, with or without labels; says which. Of a large set it takes a part."""
    found = evaluation_data(bench.recipe, bench.place, LIMIT)
    some = found or unlabelled_data(bench.recipe, bench.place, LIMIT)
    bench.__dict__["data"] = some.to(bench.device)  # in place of all of them, which the property would read
    return found is not None


def _small(found: Any) -> Any:
    return thumbs(found.flatten(0, 1)).unflatten(0, found.shape[:2])


def method_name(recipe: Recipe) -> str:
    return METHODS[recipe.method].__name__ if recipe.method in METHODS else recipe.method


def can_be_shown(name: str, result: dict[str, Any]) -> bool:
    """Whether a page can be made of an evaluation; its file may be anybody's."""
    page = RunPage("", "", "", [], {name: result}, {}, [], None, {}, {})
    try:
        for section in (sections.numbers, sections.beginnings, sections.classes):
            section([page])
            section([page, page])  # several are laid out in another way
        over_seeds([page, replace(page, recipe={"seed": "1"})])
    except Exception:
        return False
    return True


def _lead(recipe: Recipe, facts: dict[str, Any], done: float) -> str:
    what = f"{in_words(recipe.backbone, recipe.stem, recipe.width)}, {recipe.image_size} px, "
    what += f"{epochs_in_words(done, recipe.epochs)}, batch {recipe.batch_size}"
    env = facts.get("environment", {})
    where = env.get("gpu") or env.get("cpu")
    ended = f"; trained in {clock(facts['seconds'])}" if "seconds" in facts else ""
    on = f" on {where}" if where else ""
    when = f", finished {facts['finished'][:10]}" if "finished" in facts else ", not finished"
    return f"{what}{ended}{on}{when}."


def _tiles(
    run: Run,
    recipe: Recipe,
    facts: dict[str, Any],
    metrics: list[dict[str, Any]],
    evaluations: dict[str, dict[str, Any]],
) -> list[tuple[str, str]]:
    tiles: list[tuple[str, str]] = []
    evaluations = {name: result for name, result in evaluations.items() if not result.get("changed")}
    demo = evaluations.get("demo", {}).get("scores", {}).get("ressl", {})
    top1 = evaluations.get("linear", {}).get("last", demo.get("linear"))
    if isinstance(top1, (int, float)):
        tiles.append(("linear, top-1", f"{top1:.2f} %"))
    if "linear" in recipe.paper:
        tiles.append(("the paper's linear", f"{recipe.paper['linear']:.2f} %"))
    last = next((row["knn"] for row in reversed(metrics) if "knn" in row), None)
    knn = evaluations.get("knn", {}).get("top1", last)
    if isinstance(knn, (int, float)):
        tiles.append(("kNN, top-1", f"{knn:.2f} %"))
    if "seconds" in facts:
        tiles.append(("training", clock(facts["seconds"])))
    speeds = [row["images_per_second"] for row in metrics if "images_per_second" in row]
    if speeds:
        tiles.append(("pictures a second", f"{statistics.median(speeds):,.0f}"))
    with contextlib.suppress(ResslError, KeyError):  # no checkpoint, or one of an early version
        tiles.append(("training pictures", f"{run.checkpoint().facts['pictures']:,}"))
    return tiles


def clock(seconds: float) -> str:
    """
    >>> clock(75.2), clock(3725)
    ('75 s', '1 h 2 min')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _options(recipe: Recipe) -> dict[str, Any]:
    """The method's options, defaults included."""
    return {name: default for name, (_, default) in method_options(recipe.method).items()} | dict(recipe.options)


def settings(recipe: Recipe) -> dict[str, str]:
    """Every setting of a recipe as text, options and views written out."""
    text = lambda value: value if isinstance(value, str) else json.dumps(plain(value))
    found = {name: text(value) for name, value in plain(recipe).items() if name not in _WORDS}
    found |= {name: text(value) for name, value in _options(recipe).items()}
    for i, view in enumerate(recipe.views):
        found["teacher view" if i == 0 else "student view" if i == 1 else f"student view {i}"] = describe(view)
    return found | {f"linear: {name}": text(value) for name, value in plain(recipe.linear).items()}


def nearest_paper(recipe: Recipe) -> tuple[str, Recipe]:
    """The paper's recipe to compare with, and its name: of the same data, else input size, with the same method."""
    same = [known for known in PAPER if known.name == recipe.name]
    same += [known for known in PAPER if known.data == recipe.data and known.backbone == recipe.backbone]
    size = "cifar10" if recipe.image_size <= 48 else "tiny-imagenet" if recipe.image_size <= 128 else "imagenet-r50"
    known = same[0] if same else get_recipe(size)
    if recipe.method == known.method:
        return known.name, known
    return f"{known.name}, {recipe.method}", known.replace(method=recipe.method)


def _environment(facts: dict[str, Any]) -> dict[str, Any]:
    own = {k: facts[k] for k in ("engine", "precision", "peak_memory_gb", "steps", "started", "finished") if k in facts}
    return {**facts.get("environment", {}), **own}
