"""ressl reproduce."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table as Shown

from ressl import console
from ressl.bench import suite
from ressl.bench.cost import PAPER, cost, rows_of
from ressl.commands.cost import show_cost
from ressl.commands.shared import above_zero, picture_file, positive, show, writable_folder
from ressl.engine.loop import device_of
from ressl.engine.signals import Interrupted, Terminated
from ressl.environment import environment
from ressl.errors import ResslError, unknown
from ressl.recipes.typed import convert
from ressl.reproduce.figures import FIGURES, Figure
from ressl.reproduce.grid import Job, Ledger, each_once, elsewhere, jobs, jobs_of_runs, read, summaries
from ressl.reproduce.plans import Times, plan
from ressl.reproduce.running import Place, Quiet, in_time, make_all
from ressl.reproduce.tables import ALIASES, TABLES, Table
from ressl.runs import Run

COST = "Table 8: the cost of an ImageNet epoch"


def titles() -> dict[str, str]:
    """Everything that can be made, and what it is."""
    figures = {name: figure.title for name, figure in FIGURES.items()}
    return {name: table.title for name, table in TABLES.items()} | {"cost": COST} | figures


def add_options(parser: ArgumentParser) -> None:
    parser.description = (
        "Make a table or figure of the paper, or several: show what it takes, train and evaluate what the ledger does\n"
        "not have yet, and print the paper's numbers beside ours, or draw the picture. Stop it whenever you like; the\n"
        "next time it goes on where it was. A run that fails does not keep the others waiting."
    )
    parser.epilog = (
        "tables and figures:\n"
        + "\n".join(f"  {name:20} {title}" for name, title in titles().items())
        + "\n\nby the paper's numbers:\n"
        + "\n".join(f"  {', '.join(_numbers(name)):24} {name}" for name in dict.fromkeys(ALIASES.values()))
        + "\n\nexamples:\n"
        + "  ressl reproduce table1 --only cifar-10 --seeds 0 1 2\n"
        + "  ressl reproduce table2 --quick --only 'cifar-10, tau_s 0.1'\n"
        + "  ressl reproduce table3 --dry-run\n"
        + "  ressl reproduce table2 table4 --quick --only cifar-10 --minutes 60 --jobs 2\n"
        + "  ressl reproduce lowshot --from runs/r50 --on photos/\n"
        + "  ressl reproduce figure-neighbours --only cifar-10"
    )
    parser.add_argument("what", nargs="+", help=f"{', '.join(titles())}; or by the paper's number, as table9")
    parser.add_argument("--data", metavar="FOLDER", help="with a folder per data set (default: $RESSL_DATA or data)")
    parser.add_argument("--seeds", nargs="+", metavar="N", help="default: 0")
    parser.add_argument("--epochs", metavar="N", help="other than the paper's; marks the result as such")
    parser.add_argument("--only", metavar="WORDS", help="only cells with these words in row or column")
    parser.add_argument("--quick", action="store_true", help="few epochs: for the trend, not for the number")
    parser.add_argument("--minutes", metavar="N", help="begin no run that, as far as is known, would take longer")
    parser.add_argument("--jobs", default="1", metavar="N", help="runs at once (default: 1)")
    parser.add_argument(
        "--from", nargs="+", default=[], metavar="RUN", dest="given", help="lowshot and figures: of these runs instead"
    )
    parser.add_argument("--on", metavar="DATA", help="lowshot: NAME, NAME=PATH or FOLDER (default: voc07)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--runs", default="runs/reproduce", metavar="FOLDER", help="default: runs/reproduce")
    parser.add_argument("--into", default="results", metavar="FOLDER", help="the ledger (default: results)")
    parser.add_argument("-o", "--out", metavar="FILE", help="figures: the picture (default: RUNS/WHAT.png)")
    parser.add_argument("--dry-run", action="store_true", help="show what it takes and how long, and stop")


def _numbers(name: str) -> list[str]:
    return [alias for alias, of in ALIASES.items() if of == name]


def run(options: Namespace, changes: dict[str, Any]) -> int:
    for what in options.what:
        if what not in (*titles(), *ALIASES):
            raise unknown("table or figure", what, (*titles(), *ALIASES))
    options.what = [*dict.fromkeys(ALIASES.get(what, what) for what in options.what)]
    for what in options.what:
        _check(options, what)
    device_of(options.device)  # one that is not there is better known now than from every run
    if "lowshot" in options.what and len(options.what) > 1:
        raise ResslError("lowshot measures runs that other tables make; make it by itself, after them")
    if options.out and len([what for what in options.what if what in FIGURES]) > 1:
        raise ResslError("--out is one picture's; make one figure at a time, or leave it out")
    try:
        tables = [TABLES[what] for what in options.what if what in TABLES]
        failed = _tables(options, tables) if tables else None
        for what in options.what:
            if what == "cost":
                _cost(options)
            elif what in FIGURES:
                _figure(options, FIGURES[what])
    except (Interrupted, Terminated, KeyboardInterrupt) as stop:
        print("stopped; the same command, with the same options, goes on where it was")
        return getattr(stop, "exit_code", 130)
    if failed:
        raise failed
    return 0


def _check(options: Namespace, what: str) -> None:
    """An option that nothing would read is a mistake."""
    figure = what in FIGURES
    runs = {"--seeds": options.seeds, "--epochs": options.epochs, "--data": options.data, "--only": options.only}
    runs |= {"--jobs": options.jobs != "1", "--minutes": options.minutes}
    fits = {
        "--on": (options.on, what == "lowshot"),
        "--out": (options.out, figure),
        "--from": (options.given, figure or what == "lowshot"),
        **{flag: (given, what != "cost") for flag, given in runs.items()},
    }
    for flag, (given, good) in fits.items():
        if given and not good:
            raise ResslError(f"{what} has no use for {flag}; leave it out")
    if options.out:
        picture_file(options.out)  # before hours have passed
    if options.given and (options.seeds or options.epochs or options.only or options.quick):
        raise ResslError("--from takes runs as they are; leave out --seeds, --epochs, --only and --quick")


def _planned(options: Namespace, table: Table | Figure, only: str) -> list[Job]:
    if options.given:
        return jobs_of_runs(options.given, table.cells if isinstance(table, Table) else table.cells[:1])
    seeds = [convert(int, seed, "--seeds") for words in options.seeds or ["0"] for seed in _apart(words)]
    epochs = None if options.epochs is None else positive("--epochs", options.epochs)
    planned = jobs(table, seeds=seeds, epochs=epochs, quick=options.quick, only=only)
    for job in planned:
        job.recipe.check()
    return planned


def _apart(words: str) -> list[str]:
    """With commas or with spaces: 0,1,2 is three seeds."""
    return [word for word in words.split(",") if word] or [words]


def _tables(options: Namespace, tables: Sequence[Table]) -> ResslError | None:
    """Make and show them; returns what went wrong."""
    if options.on:
        tables = [_elsewhere(table, options.on) for table in tables]
    ledger = Ledger(options.into)
    planned = [_planned(options, table, options.only or "") for table in tables]
    together = [job for some in planned for job in some]
    failed = _make(options, together, [job for job in together if ledger.find(job) is None], ledger, "in the ledger")
    for table, some in zip(tables, planned, strict=True):
        longer = any(run != own for run, own in (job.lengths for job in some))
        short = " (longer than the paper's runs)" if longer else ""
        short = " (shortened: for the trend only)" if any(job.shortened for job in some) else short
        fair = {(job.cell.row, job.cell.column) for job in some if job.paper is not None}
        shown = Shown(title=table.title + short, title_justify="left")
        for heading in ("row", "column", "paper", "ours: last (n, best)", "difference"):
            shown.add_column(heading, justify="left" if heading in ("row", "column") else "right")
        for cell, summary in summaries(ledger, some):
            paper = "" if cell.paper is None else f"{cell.paper:.2f}"
            ours = "" if summary is None else summary.text()
            apart = ""
            if summary is not None and cell.paper is not None and (cell.row, cell.column) in fair:
                apart = f"{summary.last - cell.paper:+.2f}"
            shown.add_row(cell.row, cell.column, paper, ours, apart)
        left = elsewhere(table, options.only or "")
        for one in left:
            shown.add_row(one.row, one.column, f"{one.paper:.2f}", "not made by this command", "")
        show(shown)
        for one in left:
            print(f"{one.row}: {one.how}")
    return failed


def _elsewhere(table: Table, on: str) -> Table:
    """Low-shot SVMs on other data, of which the paper knows nothing."""
    cells = tuple(replace(cell, on=on, paper=None) for cell in table.cells)
    return replace(table, title=f"Low-shot SVMs on {on}", cells=cells)


def _figure(options: Namespace, figure: Figure) -> None:
    ledger, planned = Ledger(options.into), _planned(options, figure, options.only or figure.only)
    todo = [job for job in planned if not job.trained(options.runs)]  # a record has no weights to draw from
    if failed := _make(options, planned, todo, ledger, "trained"):
        raise failed
    default = Path(options.runs) / f"{figure.name}{'-quick' if options.quick else ''}.png"
    path = picture_file(options.out) if options.out else default
    if options.dry_run:
        print(f"then draws {path}")
        return
    if left := [job.name for job in planned if not job.trained(options.runs)]:
        raise ResslError(f"{path.name} needs {left[0]}, for which --minutes left no time; give it more")
    place = _place(options)
    name = lambda job: job.cell.row if job.at else ", ".join((job.cell.row, job.cell.column, *_short(job)))
    runs = [(name(job), Run.open(job.folder(place.runs)), place.own_data(job)) for job in planned]
    with console.display() as shown:
        figure.draw(runs, path, options.device, shown)
    print(path)


def _short(job: Job) -> list[str]:
    """What a panel must say of a run that is not the paper's."""
    run, own = job.lengths
    return [f"{job.recipe.epochs} epochs"] if run != own else []


