"""What is said of a mistake: the sentence names the fix."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from ressl import cli
from ressl.engine.accelerate import ENGINES
from ressl.errors import unknown
from ressl.files import write_atomically


def test_where_there_are_few_names_all_stand_beside_the_nearest() -> None:
    """A guess may be wrong: fast is no typing error of auto."""
    said = str(unknown("engine", "fast", ENGINES))
    assert said.startswith("unknown engine 'fast'; did you mean '")
    assert said.endswith(f"known: {', '.join(sorted(ENGINES))}.")
    many = [f"name{i}" for i in range(7)]
    assert str(unknown("thing", "nmae3", many)) == "unknown thing 'nmae3'; did you mean 'name3'?"
    assert str(unknown("thing", "xyz", many)) == f"unknown thing 'xyz'; known: {', '.join(many)}."


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.EROFS, "Read-only file system; have its permissions changed, or work on a copy of it"),
        (errno.ENOSPC, "No space left on device"),
    ],
)
def test_of_a_file_that_cannot_be_written_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, says: str
) -> None:
    """And not the temporary file beside it, which nobody knows."""

    def refuse(path: Any, *_: Any) -> None:
        raise OSError(number, says.split(";")[0], str(path))

    monkeypatch.setattr(cli, "_main", lambda _: write_atomically(tmp_path / "run.json", b"{}"))
    monkeypatch.setattr("builtins.open", refuse)
    assert cli.main([]) == 2
    monkeypatch.undo()
    assert capsys.readouterr().err == f"ressl: the folder {tmp_path} cannot be written to: {says}\n"
