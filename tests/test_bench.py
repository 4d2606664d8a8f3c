"""The benchmark measures what it says; how fast this machine is, is not tested."""

import json
import time

import pytest
import torch

from ressl.bench import cost as costs
from ressl.bench import suite
from ressl.bench.loader import loader_speed
from ressl.bench.steps import pictures, pil_loader, step_speed
from ressl.bench.timing import seconds_per_call
from ressl.errors import ResslError
from ressl.recipes import get_recipe

CPU = torch.device("cpu")


def tiny():
    return suite.small(get_recipe("cifar10")).replace(width=4, batch_size=16, bn_groups=2, queue_size=64, image_size=16)


def test_the_clock_measures_a_known_pause():
    assert seconds_per_call(lambda: time.sleep(0.01), CPU, 0.2) == pytest.approx(0.01, rel=0.5)


def test_the_reference_makes_the_recipes_views():
    recipe = tiny()
    batches = list(pil_loader(recipe, 0, 40))
    assert len(batches) == 2  # an incomplete last batch is dropped
    assert all(view.shape == (16, 3, 16, 16) for batch in batches for view in batch)
    weak, strong = batches[0]
    assert abs(float(weak.mean())) < 5
    assert not torch.equal(weak, strong)


def test_a_step_is_measured_by_the_recipes_own_step():
    row = step_speed(tiny(), CPU, "auto", "fp32", 0.05)
    assert row["engine"] == "eager"
    assert row["images_per_second"] == pytest.approx(16 / row["milliseconds"] * 1000, rel=1e-2)
    assert row["peak_memory_gb"] is None


def test_ratios_are_to_the_plain_way_and_files_hold_what_was_found(tmp_path):
    rows = [
        {"engine": "graph", "precision": "bf16", "batch": 8, "images_per_second": 30.0, "peak_memory_gb": 1.5},
        {"engine": "PIL", "precision": "fp32", "batch": 8, "images_per_second": 10.0},
    ]
    sweep = [{"batch_size": 8, "images_per_second": 5.0}, {"batch_size": 16, "images_per_second": 10.0}]
    found = {"name": "x", "started": "2026-01-02T03:04:05Z", "environment": {"device": "cpu"}}
    found |= {"engines": rows, "sweeps": {"batch_size": sweep}}
    (_, _, engines), (_, _, swept) = suite.tables(found)
    assert engines == [("graph, bf16", 30.0, 3.0, 1.5), ("PIL, fp32", 10.0, 1.0, None)]
    assert [ratio for _, _, ratio, _ in swept] == [1.0, 2.0]
    assert json.loads(suite.write(found, tmp_path).read_text()) == found


def test_pictures_are_smooth_and_repeatable():
    a, b = pictures(4, 32).images, pictures(4, 32).images
    assert torch.equal(a, b)
    assert (a[:, :, :, 1:].float() - a[:, :, :, :-1].float()).abs().mean() < 20


def test_an_unknown_part_offers_the_nearest():
    with pytest.raises(ResslError, match="did you mean 'engines'"):
        suite.bench(parts=("engine",), device=CPU, workers=0)


def test_the_loader_is_measured_with_and_without_a_step():
    rows = loader_speed(tiny(), CPU, 0, 0.05)
    assert [row["loader"].split(":")[0].split(",")[0] for row in rows] == [
        *("whole files decoded", "loader", "step fed by the loader", "step on resident pictures")
    ]
    assert all(row["images_per_second"] > 0 for row in rows)
    assert rows[-1]["share_of_step"] == 1.0


def test_the_cost_table_measures_every_method_there_is(monkeypatch):
    monkeypatch.setattr(costs, "METHODS", {"ressl": None})
    left_out = []
    found = costs.cost(CPU, 0.02, say=left_out.append)
    assert [row["name"] for row in found["rows"]] == ["ReSSL", "ReSSL (4 crops)", "ReSSL (5 crops)"]
    assert sum("left out" in text for text in left_out) == 3
    for row in found["rows"]:
        assert row["hours_per_epoch"] == pytest.approx(1281167 / row["images_per_second"] / 3600)
    speeds = [row["images_per_second"] for row in found["rows"]]
    assert speeds[0] > speeds[1] > speeds[2]  # more crops, more work
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
