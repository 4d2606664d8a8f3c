"""Every export is read by the library it is for, in a process that cannot import this package."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt
from torch import Tensor

import ressl
from ressl import cards
from ressl.cli import main
from ressl.environment import FROM_SOURCE, environment
from ressl.errors import ResslError
from ressl.export import FORMATS, OPSET, export
from ressl.recipes import Recipe
from ressl.runs import Run

PLAIN = {"backbone": "resnet18", "width": 64, "hidden_dim": 8, "output_dim": 8}
RUNS: dict[str, dict[str, Any]] = {
    "small": PLAIN | {"stem": "small"},
    "medium": PLAIN | {"stem": "medium"},
    "imagenet": PLAIN | {"stem": "imagenet"},
    "slim": {"stem": "small", "width": 4},
    "timm": {"backbone": "timm/resnet10t", "bn_groups": 1},
    "cpc": {"method": "cpc-v2"},  # a network around the backbone
}
# Exports that are tested, each as run/format. ONNX takes seconds, so it is done for the odd ones alone.
EXPORTS = [
    *("small/torchvision", "small/timm", "medium/torchvision", "medium/timm"),
    *("slim/torchvision", "slim/safetensors", "slim/onnx", "slim/torch-export"),
    *("timm/timm", "timm/safetensors", "cpc/onnx", "cpc/torch-export"),
    *("slim/huggingface", "imagenet/huggingface", "timm/huggingface"),
]

# What a stranger does. It gets the lines that the export printed, and no ressl.
READER = """
import json, sys
sys.modules["ressl"] = None
import numpy as np, torch
jobs, out = json.load(open("jobs.json")), {}
pixels = np.load("pixels.npy")
for name, code in jobs.items():
    space = {"pixels": pixels}
    exec(code, space)
    if "features" not in space:
        with torch.no_grad():
            space["features"] = space["model"](torch.from_numpy(pixels)).numpy()
    out[name] = space["features"]
