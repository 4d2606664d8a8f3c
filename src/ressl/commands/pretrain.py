"""ressl pretrain."""

from __future__ import annotations

import dataclasses
import shlex
from argparse import ArgumentParser, Namespace
from typing import Any

from ressl import console
from ressl.commands.evaluate import measure, written_out
from ressl.commands.shared import describe, flag, natural, positive
from ressl.engine.loop import Rhythm
from ressl.engine.processes import joined
from ressl.engine.signals import Interrupted
from ressl.errors import ResslError, printable
from ressl.measuring import PROTOCOLS
from ressl.methods import METHODS
from ressl.pretraining import pretrain as pretrain_run
from ressl.recipes import RECIPES, Recipe, method_options
from ressl.recipes.typed import convert, hints_of
from ressl.runs import Run
from ressl.subjects import subject_of_run

FEW = 3  # methods that are named beside an option of theirs


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "Pre-train with a named recipe, or on your own pictures with a recipe chosen from what is there."
    )
    parser.epilog = (
        "examples:\n"
        "  ressl pretrain cifar10                          download the data, train 200 epochs\n"
        "  ressl pretrain cifar10 --data ~/cifar10 --epochs 20 --teacher-temperature 0.04\n"
        "  ressl pretrain cifar10 --method byol            another method, as it is usually trained\n"
        "  ressl pretrain cifar10 --then knn linear        the paper's number with one command\n"
        "  ressl pretrain --data photos/ --out runs/photos\n"
        "  ressl pretrain --resume --out runs/photos\n"
        "  ressl pretrain tiny-imagenet --views crop+flip+gray strong,blur=0.1\n"
        "  ressl launch --processes 8 -- pretrain imagenet-r50 --data imagenet/ --out runs/r50"
    )
    parser.add_argument("recipe", nargs="?", help=f"{', '.join(RECIPES)}, or a recipe.json of an earlier run")
    parser.add_argument(
        "--data",
        help="where the named data set lies (default: $RESSL_DATA/<name> or data/<name>); "
        "without a recipe: a folder of pictures or of tar shards, a list.txt of paths, or a .npy/.npz file",
    )
    parser.add_argument("--out", metavar="RUN", help="run folder (default: runs/<recipe>-<time>)")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out from its last checkpoint")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--engine",
        default="auto",
        help="auto (graph on a GPU, compile on several; on a CPU compile for long runs, else eager), eager, compile "
        "or graph",
    )
    parser.add_argument("--precision", default="auto", help="auto (bf16 on a GPU), fp32 or bf16")
    parser.add_argument(
        "--exact", action="store_true",
        help="on a GPU, with the graph engine: a stopped, killed or repeated run has the losses of an undisturbed one "
        "to the bit (slower: cuDNN takes the convolutions it guesses instead of the fastest of a trial)",
    )  # fmt: skip
    parser.add_argument("--workers", metavar="N", help="decoding processes when data streams from files")
    parser.add_argument("--log-steps", metavar="N", default="50", help="steps between two log points (default: 50)")
    parser.add_argument(
        "--checkpoint-minutes", metavar="M", default="5", help="a checkpoint at least so often (default: 5)"
    )
    parser.add_argument("--checkpoint-steps", metavar="N", default="0", help="also every N steps (default: off)")
    parser.add_argument(
        "--then", nargs="+", default=[], metavar="P", help="evaluate afterwards: knn, linear, ... (see ressl evaluate)"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    fields = parser.add_argument_group("recipe fields (default: the recipe's)")
    hints = hints_of(Recipe)
    for field in dataclasses.fields(Recipe):
        if field.name not in ("name", "summary", "data", "options", "paper", "linear", "views"):
            fields.add_argument(
                flag(field.name), metavar="X", dest=f"change:{field.name}", help=describe(field.name, hints[field.name])
            )
    fields.add_argument(
        "--views", nargs="+", metavar="VIEW", dest="change:views",
        help="teacher first: weak, strong, none, or words joined by + (crop flip jitter gray blur solarize pad rand), "
        "each with settings: strong,blur=0.1,size=96,crop=0.1:0.5",
    )  # fmt: skip
    options = {name: kind for method in METHODS for name, (kind, _) in method_options(method).items()}
    group = parser.add_argument_group("options of the method", "in brackets the methods that have it, where few do")
    for name, kind in options.items():
        if name not in hints:
            whose = [method for method in METHODS if name in method_options(method)]
            few = f" [{', '.join(whose)}]" if len(whose) <= FEW else ""
            group.add_argument(flag(name), metavar="X", dest=f"change:{name}", help=describe(name, kind) + few)


def run(options: Namespace, changes: dict[str, Any]) -> int:
    then = written_out(options.then, {})
    if "transfer" in then:
        raise ResslError(
            "--then names no data to transfer to; after training: ressl evaluate RUN --protocol transfer --to DATA"
        )
    rhythm = Rhythm(
        log_steps=positive("--log-steps", options.log_steps),
        checkpoint_minutes=convert(float, options.checkpoint_minutes, "--checkpoint-minutes"),
        checkpoint_steps=convert(int, options.checkpoint_steps, "--checkpoint-steps"),
    )
    if rhythm.checkpoint_minutes < 0 or rhythm.checkpoint_steps < 0:
        raise ResslError("--checkpoint-minutes and --checkpoint-steps must be at least 0")
    workers = None if options.workers is None else natural("--workers", options.workers)
    try:
        with joined(options.device) as team:
            with console.display(options.quiet or not team.leads) as shown:
                run = pretrain_run(
                    options.recipe,
                    data=options.data,
                    out=options.out,
                    resume=options.resume,
                    device=options.device,
                    engine=options.engine,
                    precision=options.precision,
                    workers=workers,
                    rhythm=rhythm,
                    exact=options.exact,
                    labelled=any(PROTOCOLS[name].labels for name in then),
                    display=shown,
                    **changes,
                )
            if not options.quiet and team.leads:
                _conclude(run)
            if then:
                how = {"device": options.device, "precision": options.precision}
                measure(subject_of_run(run), then, team, options.quiet, **how)
    except Interrupted as stop:
        return stop.exit_code
    return 0


def _conclude(run: Run) -> None:
    knn = run.curve("knn")
    print(f"trained in {run.facts['seconds']:.0f} s" + (f"; kNN {knn[-1][1]:.2f} %" if knn else ""))
    after = f"; next: ressl evaluate {shlex.quote(str(run.path))}" if knn else ""
    print(f"run folder {printable(str(run.path))}{printable(after)}")
