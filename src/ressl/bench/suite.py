"""The benchmark: what is measured, in which order, and how it is shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ressl.bench.features import embed_speed
from ressl.bench.linear import linear_speed
from ressl.bench.loader import files_of, loader_speed
from ressl.bench.parts import Work, ideas_worth, loss_cost, work_of
from ressl.bench.phases import step_phases
from ressl.bench.steps import reference_speed, step_speed
from ressl.bench.timing import ceilings
from ressl.bench.views import views_speed
from ressl.bench.ways import cpu_ways
from ressl.environment import environment
from ressl.errors import ResslError, unknown
from ressl.files import write_atomically
from ressl.recipes import get_recipe
from ressl.recipes.recipe import Recipe
from ressl.recipes.typed import plain

PARTS = ("ceilings", "engines", "loss", "profile", "ideas", "ways", "views", "loader", "embed", "linear", "sweeps")
SWEPT: dict[str, tuple[int, ...]] = {
    "batch_size": (128, 256, 512, 1024, 2048),
    "queue_size": (1024, 4096, 16384, 65536, 131072),
    "image_size": (32, 64, 96, 224),
}
_SWEPT_ON_CPU = {"batch_size": (32, 64, 128), "queue_size": (1024, 4096), "image_size": (16, 32)}
OF_PARTS: dict[str, tuple[str, ...]] = {
    "engines": ("eager", "compile", "graph", "pil"),
    "sweeps": tuple(SWEPT),
}


def chosen_parts(words: Iterable[str]) -> dict[str, set[str]]:
    """Of 'loss', 'engines:graph', 'sweeps:batch_size': the parts in their order, each with what is wanted of it.

    >>> chosen_parts(["loss", "engines:graph", "engines:pil"])["engines"] == {"graph", "pil"}
    True
    """
    found: dict[str, set[str]] = {}
    for word in words:
        part, _, which = word.partition(":")
        if part not in PARTS:
            raise unknown("part of the benchmark", part, PARTS)
        whole = OF_PARTS.get(part, ())
        if which and not whole:
            raise ResslError(f"the part '{part}' of the benchmark has no pieces to choose from; say {part} alone.")
        if which and which not in whole:
            raise unknown(f"piece of '{part}'", which, whole)
        found.setdefault(part, set()).update([which] if which else whole)
    return {part: found[part] for part in PARTS if part in found}


def bench(
    recipe: str = "cifar10",
    *,
    parts: Iterable[str] = PARTS,
    device: torch.device,
    workers: int,
    seconds: float | None = None,
    data: str | None = None,
    say: Callable[[str], None] = print,
    keep: Callable[[dict[str, Any]], object] = lambda found: None,
) -> dict[str, Any]:
    """Measure ``parts`` and return everything that was measured, ready for JSON; ``keep`` gets it after every row.

    The loader reads the pictures of ``data``, or random ones.
    """
    wanted = chosen_parts(parts)
    if data is not None and "loader" not in wanted:
        raise ResslError("--data is read by the part 'loader' alone; add it to --parts")
    if data is not None:
        files_of(data)  # what is wrong with it is said before anything is measured
    on_gpu = device.type == "cuda"
    if not on_gpu and "engines" in wanted and wanted["engines"] == {"graph"}:
        raise ResslError("a CUDA graph needs a GPU, and there is none here; measure engines:eager or engines:compile")
    chosen = get_recipe(recipe) if on_gpu else small(get_recipe(recipe))
    spend = seconds if seconds is not None else 2.0
    found: dict[str, Any] = {"schema": 1, "kind": "bench", "name": recipe, "recipe": plain(chosen)}
    found |= {"environment": environment(device), "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}

    def take(rows: Iterable[dict[str, Any]], place: list[dict[str, Any]]) -> None:
        """A benchmark that is stopped keeps what it has."""
        for row in rows:
            place.append(row)
            keep(found)

    for part, pieces in wanted.items():
        if part == "ceilings":
            found["ceilings"] = ceilings(device, spend)
            say("ceilings: " + ", ".join(f"{key} {value}" for key, value in found["ceilings"].items()))
        elif part == "engines":
            work = work_of(chosen)
            found["gflops_per_image"] = round(work.flops / 1e9, 3)
            rows = _engines(chosen, device, workers, spend, say, pieces)
            take((_fractions(row, work, found.get("ceilings")) for row in rows), found.setdefault("engines", []))
        elif part == "loss" and "queue_size" in chosen.options:
            fastest = max(found.get("engines") or [_step(chosen, device, spend)], key=itemgetter("images_per_second"))
            step_ms = 1000 * fastest["batch"] / fastest["images_per_second"]
            found["loss"] = loss_cost(chosen, device, step_ms, spend)
            share = 100 * found["loss"]["share_of_step"]
            memory = found["loss"]["peak_memory_gb"]
            most = "" if memory is None else f", {memory:.3f} GB at its peak"
            say(f"loss alone: {found['loss']['milliseconds']:.2f} ms, {share:.1f} % of a step{most}")
        elif part == "profile":
            found["profile"] = step_phases(chosen, device, spend)
            shares = (f"{row['phase']} {100 * row['share']:.0f} %" for row in found["profile"]["phases"])
            say(f"profile, {found['profile']['engine']}: {', '.join(shares)}")
        elif part == "ideas" and on_gpu:
            take(ideas_worth(chosen, device, spend, say), found.setdefault("ideas", []))
        elif part == "ways" and not on_gpu:
            take(cpu_ways(get_recipe("demo"), spend, say), found.setdefault("ways", []))
        elif part == "views":
            found["views"] = views_speed(chosen, device, workers, spend, say)
        elif part == "loader":
            for row in loader_speed(chosen, device, workers, spend, data):
                say(f"{_loader_name(row)}: {row['images_per_second']:,.0f} images/s")
                take([row], found.setdefault("loader", []))
        elif part == "embed":
            found["embed"] = row = embed_speed(chosen, device)
            say(f"{row['pictures']:,} pictures to features: {row['seconds']:.2f} s")
        elif part == "linear":
            take(linear_speed(chosen, device, spend, say), found.setdefault("linear", []))
        elif part == "sweeps":
            for field in [field for field in SWEPT if field in pieces]:
                rows = _sweep(field, chosen, device, spend, say)
                take(rows, found.setdefault("sweeps", {}).setdefault(field, []))
        keep(found)
    return found


def _step(recipe: Recipe, device: torch.device, seconds: float) -> dict[str, Any]:
    return step_speed(recipe, device, "auto", "bf16" if device.type == "cuda" else "fp32", seconds)


def _fractions(row: dict[str, Any], work: Work, ceilings: dict[str, float] | None) -> dict[str, Any]:
    """``row``, and how much it reaches of the machine's measured matrix product, and of its copy at the least."""
    speed = row["images_per_second"]
    row["tflops"] = round(speed * work.flops / 1e12, 3)
    row["tb_per_s"] = round(speed * work.bytes_per_image(row["batch"], row["precision"]) / 1e12, 4)
    if ceilings is not None:
        row["of_matrix_ceiling"] = round(row["tflops"] / ceilings["matrix_tflops"], 4)
        row["of_copy_ceiling"] = round(row["tb_per_s"] / ceilings["copy_tb_per_s"], 4)
    return row


