"""ressl evaluate."""

from __future__ import annotations

import dataclasses
import os
from argparse import ArgumentParser, Namespace
from typing import Any, get_type_hints

from rich.table import Table

from ressl import console
from ressl.commands.shared import describe, flag, positive, show
from ressl.engine.processes import Team, joined
from ressl.errors import ResslError, printable, unknown
from ressl.evaluating import ALL, CHOICES, evaluate_each
from ressl.evaluation.finetune import FinetuneProtocol
from ressl.evaluation.linear import LinearProtocol, LinearSweepProtocol
from ressl.evaluation.svm import SvmProtocol
from ressl.measuring import PROTOCOLS, GeometryProtocol, KnnProtocol, SweepProtocol, TransferProtocol
from ressl.recipes import get_recipe
from ressl.report.numbers import rows_of, tested_on
from ressl.subjects import Subject, subject_of

SETTINGS = {  # heading -> the settings listed under it
    "changes to the linear protocol": LinearProtocol,
    "changes to the sweep of linear protocols": LinearSweepProtocol,
    "changes to kNN": KnnProtocol,
    "changes to the kNN sweep": SweepProtocol,
    "changes to the SVM": SvmProtocol,
    "changes to fine-tuning": FinetuneProtocol,
    "changes to the geometry": GeometryProtocol,
    "changes to transfer": TransferProtocol,
}
FIELDS = {name: {f.name for f in dataclasses.fields(p.settings(get_recipe("demo")))} for name, p in PROTOCOLS.items()}


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "Measure a frozen backbone: of a run, of timm or of torchvision. Results go to RUN/evaluation/ and are not\n"
        "computed twice; features are taken once for all protocols.\n\nprotocols:\n"
        + "\n".join(f"  {name:17}{p.summary}" for name, p in PROTOCOLS.items())
        + "\n  all              all of these but the named linear ones and their sweep; transfer where --to is given"
    )
    parser.epilog = (
        "examples:\n  ressl evaluate runs/x\n  ressl evaluate runs/x --protocol all\n"
        "  ressl evaluate runs/x --protocol transfer --to cifar100 voc07=/data/voc photos/pets\n"
        "  ressl evaluate timm/resnet18 --weights default --data cifar10 --protocol knn"
    )
    parser.add_argument("run", help="run folder, timm/MODEL or torchvision/MODEL")
    parser.add_argument(
        "--protocol", nargs="+", default=["knn", "linear"], metavar="P",
        help="names from above (default: knn linear; linear is the recipe's own protocol)",
    )  # fmt: skip
    parser.add_argument("--data", help="where the run's data lies; or other data: NAME, NAME=PATH, FOLDER")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto (bf16 on a GPU), fp32 or bf16")
    parser.add_argument("--again", action="store_true", help="compute even what is there")
    foreign = parser.add_argument_group("backbones of timm and torchvision")
    foreign.add_argument("--weights", default="none", help="none, default (the library's own), or a state-dict file")
    foreign.add_argument("--image-size", help="side of its input in pixels (default: what it was made for)")
    foreign.add_argument("--out", metavar="FOLDER", help="where results go (default: runs/<name>-<weights>-<data>)")
    listed: set[str] = set()
    for heading, settings in SETTINGS.items():
        group = parser.add_argument_group(heading)
        for field in dataclasses.fields(settings):
            if field.name in listed:
                continue
            listed.add(field.name)
            kind = get_type_hints(settings)[field.name]
            several: dict[str, Any] = {"nargs": "+"} if field.name == "to" else {}
            group.add_argument(
                flag(field.name), metavar="X", dest=f"change:{field.name}", help=describe(field.name, kind), **several
            )


def run(options: Namespace, changes: dict[str, Any]) -> int:
    with joined(options.device) as team:
        return _run(options, changes, team)


def _run(options: Namespace, changes: dict[str, Any], team: Team) -> int:
    protocols = written_out(options.protocol, changes)
    mine = {name: {key: value for key, value in changes.items() if key in FIELDS[name]} for name in protocols}
    for key in changes:
        if not any(key in given for given in mine.values()):
            raise ResslError(f"none of {', '.join(protocols)} has a {flag(key)} to change")
    size = None if options.image_size is None else positive("image_size", options.image_size)
    subject = subject_of(options.run, options.data, options.weights, size, options.out)
    settings = {"data": options.data, "device": options.device, "precision": options.precision}
    measure(subject, protocols, team, again=options.again, changes=mine, **settings)
    return 0


def measure(subject: Subject, protocols: list[str], team: Team, quiet: bool = False, **settings: Any) -> None:
    """Evaluate by each of ``protocols``, with progress, and show the table; ``settings`` as of evaluate_each."""
    results, quiet = [], quiet or not team.leads
    with console.display(quiet) as shown:
        found = evaluate_each(subject, protocols, display=shown, **settings)
        for i, name in enumerate(protocols, 1):
            shown.message(f"{i} of {len(protocols)}: {name}, {PROTOCOLS[name].summary}")
            results.append(next(found))
    if not quiet:
        _show(str(subject.run.path), results, subject)


def written_out(asked: list[str], changes: dict[str, Any]) -> list[str]:
    """The protocols asked for, ``all`` written out, each once."""
    names = []
    for name in asked:
        if name not in (*CHOICES, "all"):
            raise unknown("protocol", name, (*CHOICES, "all"))
        names += [*ALL, *(["transfer"] if "to" in changes else [])] if name == "all" else [name]
    return list(dict.fromkeys(names))


def _show(what: str, results: list[tuple[str, dict[str, Any]]], subject: Subject) -> None:
    table = Table(title=f"{printable(what)}, percent of test pictures unless named otherwise", title_justify="left")
    for heading in ("protocol", "measure", "result", "", "paper", "seconds"):
        table.add_column(heading, justify="left" if heading in ("protocol", "measure", "") else "right")
    for name, result in results:
        for i, row in enumerate(rows_of(name, result, subject.recipe.paper)):
            first, seconds = (name, f"{result['seconds']:.1f}") if i == 0 else ("", "")
            table.add_row(*map(printable, (first, row.what, row.value, row.beside, row.paper, seconds)))
    show(table)
    if tested := tested_on([("", dict(results))]):
        print(f"tested on {printable(tested)}")
    if os.access(subject.run.path / "evaluation", os.W_OK):
        print(f"written to {printable(str(subject.run.path))}/evaluation/")
