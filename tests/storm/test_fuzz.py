"""Fuzzed recipes and command lines: valid, or one line that names the key; nothing is written either way."""

from __future__ import annotations

import functools
import json
import random
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scale import draw, shards, share, times

from ressl import cli, pretraining, runs
from ressl.data import sources
from ressl.errors import ResslError
from ressl.memory import ram
from ressl.recipes import RECIPES, Recipe, get_recipe

PARTS = len(shards(2))

WORDS = [
    "", " ", "-", "--", "---", "0", "1", "-1", "2", "7", "1.5", "1e9", "1e400", "nan", "inf", "-inf",
    "NaN", "9" * 40, "9" * 5000, "true", "None", "none", "x", "é", "日本", "\U0001f600", "\udcff", "a\nb",
    "a\tb", "a\rb", "\x1b[31m", "\x00", "'", '"', "`id`", "$(id)", "{}", "[]", "1,2,3", "(1,2,3)",
    "1,,2", "..", "/", "../..", "/dev/null", "C:\\x", "*", "?", "%s%n", "{0}", "cifar10", "demo",
    "ressl", "resnet18", "resnet19", "timm/resnet18", "timm/x", "timm/", "crop+flip", "strong,blur=2",
    "weak,size=-1", "strong,size=1e9", "strong,crop=0:0", "strong,crop=(1 2 3)", "strong,=,=", "small",
    "sgd", "cuda:99", "tpu", "meta", "A" * 10_000,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 10**6, 10**12, 2**31, 2**63, 10**40, 0.0, -0.5, 1.5, 1e-30, 1e30,
    1e308, float("nan"), float("inf"), "", "x", "1", "nan", [], [1], [0.5, 0.5, 0.5], [1, 2], ["x"] * 3,
    {}, {"a": 1}, [[[]]], "\x00", "a\nb", "\ud800", "é" * 500, [None] * 3, {"size": -1}, [{}],
    [{"size": 10**9}], {"queue_size": 10**9}, {"queue_size": "x"}, {"nope": 1}, {"hidden_dim": 0},
]  # fmt: skip

FLAGS = [
    *("--data", "--out", "--resume", "--device", "--engine", "--precision", "--workers", "--log-steps", "--views"),
    *("--checkpoint-minutes", "--checkpoint-steps", "--quiet", "--help", "--version", "--protocol", "--again"),
    *("--parts", "--seconds", "--seed", "--epochs", "--into"),
]
FIELDS = [f"--{name.replace('_', '-')}" for name in json.loads(RECIPES["cifar10"].to_json()) if name != "views"]
OPTIONS = ["--hidden-dim", "--output-dim", "--queue-size", "--teacher-momentum", "--student-temperature",
           "--teacher-temperature", "--head-batch-norm"]  # fmt: skip
COMMANDS = ["pretrain"] * 12 + [*cli.COMMANDS] * 2 + ["", "--version", "trian", "pre"]
# Valid, these would run or write: they get a value that nothing takes.
LONG = {
    "demo": ("--device", "--epochs", "--seed"), "bench": ("--device", "--workers", "--seconds", "--parts"),
    "cost": ("--device", "--seconds", "--engine", "--methods"), "results": ("--ledgr", "x", "-o"),
}  # fmt: skip
WHAT = ["none", "map", "curves", "table1", "figure-tsne", "cost", "timm", "a.npy", "é", "..", "\x00", "cifar10"]


@functools.cache
def own(command: str) -> list[str]:
    """The options of a command."""
    actions = cli._subparsers(cli.build_parser(command))[command]._actions
    return [flag for action in actions for flag in action.option_strings if flag not in ("-h", "--help")]


