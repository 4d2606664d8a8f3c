"""The benchmark measures what it says; how fast this machine is, is not tested."""

import contextlib
import json
import tarfile
import time
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ressl import cli
from ressl.bench import cost as costs
from ressl.bench import loader, steps, suite
from ressl.bench.linear import linear_speed
from ressl.bench.loader import loader_speed
from ressl.bench.parts import Work, applies, loss_cost, work_of
from ressl.bench.phases import step_phases
from ressl.bench.steps import pictures, pil_batches, pil_loader, reference_speed, step_speed
from ressl.bench.timing import as_torch_comes, in_stock, timed
from ressl.data.base import ArraySource
from ressl.engine.step import TrainStep
from ressl.errors import ResslError
from ressl.methods import ReSSL
from ressl.nn import build_backbone
from ressl.recipes import get_recipe
from ressl.reproduce.schema import misfit
from ressl.runs import build_method

CPU = torch.device("cpu")


def tiny():
    return suite.small(get_recipe("cifar10")).replace(width=4, batch_size=16, bn_groups=2, queue_size=64, image_size=16)


def test_the_clock_measures_a_known_pause(monkeypatch):
    """By a clock of its own: on a busy machine a pause takes as long as it takes."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr("ressl.bench.timing.time", clock)
    pauses = iter([9.0, 9.0, *[0.01] * 9, *[0.07] * 4, *[0.01] * 100])  # warming up, and one stretch that is disturbed

    def pause():
        clock.now += next(pauses)

    found = timed(pause, CPU, 0.2)
    assert found.median == pytest.approx(0.01)
    assert found.spread == pytest.approx(6.0)  # 70 ms against 10
    assert len(list(pauses)) == 100 - 2 * 4  # five stretches of four


def test_the_reference_makes_the_recipes_views():
    recipe = tiny()
    batches = list(pil_loader(recipe, 0, 40))
    assert len(batches) == 2  # an incomplete last batch is dropped
    assert all(view.shape == (16, 3, 16, 16) for batch in batches for view in batch)
    weak, strong = batches[0]
    assert abs(float(weak.mean())) < 5
    assert not torch.equal(weak, strong)


def test_an_epoch_of_the_reference_has_no_end(monkeypatch):
    """Where it ended, workers would start anew."""
    made = []
    monkeypatch.setattr(steps, "pil_loader", lambda recipe, workers, pictures: made.append(pictures) or [0, 1, 2])
    batches = pil_batches(tiny(), 2)
    assert [next(batches) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert made == [steps.STEPS * 16]  # one loader, over and over


def test_what_lay_in_stock_is_used_up_by_steps_before_the_clock_starts(monkeypatch):
    """The first steps take longer, and workers fill the stock meanwhile: from there batches would come for nothing."""
    recipe, taken, clock = tiny(), [], []
    batch = torch.zeros(16, 3, 16, 16), torch.zeros(16, 3, 16, 16)
    monkeypatch.setattr(steps, "pil_batches", lambda *args: iter(lambda: taken.append(1) or batch, 0))
    monkeypatch.setattr(steps, "seconds_of_one", lambda step, *args: clock.append(len(taken)) or step() or 1.0)
    assert reference_speed(recipe, CPU, 3, 0.01)["images_per_second"] == 16.0
    assert clock == [in_stock(3)]
    assert len(taken) == in_stock(3) + 1


def test_the_reference_is_as_torch_comes_and_leaves_it_as_it_was():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with as_torch_comes():
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.backends.cudnn.benchmark
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    row = reference_speed(tiny(), CPU, 0, 0.01)
    assert row["images_per_second"] > 0


def test_an_idea_is_measured_where_there_is_something_to_change():
    assert not applies("fused_pool", get_recipe("cifar10").stem)
    assert applies("fused_pool", get_recipe("tiny-imagenet").stem)
    assert applies("fused_norms", get_recipe("cifar10").stem)


def test_a_step_is_measured_by_the_recipes_own_step():
    row = step_speed(tiny(), CPU, "auto", "fp32", 0.05)
    assert row["engine"] == "eager"
    assert row["images_per_second"] == pytest.approx(16 / row["milliseconds"] * 1000, rel=1e-2)
    assert row["peak_memory_gb"] is None
    assert "note" not in row
    assert "need a CUDA device" in step_speed(tiny(), CPU, "graph", "fp32", 0.05)["note"]


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
    recipe = tiny()
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
    row = loss_cost(tiny(), CPU, step_ms=50.0, seconds=0.02)
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
        ("engines:launch", "the kernels of engine launch need a GPU, and there is none here"),
    ],
)
def test_an_unknown_piece_of_a_part_is_said(word, answer):
    with pytest.raises(ResslError, match=answer):
        suite.bench(parts=("ceilings", word), device=CPU, workers=0, say=lambda text: pytest.fail("too late"))


def test_the_loader_is_measured_with_and_without_a_step():
    rows = [*loader_speed(tiny(), CPU, 0, 0.05)]
    assert [row["loader"].split(":")[0].split(",")[0] for row in rows] == [
        *("step on resident pictures", "whole files decoded", "loader", "step fed by the loader")
    ]
    assert all(row["images_per_second"] > 0 for row in rows)
    assert rows[0]["share_of_step"] == 1.0


def test_the_loader_streams_the_files_it_is_given_and_idle_is_what_the_step_waits(tmp_path, make_folder, monkeypatch):
    """So few small pictures would lie on the device, were they not to be streamed; and an epoch of them is long."""
    seen = []

    class Slow(loader.StreamingLoader):
        def __init__(self, source, *more):
            super().__init__(source, *more)
            seen.append(len(source))

        def iterate(self, epoch, start_step=0):
            for batch in super().iterate(epoch, start_step):
                time.sleep(0.15)
                yield batch

    folder, recipe = make_folder(n=12), tiny()
    monkeypatch.setattr(loader, "StreamingLoader", Slow)
    monkeypatch.setattr(loader, "STEPS", 10)
    monkeypatch.setattr(suite, "small", lambda named: recipe)
    kept, keep = [], lambda found: kept.append(len(found["loader"]))
    found = suite.bench("cifar10", parts=("loader",), device=CPU, workers=0, seconds=0.05, data=str(folder), keep=keep)
    assert kept[:4] == [1, 2, 3, 4]  # who stops it keeps what was measured
    resident, decoded, streamed, fed = found["loader"]
    assert {row["files"].split(",")[0] for row in (decoded, streamed, fed)} == {"12 files of photos"}
    assert seen == [168, 168]  # ten batches of 16, of whole rounds
    assert str(tmp_path) not in json.dumps(found)
    assert misfit(found) is None
    assert 0.5 < fed["idle_share"] < 1
    assert fed["share_of_step"] == pytest.approx(fed["images_per_second"] / resident["images_per_second"], abs=1e-3)
    (_, _, rows), *_ = suite.tables(found)
    assert rows[3][0] == f"step fed by the loader (device idle {100 * fed['idle_share']:.0f} %)"


def test_batches_that_lay_ready_are_not_measured(monkeypatch):
    """While a step is compiled the workers fill their queue; taken from there, any loader looks fast."""
    taken, clock = [], []
    monkeypatch.setattr(loader, "_batches", lambda made: iter(lambda: taken.append(1), 0))
    monkeypatch.setattr(loader, "seconds_of_one", lambda call, *more: clock.append(len(taken)) or 1.0)
    recipe = tiny()
    loader._stream(recipe, pictures(64, 16), CPU, 3, 0.0)
    assert clock == [8]


def test_shards_are_read_as_their_files_are(tmp_path, make_folder):
    paths = sorted(make_folder(n=4).rglob("*.*"))
    paths = [path for path in paths if path.is_file()]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for path in paths:
            tar.add(path, path.name)
    source = loader.files_of(str(tmp_path / "a.tar"))
    assert [source.raw(i) for i in range(len(source))] == [path.read_bytes() for path in paths]
    again = loader.Repeated(source, 6)
    assert len(again) == 8
    assert (again.read(5) == source.read(1)).all()
    assert again.identify(5) == source.identify(1)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--parts", "loss", "--data", "."], "--data is read by the part 'loader' alone; add it to --parts"),
        (["--parts", "loader", "--data", "shapes"], "shapes holds no picture files to read"),
        (["--parts", "loader", "--data", "nowhere"], "there is no folder nowhere"),
    ],
)
def test_data_that_nothing_reads_is_a_mistake(asked, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "--device", "cpu", *asked]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


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
    found = step_phases(tiny(), CPU, 0.05)
    times = {row["phase"]: row["milliseconds"] for row in found["phases"]}
    assert list(times) == ["views", "forward", "backward", "optimiser and teacher"]
    assert [time >= least for time, least in zip(times.values(), (20, 30, 40, 50), strict=True)] == [True] * 4
    assert sum(row["share"] for row in found["phases"]) == pytest.approx(1, abs=1e-3)
    assert found["milliseconds"] == pytest.approx(sum(times.values()), abs=0.01)
    assert (found["engine"], found["batch"]) == ("eager", 16)


def test_the_cost_table_measures_every_method_there_is(monkeypatch):
    monkeypatch.setattr(costs, "METHODS", {"ressl": None})
    left_out, kept = [], []
    found = costs.cost(CPU, 0.02, say=left_out.append, keep=lambda found: kept.append(len(found["rows"])))
    assert kept == [1, 2, 3]
    assert [row["name"] for row in found["rows"]] == ["ReSSL", "ReSSL (4 crops)", "ReSSL (5 crops)"]
    assert sum("left out" in text for text in left_out) == 3
    for row in found["rows"]:
        assert row["hours_per_epoch"] == pytest.approx(1281167 / row["images_per_second"] / 3600)
    speeds = [row["images_per_second"] for row in found["rows"]]
    assert speeds[0] > speeds[2]  # more crops, more work (by so much that a busy machine does not hide it)
    assert len(get_recipe("imagenet-r50-4crops").views) == 5


def test_cost_ratios_are_times_ours_and_the_papers():
    paper = {"MoCo v2": 2.25, "ReSSL": 2.33, "SimCLR": 3.55, "ReSSL (4 crops)": 3.62}
    rows = [{"name": n, "hours_per_epoch": 2 * h, "paper": {"hours_per_epoch": h}} for n, h in paper.items()]
    rows[1]["hours_per_epoch"] = 4.5
    assert costs.ratios(rows) == [
        {"ratio": "ReSSL / MoCo v2", "ours": 1.0, "paper": 1.036},
        {"ratio": "ReSSL (4 crops) / SimCLR", "ours": 1.02, "paper": 1.02},
    ]
    assert costs.ratios(rows[1:]) == costs.ratios(rows)[1:]


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
