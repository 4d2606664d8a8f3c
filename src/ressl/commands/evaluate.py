"""ressl evaluate."""

from __future__ import annotations

import dataclasses
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, get_type_hints

from rich.table import Table

from ressl import console
from ressl.commands.shared import describe, flag, show
from ressl.engine.loop import Display
from ressl.engine.processes import Team, joined
from ressl.errors import unknown
from ressl.evaluating import CHOICES, with_changes
from ressl.evaluating import evaluate as evaluate_run
from ressl.evaluation.linear import LinearProtocol
from ressl.runs import Run


def add_options(parser: ArgumentParser) -> None:
    parser.description = "Measure a run's frozen backbone. Results go to RUN/evaluation/ and are not computed twice."
    parser.epilog = "examples:\n  ressl evaluate runs/x\n  ressl evaluate runs/x --protocol knn linear-cosine"
    parser.add_argument("run", help="run folder")
    parser.add_argument(
        "--protocol", nargs="+", default=["knn", "linear"], metavar="P",
        help=f"{', '.join(CHOICES)} (default: knn linear; linear is the recipe's own protocol)",
    )  # fmt: skip
    parser.add_argument("--data", help="where the data lies (default: where the run found it)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--precision", default="auto", help="auto (bf16 on a GPU), fp32 or bf16")
    parser.add_argument("--again", action="store_true", help="compute even what is there")
    group = parser.add_argument_group("changes to the linear protocol")
    for field in dataclasses.fields(LinearProtocol):
        kind = get_type_hints(LinearProtocol)[field.name]
        group.add_argument(flag(field.name), metavar="X", dest=f"change:{field.name}", help=describe(field.name, kind))


def run(options: Namespace, changes: dict[str, Any]) -> int:
    with joined(options.device) as team:
        return _run(options, changes, team)


def _run(options: Namespace, changes: dict[str, Any], team: Team) -> int:
    run = Run.open(options.run)
    for protocol in options.protocol:
        if protocol not in CHOICES:
            raise unknown("protocol", protocol, CHOICES)
    with_changes(run.recipe.linear, changes).check()  # before anything is computed
    paper = run.recipe.paper.get("linear")
    table = Table(title=f"{run.recipe.method} on {run.recipe.data}, top-1", title_justify="left")
    for heading in ("protocol", "last", "best", "paper", "seconds"):
        table.add_column(heading, justify="left" if heading == "protocol" else "right")
    for protocol in options.protocol:
        with console.display(quiet=not team.leads) as shown:
            result = evaluate_run(
                run,
                protocol,
                data=options.data,
                device=options.device,
                precision=options.precision,
                again=options.again,
                progress=_reporter(shown),
                **(changes if protocol != "knn" else {}),
            )
        last = result.get("last", result.get("top1"))
        best = f"{result['best']:.2f} (epoch {result['best_epoch']})" if "best" in result else ""
        beside = f"{paper:.2f}" if paper is not None and protocol == "linear" else ""
        table.add_row(protocol, f"{last:.2f}", best, beside, f"{result['seconds']:.1f}")
    if not team.leads:
        return 0
    show(table)
    print(f"written to {run.path}/evaluation/")
    return 0


def _reporter(shown: Display) -> Callable[[int, int, float], None]:
    return lambda done, total, accuracy: shown.progress(done, total, {"epoch": done, "accuracy": accuracy})
