"""What every method must do, one test for all: train, resume to the bit, and compute the same on two processes."""

from __future__ import annotations

import math
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from ressl.checkpoints import Checkpoint
from ressl.cli import main
from ressl.console import Silent
from ressl.engine.loop import Rhythm
from ressl.engine.optimisers import build_optimiser, set_lr
from ressl.engine.signals import Interrupted
from ressl.errors import ResslError
from ressl.methods import METHODS
from ressl.nn import l2_normalize
from ressl.nn.processes import my_rows
from ressl.pretraining import pretrain
from ressl.recipes import Recipe, get_recipe, method_options
from ressl.runs import Run, build_method

PICTURES = 72
SMALL: dict[str, Any] = {
    **{"backbone": "resnet10", "width": 4, "image_size": 16, "batch_size": 16, "epochs": 3, "warmup_epochs": 0.5},
    **{"knn_every": 0, "knn_k": 5, "seed": 3},
}
OPTIONS: dict[str, Any] = {
    **{"hidden_dim": 16, "output_dim": 8, "queue_size": 32, "bank_size": PICTURES, "num_classes": 3, "negatives": 32},
    **{"predictor_dim": 4, "prototypes": 6, "background": 24, "clusters": 5, "cluster_from": 0.3, "hardest": 8},
    **{"mixed": 8, "mixed_with_query": 4, "granularities": (3, 6), "teacher_width": 4, "teacher_hidden_dim": 16},
}
SHARED = [name for name in METHODS if name != "ressl"]  # it has its own test; SEED's teacher is untrained there


def small(method: str, **changes: Any) -> Recipe:
    options = {name: value for name, value in OPTIONS.items() if name in method_options(method)}
    return get_recipe("demo").replace(method=method, **(SMALL | {"data": "array"} | options | changes))


def tensors(run: Run) -> dict[str, Tensor]:
    return run.checkpoint().tensors


