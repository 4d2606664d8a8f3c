"""The command line as a user drives it: exit codes, one line for every mistake, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ressl import __version__
from ressl.cli import main
from ressl.commands import COMMANDS
from ressl.engine.loop import Rhythm
from ressl.engine.signals import Interrupted
from ressl.pretraining import pretrain
from ressl.recipes import RECIPES, Recipe, get_recipe
from ressl.runs import Run

SMALL = ["--width", "4", "--hidden-dim", "8", "--output-dim", "8", "--device", "cpu", "--batch-size", "8",
         "--bn-groups", "2", "--queue-size", "16", "--image-size", "16"]  # fmt: skip


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RESSL_DATA", str(tmp_path / "no-data"))


Run_ = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ressl(capsys: pytest.CaptureFixture[str]) -> Run_:
    def call(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def wrong(result: tuple[int, str, str], says: str) -> None:
    """Exit code 2 and exactly one line, on stderr."""
    code, _, err = result
    assert code == 2
    assert err.startswith("ressl: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert re.search(says, err), err


# --- mistakes ---


MISTAKES: list[tuple[list[str], str]] = [
    (["pretrian"], r"unknown command 'pretrian'; did you mean 'pretrain'\?"),
    (["xyzzy"], r"unknown command 'xyzzy'; known: "),
    (["--hlep"], r"unknown option '--hlep'; did you mean '--help'\?"),
    (["--xyzzy"], r"unknown option '--xyzzy'; see 'ressl --help'"),
    (["pretrain"], r"nothing to train on: name a recipe"),
    (["pretrain", "cifar11"], r"unknown recipe 'cifar11'; did you mean 'cifar10'\?"),
    (["pretrain", "."], r"'\.' is a folder and not a recipe; to learn from its pictures: --data \."),
    (["pretrain", "cifar10", "--epoch", "3"], r"unknown option '--epoch'; did you mean '--epochs'\?"),
    (["pretrain", "cifar10", "--epochs"], r"--epochs"),
    (["pretrain", "cifar10", "extra"], r"unexpected argument 'extra'"),
    (["pretrain", "cifar10", "--method", "resl"], r"unknown method 'resl'; did you mean 'ressl'\?"),
    (["pretrain", "cifar10", "--epochs", "many"], r"epochs wants a whole number, not 'many'"),
    (["pretrain", "cifar10", "--image-size", "1"], r"image_size must be at least 8, not 1"),
    (["views", "demo", "--image-size", "0"], r"image_size must be at least 8, not 0"),
    (["pretrain", "cifar10", "--lr", "nan"], r"lr wants a number"),
    (["pretrain", "cifar10", "--seed", "9" * 30], r"seed must fit in 64 bits"),
    (["pretrain", "cifar10", "--batch-size", "100"], r"does not split into 8 batch-norm groups"),
    (["pretrain", "cifar10", "--queue-size", "100"], r"a queue of 100 is smaller than the batch of 256"),
    (["pretrain", "cifar10", "--views", "weak", "stong"], r"did you mean 'strong'\?"),
    (["pretrain", "cifar10", "--views", "weak"], r"at least two views"),
    (["pretrain", "cifar10", "--device", "gpu"], r"unknown device 'gpu'"),
    (["pretrain", "cifar10", "--device", "meta"], r"unknown device 'meta'"),
    (["pretrain", "cifar10", "--engine", "egaer"], r"unknown engine 'egaer'; did you mean 'eager'\?"),
    (["pretrain", "cifar10", "--precision", "fp23"], r"unknown precision"),
    (["pretrain", "cifar10", "--backbone", "resnet19"], r"unknown backbone 'resnet19'; did you mean 'resnet1"),
    (["pretrain", "cifar10", "--teacher-momentum", "1.5"], r"teacher_momentum must be between 0 and 1, not 1\.5"),
    (["search", "a", "b", "--out=--"], r"^ressl: --out wants a value$"),
    (["export", "x", "--to=--"], r"^ressl: --to wants a value$"),
    (["pretrain", "cifar10", "--log-steps", "0"], r"--log-steps must be at least 1"),
    (["pretrain", "cifar10", "--workers", "-1"], r"--workers must be at least 0"),
    (["pretrain", "cifar10", "--workers", "few"], r"--workers wants a whole number"),
    (["pretrain", "none.json"], r"cannot read the recipe none\.json"),
    (["pretrain", "--data", "none"], r"there is no folder none"),
    (["pretrain", "--data", "none.npz"], r"there is no file none\.npz"),
    (["pretrain", "--resume"], r"resume needs the run folder"),
    (["pretrain", "--resume", "--out", "none"], r"none is not a run folder"),
    (["pretrain", "--data", ""], r"--data is empty; give it a value"),
    (["pretrain", "--data=", "--out", "x"], r"--data is empty"),
    (["pretrain", "demo", "--out", ""], r"--out is empty"),
    (["evaluate", ""], r"run is empty"),
    (["evaluate", "timm/resnet18", "--data", ""], r"--data is empty"),
    (["evaluate", "timm/resnet18", "--data", "folder="], r"the place of the data is empty"),
    (["embed", "x", "", "-o", "f.npy"], r"images is empty"),
    (["views", "--data", ""], r"--data is empty"),
    (["evaluate"], r"run"),
    (["evaluate", "none"], r"none is not a run folder"),
    (["recipes", "cifar"], r"unknown recipe 'cifar'; did you mean 'cifar10"),
    (["record", "none"], r"none is not a run folder"),
    (["demo", "--epochs", "x"], r"epochs wants a whole number"),
    (["bench", "--workers", "-3", "--parts", "loader"], r"--workers must be at least 0, not -3"),
    (["bench", "--seconds", "-1"], r"--seconds must be above 0, not -1"),
    (["cost", "--seconds", "0"], r"--seconds must be above 0, not 0"),
    (["figure", "map", "none", "-o", "a.xyz"], r"'a\.xyz' is no file for a figure; end it in \.png"),
    (["views", "demo", "-o", "a"], r"'a' is no file for a figure"),
    (["reproduce", "figure-neighbours", "--from", "none", "-o", "x.xyz"], r"'x\.xyz' is no file for a figure"),
    (["launch", "--at", "nonsense", "--", "pretrain", "demo"], r"--at must be HOST:PORT, for example node0:29400"),
    (["launch", "--at", "a:70000", "--", "pretrain", "demo"], r"--at must be HOST:PORT"),
    (["launch", "--at", "no.invalid:29400", "--", "pretrain", "demo"], r"knows no address of 'no\.invalid'"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(m[0])[:50] or "-" for m in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(ressl: Run_, tmp_path: Path, words: list[str], says: str) -> None:
    wrong(ressl(*words), says)
    assert not (tmp_path / "runs").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_an_absent_gpu_is_said(ressl: Run_, device: str) -> None:
    wrong(
        ressl("pretrain", "demo", "--device", device), r"asked for, but PyTorch sees no such CUDA device.*--device cpu"
    )


def test_folders_without_pictures_are_said(ressl: Run_, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "note.txt").write_text("hello")
    (tmp_path / "file.txt").write_text("hello")
    wrong(ressl("pretrain", "--data", "empty", "--device", "cpu"), r"there are no pictures in empty")
    wrong(ressl("pretrain", "--data", "texts", "--device", "cpu"), r"there are no pictures in texts; expected .*\.png")
    wrong(ressl("pretrain", "--data", "file.txt", "--device", "cpu"), r"file\.txt names no picture")


def test_a_folder_of_broken_pictures_is_said(ressl: Run_, make_folder: Callable[..., Path]) -> None:
    folder = make_folder(40, broken=tuple(range(40)))
    wrong(ressl("pretrain", "--data", folder, "--device", "cpu"), r"could be read|can be read")


def test_too_few_pictures_are_said(ressl: Run_, make_folder: Callable[..., Path]) -> None:
    wrong(ressl("pretrain", "--data", make_folder(5), "--device", "cpu"), r"5 pictures are too few")


def test_an_unknown_data_set_in_a_recipe_file_is_said(ressl: Run_, tmp_path: Path) -> None:
    values = json.loads(get_recipe("demo").to_json()) | {"data": "cifar12"}
    (tmp_path / "r.json").write_text(json.dumps(values))
    wrong(
        ressl("pretrain", "r.json", "--device", "cpu", *SMALL), r"unknown data set 'cifar12'; did you mean 'cifar10'\?"
    )


def test_an_existing_run_folder_is_said(ressl: Run_, tiny: Callable[..., Recipe], tmp_path: Path) -> None:
    Run.create(tmp_path / "x", tiny(), {})
    says = r"x exists already; continue it with 'ressl pretrain --resume --out x', or choose another --out"
    wrong(ressl("pretrain", "demo", "--out", "x", "--device", "cpu"), says)
    wrong(ressl("demo", "--out", "x", "--device", "cpu"), says)  # which has no --resume of its own
    wrong(ressl("pretrain", "--resume", "--out", "x", "--epochs", "9"), r"another recipe: its epochs is 2, not 9")
    wrong(ressl("record", "x"), r"is not finished")
    wrong(ressl("evaluate", "x", "--protocol", "knn", "--device", "cpu"), r"there is no checkpoint")
    wrong(ressl("evaluate", "x", "--protocol", "lineal"), r"unknown protocol 'lineal'; did you mean 'linear'\?")
    wrong(ressl("evaluate", "x", "--schedule", "stop"), r"unknown value for schedule 'stop'; did you mean 'step'\?")


# --- things that work ---


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_names_every_option(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "usage: ressl" in out
    if command == ["pretrain"]:
        flat = " ".join(out.split())
        for flag in ("--data", "--out", "--resume", "--epochs", "--queue-size", "--teacher-temperature", "--views"):
            assert flag in flat
        assert "cifar10" in flat


def test_no_command_is_help_and_version_is_the_package_s(ressl: Run_) -> None:
    assert "pretrain" in ressl()[1]
    assert ressl("--version") == (0, f"ressl {__version__}\n", "")


def test_recipes_are_listed_with_the_paper_s_numbers(ressl: Run_) -> None:
    code, out, _ = ressl("recipes")
    assert code == 0
    assert all(name in out for name in RECIPES)
    for number in ("90.20", "63.79", "88.25", "46.60", "69.90", "58.10"):
        assert number in out


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_printed_as_a_file_that_can_be_used(ressl: Run_, name: str) -> None:
    code, out, _ = ressl("recipes", name)
    assert code == 0
    assert Recipe.from_json(out) == RECIPES[name]


def test_the_whole_way_from_pictures_to_a_record(ressl: Run_, tmp_path: Path, array_file: Path) -> None:
    code, out, err = ressl("pretrain", "--data", array_file, "--out", "run", "--epochs", 2, "--warmup-epochs", 0.5,
                           "--views", "weak", "strong,blur=0.1", "--seed", 4, *SMALL)  # fmt: skip
    assert (code, err) == (0, "")
    assert "recipe chosen from the data" in out
    assert "resident: 72 pictures of 16 x 16" in out
    assert "next: ressl evaluate run" in out
    recipe = Run.open("run").recipe
    assert (recipe.epochs, recipe.seed, recipe.width, recipe.warmup_epochs) == (2, 4, 4, 0.5)
    assert recipe.views[1].blur == 0.1
    code, out, err = ressl("evaluate", "run", "--protocol", "knn", "linear", "linear-step", "--device", "cpu",
                           "--epochs", 2, "--batch-size", 16)  # fmt: skip
    assert (code, err) == (0, "")
    for name in ("knn", "linear", "linear-step"):
        assert re.search(rf"{name} .*\d+\.\d\d", out)
        more = "" if name == "knn" else "-epochs=2-batch_size=16"  # other settings than the protocol's own
        result = json.loads((tmp_path / "run" / "evaluation" / f"{name}{more}.json").read_text())
        assert f"{result.get('last', result.get('top1')):.2f}" in out
        assert result["test_pictures"] == 24
    wrong(ressl("evaluate", "run", "--device", "cpu", "--epochs", "0"), r"epochs of a linear evaluation")
    wrong(ressl("evaluate", "run", "--device", "cpu", "--batch-size", "0"), r"batch_size of a linear evaluation")
    wrong(ressl("evaluate", "run", "--device", "cpu", "--scale", "0.5"), r"scale wants 2 values")
    code, out, err = ressl("record", "run", "--into", "results")
    assert (code, err) == (0, "")
    assert json.loads(Path(out.strip()).read_text())["name"] == "array"
    (tmp_path / "taken").touch()
    wrong(ressl("record", "run", "--into", "taken"), r"taken")
    wrong(ressl("pretrain", "--data", array_file, "--out", "run", *SMALL), r"exists already; continue it with")


def test_one_command_trains_and_evaluates(ressl: Run_, array_file: Path) -> None:
    words = ["pretrain", "--data", array_file, "--out", "run", "--epochs", "1", *SMALL]
    wrong(ressl(*words, "--then", "liner"), r"unknown protocol 'liner'; did you mean 'linear'\?")
    assert not Path("run").exists()  # a mistake is found before the training, not after it
    code, out, err = ressl(*words, "--then", "knn")
    assert (code, err) == (0, "")
    assert re.search(r"knn .*\d+\.\d\d", out)
    assert Run.open("run").read_evaluation("knn")["top1"] == pytest.approx(
        Run.open("run").curve("knn")[-1][1], abs=1e-4
    )


def test_quiet_says_nothing(ressl: Run_, array_file: Path) -> None:
    words = ["pretrain", "--data", array_file, "--out", "run", "--epochs", "1", "--quiet", *SMALL, "--then", "knn"]
    assert ressl(*words) == (0, "", "")
    assert Run.open("run").read_evaluation("knn") is not None


def test_unlabelled_pictures_cannot_be_evaluated(ressl: Run_, tmp_path: Path) -> None:
    np.save("plain.npy", np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8))
    assert ressl("pretrain", "--data", "plain.npy", "--out", "run", "--epochs", "1", *SMALL)[0] == 0
    wrong(ressl("evaluate", "run", "--device", "cpu"), r"plain has no labels")


# --- as a process ---


def start(*words: str) -> subprocess.Popen[str]:
    environment: dict[str, Any] = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "ressl", *words], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_process_with_a_checkpoint_to_resume(
    tmp_path: Path, array_file: Path, memory: Any, signum: int, code: int
) -> None:
    process = start("pretrain", "--data", str(array_file), "--out", "run", "--epochs", "5000", "--log-steps", "1",
                    "--knn-every", "0", *SMALL)  # fmt: skip
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signum)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code, err
    assert err == ""
    saved = Run.open("run").checkpoint().facts["step"]
    assert f"saved after step {saved}; continue with: ressl pretrain --resume --out run" in out
    assert Run.open("run").metrics()[-1]["step"] == saved
    # and it does continue from there, until it is stopped again
    shown = memory(saved + 2, lambda: signal.raise_signal(signum))
    with pytest.raises(Interrupted):
        pretrain(out="run", resume=True, device="cpu", display=shown, rhythm=Rhythm(log_steps=1))
    assert shown.steps == [saved + 1, saved + 2]


def test_a_process_is_left_at_once_when_all_is_done(tmp_path):
    code = (
        "import atexit, sys, threading, time; from concurrent.futures import ThreadPoolExecutor\n"
        "from pathlib import Path; from ressl.__main__ import leave\n"
        "folder = Path(sys.argv[1])\n"
        "atexit.register(lambda: (folder / 'handler').write_text(str((folder / 'thread').exists())))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), (folder / 'thread').touch())).start()\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "pool = ThreadPoolExecutor(1); pool.submit(print, end='')  # of a library that never ends it\n"
        "print('said'); leave(3)\n"
        "print('never')"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n", "")
    assert (tmp_path / "handler").read_text() == "True"  # which comes after the thread
