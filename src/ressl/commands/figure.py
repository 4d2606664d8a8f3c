"""ressl figure."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ressl import console
from ressl.commands.shared import picture_file, positive
from ressl.drawing import draw_maps, draw_neighbours
from ressl.engine.loop import Display
from ressl.errors import ResslError, printable, unknown
from ressl.evaluating import bench_of, evaluate
from ressl.inspecting import chosen_queries, class_numbers, relations_of
from ressl.measuring import Bench
from ressl.report import figures, plots
from ressl.reporting import LIMIT, data_name
from ressl.runs import Run
from ressl.subjects import subject_of

KINDS = {
    "neighbours": "ten nearest pictures of weakly and strongly augmented queries (the paper's Figure 2)",
    "map": "t-SNE of the test pictures (the paper's Figure 3)",
    "curves": "loss, kNN accuracy and teacher entropy",
    "relations": "relations to the queue before and after sharpening",
    "classes": "accuracy by class, and confusion",
}
SEVERAL = ("neighbours", "map")  # runs side by side


def add_options(parser: ArgumentParser) -> None:
    parser.description = "Draw a figure of one run, or of several side by side.\n\nfigures:\n" + "\n".join(
        f"  {name:12}{summary}" for name, summary in KINDS.items()
    )
    parser.epilog = "example:\n  ressl figure map runs/moco runs/ressl -o figure3.png"
    parser.add_argument("kind", help=", ".join(KINDS))
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    parser.add_argument("--data", help="where the data lies; or other data: NAME, NAME=PATH, FOLDER")
    parser.add_argument("--rows", default="3", help="queries or sample pictures (default: 3)")
    parser.add_argument("--pictures", default="2000", help="points of a map at most (default: 2000)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto (bf16 on a GPU), fp32 or bf16")
    parser.add_argument("-o", "--out", metavar="FILE", help="default: KIND.png in the first run's folder")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    if options.kind not in KINDS:
        raise unknown("figure", options.kind, KINDS)
    if len(options.runs) > 1 and options.kind not in SEVERAL:
        raise ResslError(f"{options.kind} shows one run; {' and '.join(SEVERAL)} show several side by side")
    rows, pictures = positive("--rows", options.rows), positive("--pictures", options.pictures)
    chosen = picture_file(options.out) if options.out else None
    runs = [Run.open(path) for path in options.runs]
    path = chosen or runs[0].path / f"{options.kind}.png"
    with console.display() as shown:
        _draw(options, runs, rows, pictures, path, shown)
    print(printable(str(path)))
    return 0


def _draw(options: Namespace, runs: list[Run], rows: int, pictures: int, path: Path, shown: Display) -> None:
    recipe = runs[0].recipe
    title = f"{recipe.method} on {data_name(runs[0])}"
    if options.kind == "curves":
        figures.curves(runs[0].metrics(), path, title, recipe.options.get("queue_size"))
        return
    benches = [bench_of(subject_of(run), options.data, options.device, options.precision, shown) for run in runs]
    if options.kind != "classes":
        for bench in benches:
            bench.look(LIMIT)
    if options.kind == "neighbours":
        draw_neighbours(_named(runs, benches), path, rows)
    elif options.kind == "map":
        draw_maps(_named(runs, benches), path, pictures)
    elif options.kind == "classes":
        found = evaluate(runs[0], "classes", data=options.data, device=options.device, precision=options.precision)
        what = title if found["own_data"] else f"{_named(runs, benches)[0][0]} on {found['data']}"
        text = f"{what}, kNN, {found['top1']:.2f} % in all"
        plots.class_figure(found["accuracy"], found["classes"], found.get("confusion"), path, text)
    else:
        images, labels = benches[0].data.test
        chosen = chosen_queries(class_numbers(labels), rows)
        r = relations_of(runs[0], images[chosen].cpu())
        plots.relations(r.pictures, r.before, r.after, r.taus, path, f"{title}: the teacher's relations to the queue")


def _named(runs: list[Run], benches: list[Bench]) -> list[tuple[str, Bench]]:
    """Benches with the folder's name, by which a user knows a run."""
    names = [f"{printable(run.path.name)} ({run.recipe.method})" for run in runs]
    return list(zip(names, benches, strict=True))
