"""Small things that many tests stand on: a tiny recipe, tiny pictures, a display that remembers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from ressl import console, embedding
from ressl.checkpoints import Checkpoint
from ressl.data import loaders
from ressl.data.voc import VOC_CLASSES
from ressl.engine.loop import Rhythm
from ressl.evaluation.linear import LinearProtocol
from ressl.nn import build_backbone
from ressl.recipes import Recipe, get_recipe, method_options
from ressl.runs import Run, build_method
from ressl.transform import Transform

torch.set_num_threads(1)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# The same examples every time, so that a change is judged by what it changes; EXPLORE=1 looks for new ones.
settings.register_profile("same", derandomize=not os.environ.get("EXPLORE"))
settings.load_profile("same")

TINY = {
    "backbone": "resnet10",
    "stem": "medium",
    "width": 4,
    "image_size": 16,
    "batch_size": 16,
    "bn_groups": 2,
    "hidden_dim": 16,
    "output_dim": 8,
    "queue_size": 32,
    "epochs": 2,
    "warmup_epochs": 1.0,
    "knn_every": 1,
    "knn_k": 5,
}


class Memory:
    """A display that keeps what it was told, and may do something at a step."""

    def __init__(self, at: int | None = None, do: Callable[[], None] | None = None) -> None:
        self.messages: list[str] = []
        self.steps: list[int] = []
        self.values: list[dict[str, float]] = []
        self._at, self._do = at, do

    def busy(self, what: str, done: int, total: int) -> None: ...

    def progress(self, done: int, total: int, values: dict[str, float]) -> None:
        self.steps.append(done)
        self.values.append(dict(values))
        if self._do is not None and done == self._at:
            act, self._do = self._do, None
            act()

    def message(self, text: str) -> None:
        self.messages.append(text)

    @property
    def said(self) -> str:
        return "\n".join(self.messages)


@pytest.fixture
def memory() -> type[Memory]:
    return Memory


@pytest.fixture
def tiny() -> Callable[..., Recipe]:
    """A factory of recipes so small that a step takes milliseconds."""
    protocol = LinearProtocol(schedule="cosine", lr=0.1, epochs=2, batch_size=16, augment=False)

    def make(base: str = "demo", **changes: Any) -> Recipe:
        known = {*get_type_hints(Recipe), *method_options(changes.get("method", "ressl"))}
        small = {key: value for key, value in TINY.items() if key in known}
        return get_recipe(base).replace(**(small | {"linear": protocol} | changes))

    return make


@pytest.fixture
def every_step() -> Rhythm:
    return Rhythm(log_steps=1, checkpoint_minutes=1e9)


def pixels(n: int, height: int = 16, width: int = 16, seed: int = 0) -> np.ndarray:
    """n pictures of three classes that differ in colour; N x H x W x 3 uint8."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 120, (n, height, width, 3), dtype=np.uint8)
    for i in range(n):
        images[i, :, :, i % 3] += 130
    return images


@pytest.fixture
def array_file(tmp_path: Path) -> Path:
    """72 labelled pictures to train on and 24 to test on, as an .npz."""
    path = tmp_path / "pictures.npz"
    np.savez(
        path,
        x_train=pixels(72),
        y_train=np.arange(72) % 3,
        x_test=pixels(24, seed=1),
        y_test=np.arange(24) % 3,
    )
    return path


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """A folder of PNG files: of one size or of many, in classes or flat, some of them broken."""

    def make(
        n: int = 48,
        *,
        mixed: bool = False,
        classes: bool = True,
        broken: tuple[int, ...] = (),
        name: str = "photos",
        side: int = 16,
    ) -> Path:
        root = tmp_path / name
        for i, picture in enumerate(pixels(n, side, side)):
            folder = root / "abc"[i % 3] if classes else root
            folder.mkdir(parents=True, exist_ok=True)
            shape = (side + i % 5, side + i % 3) if mixed else (side, side)
            path = folder / f"{i:03d}.png"
            Image.fromarray(picture).resize(shape[::-1]).save(path)
            if i in broken:
                path.write_bytes(path.read_bytes()[:40])
        return root

    return make


