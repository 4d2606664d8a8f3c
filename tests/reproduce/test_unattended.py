"""Tables that are left alone for a night: several in one command, within a time, and whatever fails."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from invented import record, write

from ressl import cli
from ressl.commands import reproduce, shared
from ressl.errors import ResslError
from ressl.recipes import get_recipe
from ressl.reproduce import running
from ressl.reproduce.grid import Job
from ressl.reproduce.tables import TABLES, Cell, Table

Made = list[str]


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two tables that have one run in common."""
    cells = [Cell(name, "x", "demo", {"lr": lr}) for name, lr in (("a", 0.01), ("b", 0.02), ("c", 0.03))]
    monkeypatch.setitem(TABLES, "first", Table("first", "The first table", (cells[0], cells[1])))
    again = Cell("the same as b", "y", "demo", {"lr": 0.02})
    monkeypatch.setitem(TABLES, "second", Table("second", "The second table", (again, cells[2])))
    return ["reproduce", "first", "second", "--runs", str(tmp_path / "runs"), "--into", str(tmp_path / "led")]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Made]:
    """Who is made, by name: nothing is trained, each has an accuracy of its own or fails as told."""

    def prepare(**fails: Exception) -> Made:
        names: Made = []

        def make(job: Job, place: running.Place, display: Any) -> dict[str, Any]:
            names.append(job.cell.row)
            if job.cell.row in fails:
                raise fails[job.cell.row]
            return record(job.recipe, 50.0 + len(names))

        monkeypatch.setattr(running, "make", make)
        return names

    return prepare


def test_several_tables_share_their_runs(words, made, capsys) -> None:
    names = made()
    assert cli.main(words) == 0
    assert names == ["a", "b", "c"]
    shown = capsys.readouterr().out
    assert "3 runs, 0 of them in the ledger, 3 to make" in shown
    first, second = shown[shown.index("The first table") :].split("The second table")
    assert "52.00 (n 1" in first
    assert "52.00 (n 1" in second  # the same run
    assert "53.00 (n 1" in second


def test_what_fails_does_not_keep_the_others_waiting(words, made, capsys) -> None:
    names = made(a=ResslError("step 7 is not finite; lower lr"), b=OSError("disk full"))
    assert cli.main(words) == 2
    assert names == ["a", "b", "c"]
    shown = capsys.readouterr()
    assert "1/3  a, x, seed 0: failed, step 7 is not finite; lower lr" in shown.out
    assert "53.00 (n 1" in shown.out
    assert shown.err.strip() == (
        "ressl: 2 of 3 runs failed, the first of them a, x, seed 0: step 7 is not finite; lower lr"
    )


def test_a_figure_does_not_wait_for_a_table_that_failed(words, made, monkeypatch, capsys) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(reproduce, "_figure", lambda options, figure: drawn.append(figure.name))
    made(a=ResslError("step 7 is not finite; lower lr"))
    assert cli.main([*words[:3], "figure-tsne", *words[3:]]) == 2
    assert drawn == ["figure-tsne"]
    assert "1 of 3 runs failed" in capsys.readouterr().err


def test_the_only_run_says_what_went_wrong_as_it_is(words, made, capsys) -> None:
    made(a=ResslError("step 7 is not finite; lower lr"))
    assert cli.main([*words[:2], *words[3:], "--only", "a"]) == 2
    assert capsys.readouterr().err.strip() == "ressl: step 7 is not finite; lower lr"


def test_no_run_is_begun_that_would_not_be_done_in_time(words, made, tmp_path, capsys) -> None:
    """The ledger knows such a run: 104 s of steps, 16 s to start, 10 s of evaluation. c has half of the steps."""
    cells = TABLES["second"].cells
    short = Cell("c", "x", "demo", {"lr": 0.03, "epochs": 8})
    TABLES["second"] = Table("second", "The second table", (cells[0], short))
    write(tmp_path / "led", record(get_recipe("demo"), 60.0, steps=16 * 65, images_per_second=640.0))
    names = made()
    assert cli.main([*words, "--minutes", "2"]) == 0
    assert names == ["c"]
    shown = capsys.readouterr().out
    assert "a, x, seed 0: about 2 min" in shown
    assert "c, x, seed 0: about 78 s" in shown
    assert "2 left for another time: 2 minutes were too short for them" in shown
    assert cli.main([*words, "--minutes", "4", "--jobs", "2", "--dry-run"]) == 0
    assert names == ["c"]


def test_time_that_passes_counts(made, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(running.time, "monotonic", lambda: clock[0])
    takes = {"long": 50.0, "short": 5.0, "unknown": 0.0}
    todo = [Job(Cell(name, "x", "demo"), get_recipe("demo")) for name in ("long", "short", "long", "short", "unknown")]
    begun = []
    for job in running.in_time(todo, 60.0, lambda job: takes[job.cell.row]):
        begun.append(job.cell.row)
        clock[0] += 20.0
    assert begun == ["long", "short", "short"]  # and after 60 s not even what nobody has timed


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["lowshot"], "lowshot measures runs that other tables make; make it by itself, after them"),
        (["figure-tsne", "figure-neighbours", "-o", "x.png"], "--out is one picture's; make one figure at a time"),
        (["--minutes", "0"], "--minutes must be above 0, not 0"),
        (["--minutes", "soon"], "--minutes"),
        (["cost", "--minutes", "3"], "cost has no use for --minutes; leave it out"),
        (["--device", "tpu"], "unknown device 'tpu'; use auto, cpu, cuda or cuda:0"),
        (["--device", "tpu", "--dry-run"], "unknown device 'tpu'; use auto, cpu, cuda or cuda:0"),
        (["tabel1"], "unknown table or figure 'tabel1'; did you mean 'table1'?"),
    ],
)
def test_mistakes_are_said_before_anything_is_made(more, said, words, made, tmp_path, capsys) -> None:
    names = made()
    tables = [] if "-o" in more else words[1:3]
    assert cli.main(["reproduce", *tables, *more, *words[3:]]) == 2
    assert said in capsys.readouterr().err
    assert not names
    assert not (tmp_path / "led").exists()