def line(moments: random.Random) -> list[str]:
    """A command line that is wrong, or that ends at data which is not there."""
    words = [moments.choice(COMMANDS)]
    if words[0] in LONG:
        return [words[0], moments.choice(LONG[words[0]]), moments.choice(["x", "", "é"])]
    if words[0] == "pretrain" and moments.random() < 0.8:
        words.append(moments.choice([*RECIPES, "cifra10", "none.json", "é"]))
    elif words[0] in cli.COMMANDS:
        words += moments.choices(WHAT, k=moments.randrange(4))
    other = words[0] in cli.COMMANDS and words[0] not in ("pretrain", "recipes", "methods")
    pools = [own(words[0])] * 4 + [FLAGS, WORDS] if other else [FLAGS, FIELDS, FIELDS, OPTIONS, WORDS]
    for _ in range(moments.randrange(4)):
        flag = moments.choice(moments.choice(pools))
        if moments.random() < 0.1:
            flag = flag[: moments.randrange(len(flag) + 1)] + moments.choice("abc-=")
        words.append(flag)
        if moments.random() < 0.85:
            words.append(moments.choice(WORDS))
    if (words[0] == "pretrain" and "--resume" not in words) or words[0] == "views":
        words += ["--data", "not-there"]  # last, so that it counts
    return words + ["--dry-run"] * (words[0] == "reproduce")


def quiet_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    try:
        code = cli.main(words)
    except SystemExit as end:  # --help
        code = int(end.code or 0)
    return code, capsys.readouterr().err


def no_network(*_: object) -> None:
    raise OSError("no network")


def no_shapes(split: str) -> None:
    """The demo's pictures are made on the spot; here they are as absent as the others."""
    raise ResslError("not-there")


def shapes_alone(recipe: Recipe, bn_groups: int | None = None) -> Any:
    """The method without its numbers, which take most of the time and find no further mistake."""
    if runs._size(recipe) > ram() // 2:
        return runs.build_method(recipe, bn_groups)  # says so
    with torch.device("meta"):
        return runs._assemble(recipe, bn_groups or recipe.bn_groups)


def keys(tree: Any) -> set[str]:
    """All keys of a JSON tree."""
    if isinstance(tree, list):
        return set[str]().union(*map(keys, tree))
    return set(tree).union(*map(keys, tree.values())) if isinstance(tree, dict) else set()


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, and no room for large mistakes."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RESSL_DATA", str(folder / "data"))
    monkeypatch.setattr("torchvision.datasets.utils.download_url", no_network)
    monkeypatch.setattr(sources, "open_shapes", no_shapes)
    monkeypatch.setattr(pretraining, "build_method", shapes_alone)
    return folder


def attempted(words: list[str], which: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code, 0 or 2, and what was said."""
    try:
        code, said = quiet_run(words, capsys)
    except BaseException as error:
        raise AssertionError(f"{which}: {words!r:.300}: {error!r}") from error
    assert code in (0, 2), (which, words)
    return code, said


@pytest.mark.parametrize("part", shards(2))
def test_a_fuzzed_command_line(part: int, nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moments, codes = draw("lines", part), {0: 0, 2: 0}
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for case in range(len(share(times(2500, 200), part, PARTS))):
        words = line(moments)
        code, said = attempted(words, f"case {case} of part {part}", capsys)
        codes[code] += 1
        assert [*nothing.iterdir()] == [], (case, words)
        if code:
            assert said.count("\n") == 1, (case, words, said)
            assert said.startswith("ressl: "), (case, words, said)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024
    print(codes, f"{grown:.0f} MB more")
    assert codes[2] > 10 * codes[0]
    assert grown < 1500


TINY = {
    **{"backbone": "resnet10", "stem": "medium", "width": 2, "image_size": 8, "batch_size": 4, "bn_groups": 1},
    **{"hidden_dim": 4, "output_dim": 4, "queue_size": 8, "data": "array"},
}
NUMBERS = ["99999999999", "5000000", "100000000", "1000000000000", "1e39", "1e45", "100001", "0.5", "64", "-7"]
# Both came as far as a traceback, or to what torch itself says of sizes: always among the cases.
KNOWN = [
    ("--log-steps", "99999999999"),
    ("--log-steps", "5000000"),
    ("--width", "100000000"),
    ("--width", "1" + "0" * 12),
]
PACE = ["--workers", "--log-steps", "--checkpoint-minutes", "--checkpoint-steps", "--engine", "--precision"]


@pytest.mark.parametrize("part", shards(2))
def test_a_fuzzed_command_line_that_finds_its_data(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of three steps or none: it is made whole, or one line names the option and no folder is left."""
    moments, codes = draw("lines with data", part), {0: 0, 2: 0}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "ram", lambda: 256 << 20)
    (tmp_path / "recipe.json").write_text(get_recipe("demo").replace(**TINY).to_json())
    np.save("pictures.npy", np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8))
    for case in range(len(share(times(600, 60), part, PARTS))):
        flag = moments.choice([*PACE, *PACE, *OPTIONS, *(f for f in FIELDS if f not in ("--epochs", "--data"))])
        value = moments.choice(moments.choice([NUMBERS, NUMBERS, WORDS]))
        flag, value = KNOWN[case] if case < len(KNOWN) else (flag, value)
        words = ["pretrain", "recipe.json", "--data", "pictures.npy", "--out", "run", "--device", "cpu", "--quiet"]
        words += [f"{flag}={value}", "--epochs", "1" if flag in PACE else "0"]  # room for logs is made in a first step
        code, said = attempted(words, f"case {case} of part {part}", capsys)
        codes[code] += 1
        assert (tmp_path / "run").exists() == (code == 0), (case, words, said)
        if code == 0:
            size = sum(p.stat().st_size for p in (tmp_path / "run" / "checkpoints").iterdir())
            assert size < 300 << 20, (case, words, size)
            shutil.rmtree(tmp_path / "run")
            continue
        assert said.count("\n") == 1, (case, words, said)
        assert flag in said or flag[2:].replace("-", "_") in said, (case, words, said)
    print(codes)
    assert min(codes.values()) > 5


