"""ressl views."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from ressl.commands.shared import picture_file, positive
from ressl.data.sources import guess_data, open_source, parse_data, pretrain_split
from ressl.engine.loop import device_of
from ressl.errors import ResslError
from ressl.inspecting import views_of
from ressl.recipes import Recipe, choose_recipe, get_recipe
from ressl.report.galleries import views_grid
from ressl.runs import Run
from ressl.surveying import survey


def add_options(parser: ArgumentParser) -> None:
    parser.description = "Draw the views that a recipe or a run trains on: look at your augmentations before you train."
    parser.epilog = (
        "examples:\n  ressl views demo\n  ressl views cifar10 --views weak strong,blur=0.1\n"
        "  ressl views cifar10 --method clsa\n"
        "  ressl views --data photos/\n  ressl views runs/x -o views.png"
    )
    parser.add_argument("what", nargs="?", help="recipe, recipe.json or run folder (default: chosen from --data)")
    parser.add_argument("--data", help="where the data lies, or NAME=PATH")
    parser.add_argument("--method", help="another method, with the views that it brings, see 'ressl methods'")
    parser.add_argument("--views", nargs="+", metavar="VIEW", help="other views, teacher first, as for pretrain")
    parser.add_argument("--image-size", help="another input size")
    parser.add_argument("--seed", help="another seed")
    parser.add_argument("--pictures", default="8", help="rows (default: 8)")
    parser.add_argument("--draws", default="3", help="draws of each view (default: 3)")
    parser.add_argument("-o", "--out", default="views.png", metavar="FILE", help="default: views.png")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    recipe, place = _recipe(options.what, options.data)
    given = {key: getattr(options, key) for key in ("method", "views", "image_size", "seed")}
    recipe = recipe.replace(**{key: value for key, value in given.items() if value is not None})
    recipe.check()  # what cannot be trained is not drawn either
    count, draws = positive("--pictures", options.pictures), positive("--draws", options.draws)
    path = picture_file(options.out)
    source = open_source(recipe.data, pretrain_split(recipe.data), place)
    originals, views = views_of(recipe, source, count, draws)
    title = f"{recipe.method} on {recipe.data}, {len(source):,} pictures, seed {recipe.seed}"
    print(views_grid(originals, views, path, title))
    return 0


def _recipe(what: str | None, data: str | None) -> tuple[Recipe, str | None]:
    """The recipe and where its data lies."""
    if what is None:
        if data is None:
            raise ResslError("nothing to look at: name a recipe (see 'ressl recipes'), a run folder, or --data FOLDER")
        kind = guess_data(data)
        on_gpu = device_of("auto").type == "cuda"  # it decides the size, as for pretrain
        return choose_recipe(kind, survey(open_source(kind, "train", data), on_gpu))[0], data
    if (Path(what) / "recipe.json").is_file():
        run = Run.open(what)
        recipe, place = run.recipe, run.facts.get("data")
    else:
        recipe, place = Recipe.from_file(what) if what.endswith(".json") else get_recipe(what), None
    if data is None:
        return recipe, place
    kind, place = parse_data(data, recipe.data, data)  # a bare path is the recipe's data, as for pretrain
    return recipe.replace(data=kind), place
