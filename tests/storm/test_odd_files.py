"""Files of a run and of data that are pipes, devices, holes or lies: one sentence or left out, never a wait."""

from __future__ import annotations

import json
import os
import signal
import struct
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from child import Child, digest, loop_of
from scale import draw, times
from test_damage import scramble, seal

import ressl
from ressl.checkpoints import Checkpoint, CheckpointFolder, DiskFull, OtherVersion
from ressl.console import Lines
from ressl.data.arrays import open_array
from ressl.data.shards import open_shards
from ressl.engine.records import Records, read_metrics
from ressl.errors import ResslError
from ressl.featurefiles import open_features
from ressl.recipes import Recipe, get_recipe
from ressl.report.plots import maps
from ressl.reporting import can_be_shown
from ressl.reproduce.ledger import write_record
from ressl.runs import Run


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    signal.alarm(60)
    yield
    signal.alarm(0)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def hole(path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 43)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


ODD = [pipe, device, hole, deep, Path.mkdir]


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_file_of_a_run_says_nothing(odd: Any, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", get_recipe("demo"), {})
    (run.path / "run.json").unlink()
    (run.path / "evaluation").mkdir()
    for name in ("run.json", "evaluation/knn.json", "broken.txt", "metrics.jsonl"):
        odd(run.path / name)
    assert run.facts == {}
    assert run.metrics() == []
    assert run.evaluations() == ({}, ["The evaluation knn, which cannot be read,"])
    for path in (tmp_path / "a.json", tmp_path / "a.pth"):
        odd(path)
        with pytest.raises(ResslError):
            Recipe.from_file(path)
        with pytest.raises(ResslError):
            ressl.load(path)


@pytest.mark.parametrize(
    "text", ["[]", "3", "null", '{"seconds": "x"}', '{"seconds": 1e999}', '{"data": 5, "steps": []}']
)
def test_facts_of_another_kind_do_not_count(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    assert Run(tmp_path).facts == {}
    (tmp_path / "run.json").write_text('{"seconds": 2, "more": [1]}')
    assert Run(tmp_path).facts == {"seconds": 2, "more": [1]}


EVALUATIONS: dict[str, dict[str, Any]] = {
    "knn": {"protocol": "knn", "step": 4, "top1": 50.0, "settings": {"k": 5}, "seconds": 1.0},
    "linear": {"protocol": "linear", "last": 50.0, "best": 51.0, "best_epoch": 3},
    "svm": {"by_shots": [{"shots": 1, "mean": 3.0, "half": 0.1, "n": 3, "std": 0.1}], "measure": "mAP"},
    "demo": {"scores": {name: {"linear": 9.0, "knn": 9.0} for name in ("ressl", "pixels", "untrained")}},
    "classes": {
        "classes": ["a", "b"],
        "accuracy": [9.0, None],
        "mistaken": [["a", "b", 2]],
        "confusion": [[1, 2], [3, 4]],
    },
}


def test_a_damaged_evaluation_is_left_out_of_the_page() -> None:
    moments, shown = draw("evaluations"), {True: 0, False: 0}
    for name, result in EVALUATIONS.items():
        assert can_be_shown(name, result)
    for _ in range(times(3000, 300)):
        name = moments.choice(list(EVALUATIONS))
        shown[can_be_shown(name, scramble(EVALUATIONS[name], moments))] += 1
    assert min(shown.values()) > 20


def test_rows_that_are_not_ours_are_left_out(tmp_path: Path) -> None:
    row = {"step": 1, "epoch": 0.5, "loss": 2.0}
    lies = [{"step": "x"}, {"step": 1}, row | {"loss": "x"}, row | {"loss": 10**400}, row | {"knn": [1]}, [], 3, None]
    lines = [json.dumps(line) for line in (*lies, row)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "[" * 10_000, "x" * 3_000_000, json.dumps(row)]) + "\n")
    assert read_metrics(tmp_path) == [row, row]
    lie: Any = "x"
    Records(tmp_path, 1, lie).close()
    assert read_metrics(tmp_path) == [row, row]


