"""The cost table: every method there is, and the paper's ratios."""

import pytest

from benched import CPU
from ressl.bench import cost as costs
from ressl.recipes import get_recipe


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
