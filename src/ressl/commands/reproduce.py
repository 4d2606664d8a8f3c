"""ressl reproduce."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any

from rich.table import Table as Shown

from ressl import console
from ressl.commands.shared import positive, show
from ressl.engine.signals import Interrupted
from ressl.errors import unknown
from ressl.recipes.typed import convert
from ressl.reproduce.grid import Job, Ledger, jobs, summaries
from ressl.reproduce.running import Place, Quiet, make_all
from ressl.reproduce.tables import TABLES, Table


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "Make a table of the paper: show its grid, train and evaluate what the ledger does not have yet, and print\n"
        "the paper's numbers beside ours. Stop it whenever you like; the next time it goes on where it was."
    )
    parser.epilog = (
        "tables:\n"
        + "\n".join(f"  {name:20} {table.title}" for name, table in TABLES.items())
        + "\n\nexamples:\n"
        + "  ressl reproduce table1 --only cifar-10 --seeds 0 1 2\n"
        + "  ressl reproduce table2 --quick --only 'cifar-10, tau_s 0.1'\n"
        + "  ressl reproduce table3 --dry-run"
    )
    parser.add_argument("what", help=", ".join(TABLES))
    parser.add_argument("--data", metavar="FOLDER", help="with a folder per data set (default: $RESSL_DATA or data)")
    parser.add_argument("--seeds", nargs="+", default=["0"], metavar="N", help="default: 0")
    parser.add_argument("--epochs", metavar="N", help="other than the paper's; marks the result as such")
    parser.add_argument("--only", default="", metavar="WORDS", help="only cells with these words in row or column")
    parser.add_argument("--quick", action="store_true", help="few epochs: for the trend, not for the number")
    parser.add_argument("--jobs", default="1", metavar="N", help="runs at once (default: 1)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--runs", default="runs/reproduce", metavar="FOLDER", help="default: runs/reproduce")
    parser.add_argument("--into", default="results", metavar="FOLDER", help="the ledger (default: results)")
    parser.add_argument("--dry-run", action="store_true", help="show the grid and how long it takes, and stop")


def run(options: Namespace, changes: dict[str, Any]) -> int:
    if options.what not in TABLES:
        raise unknown("table", options.what, TABLES)
    table = TABLES[options.what]
    seeds = [convert(int, seed, "--seeds") for seed in options.seeds]
    epochs = None if options.epochs is None else positive("--epochs", options.epochs)
    at_once = positive("--jobs", options.jobs)
    ledger = Ledger(options.into)
    planned = jobs(table, seeds=seeds, epochs=epochs, quick=options.quick, only=options.only)
    todo = [job for job in planned if ledger.find(job) is None]
    for job in planned:
        job.recipe.check()
    print(_plan(planned, todo, ledger))
    if todo and not options.dry_run:
        place = Place(options.data, options.runs, options.into, options.device)
        for job in todo:
            place.data_of(job)  # what is missing is said before hours have passed
        try:
            with console.display() as shown:
                say = Quiet(shown.message)
                for number, (job, record) in enumerate(make_all(todo, place, at_once, lambda job: shown), 1):
                    ledger.add(job, record)
                    last = record["evaluations"]["linear"]["last"]
                    say.message(f"{number}/{len(todo)}  {_name(job)}: {last:.2f}, paper {job.cell.paper}")
        except Interrupted as stop:
            print(f"stopped; go on with the same command: ressl reproduce {table.name}")
            return stop.exit_code
    _show(table, planned, ledger, options.quick or epochs is not None)
    return 0


def _name(job: Job) -> str:
    return f"{job.cell.row}, {job.cell.column}, seed {job.recipe.seed}"


def _plan(planned: Sequence[Job], todo: Sequence[Job], ledger: Ledger) -> str:
    lines = [f"{len(planned)} runs, {len(planned) - len(todo)} of them in the ledger, {len(todo)} to make"]
    known = [(job, ledger.seconds(job)) for job in todo]
    lines += [f"  {_name(job)}: " + ("?" if s is None else f"about {s / 60:.0f} min") for job, s in known]
    if todo:
        total = sum(s for _, s in known if s is not None) / 60
        unknown_ones = sum(s is None for _, s in known)
        more = f", and {unknown_ones} whose time is not known yet" if unknown_ones else ""
        lines.append(f"about {total:.0f} minutes by the ledger's own runs on a GPU{more}")
    return "\n".join(lines)


def _show(table: Table, planned: Sequence[Job], ledger: Ledger, short: bool) -> None:
    found = summaries(table, ledger, planned)
    shown = Shown(title=table.title + (" (shortened: for the trend only)" if short else ""), title_justify="left")
    for heading in ("row", "column", "paper", "ours: last (n, best)", "difference"):
        shown.add_column(heading, justify="left" if heading in ("row", "column") else "right")
    for cell in table.cells:
        if (cell.row, cell.column) in found:
            summary = found[cell.row, cell.column]
            paper = "" if cell.paper is None else f"{cell.paper:.2f}"
            ours = "" if summary is None else summary.text()
            apart = "" if summary is None or cell.paper is None else f"{summary.last - cell.paper:+.2f}"
            shown.add_row(cell.row, cell.column, paper, ours, apart)
    show(shown)