def _place(options: Namespace) -> Place:
    return Place(options.data, options.runs, options.into, options.device, positive("--jobs", options.jobs))


def _make(
    options: Namespace, planned: Sequence[Job], todo: Sequence[Job], ledger: Ledger, there: str
) -> ResslError | None:
    """Say what is to be made and how long it takes, and make it; returns what went wrong."""
    place, todo = _place(options), each_once(todo)
    place = replace(place, jobs=min(place.jobs, max(len(todo), 1)))  # of one run, nobody is beside it
    minutes = None if options.minutes is None else above_zero("--minutes", options.minutes)
    if todo:  # what the ledger has can be shown from anywhere
        writable_folder("--into", options.into)
        writable_folder("--runs", options.runs)
    times = Times(ledger)
    print(plan(each_once(planned), todo, times, there, place.jobs), flush=True)
    if not todo or options.dry_run:
        return None
    for job in todo:
        place.check(job)  # what is missing is said before hours have passed
    takes = lambda job: place.jobs * (time.seconds if (time := times.of(job)) else 0.0)  # so many share the machine
    fitting = todo if minutes is None else in_time(todo, 60 * minutes, takes)
    failed, number = dict[str, ResslError](), 0
    with console.display() as shown:
        say = Quiet(shown.message)
        begun = fitting if place.jobs == 1 else _announced(fitting, say)  # one by one each shows its own progress
        for number, (job, record) in enumerate(make_all(begun, place, lambda job: shown), 1):
            if isinstance(record, ResslError):
                failed[job.name] = record
                say.message(f"{number}/{len(todo)}  {job.name}: failed, {record}")
                continue
            ledger.add(job, record)
            found = read(record, job.cell)
            value = "done" if found is None or job.cell.on else f"{found[0]:.2f}"
            beside = "" if job.paper is None or job.cell.on else f", paper {job.paper:.2f}"
            say.message(f"{number}/{len(todo)}  {job.name}: {value}{beside}")
    if number < len(todo):
        print(f"{len(todo) - number} left for another time: {options.minutes} minutes were too short for them")
    if len(todo) == 1 or not failed:
        return next(iter(failed.values()), None)
    name, first = next(iter(failed.items()))
    return ResslError(f"{len(failed)} of {number} runs failed, the first of them {name}: {first}")


def _announced(todo: Iterable[Job], say: Quiet) -> Iterator[Job]:
    for job in todo:
        say.message(f"begun  {job.name}")
        yield job


def _cost(options: Namespace) -> None:
    """The paper's cost table; measured as one, because ratios are only good within one run."""
    device, ledger = device_of(options.device), Ledger(options.into)
    gpu, seconds = environment(device).get("gpu"), 0.4 if options.quick else 2.0
    found = ledger.cost(PAPER, gpu, seconds) if gpu else None
    rows = len(rows_of(PAPER))
    state = f"{rows} rows, to measure on this machine: {Times(ledger).cost(PAPER)}"
    if found:
        state = f"{len(found['rows'])} of {rows} rows in the ledger ('ressl cost' measures anew, --only one row)"
    else:
        writable_folder("--into", options.into)
    print(f"{COST}: {state}", flush=True)
    if options.dry_run:
        return
    if found is None:
        keep = lambda found: suite.write(found, options.into)  # who stops it keeps what was measured
        found = cost(device, seconds, say=lambda text: print(text, flush=True), keep=keep)
        print(f"written to {suite.write(found, options.into)}")
    show_cost(found)
