"""Pickles and strings made to run code, through every door a file can come in by: the canary is never created."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ressl
from ressl import cli
from ressl.checkpoints import Checkpoint, CheckpointFolder
from ressl.data.cifar import CIFAR10
from ressl.data.sources import open_source
from ressl.recipes import get_recipe
from ressl.runs import Run, build_method

TINY: dict[str, Any] = {
    **{"backbone": "resnet10", "width": 2, "image_size": 8, "batch_size": 4, "bn_groups": 1, "queue_size": 8},
    **{"hidden_dim": 4, "output_dim": 4, "epochs": 1, "data": "array"},
}


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.call, self.args = call, args

    def __reduce__(self) -> Any:
        return self.call, self.args


def payloads(canary: Path) -> dict[str, bytes]:
    """Ways for a pickle to run code."""
    command = f"touch {canary}"
    text = f"open({str(canary)!r}, 'w')"
    objects = {
        "system": Evil(os.system, command),
        "eval": Evil(eval, text),
        "exec": Evil(exec, text),
        "popen": Evil(subprocess.Popen, ["touch", str(canary)]),
        "open": Evil(open, str(canary), "w"),
        "in a list": [1, {"a": Evil(os.system, command)}],
    }
    made = {name: pickle.dumps(value, protocol) for name, value in objects.items() for protocol in (2,)}
    made["protocol 0"] = pickle.dumps(objects["system"], 0)
    made["protocol 5"] = pickle.dumps(objects["system"], 5)
    made["instance"] = f"(S'{command}'\nios\nsystem\n.".encode()
    made["object"] = b"(cos\nsystem\nS'" + command.encode() + b"'\no."
    made["stand-in's setstate"] = b"cnumpy\ndtype\n(S'u1'\ntR(cos\nsystem\nS'" + command.encode() + b"'\nob."
    made["codecs"] = b"c_codecs\nencode\n(cos\nsystem\nS'" + command.encode() + b"'\ntR."
    return made


def torch_file(payload: Any, legacy: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(payload, buffer, _use_new_zipfile_serialization=not legacy)
    return buffer.getvalue()


def run_folder(place: Path) -> Run:
    recipe = get_recipe("demo").replace(**TINY)
    return Run.create(place, recipe, {"data": str(place.parent / "none.npz")})


def attempt(*words: str) -> None:
    """A command, to its end; what it says is not the question here."""
    with contextlib.suppress(SystemExit):
        cli.main(list(words))


PICKLES = list(payloads(Path("x")))


@pytest.mark.parametrize("name", PICKLES)
def test_a_pickle_runs_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    data = payloads(canary)[name]
    monkeypatch.chdir(tmp_path)
    # as a checkpoint, as a run's other files
    run = run_folder(tmp_path / "run")
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "step-00000001.safetensors").write_bytes(data)
    for words in (["pretrain", "--resume", "--out", "run"], ["evaluate", "run"], ["record", "run"]):
        attempt(*words)
    with pytest.raises(ressl.ResslError):
        ressl.load("run")
    for file in ("run.json", "metrics.jsonl", "recipe.json"):
        (run.path / file).write_bytes(data)
        attempt("pretrain", "--resume", "--out", "run")
    # as data
    (tmp_path / "pictures").mkdir()
    for ending in ("jpg", "png", "tif", "npy", "npz", "pkl"):
        (tmp_path / "pictures" / f"a.{ending}").write_bytes(data)
    attempt("pretrain", "--data", "pictures", "--out", "a", "--device", "cpu")
    for ending in ("npy", "npz"):
        attempt("pretrain", "--data", f"pictures/a.{ending}", "--out", "b", "--device", "cpu")
    (tmp_path / "evil.json").write_bytes(data)
    attempt("pretrain", "evil.json")
    # as an official CIFAR batch, of which one form is a pickle
    folder = tmp_path / "cifar" / CIFAR10.python.folder
    folder.mkdir(parents=True)
    for file in [*CIFAR10.python.splits["train"], "test_batch", "batches.meta"]:
        (folder / file).write_bytes(data)
    for split in ("train", "test"):
        with pytest.raises(ressl.ResslError, match="no official CIFAR file"):
            open_source("cifar10", split, tmp_path / "cifar", download=False)
    assert not canary.exists()
    with pytest.raises(Exception):  # noqa: B017, PT011 - to be sure that the pickle means it
        pickle.loads(data).undefined  # noqa: B018
    if name not in ("stand-in's setstate", "codecs"):
        for _ in range(100):
            if canary.exists():
                break
            subprocess.run(["sleep", "0.02"], check=True)
        assert canary.exists(), "this payload does nothing, so it tests nothing"


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("ending", ["safetensors", "pt", "npy", "npz", "jpg"])
def test_a_torch_file_runs_nothing(legacy: bool, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "canary"
    data = torch_file(Evil(os.system, f"touch {canary}"), legacy)
    monkeypatch.chdir(tmp_path)
    run = run_folder(tmp_path / "run")
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / f"step-00000001.{ending}").write_bytes(data)
    attempt("pretrain", "--resume", "--out", "run")
    attempt("evaluate", "run")
    (tmp_path / f"data.{ending}").write_bytes(data)
    attempt("pretrain", "--data", f"data.{ending}", "--out", "b")
    with pytest.raises(ressl.ResslError):
        ressl.load(tmp_path / f"data.{ending}")
    assert not canary.exists()


@pytest.mark.parametrize("form", ["npy", "npz", "labels", "nested zip"])
def test_an_array_of_objects_runs_nothing(form: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    evil = np.array([Evil(os.system, f"touch {canary}")], dtype=object)
    path = tmp_path / ("a.npy" if form == "npy" else "a.npz")
    if form == "npy":
        np.save(path, evil, allow_pickle=True)
    elif form == "labels":
        np.savez(path, x=np.zeros((8, 8, 8, 3), np.uint8), y=evil.repeat(8))
    elif form == "npz":
        np.savez(path, x=evil)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", pickle.dumps(Evil(os.system, f"touch {canary}")))
    with pytest.raises(ressl.ResslError):
        open_source("array", "train", path)
    assert not canary.exists()


STRINGS = [
    "$(touch {})", "`touch {}`", "; touch {};", "| touch {}", "__import__('os').system('touch {}')", "{{0.__class__}}",
    "%(touch {})s", "${{jndi:ldap://localhost/x}}", "../../../{}", "\x00{}", "\x1b]0;touch {}\x07", "-o{}",
    "!!python/object/apply:os.system ['touch {}']", "file://{}", "timm/../../{}",
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(STRINGS)))
def test_strings_stay_strings(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkpoint's facts, a recipe's fields, file, class and run names."""
    canary = tmp_path / "canary"
    text = STRINGS[number].format(canary)
    name = text.replace("/", "_").replace("\x00", "_")[:200]
    monkeypatch.chdir(tmp_path)
    recipe = get_recipe("demo").replace(**TINY)
    tensors = {f"method.{k}": v for k, v in build_method(recipe).state_dict().items()}
    run = Run.create(tmp_path / "run", recipe, {"data": text})
    made_by = json.loads(recipe.to_json()) | {"name": text, "summary": text}
    facts = {"step": 1, "drained": 0, "logs": [text], "recipe": made_by, text: text, "pictures": text}
    CheckpointFolder(run.path / "checkpoints").save(1, Checkpoint(tensors | {"engine.ring": torch.zeros(1, 1)}, facts))
    ressl.load("run")
    attempt("pretrain", "--resume", "--out", "run", "--device", "cpu")
    attempt("evaluate", "run", "--device", "cpu")
    for key in ("name", "summary", "data", "backbone", "method", "stem"):
        changed = json.loads(recipe.to_json()) | {key: text}
        (tmp_path / "r.json").write_text(json.dumps(changed))
        attempt("pretrain", "r.json", "--out", "x", "--data", "none.npz")
    for kind in ("a", "b"):
        folder = tmp_path / "photos" / f"{kind}{name}"
        folder.mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (8, 8), (i, 90, 9)).save(folder / f"{i}{name}.png")
    (tmp_path / "photos" / f"a{name}" / "broken.png").write_bytes(b"x")
    words = ["--batch-size", "4", "--bn-groups", "1", "--queue-size", "8", "--hidden-dim", "4", "--output-dim", "4"]
    words += ["--width", "2", "--image-size", "8", "--epochs", "1", "--device", "cpu"]
    attempt("pretrain", "--data", "photos", "--out", name.lstrip("-") or "x", *words)
    assert not canary.exists()
    outside = {p.name for p in tmp_path.parent.iterdir()} - {tmp_path.name}
    assert not any("canary" in p for p in outside)
    shutil.rmtree(tmp_path / "photos")
