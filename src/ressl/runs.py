"""A run folder: everything about one training run, readable without the program that made it.

recipe.json       what was trained, and how; `ressl pretrain RUN/recipe.json` trains it again
run.json          where and with what it was trained, and how it ended
metrics.jsonl     the curves, a JSON object a line
tensorboard/      the same for TensorBoard
checkpoints/      the newest checkpoints (safetensors)
broken.txt        picture files that could not be read, if any
.lock             empty; whoever trains the run holds it
evaluation/       results of evaluations, one JSON file each; features/ and page/ in it may be deleted
report.html       the page, where one was made
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shlex
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ressl.checkpoints import Checkpoint, CheckpointFolder
from ressl.data.decode import shown
from ressl.engine.records import read_metrics
from ressl.errors import ResslError
from ressl.files import NotRegular, is_litter, obstacle, read_bytes, read_json, sweep, write_atomically
from ressl.memory import ram
from ressl.methods import METHODS, Method
from ressl.nn import build_backbone
from ressl.recipes.recipe import Recipe
from ressl.report.numbers import rows_of

LOCK = ".lock"
# of evaluations on a page
ORDER = (
    *("linear", "linear-step", "linear-cosine", "linear-imagenet", "linear-sweep"),
    *("knn", "knn-sweep", "svm", "finetune", "transfer", "geometry"),
)
# of run.json, what is counted on; what is of another kind does not count
_FACTS: dict[str, Any] = {
    **dict.fromkeys(("data", "started", "finished", "launch", "engine", "precision"), str),
    **{"seconds": (int, float), "steps": int, "jobs": int, "lacking": int, "environment": dict},
}


def _small(value: object) -> bool:
    """Not a number that no run comes to, nor one that is none."""
    return not isinstance(value, (int, float)) or abs(value) < 1e15


def _unborn(name: str) -> bool:
    """What is there of a run whose process was killed while it made the folder."""
    return name in ("run.json", LOCK) or is_litter(name)


def _wherever(name: str) -> str:
    """A file by one name only, from whichever folder a run is begun or resumed; what is in an array or tar has its own.

    A link keeps its name: it is what has to be mended.
    """
    folder, file = os.path.split(name)
    return os.path.join(os.path.realpath(folder), file) if os.path.lexists(name) else name


def build_method(recipe: Recipe, bn_groups: int | None = None) -> Method:
    """The method of a recipe with fresh weights; the same seed gives the same weights.

    ``bn_groups``: those of this process's share of the batch, where several share it.
    """
    if (size := _size(recipe)) > ram() // 2:
        much = f"{size / 1e9:,.1f} GB, more than half of the memory here" if size < math.inf else "more than any memory"
        raise ResslError(
            f"{recipe.method} with these options takes {much}; lower width, hidden_dim, output_dim or queue_size"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return _assemble(recipe, bn_groups or recipe.bn_groups)


def _size(recipe: Recipe) -> float:
    """Bytes of the method's tensors, found without making them: a slip of the finger must not fill the memory."""
    try:
        with torch.device("meta"):
            return sum(t.numel() * t.element_size() for t in _assemble(recipe, 1).state_dict().values())
    except Exception as error:
        # So large that even the count overflows. What cannot be built for another reason is said by the real attempt.
        return math.inf if "overflow" in str(error).lower() else 0


def _assemble(recipe: Recipe, bn_groups: int) -> Method:
    try:
        backbone = build_backbone(recipe.backbone, recipe.stem, recipe.width, bn_groups, recipe.stem_init)
        return METHODS[recipe.method](backbone, **recipe.options)
    except (ValueError, RuntimeError, TypeError, OverflowError) as error:  # a momentum of 1.5, a layer of -1 units
        first = str(error).split("\n")[0]
        raise ResslError(f"{recipe.method} cannot be built with these options: {first}") from error


