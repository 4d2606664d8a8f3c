"""The command line: parse, dispatch. Nobody imports it."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, get_type_hints

from ressl.errors import ResslError, unknown


class Parser(argparse.ArgumentParser):
    """argparse that says what is wrong in one sentence."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs["allow_abbrev"] = False
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise ResslError(f"{message.rstrip('.')}; see '{self.prog} --help'")


def build_parser(asked: str | None = None) -> Parser:
    """The parser; only the command that is asked for gets its options, because listing them imports the whole house."""
    parser = Parser(
        prog="ressl",
        description="Relational self-supervised learning: pre-train image backbones without labels.",
        epilog="start with:\n  ressl demo                       no data, no GPU, about two minutes\n"
        "  ressl pretrain cifar10           the paper's recipe\n"
        "  ressl pretrain --data photos/    your own pictures\n"
        "  ressl COMMAND --help             what a command can do",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (summary, add_options) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == asked:
            add_options(command)
    return parser


def _demo(demo: Parser) -> None:
    demo.description = (
        "Train ReSSL on generated pictures and compare its features with raw pixels and the untrained\n"
        "backbone. Leaves curves.png and neighbours.png in the run folder. Needs neither data nor GPU."
    )
    demo.add_argument("--out", metavar="RUN", help="run folder (default: runs/demo-<time>)")
    demo.add_argument("--device", default="auto", help="auto, cpu or cuda")
    demo.add_argument("--epochs", help="train for so many epochs instead")
    demo.add_argument("--seed", help="another seed")


def _pretrain(pretrain: Parser) -> None:
    from ressl.methods import METHODS
    from ressl.recipes import RECIPES, Recipe, method_options

    pretrain.description = (
        "Pre-train with a named recipe, or on your own pictures with a recipe chosen from what is there."
    )
    pretrain.epilog = (
        "examples:\n"
        "  ressl pretrain cifar10                          download the data, train 200 epochs\n"
        "  ressl pretrain cifar10 --data ~/cifar10 --epochs 20 --teacher-temperature 0.04\n"
        "  ressl pretrain --data photos/ --out runs/photos\n"
        "  ressl pretrain --resume --out runs/photos\n"
        "  ressl pretrain tiny-imagenet --views crop+flip+gray strong,blur=0.1"
    )
    pretrain.add_argument("recipe", nargs="?", help=f"{', '.join(RECIPES)}, or a recipe.json of an earlier run")
    pretrain.add_argument(
        "--data",
        help="where the named data set lies (default: $RESSL_DATA/<name> or data/<name>); "
        "without a recipe: a folder of pictures, or a .npy/.npz file",
    )
    pretrain.add_argument("--out", metavar="RUN", help="run folder (default: runs/<recipe>-<time>)")
    pretrain.add_argument("--resume", action="store_true", help="continue the run in --out from its last checkpoint")
    pretrain.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    pretrain.add_argument(
        "--engine", default="auto", help="auto (graph on a GPU, eager elsewhere), eager, compile or graph"
    )
    pretrain.add_argument("--precision", default="auto", help="auto (bf16 on a GPU), fp32 or bf16")
    pretrain.add_argument("--workers", metavar="N", help="decoding processes when data streams from files")
    pretrain.add_argument("--log-steps", metavar="N", default="50", help="steps between two log points (default: 50)")
    pretrain.add_argument(
        "--checkpoint-minutes", metavar="M", default="5", help="a checkpoint at least so often (default: 5)"
    )
    pretrain.add_argument("--checkpoint-steps", metavar="N", default="0", help="also every N steps (default: off)")
    pretrain.add_argument("--quiet", action="store_true", help="print nothing but errors")
    fields = pretrain.add_argument_group("recipe fields (default: the recipe's)")
    hints = get_type_hints(Recipe)
    for field in dataclasses.fields(Recipe):
        if field.name not in ("name", "summary", "data", "options", "paper", "linear", "views"):
            fields.add_argument(
                _flag(field.name), metavar="X", dest=f"change:{field.name}", help=_help(field.name, hints[field.name])
            )
    fields.add_argument(
        "--views", nargs="+", metavar="VIEW", dest="change:views",
        help="teacher first: weak, strong, none, or words joined by + (crop flip jitter gray blur solarize), "
        "each with settings: strong,blur=0.1,size=96,crop=0.1:0.5",
    )  # fmt: skip
    options = {name: kind for method in METHODS for name, (kind, _) in method_options(method).items()}
    group = pretrain.add_argument_group("options of the method")
    for name, kind in options.items():
        if name not in hints:
            group.add_argument(_flag(name), metavar="X", dest=f"change:{name}", help=_help(name, kind))


def _evaluate(evaluate: Parser) -> None:
    from ressl.evaluating import CHOICES
    from ressl.evaluation.linear import LinearProtocol

    evaluate.description = "Measure a run's frozen backbone. Results go to RUN/evaluation/ and are not computed twice."
    evaluate.epilog = "examples:\n  ressl evaluate runs/x\n  ressl evaluate runs/x --protocol knn linear-cosine"
    evaluate.add_argument("run", help="run folder")
    evaluate.add_argument(
        "--protocol", nargs="+", default=["knn", "linear"], metavar="P",
        help=f"{', '.join(CHOICES)} (default: knn linear; linear is the recipe's own protocol)",
    )  # fmt: skip
    evaluate.add_argument("--data", help="where the data lies (default: where the run found it)")
    evaluate.add_argument("--device", default="auto", help="auto, cpu or cuda")
    evaluate.add_argument("--precision", default="auto", help="auto (bf16 on a GPU), fp32 or bf16")
    evaluate.add_argument("--again", action="store_true", help="compute even what is there")
    group = evaluate.add_argument_group("changes to the linear protocol")
    for field in dataclasses.fields(LinearProtocol):
        kind = get_type_hints(LinearProtocol)[field.name]
        group.add_argument(_flag(field.name), metavar="X", dest=f"change:{field.name}", help=_help(field.name, kind))


def _recipes(recipes: Parser) -> None:
    recipes.description = "List the recipes, or print one whole."
    recipes.add_argument("name", nargs="?", help="print this recipe as JSON")


def _record(record: Parser) -> None:
    record.description = "Write a finished run and its evaluations as one JSON record (no machine paths in it)."
    record.add_argument("run", help="run folder")
    record.add_argument("--into", default="results", metavar="FOLDER", help="default: results")


def _bench(bench: Parser) -> None:
    from ressl.bench.suite import PARTS

    bench.description = (
        "Speed and memory of the training step, side by side in one run on this machine: our engines, the plain\n"
        "PIL-and-workers way, the views alone, sweeps, and the machine's ceilings. Without a GPU a small version runs."
    )
    bench.epilog = "examples:\n  ressl bench\n  ressl bench tiny-imagenet --parts engines"
    bench.add_argument("recipe", nargs="?", default="cifar10", help="whose step to measure (default: cifar10)")
    bench.add_argument(
        "--parts", nargs="+", default=list(PARTS), metavar="P", help=f"{', '.join(PARTS)} (default: all)"
    )
    bench.add_argument("--device", default="auto", help="auto, cpu or cuda")
    bench.add_argument("--workers", metavar="N", help="loader processes of the PIL reference (default: one per core)")
    bench.add_argument("--seconds", metavar="S", help="to spend on each measurement (default: 2)")
    bench.add_argument("--into", default="results", metavar="FOLDER", help="where JSON and plot go (default: results)")


COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "demo": ("train and evaluate on generated pictures", _demo),
    "pretrain": ("pre-train a backbone", _pretrain),
    "evaluate": ("measure a run's frozen backbone", _evaluate),
    "bench": ("measure speed and memory", _bench),
    "recipes": ("list the recipes with the paper's numbers", _recipes),
    "record": ("write a finished run into the ledger", _record),
}


