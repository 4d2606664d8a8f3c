"""Processes that work ahead: sent where it is worth it, told, waited for, and never left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ressl.engine import building, scouts

NOTES = """
import json, pathlib, sys

def ready(): ...

def main():
    if asked := sys.stdin.read():
        task = json.loads(asked)
        pathlib.Path(__file__).with_name(task["part"]).write_text(task["recipe"])
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "notes.py").write_text(NOTES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for room in (scouts, building):
        monkeypatch.setattr(room, "MODULE", "notes")
    yield
    scouts.recall()
    building.dismiss()


def test_they_are_sent_once_told_and_waited_for(tmp_path: Path) -> None:
    scouts.send()
    out, hired = [*scouts._out], [*building._hired]
    scouts.send()
    assert (scouts._out, building._hired) == (out, hired)
    assert len(out) == 2
    assert len(hired) == building.fitting() == max(1, min(building.PROCESSES, (os.cpu_count() or 1) // 2))
    assert scouts.out()
    scouts.assign({"recipe": "demo"})
    scouts.wait("rest")
    assert out[1].returncode == 0
    assert scouts.out()
    assert scouts.back()
    assert [scout.returncode for scout in out] == [0, 0]
    assert not scouts.out()
    assert [(tmp_path / part).read_text() for part in ("views", "rest")] == ["demo", "demo"]
    building.dismiss()
    assert [builder.wait(60) for builder in hired] == [0] * len(hired)


def test_one_that_does_not_come_back_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scouts, "PATIENCE", 0.1)
    scouts.send()
    out = [*scouts._out]
    assert not scouts.back()  # nobody told them anything
    assert [scout.returncode is None for scout in out] == [False, False]  # ended


def test_nobody_is_sent_where_kernels_were_built_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "built-0").touch()
    scouts.send()
    monkeypatch.delenv("TRITON_CACHE_DIR")
    scouts.send()
    assert not scouts.out()
    assert not building._hired
    scouts.assign({"nobody": "listens"})
    scouts.back()
