"""A torch.export program gives its weights, whole or not at all, and nothing in it is run."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ressl
from ressl.errors import ResslError
from ressl.export import export
from ressl.runs import Run

WEIGHTS = "data/weights/model_weights_config.json"


@pytest.fixture
def program(make_run: Callable[..., Run], tmp_path: Path) -> Path:
    return export(make_run(), "torch-export", tmp_path / "p.pt2").path


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None], compression: int = zipfile.ZIP_STORED) -> Path:
    """The archive with other members; None leaves one out. ``change`` gets names without the folder on top."""
    out = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w", compression) as new:
        for name in old.namelist():
            content = change(name.partition("/")[2], old.read(name))
            if content is not None:
                new.writestr(name, content)
    return out


def with_entry(**changes: Any) -> Callable[[str, bytes], bytes]:
    """The first convolution's entry in the table of weights, changed."""

    def change(name: str, content: bytes) -> bytes:
        if name != WEIGHTS:
            return content
        table = json.loads(content)
        entry = table["config"]["conv1.weight"]
        for key, value in changes.items():
            (entry if key in entry else entry["tensor_meta"])[key] = value
        return json.dumps(table).encode()

    return change


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_pickles_in_it_are_not_opened(program: Path, tmp_path: Path) -> None:
    evil = pickle.dumps(Evil(tmp_path / "mark"))
    path = rewritten(program, lambda name, content: evil if "sample_inputs" in name else content)
    model, _ = ressl.load(path)
    expected, _ = ressl.load(tmp_path / "run")
    assert all(torch.equal(tensor, expected.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert not (tmp_path / "mark").exists()


NO_WHOLE = r"changed\.pt2 cannot be loaded: it is no whole torch\.export program of ressl"


def without(gone: str) -> Callable[[str, bytes], bytes | None]:
    return lambda name, content: None if name == gone else content


def test_what_is_not_whole_is_said(program: Path) -> None:
    cases: list[tuple[Callable[[str, bytes], bytes | None], str]] = [
        (without("extra/ressl.json"), r"it has no card of ressl; if you trust it use torch\.export\.load"),
        (without(WEIGHTS), NO_WHOLE),
        (without("data/weights/weight_3"), NO_WHOLE),
        (lambda name, content: content[:-4] if name == "data/weights/weight_0" else content, NO_WHOLE),
        (lambda name, content: b"[" * 99_999 if name == WEIGHTS else content, NO_WHOLE),
        (with_entry(use_pickle=True), "pickled, which could run code"),
        (with_entry(dtype=99), NO_WHOLE),
        (with_entry(storage_offset={"as_int": 10**9}), NO_WHOLE),
        (with_entry(sizes=[{"as_int": 10**12}], strides=[{"as_int": 0}]), "do not fit the network"),
        (with_entry(path_name="../../../../../etc/passwd"), NO_WHOLE),
    ]
    for change, says in cases:
        with pytest.raises(ResslError, match=says) as caught:
            ressl.load(rewritten(program, change))
        assert "\n" not in str(caught.value)


def test_other_archives_are_refused(program: Path, tmp_path: Path) -> None:
    with pytest.raises(ResslError, match=NO_WHOLE):  # a few bytes could become any number
        ressl.load(rewritten(program, lambda name, content: content, zipfile.ZIP_DEFLATED))
    for content in (b"", program.read_bytes()[:-100], b"PK\5\6" + bytes(18)):
        (tmp_path / "changed.pt2").write_bytes(content)
        with pytest.raises(ResslError, match=f"{NO_WHOLE}|no card"):  # of a cut one, a zip inside may be found
            ressl.load(tmp_path / "changed.pt2")