HELP = {
    "image_size": "side of the square the networks see, in pixels",
    "mean": "per channel, of pixels in 0..1",
    "std": "per channel, of pixels in 0..1",
    "backbone": "resnet10, resnet18, resnet34, resnet50, or timm/<model>",
    "stem": "first layers: small (32 px), medium (64 px), imagenet (224 px)",
    "width": "channels of the first stage; 64 is the usual network",
    "bn_groups": "groups of the batch with batch-norm statistics of their own",
    "method": "the learning method",
    "epochs": "passes over the data",
    "batch_size": "samples per step, over all processes",
    "lr": "peak learning rate per 256 samples",
    "momentum": "of the optimiser",
    "weight_decay": "of the optimiser",
    "decay_norm_and_bias": "whether weight decay applies to norms and biases too",
    "warmup_epochs": "epochs over which the learning rate rises",
    "seed": "of everything that is random",
    "knn_every": "epochs between two kNN measurements; 0: at the end only",
    "knn_k": "neighbours",
    "knn_temperature": "of the neighbours' weights",
    "hidden_dim": "of the projection head",
    "output_dim": "of the embedding",
    "queue_size": "past samples that relations refer to (K)",
    "teacher_momentum": "of the moving average (m)",
    "student_temperature": "tau_s",
    "teacher_temperature": "tau_t; below tau_s",
    "head_batch_norm": "batch norm in the projection head (the paper has none)",
    "schedule": "how the learning rate falls",
    "milestones": "fractions of the epochs at which the step schedule falls to a tenth",
    "nesterov": "Nesterov momentum",
    "augment": "random crop and flip of the training pictures",
    "scale": "area range of that crop",
    "resize": "short side before the centre crop of test pictures; none: as they are",
    "standardize": "features to mean 0 and deviation 1 first",
}


def _help(name: str, kind: Any) -> str:
    from ressl.recipes.typed import wants

    return f"{HELP[name]} ({wants(kind)})" if name in HELP else wants(kind)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except ResslError as error:
        print(f"ressl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("ressl: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `ressl recipes | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a folder without permission
        print(f"ressl: {error}", file=sys.stderr)
        return 2


def _main(arguments: list[str]) -> int:
    asked = arguments[0] if arguments else None
    if asked is not None and not asked.startswith("-") and asked not in COMMANDS:
        raise unknown("command", asked, COMMANDS)
    parser = build_parser(asked)
    options, rest = parser.parse_known_args(arguments)
    if rest:
        raise ResslError(_unexpected(parser, options.command, rest[0]))
    if options.version:
        from ressl import __version__

        print(f"ressl {__version__}")
        return 0
    if options.command is None:
        parser.print_help()
        return 0
    from ressl import commands

    changes = {
        k.removeprefix("change:"): v for k, v in vars(options).items() if k.startswith("change:") and v is not None
    }
    run = getattr(commands, options.command)
    code: int = run(options, changes)
    return code


def _subparsers(parser: Parser) -> dict[str, Parser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _unexpected(parser: Parser, command: str | None, word: str) -> str:
    if not word.startswith("-"):
        return f"unexpected argument '{word}'; see 'ressl {command or ''} --help'".replace("  ", " ")
    here = _subparsers(parser)[command] if command else parser
    known = [flag for action in here._actions for flag in action.option_strings]
    near = difflib.get_close_matches(word.split("=")[0], known, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"see 'ressl {command or ''} --help'".replace("  ", " ")
    return f"unknown option '{word}'; {hint}"
