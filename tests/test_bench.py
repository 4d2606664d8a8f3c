"""The benchmark measures what it says; how fast this machine is, is not tested."""

import contextlib
import json
import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benched import CPU, toy
from ressl import cli
from ressl.bench import suite
from ressl.bench.linear import linear_speed
from ressl.bench.parts import Work, applies, loss_cost, work_of
from ressl.bench.phases import step_phases
from ressl.bench.steps import pictures, step_speed
from ressl.data.base import ArraySource
from ressl.engine.step import TrainStep
from ressl.errors import ResslError
from ressl.methods import ReSSL
from ressl.nn import build_backbone
from ressl.recipes import get_recipe
from ressl.reproduce.schema import misfit
from ressl.runs import build_method


def test_an_idea_is_measured_where_there_is_something_to_change():
    assert not applies("fused_pool", get_recipe("cifar10").stem)
    assert applies("fused_pool", get_recipe("tiny-imagenet").stem)
    assert applies("fused_norms", get_recipe("cifar10").stem)


def test_a_step_is_measured_by_the_recipes_own_step():
    row = step_speed(toy(), CPU, "auto", "fp32", 0.05)
    assert row["engine"] == "eager"
    assert row["images_per_second"] == pytest.approx(16 / row["milliseconds"] * 1000, rel=1e-2)
    assert row["peak_memory_gb"] is None
    assert "note" not in row
    assert "need a CUDA device" in step_speed(toy(), CPU, "graph", "fp32", 0.05)["note"]


def test_ratios_are_to_the_plain_way_and_files_hold_what_was_found(tmp_path):
    rows = [
        {"engine": "graph", "precision": "bf16", "batch": 8, "images_per_second": 30.0, "peak_memory_gb": 1.5},
        {"engine": "PIL", "precision": "fp32", "batch": 8, "images_per_second": 10.0},
    ]
    sweep = [{"batch_size": 8, "images_per_second": 5.0}, {"batch_size": 16, "images_per_second": 10.0}]
    found = {"name": "x", "started": "2026-01-02T03:04:05Z", "environment": {"device": "cpu"}}
    found |= {"engines": rows, "sweeps": {"batch_size": sweep}}
    (_, _, engines), (_, _, swept) = suite.tables(found)
    assert [(row.name, row.speed, row.ratio, row.memory) for row in engines] == [
        *(("graph, bf16", 30.0, 3.0, 1.5), ("PIL, fp32", 10.0, 1.0, None))
    ]
    assert [row.ratio for row in swept] == [1.0, 2.0]
    assert json.loads(suite.write(found, tmp_path).read_text()) == found


def test_pictures_are_smooth_and_repeatable():
    a, b = pictures(4, 32).images, pictures(4, 32).images
    assert torch.equal(a, b)
    assert (a[:, :, :, 1:].float() - a[:, :, :, :-1].float()).abs().mean() < 20


def test_an_unknown_part_offers_the_nearest():
    with pytest.raises(ResslError, match="did you mean 'engines'"):
        suite.bench(parts=("engine",), device=CPU, workers=0)


def test_the_arithmetic_of_a_step_is_four_forwards():
    """Teacher, student, and a backward that costs twice the student's forward (less the first layer's input)."""
    recipe = get_recipe("cifar10")
    forward = FlopCounterMode(display=False)
    backbone = build_backbone("resnet18", "small").eval()
    with forward, torch.no_grad():
        backbone(torch.zeros(2, 3, 32, 32))
    assert work_of(recipe).flops == pytest.approx(4 * forward.get_total_flops() / 2, rel=0.05)


def test_what_convolutions_must_move_is_counted_layer_by_layer():
    """What goes in and comes out: by the teacher, the student, to the gradient of its input and to that of its weight;
    nobody asks for the gradient of a picture.
    """
    recipe = toy()
    backbone, seen = build_method(recipe).backbone, []
    for part in backbone.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.register_forward_hook(lambda part, x, y: seen.append((x[0].numel() + y.numel(), part.weight.numel())))
    backbone(torch.zeros(2, 3, recipe.image_size, recipe.image_size))
    work = work_of(recipe)
    assert work.numbers == (4 * sum(moved for moved, _ in seen) - seen[0][0]) / 2
    assert work.weights == 4 * sum(weights for _, weights in seen) - seen[0][1]
    assert work.bytes_per_image(16, "bf16") == 2 * (work.numbers + work.weights / 16)
    assert work.bytes_per_image(16, "fp32") == 2 * work.bytes_per_image(16, "bf16")


def test_the_loss_is_measured_at_the_recipes_size():
    row = loss_cost(toy(), CPU, step_ms=50.0, seconds=0.02)
    assert (row["batch"], row["queue_size"]) == (16, 64)
    assert row["share_of_step"] == pytest.approx(row["milliseconds"] / 50.0, abs=1e-3)


