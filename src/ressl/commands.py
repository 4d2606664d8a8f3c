"""What each command of the command line does; one function per command, named like it."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from ressl import console
from ressl.engine.loop import Display, Rhythm, device_of
from ressl.engine.signals import Interrupted
from ressl.errors import ResslError, unknown
from ressl.evaluating import CHOICES, with_changes
from ressl.evaluating import evaluate as evaluate_run
from ressl.pretraining import default_workers
from ressl.pretraining import pretrain as pretrain_run
from ressl.recipes import RECIPES, get_recipe
from ressl.recipes.typed import convert
from ressl.reproduce.ledger import write_record
from ressl.runs import Run


def demo(options: Namespace, changes: dict[str, Any]) -> int:
    from ressl.demo import NAMES
    from ressl.demo import demo as run_demo

    changes = {key: getattr(options, key) for key in ("epochs", "seed") if getattr(options, key) is not None}
    try:
        with console.display() as shown:
            result = run_demo(options.out, device=options.device, display=shown, **changes)
    except Interrupted as stop:
        return stop.exit_code
    table = Table(title="top-1 accuracy on held-out pictures", title_justify="left")
    table.add_column("features")
    table.add_column("kNN", justify="right")
    table.add_column("linear", justify="right")
    for name, scores in result.scores.items():
        style = "bold" if name == "ressl" else ""
        table.add_row(NAMES[name], f"{scores['knn']:.1f} %", f"{scores['linear']:.1f} %", style=style)
    _print(table)
    print(f"{result.seconds:.0f} s in all. Look at:")
    for path in result.figures:
        print(f"  {path}")
    print(f"  {result.run.path}/metrics.jsonl  (or: tensorboard --logdir {result.run.path}/tensorboard)")
    return 0


def pretrain(options: Namespace, changes: dict[str, Any]) -> int:
    rhythm = Rhythm(
        log_steps=_positive("--log-steps", options.log_steps),
        checkpoint_minutes=convert(float, options.checkpoint_minutes, "--checkpoint-minutes"),
        checkpoint_steps=convert(int, options.checkpoint_steps, "--checkpoint-steps"),
    )
    if rhythm.checkpoint_minutes < 0 or rhythm.checkpoint_steps < 0:
        raise ResslError("--checkpoint-minutes and --checkpoint-steps must be at least 0")
    workers = None if options.workers is None else convert(int, options.workers, "--workers")
    if workers is not None and workers < 0:
        raise ResslError(f"--workers must be at least 0, not {workers}")
    try:
        with console.display(options.quiet) as shown:
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
                display=shown,
                **changes,
            )
    except Interrupted as stop:
        return stop.exit_code
    if not options.quiet:
        facts, knn = run.facts, run.curve("knn")
        print(f"trained in {facts['seconds']:.0f} s" + (f"; kNN {knn[-1][1]:.2f} %" if knn else ""))
        after = f"; next: ressl evaluate {shlex.quote(str(run.path))}" if knn else ""
        print(f"run folder {run.path}{after}")
    return 0


def evaluate(options: Namespace, changes: dict[str, Any]) -> int:
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
        with console.display() as shown:
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
    _print(table)
    print(f"written to {run.path}/evaluation/")
    return 0


def bench(options: Namespace, changes: dict[str, Any]) -> int:
    from ressl.bench import suite
    from ressl.report.figures import bars

    workers = default_workers() if options.workers is None else convert(int, options.workers, "--workers")
    seconds = None if options.seconds is None else convert(float, options.seconds, "--seconds")
    place = device_of(options.device)
    found = suite.bench(
        options.recipe, parts=tuple(options.parts), device=place, workers=workers, seconds=seconds, say=_note
    )
    for title, label, rows in suite.tables(found):
        table = Table(title=title, title_justify="left")
        table.add_column(label)
        for heading in ("images/s", "ratio", "memory GB"):
            table.add_column(heading, justify="right")
        for name, speed, ratio, memory in rows:
            table.add_row(name, f"{speed:,.0f}", f"{ratio:.2f}x", "" if memory is None else f"{memory:.2f}")
        _print(table)
    path = suite.write(found, options.into)
    drawn = bars(suite.tables(found), path.with_suffix(".png"), f"ressl bench {options.recipe}")
    print(f"written to {path} and {drawn}")
    return 0


def _note(text: str) -> None:
    print(text, flush=True)


def recipes(options: Namespace, changes: dict[str, Any]) -> int:
    if options.name:
        print(get_recipe(options.name).to_json(), end="")
        return 0
    table = Table(title="recipes (paper: linear evaluation, top-1)", title_justify="left")
    for heading in ("name", "what", "epochs", "batch", "queue", "tau_t / tau_s", "paper"):
        table.add_column(heading, justify="left" if heading in ("name", "what") else "right", no_wrap=heading == "name")
    for recipe in RECIPES.values():
        o = recipe.options
        taus = f"{o.get('teacher_temperature', 0.04)} / {o.get('student_temperature', 0.1)}"
        paper = f"{recipe.paper['linear']:.2f}" if "linear" in recipe.paper else "-"
        row = (recipe.name, recipe.summary, recipe.epochs, recipe.batch_size, f"{o['queue_size']:,}", taus, paper)
        table.add_row(*map(str, row))
    _print(table)
    print("train one: ressl pretrain NAME; see all of it: ressl recipes NAME")
    return 0


def record(options: Namespace, changes: dict[str, Any]) -> int:
    print(write_record(Run.open(options.run), options.into))
    return 0


def _reporter(shown: Display) -> Callable[[int, int, float], None]:
    return lambda done, total, accuracy: shown.progress(done, total, {"epoch": done, "accuracy": accuracy})


def _positive(name: str, value: str) -> int:
    number: int = convert(int, value, name)
    if number < 1:
        raise ResslError(f"{name} must be at least 1, not {number}")
    return number


def _print(table: Table) -> None:
    # A pipe has no width; tables made for 80 columns there would break their cells.
    Console(width=None if sys.stdout.isatty() else 120).print(table)