def small(recipe: Recipe) -> Recipe:
    """The same recipe at a size that a CPU gets through in seconds; the demo's has it."""
    if recipe.name == "demo":
        return recipe
    return recipe.replace(width=8, batch_size=64, bn_groups=4, queue_size=1024, hidden_dim=256, image_size=32)


def _engines(
    recipe: Recipe,
    device: torch.device,
    workers: int,
    seconds: float,
    say: Callable[[str], None],
    pieces: Container[str],
) -> Iterator[dict[str, Any]]:
    cases = [("eager", "fp32"), *((engine, "bf16") for engine in ("eager", "compile", "graph"))]
    for engine, precision in cases if device.type == "cuda" else [("eager", "fp32"), ("compile", "fp32")]:
        if engine in pieces:
            row = step_speed(recipe, device, engine, precision, seconds)
            say(f"{engine} {precision}: {row['images_per_second']:,.0f} images/s")
            yield row
    if "pil" in pieces:
        row = reference_speed(recipe, device, workers, seconds)
        say(f"{row['engine']}: {row['images_per_second']:,.0f} images/s")
        yield row


def _sweep(
    field: str, recipe: Recipe, device: torch.device, seconds: float, say: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    on_gpu = device.type == "cuda"
    for value in SWEPT[field] if on_gpu else _SWEPT_ON_CPU[field]:
        changes: dict[str, int] = {field: value}
        if field == "batch_size":
            changes["queue_size"] = max(value, recipe.options["queue_size"])
        row = _step(recipe.replace(**changes), device, seconds / 2)
        say(f"{field} {value}: {row['images_per_second']:,.0f} images/s")
        yield {field: value, **row}


class Row(NamedTuple):
    """A line of a table; what was not measured is None."""

    name: str
    speed: float  # images/s
    ratio: float
    memory: float | None = None  # GB: of the step once it runs, or at its peak
    start: float | None = None  # seconds
    matrix: float | None = None  # share of the machine's ceiling
    copy: float | None = None
    note: str | None = None


Table = tuple[str, str, list[Row]]


def tables(found: dict[str, Any]) -> list[Table]:
    """(title, what a row is, rows) of everything measured; the ratio is to the plain way, or to the sweep's first."""
    made: list[Table] = []
    if "engines" in found:
        rows = found["engines"]
        name = lambda row: f"{row['engine']}, {row['precision']}"
        made.append((f"training step, batch {rows[0]['batch']}", "engine", _rows(rows, name, rows[-1])))
    if "ideas" in found:
        rows = found["ideas"]
        made.append(("what each idea is worth", "graph engine", _rows(rows, itemgetter("ideas"), rows[0])))
    if "ways" in found:
        rows = found["ways"]
        made.append(("the demo's step on this CPU", "way", _rows(rows, itemgetter("way"), rows[0])))
    if "views" in found:
        rows = found["views"]
        made.append(("both views alone", "views", _rows(rows, itemgetter("views"), rows[-1])))
    if "loader" in found:
        rows = found["loader"]
        resident = next(row for row in rows if row["loader"].startswith("step on"))
        made.append((f"from {rows[-1].get('files', 'JPEG files')}", "loader", _rows(rows, _loader_name, resident)))
    if "linear" in found:
        rows = found["linear"]
        made.append(("linear evaluation", "epochs", _rows(rows, itemgetter("linear"), rows[0])))
    for field, rows in found.get("sweeps", {}).items():
        made.append((f"sweep over {field}", field, _rows(rows, itemgetter(field), rows[0])))
    return made


def _loader_name(row: dict[str, Any]) -> str:
    idle = f" (device idle {100 * row['idle_share']:.0f} %)" if "idle_share" in row else ""
    return f"{row['loader']}{idle}"


def _rows(rows: list[dict[str, Any]], name: Callable[[dict[str, Any]], Any], base: dict[str, Any]) -> list[Row]:
    def row(r: dict[str, Any]) -> Row:
        speed, memory = r["images_per_second"], r.get("step_memory_gb", r.get("peak_memory_gb"))
        more = (r.get(key) for key in ("start_seconds", "of_matrix_ceiling", "of_copy_ceiling", "note"))
        return Row(str(name(r)), speed, speed / base["images_per_second"], memory, *more)

    return [row(r) for r in rows]


def write(found: dict[str, Any], folder: str | Path) -> Path:
    path = place_of(found, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())
    return path


def place_of(found: dict[str, Any], folder: str | Path) -> Path:
    when = found["started"].replace(":", "").replace("-", "")
    name = f"{found.get('kind', 'bench')}-{found['name']}-{found['environment']['device']}-{when}.json"
    return Path(folder) / name
