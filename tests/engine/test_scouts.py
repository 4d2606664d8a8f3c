"""Processes that work ahead: sent where it is worth it, told, waited for, and never left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ressl.engine import scouts


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(scouts, "MODULE", "json.tool")  # reads all it is told, and minds what it is
    yield
    scouts.recall()


def test_they_are_sent_once_told_and_waited_for() -> None:
    scouts.send()
    out = [*scouts._out]
    scouts.send()
    assert scouts._out == out
    assert len(out) == 2
    assert scouts.out()
    scouts.assign({"recipe": "demo"})
    scouts.wait("rest")
    assert out[1].returncode == 0
    assert scouts.out()
    assert scouts.back()
    assert [scout.returncode for scout in out] == [0, 0]
    assert not scouts.out()


def test_each_is_told_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "notes.py"
    program.write_text(
        "import json, pathlib, sys\n"
        "task = json.load(sys.stdin)\n"
        "pathlib.Path(__file__).with_name(task['part']).write_text(task['recipe'])\n"
    )
    monkeypatch.setattr(scouts, "MODULE", "notes")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    scouts.send()
    scouts.assign({"recipe": "demo"})
    scouts.back()
    assert [(tmp_path / part).read_text() for part in ("views", "rest")] == ["demo", "demo"]


def test_one_that_does_not_come_back_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scouts, "PATIENCE", 0.1)
    scouts.send()
    out = [*scouts._out]
    assert not scouts.back()  # nobody told them anything
    assert [scout.returncode for scout in out] == [-9, -9]


def test_nobody_is_sent_where_kernels_were_built_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "built-0").touch()
    scouts.send()
    monkeypatch.delenv("TRITON_CACHE_DIR")
    scouts.send()
    assert not scouts.out()
    scouts.assign({"nobody": "listens"})
    scouts.back()