def broken_recipe(moments: random.Random) -> tuple[set[str], str]:
    """(names of what was changed, JSON) with one thing changed."""
    recipe = json.loads(moments.choice(list(RECIPES.values())).to_json())
    key = moments.choice(list(recipe))
    inner, names = recipe[key], {key}
    kind = moments.random()
    if kind < 0.1:
        del recipe[key]
    elif kind < 0.2:
        recipe[key + moments.choice(["s", "_", "x"])] = recipe.pop(key)
    elif kind < 0.5 and isinstance(inner, dict) and inner:
        names.add(below := moments.choice(list(inner)))
        inner[below] = moments.choice(VALUES)
    elif kind < 0.5 and isinstance(inner, list) and inner and isinstance(inner[0], dict):
        names.add(below := moments.choice(list(inner[0])))
        inner[0][below] = moments.choice(VALUES)
    else:
        recipe[key] = moments.choice(VALUES)
        names |= keys(recipe[key])
    text = json.dumps(recipe)
    if moments.random() < 0.03:
        text, names = text[: moments.randrange(len(text))], {""}
    elif moments.random() < 0.02:
        text = moments.choice(["[" * 100_000, "null", "[]", "1", '"x"', "", "{}", '{"name": 3}', "\x00"])
        names = {""}
    return names, text


@pytest.mark.parametrize("part", shards(2))
def test_a_fuzzed_recipe(part: int, nothing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moments, codes, path = draw("recipes", part), {"valid": 0, "named": 0}, tmp_path / "recipe.json"
    for case in range(len(share(times(2500, 150), part, PARTS))):
        names, text = broken_recipe(moments)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            code, said = quiet_run(["pretrain", str(path), "--data", "not-there"], capsys)
        except BaseException as error:
            raise AssertionError(f"case {case} of part {part}: {names}: {text[:2000]}: {error!r}") from error
        assert code == 2, (case, names, text)
        assert said.count("\n") == 1, (case, names, said)
        assert [*nothing.iterdir()] == [], (case, names)
        absent = any(x in said for x in ("not-there", "was not found", "there is no f", "download failed"))
        codes["valid" if absent else "named"] += 1
        if absent:
            assert Recipe.from_json(text) is not None
        else:
            assert any(name in said for name in names), (case, names, said, text)
    print(codes)
    assert min(codes.values()) > 5
