"""Who may import whom: the rule of the design, kept by reading the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ressl

ROOT = Path(ressl.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
GROUND = {"errors", "files", "memory", "checkpoints", "rng", "uncompiled"}  # every room may stand on it

# room -> what of ours it may import, besides itself and the ground floor
ALLOWED = {
    "losses": set(),
    "errors": set(),
    "files": set(),
    "memory": set(),
    "checkpoints": {"errors", "files", "memory"},
    "rng": set(),
    "uncompiled": set(),
    "data": set(),
    "nn": {"losses"},
    "methods": {"nn", "losses"},
    "engine": {"data", "nn", "losses", "methods.base"},
    "evaluation": {"data", "nn", "losses", "engine"},
    "recipes": {"data", "nn", "methods", "evaluation"},
    "report": set(),
    "bench": {
        *("data", "nn", "engine", "evaluation", "losses", "recipes", "methods", "runs", "training", "environment"),
        *("embedding", "encoder", "transform"),
    },
    "commands": {
        *("console", "data", "demo", "engine", "evaluation", "evaluating", "pretraining", "training", "recipes"),
        *("methods", "runs", "report", "reproduce", "bench"),
        *("measuring", "subjects", "labelled", "inspecting", "reporting", "surveying"),
        *("export", "embedding", "searching", "drawing", "environment"),
    },
    "reproduce": {
        *("recipes", "runs", "engine", "evaluating", "evaluation", "measuring", "pretraining", "report"),
        *("data", "drawing", "methods", "subjects"),
    },
}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path) for path in FILES}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module of ours) for every import, also those inside functions and of names that are modules."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*(["ressl", *above] if node.level else []), *([node.module] if node.module else [])))
            found = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in found:
            if name == "ressl" or name.startswith("ressl."):
                inner = name.removeprefix("ressl").removeprefix(".")
                while inner and inner not in MODULES:  # a function of a module, or of a room's __init__
                    inner = inner.rpartition(".")[0]
                yield node.lineno, inner


def broken_rules() -> list[str]:
    found = []
    for path in FILES:
        me = module_of(path)
        room = me.split(".")[0]
        for line, target in imports(path):
            what = f"{path.relative_to(ROOT)}:{line} imports ressl.{target}"
            if target == "cli" and me != "__main__":
                found.append(f"{what}, but nobody imports cli")
            if room not in ALLOWED or target == "":
                continue
            theirs = target.split(".")[0]
            if theirs in GROUND and room not in GROUND | {"losses"}:
                continue
            if theirs == room or theirs in ALLOWED[room] or target in ALLOWED[room]:
                continue
            found.append(f"{what}, which '{room}' may not")
    return found


def test_every_room_imports_only_what_the_design_allows() -> None:
    assert not broken_rules(), "\n".join(broken_rules())


def test_the_walk_sees_what_it_should() -> None:
    """A walk that finds nothing would pass too: known edges must be seen."""
    seen = {(module_of(path), target) for path in FILES for _, target in imports(path)}
    assert ("engine.step", "methods.base") in seen
    assert ("nn.shuffle", "rng") in seen  # `from ressl import rng`
    assert ("methods.ressl", "losses") in seen
    assert ("engine.fusion", "engine.kernels") in seen  # inside a function
    assert {path.name for path in FILES} >= {"cli.py", "losses.py", "loop.py", "views.py"}


def test_every_room_has_a_rule_or_is_where_the_rooms_meet() -> None:
    rooms = {path.parent.name for path in FILES if path.parent != ROOT and path.parent.parent == ROOT}
    assert rooms <= set(ALLOWED), f"a room without a rule: {rooms - set(ALLOWED)}"


def test_losses_and_the_ground_floor_know_nothing_of_ours() -> None:
    for name in ("losses", "errors", "files", "rng", "uncompiled"):
        assert list(imports(ROOT / f"{name}.py")) == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_long(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= 320, f"{path.name} has {lines} lines"


def test_there_is_no_drawer_for_everything() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "util", "helpers", "misc", "common")]


LIGHT = """
import importlib, sys
from ressl.commands import COMMANDS
import ressl.data.views, ressl.losses, ressl.methods, ressl.nn

for name in COMMANDS:
    importlib.import_module(f"ressl.commands.{name}")
assert "torch" in sys.modules
heavy = [name for name in ("torch._dynamo", "torchvision", "timm", "sklearn", "tensorboard") if name in sys.modules]
assert not heavy, heavy
"""


def test_who_asks_for_help_or_for_a_part_does_not_wait_for_the_compiler() -> None:
    """torchvision imports it, and so does ``torch.compiler.disable``; together they take longer than torch itself."""
    subprocess.run([sys.executable, "-c", LIGHT], check=True)