class Run:
    """A run folder on disk."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = CheckpointFolder(self.path / "checkpoints")

    def __fspath__(self) -> str:
        """So that it can be given wherever its folder can."""
        return str(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @classmethod
    def refuse_existing(cls, path: str | Path) -> None:
        path = Path(path)
        if path.exists() and (not path.is_dir() or any(not _unborn(p.name) for p in path.iterdir())):
            again = f"continue it with 'ressl pretrain --resume --out {shlex.quote(str(path))}', or "
            hint = again if (path / "recipe.json").exists() else "please "
            raise ResslError(f"the run folder {path} exists already; {hint}choose another --out")
        if why := obstacle(path):  # found before pictures are read, which may take long
            raise ResslError(f"cannot write the run folder {path}: {why}; choose another --out")

    @classmethod
    def create(cls, path: str | Path, recipe: Recipe, facts: Mapping[str, Any]) -> Run:
        run = cls(path)
        cls.refuse_existing(path)
        made = not run.path.exists()
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            with run.claimed():
                cls.refuse_existing(path)  # again: another may have been as fast
                sweep(run.path)
                run.note(facts)
                write_atomically(run.path / "recipe.json", recipe.to_json().encode())  # last: it makes the folder a run
        except OSError as error:
            if made:  # what is there of it is no run, and nobody's
                shutil.rmtree(run.path, ignore_errors=True)
            raise ResslError(f"cannot write the run folder {path}: {error.strerror}") from error
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        run = cls(path)
        if not (run.path / "recipe.json").is_file():
            raise ResslError(f"{path} is not a run folder (it has no recipe.json)")
        return run

    @property
    def recipe(self) -> Recipe:
        return Recipe.from_file(self.path / "recipe.json")

    @property
    def facts(self) -> dict[str, Any]:
        """What ``run.json`` says, as far as it makes sense."""
        try:
            facts = read_json(self.path / "run.json")
        except (OSError, ValueError):
            return {}
        if not isinstance(facts, dict):
            return {}
        return {
            key: value for key, value in facts.items() if isinstance(value, _FACTS.get(key, object)) and _small(value)
        }

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add to ``run.json``."""
        data = json.dumps(self.facts | dict(facts), indent=2) + "\n"
        write_atomically(self.path / "run.json", data.encode())

    def list_broken(self, broken: Mapping[str, str]) -> Path:
        """Add picture files that could not be read, with the reason, to ``broken.txt``."""
        path = self.path / "broken.txt"
        try:
            known = read_bytes(path).decode("utf-8", "replace").splitlines()
        except (FileNotFoundError, NotRegular):
            known = []
        lines = dict.fromkeys([*known, *(f"{shown(_wherever(name))}\t{reason}" for name, reason in broken.items())])
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
        return path

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Alone: two processes that train one run would write over each other's rows and checkpoints.

        A lock of this process: it ends with it, however it ends, and loader workers do not inherit it. Where there are
        none (Windows, some network file systems) nobody is kept out.
        """
        with contextlib.ExitStack() as held:
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                # As this it waits for nobody where it is a pipe, and makes no file elsewhere where it is a link.
                flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(self.path / LOCK, flags, 0o666)
                held.callback(os.close, file)
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError):
                    raise ResslError(
                        f"another process is training {self.path}; wait for it or end it (if there is none, on any "
                        f"machine, remove {self.path / LOCK})"
                    ) from None
            yield

    def metrics(self) -> list[dict[str, Any]]:
        return read_metrics(self.path)

    def curve(self, name: str) -> list[tuple[float, float]]:
        """(epoch, value) of one metric."""
        return [(row["epoch"], row[name]) for row in self.metrics() if name in row]

    @property
    def last_step(self) -> int | None:
        """The step after which its weights are; of a run that is not over, that of its newest checkpoint."""
        steps: int | None = self.facts.get("steps")  # noted at the end
        return self.checkpoints.last_step if steps is None else steps

    @property
    def epochs_done(self) -> float:
        """The passes over the data so far, as of the last log point where the run is not over."""
        if "finished" in self.facts:
            return self.recipe.epochs
        return max((row["epoch"] for row in self.metrics() if "epoch" in row), default=0)

    def checkpoint(self) -> Checkpoint:
        """The newest that can be used. A damaged one is named, so that nobody takes the one before for it."""
        found = self.checkpoints.load_latest()
        for text in self.checkpoints.damaged:
            warnings.warn(f"{text}; using the one before", stacklevel=1)  # of one place: said once, however often asked
        return found

    def refuse_alien(self, checkpoint: Checkpoint, recipe: Recipe) -> None:
        """Raise where it is of another experiment: one of the same shapes would be taken for ours without a word."""
        told = checkpoint.facts.get("recipe")
        if told is None:  # made by hand
            return
        try:
            stray = Recipe.from_json(json.dumps(told)).strays(recipe)
        except ResslError:
            raise ResslError(f"the checkpoint in {self.path} is of a recipe that makes no sense here") from None
        if stray is not None:
            key, theirs, ours = stray
            raise ResslError(
                f"the checkpoint in {self.path} is of another recipe: its {key} is {theirs!r}, not {ours!r}; bring "
                "back the recipe.json or the checkpoints that belong together"
            )

    def backbone(self) -> nn.Module:
        """The trained student backbone, in eval mode on the CPU."""
        recipe, checkpoint = self.recipe, self.checkpoint()
        self.refuse_alien(checkpoint, recipe)
        method = build_method(recipe)
        try:
            method.load_state_dict(checkpoint.part("method."))
        except RuntimeError as error:
            raise ResslError(f"the checkpoint in {self.path} does not fit its recipe.json") from error
        return method.backbone.eval()

    def write_evaluation(self, name: str, result: Mapping[str, Any]) -> Path:
        folder = self.path / "evaluation"
        folder.mkdir(exist_ok=True)
        path = folder / f"{name}.json"
        write_atomically(path, (json.dumps(dict(result), indent=2) + "\n").encode())
        return path

    def read_evaluation(self, name: str) -> dict[str, Any] | None:
        try:
            result = read_json(self.path / "evaluation" / f"{name}.json")
        except (OSError, ValueError):
            return None
        return result if isinstance(result, dict) else None

    def evaluations(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """All that can be read and are of the last step, the common ones first; and what is left out, and why."""
        found, left_out = {}, []
        steps = self.last_step
        for path in sorted((self.path / "evaluation").glob("*.json")):
            result = self.read_evaluation(path.stem)
            try:
                if result is None:
                    raise TypeError
                rows_of(path.stem, result)
            except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
                left_out.append(f"The evaluation {path.stem}, which cannot be read,")
                continue
            if steps is not None and result.get("step", steps) != steps:
                left_out.append(f"The evaluation {path.stem}, made after step {result['step']} of {steps},")
                continue
            found[path.stem] = result
        place = {name: i for i, name in enumerate(ORDER)}
        key = lambda name: (place.get(str(found[name].get("protocol", name)), 99), name)  # of other settings beside it
        return {name: found[name] for name in sorted(found, key=key)}, left_out


def safe_name(recipe: Recipe) -> str:
    """The recipe's name as part of a file's: it may come from anybody's recipe.json."""
    return re.sub(r"[^\w.-]+", "-", recipe.name).strip(".-")[:80] or "run"


def default_out(recipe: Recipe | None) -> Path:
    """``runs/<recipe>-<time>``, made unique; before there is a recipe, one in the same place."""
    base = Path("runs") / f"{safe_name(recipe) if recipe else 'run'}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, n = base, 1
    while path.exists():
        n += 1
        path = base.with_name(f"{base.name}-{n}")
    return path