@pytest.mark.parametrize(
    ("more", "short", "fair"),
    [
        ([], False, True),
        (["--epochs", "16"], False, True),  # the recipe's own
        (["--epochs", "4"], True, False),
        (["--epochs", "40"], False, False),  # not the paper's run either
        (["--quick"], True, False),  # with a shorter linear evaluation, too
    ],
)
def test_only_a_run_of_the_papers_length_is_measured_by_its_number(
    more, short, fair, words, made, monkeypatch, capsys
) -> None:
    """As docs/RESULTS.md has it: the paper's number stands there, a difference does not."""
    made()
    cells = (Cell("a", "x", "demo", {"lr": 0.01}, 48.0), Cell("b", "x", "demo", {"lr": 0.02}))
    monkeypatch.setitem(TABLES, "first", Table("first", "The first table", cells))
    assert cli.main([*words[:2], *words[3:], *more]) == 0
    shown = capsys.readouterr().out
    assert ("The first table (shortened: for the trend only)" in shown) == short
    assert ("The first table (longer than the paper's runs)" in shown) == ("40" in more)
    row = next(line for line in shown.splitlines() if line.startswith("│ a "))
    assert [word.strip() for word in row.split("│")[3:6]] == ["48.00", "51.00 (n 1, best 51.50)", "+3.00" * fair]
    assert ("1/2  a, x, seed 0: 51.00, paper 48.00" in shown) == fair
    assert "2/2  b, x, seed 0: 52.00\n" in shown


@pytest.mark.parametrize("flag", ["--into", "--runs"])
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_folder_that_cannot_be_written_is_said_before_hours_have_passed(
    flag, more, words, made, tmp_path, monkeypatch, capsys
) -> None:
    names = made()
    (tmp_path / "afile").write_text("mine")
    for place in ("afile", "afile/deep/in"):
        assert cli.main([*words, flag, str(tmp_path / place), *more]) == 2
        shown = capsys.readouterr()
        assert shown.err.strip() == (
            f"ressl: {flag} {tmp_path / place}: {tmp_path / 'afile'} is no folder; name one, or a new place"
        )
        assert not shown.out
    monkeypatch.setattr(shared.os, "access", lambda place, how: place != tmp_path)
    assert cli.main([*words, flag, str(tmp_path / "new"), *more]) == 2
    assert f"no right to write in {tmp_path}; name another folder" in capsys.readouterr().err
    assert not names
    assert cli.main(["reproduce", "cost", "--into", str(tmp_path / "afile"), "--device", "cpu", *more]) == 2
    assert "afile is no folder" in capsys.readouterr().err
    assert (tmp_path / "afile").read_text() == "mine"


def test_a_ledger_that_cannot_be_written_can_be_shown(words, made, tmp_path, monkeypatch, capsys) -> None:
    led = tmp_path / "led"
    write(led, *(record(get_recipe("demo").replace(lr=lr), 60.0) for lr in (0.01, 0.02, 0.03)))
    names = made()
    monkeypatch.setattr(shared.os, "access", lambda place, how: False)
    assert cli.main(words) == 0
    assert "3 of them in the ledger, 0 to make" in capsys.readouterr().out
    assert not names


def test_a_figure_whose_runs_had_no_time_is_not_drawn(tmp_path, monkeypatch, capsys) -> None:
    led = tmp_path / "led"
    write(led, *(record(get_recipe("cifar10").replace(method=method), 60.0) for method in ("ressl", "moco-v2")))
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "figure-tsne", "--minutes", "1", "--runs", str(tmp_path / "runs"), "--into", str(led)]
    assert cli.main(words) == 2
    assert "for which --minutes left no time; give it more" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


ROOT = Path(__file__).parents[2]


def test_a_session_on_a_gpu_makes_three_seeds_of_cifar100(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(tmp_path)
    steps = importlib.import_module("everything").tables(tmp_path / "data", tmp_path / "led", tmp_path / "runs")
    (words,) = [step.words for step in steps if step.name == "table1-cifar100"]
    assert cli.main([*words[3:], "--dry-run"]) == 0
    assert "3 runs, 0 of them in the ledger" in capsys.readouterr().out


DOCUMENTED = sorted(
    {
        words.split("#")[0].strip()
        for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
        if path.name != "RESULTS.md"  # whose commands have a test of their own
        for words in re.findall(r"(?:^    |`)ressl (reproduce [^`\n]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
)


def test_commands_of_the_documentation_can_be_given(tmp_path, monkeypatch, capsys) -> None:
    """Each of them, as a plan; --from takes a run that must be there first."""
    given = [words for words in DOCUMENTED if "--from" not in words and "--help" not in words]
    assert len(given) >= 8
    monkeypatch.chdir(tmp_path)
    for words in given:
        assert cli.main([*shlex.split(words), "--dry-run"]) == 0, (words, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())