np.savez("features.npz", **out)
"""


def features(run: Run, pixels: Tensor) -> np.ndarray:
    with torch.no_grad():
        return run.backbone()(pixels).numpy()


def test_each_export_gives_the_same_features_where_this_package_is_not(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    pixels = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))  # three: exported with two
    np.save(tmp_path / "pixels.npy", pixels.numpy())
    runs = {name: make_run(name, **changes) for name, changes in RUNS.items()}
    jobs = {}
    for name in EXPORTS:
        which, to = name.split("/")
        jobs[name] = export(runs[which], to).code
    other = set()
    for name in ("slim", "imagenet", "timm"):  # the lines in the model card, run where the card lies
        folder = runs[name].path / "export" / f"{name}-huggingface"
        lines = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        jobs[f"{name}/card"] = f"import os; os.chdir({str(folder)!r})\n" + lines[1]
        other |= {f"{name}/card"}
        if name != "slim":
            made = f"timm.create_model('local-dir:{folder}', pretrained=True)"
            jobs[f"{name}/local-dir"] = f"import timm; model = {made}.eval(); assert model.pretrained_cfg['mean']"
            other |= {f"{name}/local-dir"}
    back = f"import os; os.chdir({str(tmp_path)!r})\n"
    (tmp_path / "jobs.json").write_text(json.dumps({name: back + code for name, code in jobs.items()}))
    reader = READER.replace('np.savez("', f'np.savez("{tmp_path}/')
    done = subprocess.run([sys.executable, "-c", reader], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "features.npz")
    assert set(found) == {*EXPORTS, *other}
    expected = {name: features(run, pixels) for name, run in runs.items()}
    for name in found:
        assert np.abs(expected[name.split("/")[0]]).max() > 0.01
        np.testing.assert_allclose(found[name], expected[name.split("/")[0]], atol=1e-5, rtol=1e-5, err_msg=name)
    # and here, by ressl.load
    for name in (name for name in EXPORTS if name != "cpc/torch-export"):
        which, to = name.split("/")
        ending = FORMATS[to][1]
        base = which if to == ending[1:] else f"{which}-{to}"
        model, transform = ressl.load(runs[which].path / "export" / f"{base}{ending}")
        with torch.no_grad():
            np.testing.assert_allclose(model(pixels).numpy(), expected[which], atol=1e-5, rtol=1e-5)
        recipe = runs[which].recipe
        assert (transform.size, transform.mean, transform.std) == (16, recipe.mean, recipe.std)
    with pytest.raises(ResslError, match=r"do not fit the network: .*; if you trust it use torch\.export\.load"):
        ressl.load(runs["cpc"].path / "export" / "cpc-torch-export.pt2")
    pictures = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    places = (runs["slim"].path, runs["slim"].path / "export" / "slim.onnx")
    rows = [ressl.embed(place, pictures, device="cpu").features for place in places]
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-5, rtol=1e-5)
    _onnx_is_as_stated(runs["slim"].path / "export" / "slim.onnx")
    assert b"/secret/place" not in b"".join(p.read_bytes() for p in tmp_path.rglob("export/**/*") if p.is_file())


def _onnx_is_as_stated(path: Path) -> None:
    import onnx

    model = onnx.load(path)
    assert {o.version for o in model.opset_import if o.domain in ("", "ai.onnx")} == {OPSET}
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param  # any batch size
    card = json.loads({p.key: p.value for p in model.metadata_props}["ressl"])
    assert card["mean"] == [0.5, 0.5, 0.5]
    assert str(Path(__file__).parents[1]).encode() not in path.read_bytes()


def test_the_card_has_input_recipe_and_results(make_run: Callable[..., Run]) -> None:
    run = make_run(stem="small")
    run.note({"finished": "2026-01-02", "steps": 7, "environment": {"ressl": "9.9", "commit": "abc123"}})
    knn = {"protocol": "knn", "top1": 61.25, "settings": {"k": 5}, "step": 7, "test": "own test split"}
    run.write_evaluation("knn", knn | {"seconds": 3.0, "start_seconds": 0.01})
    export(run, "torchvision", licence="CC BY 4.0")
    card = json.loads((run.path / "export" / "run-torchvision.card.json").read_text())
    assert (card["commit"], card["made_by"], card["image_size"]) == ("abc123", "ressl 9.9", 16)
    row = {"what": "kNN", "value": "61.25", "beside": "k = 5"}
    assert card["metrics"] == {"knn": {"step": 7, "test": "own test split", "rows": [row]}}
    assert Recipe.from_json(json.dumps(card["recipe"])) == run.recipe
    text = cards.model_card(card)
    assert "61\\.25" in text
    assert "abc123" in text
    assert "trained without labels" in text
    supervised = cards.model_card(card | {"recipe": card["recipe"] | {"method": "supervised"}})
    assert "trained with labels" in supervised
    assert "without labels" not in supervised
    assert "## Licence\n\nCC BY 4\\.0\n" in text
    run.note({"environment": environment(torch.device("cpu")) | {"ressl": FROM_SOURCE, "commit": "abc123"}})
    assert "| made by | ressl, commit abc123 |" in cards.model_card(cards.card_of(run, 32))


def test_the_card_of_a_student_names_its_teacher_and_not_where_it_lies(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    options = {**run.recipe.options, "teacher": "/home/me/runs/large"}
    monkeypatch.setattr(Run, "recipe", dataclasses.replace(run.recipe, method="seed", options=options))
    card = cards.card_of(run, 32)
    assert card["recipe"]["options"]["teacher"] == "large"
    assert "/home/me" not in json.dumps(card)


def test_the_model_card_has_the_numbers_of_every_protocol_and_of_the_last_step_alone(
    make_run: Callable[..., Run],
) -> None:
    run = make_run()
    run.note({"steps": 7})
    draws = {"mean": 41.5, "half": 0.25, "std": 0.5, "n": 3}
    transfer = {"data": "pets", "test_pictures": 1200, "linear": 33.25, "linear_best": 34.5, "knn": 22.75}
    score = {"knn": 1.5, "linear": 2.5, "linear_best": 3.5}
    results: dict[str, dict[str, Any]] = {
        "linear": {"last": 68.5, "best": 69.25, "best_epoch": 12, "seconds": 9.75, "start_seconds": 0.01},
        "svm": {"measure": "top-1", "by_shots": [{"shots": 4, **draws}, {"shots": None, "mean": 55.5}]},
        "finetune": {"by_fraction": [{"fraction": 0.1, "pictures": 5000, **draws, "mean": 71.5}]},
        "transfer": {"to": [transfer]},
        "demo": {"scores": dict.fromkeys(("pixels", "untrained", "ressl"), score)},
        "knn": {"protocol": "knn", "top1": 99.5, "settings": {"k": 5}, "step": 3},  # before it went on to step 7
        "broken": {"by_k": 3},
    }
    for name, result in results.items():
        run.write_evaluation(name, {"protocol": name, "step": 7} | result)
    text = cards.model_card(cards.card_of(run, 32)).split("## Numbers\n\n")[1].split("\n\n## ")[0]
    html = MarkdownIt("js-default").render(text)
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)[1:]]
    assert [row[:2] for row in rows] == [
        ["linear", "68.50"],
        ["SVM, 4 per class", "41.50 ± 0.25"],
        ["SVM, all labels", "55.50"],
        ["fine-tuned, 10 % of the labels", "71.50 ± 0.25"],
        ["transfer to pets, linear", "33.25"],
        ["transfer to pets, kNN", "22.75"],
        ["linear, demo", "2.50"],
        ["kNN, demo", "1.50"],
    ]
    assert rows[0][2] == "best 69.25 (epoch 12)"


def test_the_model_card_has_the_knn_of_training_where_nothing_else_was_measured(make_run: Callable[..., Run]) -> None:
    run = make_run()
    assert "None were measured." in cards.model_card(cards.card_of(run, 32))
    rows = [
        {"step": 4, "epoch": 1.0, "knn": 40.5},
        {"step": 7, "epoch": 1.75, "knn": 58.625},
        {"step": 8, "epoch": 2.0},
    ]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = cards.model_card(cards.card_of(run, 32))
    assert "| kNN, while training | 58\\.62 | after epoch 1\\.75 |" in text
    run.write_evaluation("knn", {"protocol": "knn", "top1": 61.25, "settings": {"k": 5}})
    assert "while training" not in cards.model_card(cards.card_of(run, 32))


def test_names_from_outside_stay_text_in_the_model_card(make_run: Callable[..., Run]) -> None:
    run = make_run()
    nasty = "x](javascript:alert(1)) | <script>"
    result = {"protocol": nasty, "last": 1.0, "best": 2.0, "best_epoch": 1, "test": "a|b\n# no heading `c` **d**"}
    run.write_evaluation(nasty.replace("/", ""), result)
    text = cards.model_card(cards.card_of(run, 32) | {"commit": "[a](b)\n## c"})
    html = MarkdownIt("js-default").render(text)
    assert "<script" not in html
    assert "javascript:" not in re.sub(r"<td>[^<]*</td>", "", html)
    assert re.findall(r"<h\d>(.*?)</h\d>", html)[1:] == ["Numbers", "Load it", "Licence"]
    assert "a|b # no heading `c` **d**" in html


@pytest.mark.parametrize(
    ("changes", "to", "says"),
    [
        ({}, "xyz", "unknown format 'xyz'; known: huggingface, onnx"),
        ({}, "onxn", "did you mean 'onnx'"),
        ({}, "timm", "timm's ResNets have no width of 4; use --to torchvision"),
        (RUNS["timm"], "torchvision", "timm/resnet10t is no network of torchvision; use --to timm"),
        (RUNS["cpc"], "torchvision", "cpc-v2 run looks at overlapping patches.*use --to onnx or torch-export"),
        (RUNS["cpc"], "huggingface", "use --to onnx or torch-export"),
    ],
)
def test_what_a_library_cannot_build_is_said(
    make_run: Callable[..., Run], changes: dict[str, Any], to: str, says: str
) -> None:
    run = make_run(**changes)
    with pytest.raises(ResslError, match=says):
        export(run, to)
    assert not list(run.path.rglob("export/*"))


def test_places_that_are_taken_or_misnamed_are_said(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run()
    with pytest.raises(ResslError, match=r"writes a \.pth file; name it so, not x\.pt"):
        export(run, "torchvision", tmp_path / "x.pt")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ResslError, match="is no exported model; choose another -o"):
        export(run, "huggingface", tmp_path / "mine")
    with pytest.raises(ResslError, match="cannot write"):
        export(run, "safetensors", tmp_path / "mine" / "thesis.tex" / "x.safetensors")
    first = export(run, "huggingface", tmp_path / "model").path
    assert export(run, "huggingface", tmp_path / "model").path == first  # its own may be replaced


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_package_is_named_with_its_command(
    make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ResslError, match=rf"needs {package}: pip install 'ressl\[onnx\]'"):
        export(make_run(), "onnx")


def test_the_command_writes_and_prints_how_to_load(
    make_run: Callable[..., Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    assert main(["export", str(run.path), "--to", "torchvision", "-o", str(tmp_path / "a.pth")]) == 0
    out = capsys.readouterr().out
    assert f"written to {tmp_path / 'a.pth'}" in out
    assert f"torch.load({str(tmp_path / 'a.pth')!r}, weights_only=True)" in out
    assert main(["export", str(tmp_path), "--to", "timm"]) == 2
    assert "is not a run folder" in capsys.readouterr().err
