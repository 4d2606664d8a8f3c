"""benchmarks/everything.py: what is made beside what, what time allows, and that nothing is left behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from ressl import cli

ROOT = Path(__file__).parents[1]


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("everything")


SPEAK = (
    "import sys, time; print('begin', time.monotonic(), *sys.argv[1:], flush=True); {}; print('end', time.monotonic())"
)


def says(what: str = "time.sleep(0.3)") -> list[str]:
    return [sys.executable, "-c", SPEAK.format(what)]


def times(log: Path) -> tuple[float, float]:
    begin, end = (line.split() for line in log.read_text().splitlines())
    return float(begin[1]), float(end[1])


def told(journal: object) -> dict[str, str]:
    return {row["step"]: row["what"] for row in journal.rows}  # type: ignore[attr-defined]


def test_kernels_are_compiled_beside_the_tables_and_measurements_are_alone(everything, tmp_path) -> None:
    Step, journal = everything.Step, everything.Journal(tmp_path)
    first = [Step("one", 0.0, says("time.sleep(1.5)")), Step("two", 0.0, says())]
    alone = [Step("speed", 0.0, says(), warm=True), Step("cold", 0.0, says())]
    everything.make(first, alone, 1.0, journal)
    assert told(journal) == dict.fromkeys(("speed-ahead", "one", "two", "speed", "cold"), "done")
    at = {name: times(tmp_path / f"{name}.log") for name in told(journal)}
    assert at["speed-ahead"][0] < at["one"][1]  # beside it
    assert at["one"][1] <= at["two"][0]
    assert max(at["two"][1], at["speed-ahead"][1]) <= at["speed"][0]
    assert at["speed"][1] <= at["cold"][0]
    ahead = (tmp_path / "speed-ahead.log").read_text().split()
    assert ahead[2:6] == ["--seconds", "0.05", "--into", str(tmp_path / "scratch")]
    assert json.loads((tmp_path / "journal.json").read_text()) == journal.rows


def test_what_fails_or_takes_too_long_does_not_keep_the_rest_waiting(everything, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(everything, "PATIENCE", 0.2)
    Step, journal = everything.Step, everything.Journal(tmp_path)
    deaf = says("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")
    alone = [
        Step("fails", 0.0, says("sys.exit(3)")),
        Step("long", 5.0, says()),  # would not be done
        Step("done", 0.0, says()),
        Step("deaf", 0.0, deaf),
    ]
    everything.make([], alone, 2.5 / 60, journal)
    assert told(journal) == {
        "fails": "exit code 3", "long": "no time for it", "done": "done", "deaf": "the time was up",
    }  # fmt: skip


def test_tables_get_the_time_that_measurements_leave(everything, tmp_path) -> None:
    Step, journal = everything.Step, everything.Journal(tmp_path)
    words = [*says(), "reproduce"]
    everything.make([Step("table", 1.0, words)], [Step("speed", 4.0, says())], 10.0, journal)
    begun = (tmp_path / "table.log").read_text().split()
    assert begun[2:4] == ["reproduce", "--minutes"]
    assert 5.8 <= float(begun[4]) <= 6.0
    everything.make([Step("late", 1.0, words)], [Step("speed", 4.0, says())], 4.5, journal)
    assert told(journal)["late"] == "no time for it"


def test_a_signal_ends_all_that_was_begun(tmp_path) -> None:
    program = (
        "import everything as e, sys\n"
        f"step = e.Step('slow', 0.0, [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)'])\n"
        "e.tables, e.measurements = (lambda *_: [step, step._replace(name='next')]), (lambda *_: [])\n"
        f"sys.argv = ['everything', '--logs', {str(tmp_path)!r}]\n"
        "sys.exit(e.main())"
    )
    places = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks")}
    with subprocess.Popen([sys.executable, "-c", program], env=places, stdout=subprocess.DEVNULL) as process:
        log = tmp_path / "slow.log"
        while not (log.exists() and log.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        begun = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    assert len(begun) == 1
    assert not (tmp_path / "next.log").exists()
    assert not Path(f"/proc/{begun[0]}").exists()


def test_nothing_is_begun_once_all_was_stopped(everything, tmp_path) -> None:
    journal = everything.Journal(tmp_path)
    journal.stop()
    everything.make([everything.Step("late", 0.0, says())], [everything.Step("later", 0.0, says())], 1.0, journal)
    assert not list(tmp_path.glob("*.log"))


def test_every_step_is_a_command_that_can_be_given(everything, tmp_path, monkeypatch, capsys) -> None:
    """Tables as a plan; of the rest the words are read and no more."""
    monkeypatch.chdir(tmp_path)
    place = (tmp_path / "data", tmp_path / "led", tmp_path / "runs")
    for step in everything.tables(*place):
        assert step.words[:3] == [*everything.RESSL]
        assert cli.main([*step.words[3:], "--minutes", "5", "--dry-run"]) == 0, capsys.readouterr().err
    for step in everything.measurements(*place, tmp_path / "photos"):
        if step.words[:3] == everything.RESSL:
            cli.build_parser(step.words[3]).parse_args(step.words[3:])
        else:
            assert any(Path(word).exists() for word in step.words[1:]), step.words
    assert [*tmp_path.iterdir()] == []


def test_an_unknown_step_is_refused(everything, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["everything", "--only", "coffee"])
    with pytest.raises(SystemExit) as stop:
        everything.main()
    assert stop.value.code == 2
    assert "there is no step 'coffee'; --list names them" in capsys.readouterr().err


def test_pieces_of_other_steps_are_made_where_they_are_named(everything, tmp_path, monkeypatch, capsys) -> None:
    made: list[list[str]] = []
    monkeypatch.setattr(
        everything, "make", lambda first, alone, *_: made.append([step.name for step in (*first, *alone)])
    )
    for words in ([], ["--only", "tests", "sides-cifar10"]):
        monkeypatch.setattr(sys, "argv", ["everything.py", "--logs", str(tmp_path), *words])
        everything.main()
    assert {"tests", "cost-imagenet"} <= set(made[0])
    assert not {"sides-cifar10", "engines-r50", "cost-5-crops"} & set(made[0])
    assert made[1] == ["tests", "sides-cifar10"]