# --- training and resuming ---


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """A trained MoCo v2, for SEED to learn from."""
    out = tmp_path_factory.mktemp("teacher") / "run"
    pretrain(small("moco-v2", epochs=1), data=pictures, out=out, device="cpu", display=Silent())
    return out


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "pictures.npz"
    images = np.random.default_rng(0).integers(0, 120, (PICTURES + 12, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(len(images)) % 3
    for i, c in enumerate(labels):
        images[i, :, :, c] += 130
    np.savez(
        path, x_train=images[:PICTURES], y_train=labels[:PICTURES], x_test=images[PICTURES:], y_test=labels[PICTURES:]
    )
    return path


@pytest.mark.parametrize("name", METHODS)
def test_a_run_stopped_in_the_middle_equals_an_undisturbed_one(
    name: str, tmp_path: Path, pictures: Path, memory: Any, request: pytest.FixtureRequest
) -> None:
    """Stopped inside the second epoch, behind the first clusters; every tensor of the end is equal to the bit."""
    changes = {"teacher": str(request.getfixturevalue("teacher"))} if name == "seed" else {}
    recipe = small(name, **changes)
    rhythm = Rhythm(log_steps=1, checkpoint_minutes=1e9)
    kind: dict[str, Any] = {"data": pictures, "device": "cpu", "rhythm": rhythm}
    whole = pretrain(recipe, out=tmp_path / "a", display=memory(), **kind)
    with pytest.raises(Interrupted):
        pretrain(recipe, out=tmp_path / "b", display=memory(6, lambda: signal.raise_signal(signal.SIGINT)), **kind)
    parts = pretrain(out=tmp_path / "b", resume=True, display=memory(), device="cpu", rhythm=rhythm)
    one, two = tensors(whole), tensors(parts)
    assert one.keys() == two.keys()
    for key, tensor in one.items():
        assert torch.equal(tensor, two[key]), key
    before = {f"method.{key}": value for key, value in build_method(recipe).state_dict().items()}
    assert any(not torch.equal(before[key], one[key]) for key in before if key.startswith("method.backbone."))
    assert len(whole.curve("knn")) == 1  # its backbone can be measured


def test_seed_without_a_teacher_says_what_it_needs(tmp_path: Path, pictures: Path, memory: Any) -> None:
    for place, says in (("", "was not named"), (str(tmp_path / "none"), "there is no checkpoint in")):
        with pytest.raises(ResslError, match=rf"{says}.*--teacher RUN"):
            pretrain(small("seed", teacher=place), data=pictures, out=tmp_path / "run", device="cpu", display=memory())
        assert not (tmp_path / "run").exists()  # the command with a teacher may take the same place


def test_seed_keeps_its_teacher_as_it_was_and_can_be_opened_without_it(
    tmp_path: Path, pictures: Path, memory: Any, teacher: Path
) -> None:
    recipe = small("seed", teacher=str(teacher), epochs=1)
    run = pretrain(recipe, data=pictures, out=tmp_path / "run", device="cpu", display=memory())
    end, start = tensors(run), tensors(Run.open(teacher))
    for key, value in start.items():
        if key.startswith("method.backbone."):
            assert torch.equal(end[key.replace("method.backbone.", "method.frozen.0.")], value), key
    (run.path / "recipe.json").write_text(recipe.replace(teacher="moved away").to_json())
    assert Run.open(run.path).backbone() is not None


def test_seed_names_a_teacher_of_another_shape(teacher: Path) -> None:
    for changes in ({"teacher_width": 8}, {"teacher_backbone": "resnet18"}):
        with pytest.raises(ResslError, match="another network than teacher_backbone") as caught:
            build_method(small("seed", teacher=str(teacher), **changes))
        assert len(str(caught.value).removeprefix(str(teacher))) < 400  # the first of its tensors, not all


@pytest.mark.parametrize("name", ["moco-v2", "byol", "simsiam", "swav", "instdisc"])
def test_seed_reads_the_network_of_its_teacher_from_the_run(name: str, make_run: Callable[..., Run]) -> None:
    """One of each kind of head; its embeddings are those of the teacher."""
    run = make_run(method=name, backbone="resnet18", width=8, stem="imagenet", output_dim=12)
    options = METHODS["seed"].completed({"teacher": str(run.path)}, ())
    assert (options["output_dim"], options["teacher_backbone"]) == (12, "resnet18")
    seed: Any = build_method(small("seed").replace(options=options)).train()
    theirs: Any = build_method(run.recipe).eval()
    theirs.load_state_dict(run.checkpoint().part("method."))
    images = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = l2_normalize(theirs.head(theirs.backbone(images)))
        torch.testing.assert_close(seed.target(images), expected)
    assert expected.std() > 0.01


def test_seed_passes_over_a_damaged_checkpoint_of_its_teacher(make_run: Callable[..., Run]) -> None:
    """One flipped bit in a weight is noticed; the checkpoint before is used and the damaged one named."""
    run = make_run("flipped", output_dim=12, epochs=2)
    older = run.checkpoint()
    newer = run.checkpoints.save(
        10**6, Checkpoint({n: t + 1 for n, t in older.tensors.items()}, older.facts | {"step": 10**6})
    )
    data = bytearray(newer.read_bytes())
    data[-9] ^= 4
    newer.write_bytes(data)
    named = rf"{newer.name} is damaged.*the one before"
    with pytest.warns(UserWarning, match=named):
        options = METHODS["seed"].completed({"teacher": str(run.path)}, ())
    with pytest.warns(UserWarning, match=named):
        seed: Any = build_method(recipe := small("seed").replace(options=options))
    key = "conv1.weight"
    assert torch.equal(seed.frozen[0].state_dict()[key], older.tensors[f"method.backbone.{key}"])
    for path in run.checkpoints.paths():
        path.write_bytes(b"")
    with pytest.raises(ResslError, match=r"no checkpoint in .* can be used"):
        build_method(recipe)


def test_seed_says_what_contradicts_its_teacher_or_cannot_teach(make_run: Callable[..., Run], pictures: Path) -> None:
    kind: dict[str, Any] = {"method": "seed", "data": pictures, "device": "cpu", "display": Silent()}
    with pytest.raises(ResslError, match=r"has teacher_backbone 'resnet10', not 'resnet34'; leave that option out"):
        pretrain(teacher=str(make_run("other").path), teacher_backbone="resnet34", **kind)
    with pytest.raises(ResslError, match=r"the supervised run .* has none; take a run of another method"):
        pretrain(teacher=str(make_run("bare", method="supervised").path), **kind)


def test_a_bank_or_classifier_of_the_wrong_size_names_the_fix(tmp_path: Path, pictures: Path, memory: Any) -> None:
    for name, changes, says in (
        ("instdisc", {"bank_size": 70}, "--bank-size 72"),
        ("supervised", {"num_classes": 2}, "--num-classes 3"),
    ):
        with pytest.raises(ResslError, match=says):
            pretrain(small(name, **changes), data=pictures, out=tmp_path / name, device="cpu", display=memory())
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("instdisc", None),
        ("localagg", "of 72 pictures, 72 background neighbours and 18 clusters are taken"),
        ("pcl-v2", "of 72 pictures, (18, 18, 18) clusters are made, not (250, 500, 1000)"),
        ("supervised", None),
    ],
)
def test_what_nobody_names_is_taken_from_the_data(
    name: str, says: str | None, tmp_path: Path, pictures: Path, memory: Any
) -> None:
    left = ("bank_size", "num_classes", "background", "clusters", "granularities")
    mine = {key: value for key, value in OPTIONS.items() if key in method_options(name) and key not in left}
    base = get_recipe("tiny-imagenet").replace(data="array", **(SMALL | {"epochs": 2}))
    display = memory()
    run = pretrain(base, method=name, **mine, data=pictures, out=tmp_path / "run", device="cpu", display=display)
    assert run.recipe.options.get("bank_size", PICTURES) == PICTURES
    assert run.recipe.options.get("num_classes", 3) == 3
    assert says is None or says in display.said
    assert all(math.isfinite(loss) for _, loss in run.curve("loss"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("cpc-v2 --rows-ahead 9", "too few to predict 9 rows ahead; lower --rows-ahead"),
        ("cpc-v2 --patch 64", "a patch of 64 px does not fit into a view of 16 px; lower --patch"),
        ("cpc-v2 --stride 0", "stride must be at least 1, not 0"),
        ("simsiam --projector-layers 0", "projector_layers must be at least 1, not 0"),
        ("cpc-v2 --backbone timm/vit_tiny_patch16_224", "choose another --backbone or --image-size"),
        ("ressl --backbone timm/vit_tiny_patch16_224", "choose another --backbone or --image-size"),
    ],
)
def test_what_cannot_be_trained_is_said_in_a_sentence_before_anything_is_written(
    words: str, says: str, tmp_path: Path, pictures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--data", str(pictures), "--out", str(tmp_path / "run"), "--device", "cpu", "--quiet"]
    assert main(["pretrain", *where, "--image-size", "16", "--method", *words.split()]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


# --- what a step costs ---


@pytest.mark.parametrize("name", [name for name in METHODS if name != "cpc-v2"])  # it sees patches of one view
def test_the_views_that_go_through_a_network_are_counted(name: str) -> None:
    """As 'ressl methods' lists them: all of them, and those with a gradient."""
    recipe = small(name)
    method = build_method(recipe).train()
    seen: list[tuple[int, bool]] = []
    for module in method.modules():
        if hasattr(module, "features_dim"):
            module.register_forward_hook(lambda _, images, z: seen.append((len(images[0]), z.requires_grad)))
    given = {"index": torch.arange(16), "labels": torch.arange(16) % 3}
    views = [torch.randn(16, 3, view.size, view.size) for view in recipe.views]
    method(views, **{want: given[want] for want in method.wants})
    assert sum(rows for rows, _ in seen) == 16 * method.forwards
    assert sum(rows for rows, learns in seen if learns) == 16 * method.backprops


# --- two processes ---


def train_alike(name: str, world: int, steps: int = 3) -> dict[str, Tensor]:
    """A few steps on a fixed batch in float64, this process's rows of it; gradients are averaged over processes."""
    recipe = small(name, bn_groups=2 // world, batch_size=16, lr=0.05)
    method = build_method(recipe).double().train()
    optimiser = build_optimiser(
        recipe.optimiser, method, momentum=0.9, weight_decay=1e-3, decay_norm_and_bias=recipe.decay_norm_and_bias
    )
    set_lr(optimiser, torch.tensor(0.1))
    draw = torch.Generator().manual_seed(0)
    for step in range(steps):
        method.set_progress(torch.tensor(step / steps, dtype=torch.float64))
        if step == 1:
            method.begin_epoch(1)
        sizes = [view.size for view in recipe.views]
        views = [my_rows(torch.randn(16, 3, s, s, dtype=torch.float64, generator=draw)) for s in sizes]
        given = {"index": torch.randperm(PICTURES, generator=draw)[:16], "labels": torch.arange(16) % 3}
        output = method(views, **{want: my_rows(given[want]) for want in method.wants})
        output.loss.backward()
        for group in optimiser.param_groups:
            for p in group["params"]:
                if world > 1 and p.grad is not None:
                    dist.all_reduce(p.grad)
                    p.grad /= world
        optimiser.step()
        optimiser.zero_grad()
        method.after_step(output.carry)
    return {key: value for key, value in method.state_dict().items() if "running" not in key and "tracked" not in key}


def _worker(rank: int, world: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for name in SHARED:
        state = train_alike(name, world)
        if rank == 0:
            torch.save(state, Path(folder, f"{name}.pt"))
    dist.barrier()
    os._exit(0)  # gloo, taken apart at the end of a process, now and then aborts it


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Tensor]]:
    """What two processes made of every method; started once for all of them."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(_worker, (2, port, str(folder)), nprocs=2)
    return lambda name: torch.load(folder / f"{name}.pt")


@pytest.mark.parametrize("name", SHARED)
def test_two_processes_are_one_with_two_groups(name: str, shared: Callable[[str], dict[str, Tensor]]) -> None:
    """Weights, teacher, queue, bank, clusters and prototypes after three steps."""
    two, one = shared(name), train_alike(name, 1)
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-6, atol=1e-9, msg=lambda m, k=key: f"{k}: {m}")