def test_pieces_of_parts_are_measured_alone_and_kept_one_by_one(monkeypatch):
    kept = []

    def speed(recipe, *more):
        if (queue_size := recipe.options["queue_size"]) > 1024:
            raise KeyboardInterrupt
        return {"batch": 64, "images_per_second": float(queue_size), "precision": "fp32"}

    monkeypatch.setattr(suite, "ceilings", lambda *a: {"matrix_tflops": 2.0, "copy_tb_per_s": 0.5})
    monkeypatch.setattr(suite, "work_of", lambda recipe: Work(1e9, 2e7, 64e6))
    monkeypatch.setattr(suite, "step_speed", speed)
    keep = lambda found: kept.append(json.loads(json.dumps(found)))
    with pytest.raises(KeyboardInterrupt):
        suite.bench(parts=("sweeps:queue_size", "ceilings", "engines:eager"), device=CPU, workers=0, keep=keep)
    assert {"ceilings", "engines", "sweeps"} & set(kept[0]) == {"ceilings"}
    assert kept[-1]["engines"] == [
        {"batch": 64, "images_per_second": 1024.0, "precision": "fp32", "tflops": 1.024, "of_matrix_ceiling": 0.512}
        | {"tb_per_s": 0.086, "of_copy_ceiling": 0.172}  # 1,024 x 4 bytes x (2e7 + 64e6 / 64)
    ]
    (row,) = kept[-1]["sweeps"]["queue_size"]
    assert (row["queue_size"], row["images_per_second"]) == (1024, 1024.0)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_benchmark_that_is_stopped_has_a_plot_of_what_it_has(rows, tmp_path, monkeypatch):
    left = [{"engine": "eager", "precision": "fp32", "batch": 64, "images_per_second": 9.0}] * rows

    def speed(*args):
        if not left:
            raise KeyboardInterrupt
        return left.pop()

    monkeypatch.setattr(suite, "step_speed", speed)
    words = ["bench", "--parts", "engines:eager", "engines:compile", "--device", "cpu", "--into", str(tmp_path)]
    with contextlib.suppress(KeyboardInterrupt):
        cli.main(words)
    found = [*tmp_path.glob("*.json")]
    assert len(found) == len([*tmp_path.glob("*.png")]) == rows
    assert all(len(json.loads(path.read_text())["engines"]) == 1 for path in found)


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("engines:graf", "unknown piece of 'engines' 'graf'; did you mean 'graph'"),
        ("loss:x", "has no pieces"),
        ("engines:graph", "a CUDA graph needs a GPU, and there is none here"),
    ],
)
def test_an_unknown_piece_of_a_part_is_said(word, answer):
    with pytest.raises(ResslError, match=answer):
        suite.bench(parts=("ceilings", word), device=CPU, workers=0, say=lambda text: pytest.fail("too late"))


def test_a_profile_gives_every_phase_its_time(monkeypatch):
    """What makes one phase slower is found in that phase."""

    def slower(place, name, seconds):
        function = getattr(place, name)

        def slow(*args, **more):
            time.sleep(seconds)
            return function(*args, **more)

        monkeypatch.setattr(place, name, slow)

    slower(TrainStep, "make_views", 0.02)
    slower(ReSSL, "target", 0.03)
    slower(torch.Tensor, "backward", 0.04)
    slower(ReSSL, "after_step", 0.05)
    found = step_phases(toy(), CPU, 0.05)
    times = {row["phase"]: row["milliseconds"] for row in found["phases"]}
    assert list(times) == ["views", "forward", "backward", "optimiser and teacher"]
    assert [time >= least for time, least in zip(times.values(), (20, 30, 40, 50), strict=True)] == [True] * 4
    assert sum(row["share"] for row in found["phases"]) == pytest.approx(1, abs=1e-3)
    assert found["milliseconds"] == pytest.approx(sum(times.values()), abs=0.01)
    assert (found["engine"], found["batch"]) == ("eager", 16)


@pytest.mark.parametrize(("there", "side"), [(True, 32), (True, 16), (False, 32)])
def test_embedding_takes_the_recipes_own_pictures_where_they_are(
    there: bool, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(data: str, split: str, download: bool) -> ArraySource:
        assert (data, split, download) == ("cifar10", "train", False)
        if not there:
            raise ResslError("not here")
        return ArraySource("cifar10", torch.zeros(40, 3, side, side, dtype=torch.uint8))

    monkeypatch.setattr("ressl.bench.features.open_source", opened)
    found = suite.bench("cifar10", parts=("embed",), device=torch.device("cpu"), workers=0)["embed"]
    own = there and side == 32
    assert (found["data"], found["pictures"]) == (("cifar10", 40) if own else ("random", 512))


def test_embedding_is_timed_once_the_model_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    found = suite.bench("cifar10", parts=("embed",), device=torch.device("cpu"), workers=0)["embed"]
    assert (found["pictures"], found["side"], found["dim"]) == (512, 32, 64)
    assert found["images_per_second"] == pytest.approx(512 / found["seconds"], rel=0.05)
    assert "512 pictures to features" in capsys.readouterr().out


def test_epochs_of_the_linear_evaluation_are_timed() -> None:
    found = suite.bench("cifar10", parts=("linear",), device=CPU, workers=0, seconds=0.05)
    assert misfit(found) is None
    (row,) = found["linear"]
    assert row["hundred_epochs_seconds"] == pytest.approx(100 * row["pictures"] / row["images_per_second"], rel=0.01)
    ((title, _, rows),) = suite.tables(found)
    assert (title, rows[0][0], rows[0][2]) == ("linear evaluation", "all ideas", 1.0)
    no_resnet = get_recipe("cifar10").replace(backbone="timm/mobilenetv3_small_050", bn_groups=1)
    with pytest.raises(ResslError, match="measures ResNets"):
        next(linear_speed(no_resnet, CPU, 0.05))