@pytest.fixture
def streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No room on any device: all pictures stream."""
    monkeypatch.setattr(loaders, "room", lambda device: 0)


@pytest.fixture
def make_run(tmp_path: Path, tiny: Callable[..., Recipe]) -> Callable[..., Run]:
    """A run with weights and norm statistics that no initialisation gives, without the training."""
    return lambda name="run", **changes: written_run(tmp_path / name, tiny(**changes))


def written_run(path: Path, recipe: Recipe) -> Run:
    run = Run.create(path, recipe, {"data": "/secret/place"})
    draw = torch.Generator().manual_seed(1)
    state = {f"method.{key}": t.clone() for key, t in build_method(recipe).state_dict().items()}
    for key, t in state.items():
        if key.endswith(("running_var", "running_mean")):
            t.copy_(torch.rand(t.shape, generator=draw) * 0.2 + (0.9 if key.endswith("var") else -0.1))
    run.checkpoints.save(7, Checkpoint(state, {"step": 7}))
    return run


class Examples:
    """Where examples in docstrings run: in a folder of their own, with photos in it, or a run.

    It is a plugin, as fixtures of this file are for the tests beside it. To run one of them alone, name this file, too:
    ``pytest tests/conftest.py src/ressl/__init__.py``.
    """

    @pytest.fixture(autouse=True)
    def _ground(self, request: pytest.FixtureRequest) -> None:
        example = getattr(request.node, "dtest", None)
        if example is None or example.name not in ("ressl", "ressl.export"):
            return
        patch = request.getfixturevalue("monkeypatch")
        patch.chdir(request.getfixturevalue("tmp_path"))
        patch.setattr(torch.cuda, "is_available", lambda: False)  # a GPU would first compile
        patch.setattr(console, "display", lambda quiet=False: nullcontext(console.Silent()))
        if example.name == "ressl.export":
            small = {key: value for key, value in TINY.items() if key in get_type_hints(Recipe)}
            written_run(Path("runs/photos"), get_recipe("demo").replace(**small))
            return
        Path("photos").mkdir()
        for i, picture in enumerate(pixels(32)):
            Image.fromarray(picture).save(f"photos/{i:02d}.png")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Examples())


@pytest.fixture
def make_voc() -> Callable[[Path], Path]:
    """VOC2007 as its archives unpack, with few and small pictures."""

    def make(root: Path) -> Path:
        """Picture i shows class i % 20, the next class too if i is even, and something difficult of class i % 5."""
        base = root / "VOCdevkit" / "VOC2007"
        (base / "JPEGImages").mkdir(parents=True)
        (base / "ImageSets" / "Main").mkdir(parents=True)
        draw, number = np.random.default_rng(0), 0
        for part, count in {"trainval": 60, "test": 40}.items():
            names = []
            for _ in range(count):
                number += 1
                names.append(f"{number:06d}")
                picture = draw.integers(0, 256, (20 + number % 7, 24, 3), dtype=np.uint8)
                Image.fromarray(picture).save(base / "JPEGImages" / f"{number:06d}.jpg")
            main = base / "ImageSets" / "Main"
            (main / f"{part}.txt").write_text("".join(f"{name}\n" for name in names))
            for c, label in enumerate(VOC_CLASSES):
                value = lambda i, c=c: (
                    1 if c == i % 20 or (i % 2 == 0 and c == (i + 1) % 20) else 0 if c == i % 5 else -1
                )
                lines = [f"{name} {value(int(name)):2d}\n" for name in names]  # "000005 -1" and "000007  1"
                (main / f"{label}_{part}.txt").write_text("".join(lines))
        return root

    return make


@pytest.fixture
def model() -> tuple[torch.nn.Module, Transform]:
    """A small backbone and what it wants to see."""
    torch.manual_seed(0)
    backbone = build_backbone("resnet10", "medium", 4).eval()
    return backbone, Transform(16, 18, (0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an embedding, so that few pictures have several."""
    monkeypatch.setattr(embedding, "PART", 8)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        try:
            started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start here: {str(error).splitlines()[0]}")
        yield started
        started.close()


@pytest.fixture
def random_features(tmp_path: Path) -> Path:
    """1,000 rows around 20 centres, one of them zero, two of them equal."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(20, 16)).repeat(50, 0) + 0.5 * draw.normal(size=(1000, 16))
    rows[17], rows[500] = 0, rows[400]
    np.save(tmp_path / "r.npy", rows.astype(np.float32))
    return tmp_path / "r.npy"


@pytest.fixture
def run(tmp_path: Path, tiny: Callable[..., Recipe], array_file: Path, memory: type[Memory]) -> Run:
    """A short training on pictures in an array."""
    from ressl.pretraining import pretrain  # here, because it takes seconds to import

    return pretrain(tiny(data="array", seed=3), data=array_file, out=tmp_path / "run", device="cpu", display=memory())