def test_a_row_that_does_not_fit_on_the_disk_is_a_sentence(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records._file = open("/dev/full", "a")  # noqa: SIM115
    with pytest.raises(DiskFull, match=r"metrics.jsonl cannot be written: No space left on device; make room"):
        records.write({"step": 1, "epoch": 1.0})


class FullFromRow:
    """From a row on nothing can be written any more, neither rows nor facts."""

    def __call__(self) -> None:
        plain = Records.write

        def full(*args: Any) -> Any:
            raise OSError(28, "No space left on device")

        def write(self: Records, row: dict[str, Any]) -> None:
            if row["step"] == 8:
                self._file.write = full  # type: ignore[method-assign]
                Run.note = full  # type: ignore[method-assign]
            plain(self, row)

        Records.write = write  # type: ignore[method-assign]


def test_what_ended_a_run_is_said_even_if_its_end_cannot_be_noted(
    tmp_path: Path, ground: Path, spawn: type[Child], undisturbed: tuple[str, float]
) -> None:
    child = spawn.train(tmp_path / "run", ground, before=FullFromRow()).join()
    assert child.code == 2, child.output
    assert "make room on the disk, then resume" in child.output.splitlines()[-1]
    assert spawn.train(tmp_path / "run", ground).join().code == 0
    assert digest(tmp_path / "run") == undisturbed[0]


# --- one process trains a run ---


def hold(where: str) -> None:
    with Run(where).claimed():
        if not os.fork():  # as a loader worker, which outlives its killed parent for a while
            time.sleep(5)
            os._exit(0)
        Path(where, "held").touch()
        time.sleep(60)


def test_a_run_is_trained_by_one_process_until_that_is_gone(tmp_path: Path, spawn: type[Child]) -> None:
    child = spawn(tmp_path.parent / f"{tmp_path.name}.log", hold, str(tmp_path))
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    with pytest.raises(ResslError, match="another process is training"), Run(tmp_path).claimed():
        pass
    child.process.kill()
    child.process.join()
    with Run(tmp_path).claimed():
        pass


def test_a_lock_that_is_none_keeps_nobody_out_and_makes_no_file_elsewhere(tmp_path: Path) -> None:
    for odd in (pipe, Path.mkdir, lambda path: path.symlink_to(tmp_path / "elsewhere")):
        run = Run(tmp_path / str(len(list(tmp_path.iterdir()))))
        run.path.mkdir()
        odd(run.path / ".lock")
        with run.claimed():
            assert not (tmp_path / "elsewhere").exists()


# --- checkpoints ---


def test_a_checkpoint_of_another_version_is_named_and_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for number in (1, 2):
        folder.save(number, Checkpoint({}, {"step": number}))
    newest = folder.paths()[-1]
    newest.write_bytes(seal(newest.read_bytes().replace(b"ressl-checkpoint-1", b"ressl-checkpoint-2")))
    with pytest.raises(OtherVersion, match="of another version of ressl"):
        folder.load_latest()
    assert newest.exists()


def test_a_checkpoint_that_logged_other_things_goes_on(tmp_path: Path) -> None:
    loop, _ = loop_of(tmp_path)
    found = loop.checkpoints.load_latest()
    logs = ["loss", "lr", "grad_norm"]
    fewer = found.tensors | {"engine.ring": found.tensors["engine.ring"][:, :3]}
    loop.restore(Checkpoint(fewer, found.facts | {"logs": logs}))
    loop.step.advance(None)
    assert len(loop.step.drain()) == 1
    with pytest.raises(ResslError, match="make no sense"):
        loop.restore(Checkpoint(fewer, found.facts | {"logs": ["a", "b", "c"]}))


# --- data ---


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_a_header_is_not_read_because_it_says_it_is_long(form: str, tmp_path: Path) -> None:
    path, start = tmp_path / f"a.{form}", b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31)
    if form == "npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", start + b" " * 100)
    else:
        path.write_bytes(start)
        with pytest.raises(ResslError, match="its header claims 2,147,483,648 bytes"):
            open_features(path)
    with pytest.raises(ResslError, match="its header claims 2,147,483,648 bytes"):
        open_array(path, "train")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_nor_is_that_of_a_shard(kind: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESSL_CACHE", str(tmp_path / "cache"))
    member = tarfile.TarInfo("a.jpg")
    member.type, member.size = kind, 6 << 30
    with open(tmp_path / "a.tar", "wb") as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        file.truncate(7 << 30)
    with pytest.raises(ResslError, match="a header of 6,442,450,944 bytes"):
        open_shards(tmp_path, "train")


# --- names ---


@pytest.mark.parametrize("name", ["../../out", "/tmp/ressl-out", "a/b", "\x1b[31m", "a\nb", "\x00", "x" * 300, ""])
def test_a_record_lies_in_its_folder_whatever_the_recipe_is_called(name: str, tmp_path: Path) -> None:
    recipe = get_recipe("demo").replace(name=name)
    facts = {
        "finished": "../2020",
        "seconds": 1.0,
        "steps": 1,
        "precision": "fp32",
        "engine": "eager",
        "environment": {},
    }
    path = write_record(Run.create(tmp_path / "run", recipe, facts), tmp_path / "in" / "results")
    assert path.parent == tmp_path / "in" / "results"
    assert path.name.isprintable()
    assert [p.name for p in (tmp_path / "in").iterdir()] == ["results"]
    assert len(list(path.parent.iterdir())) == 1


def test_a_terminal_obeys_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().message("run \x1b[2J\x07\nfolder")
    assert capsys.readouterr().out == "run \\x1b[2J\\x07\nfolder\n"


def test_a_figure_takes_no_name_for_a_formula(tmp_path: Path) -> None:
    points, labels = torch.randn(4, 2), torch.tensor([0, 0, 1, 1])
    maps([(r"$\frac{$", points, labels)], [r"$a_{$", "b"], tmp_path / "a.png", r"$\frac{$")
    assert (tmp_path / "a.png").stat().st_size > 1000
