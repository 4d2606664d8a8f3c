"""docs/PERFORMANCE.md and the targets, from what the benchmark writes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_page_and_the_targets_read_what_the_bench_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record as it would be made on a GPU, its numbers invented."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    performance = importlib.import_module("performance")
    step = {"engine": "graph", "precision": "bf16", "batch": 256, "images_per_second": 56_000.0, "start_seconds": 9.0,
            "peak_memory_gb": 1.6, "step_memory_gb": 1.3, "data_memory_gb": 0.2}  # fmt: skip
    step |= {"of_matrix_ceiling": 0.4, "of_copy_ceiling": 0.1, "spread": 0.02, "note": "as it is here"}
    plain = step | {"engine": "PIL workers, eager", "precision": "fp32", "images_per_second": 8_000.0, "spread": 0.03}
    record = {
        "schema": 1, "kind": "bench", "name": "cifar10", "started": "2026-01-01T00:00:00Z",
        "recipe": {"batch_size": 256, "stem": "small"},
        "environment": {"device": "cuda", "gpu": "H200", "torch": "2.11"},
        "ceilings": {"matrix_tflops": 700.0, "copy_tb_per_s": 4.0}, "engines": [step, plain],
        "ideas": [{"ideas": "all ideas", **step},
                  {"ideas": "without fused norms", **step, "images_per_second": 50_000.0},
                  {"ideas": "without tried convolutions", **step, "images_per_second": 51_000.0},
                  {"ideas": "without tried convolutions", "apart": True, **step, "images_per_second": 49_000.0},
                  {"ideas": "without fused pool", **step, "images_per_second": 55_500.0},  # there is none
                  {"ideas": "without stem product", **step, "images_per_second": 56_100.0},
                  {"ideas": "without fused update", **step, "images_per_second": 50_000.0},
                  {"ideas": "with inside pixels", "dropped": True, **step, "images_per_second": 56_560.0},
                  {"ideas": "four steps per replay", "dropped": True, "against": "without fused update", **step,
                   "images_per_second": 55_000.0}],
        "gflops_per_image": 4.0,
        "linear": [{"linear": "all ideas", "pictures": 50_000, "hundred_epochs_seconds": 10.0,
                    "images_per_second": 350_000.0},
                   {"linear": "with inside pixels", "pictures": 50_000, "hundred_epochs_seconds": 8.0},
                   {"linear": "without our kernel", "pictures": 50_000, "hundred_epochs_seconds": 12.5}],
        "sweeps": {"batch_size": [{"batch_size": 1024, **step, "images_per_second": 70_000.0}]},
    }  # fmt: skip
    cold = {"kind": "cold", "name": "cifar10", "started": "2026-01-01T00:00:00Z", "seconds": 211.0, "pictures": 10**7,
            "training_seconds": 190.0, "images_per_second": 62_500.0, "environment": record["environment"],
            "linear": {"last": 90.25, "best": 90.5, "seconds": 15.0, "start_seconds": 5.5}}  # fmt: skip
    (tmp_path / "bench-cifar10-cuda-x.json").write_text(json.dumps(record))
    (tmp_path / "cold-cifar10-cuda-x.json").write_text(json.dumps(cold))
    assert performance.page(ROOT / "results") == (ROOT / "docs" / "PERFORMANCE.md").read_text(encoding="utf-8")
    text = performance.page(tmp_path)
    assert "| CIFAR-10, batch 256, images/s | 56,000 | >= 55,000 | met | ? |" in text
    assert "| CIFAR-10, batch 1024, images/s | 70,000 | >= 80,000 | missed | ? |" in text
    assert "| ResNet-50, share of the loss |  | <= 0.02 | not measured |  |" in text
    assert "| 50,000 | +12.0 % | kept |" in text
    assert "100 epochs of linear evaluation on 50,000 random pictures: 10.00 s, without its start" in text
    assert "A forward is 1.00 GFLOP" in text.replace("\n", " ")
    assert "That is 350 TFLOP/s, 50.0 % of the ceiling; by all of it, 5.0 s." in text.replace("\n", " ")
    assert "| 56,100 | -0.2 % | kept; not faster this time |" in text
    assert "| 12.50 | +25.0 % | kept |" in text
    assert "| 8.00 | +25.0 % | off |" in text
    assert "| 56,560 | +1.0 % | off |" in text
    assert "without fused update, which it could not have then, +10.0 % |  | 55,000 | -1.8 % | dropped |" in text
    assert "55,500" not in text
    assert "paired pixels (expected +1 %" in text.split("Not measured in this step yet")[1].replace("\n", " ")
    assert "| 49,000 | +14.3 % | kept |" in text
    assert "51,000" not in text  # in one process with the others it says nothing
    assert "| CIFAR-10 from nothing to its linear accuracy, s | 211.0 | <= 220 | met | ? |" in text
    assert "| linear evaluation of such a run (CIFAR-10 or CIFAR-100), 100 epochs, s | 15.00 | <= 10 | missed |" in text
    assert "| the same without its start, s | 9.50 | <= 10 | met | ? |" in text
    assert (
        "| 100 epochs alone, of random pictures (`ressl bench --parts linear`), s | 10.00 | <= 10 | met | ? |" in text
    )
    assert "each started its workers" in text.replace("\n", " ")
    pil = {"views": "PIL, 16 workers", "batch": 256, "images_per_second": 7_000.0}
    for steady in ({}, {"steady": True}):
        told = "\n".join(performance.of_views({"views": [pil | {"views": "ours"}, pil | steady]}))
        assert ("each started its workers" in told.replace("\n", " ")) != bool(steady)
    assert "| - of which at 62,500 images/s | 160.0 |" in text
    assert "| graph, bf16 | 56,000 | 7.00 | 1.30 | 9.0 | 40.0 % | 10.0 % |" in text
    assert "Five stretches each (but one of PIL's), which lie 3.0 % apart at most (PIL workers, eager, fp32)." in text
    assert "graph, bf16: as it is here." in text
    short = record | {"started": "2026-01-02T00:00:00Z", "engines": [step | {"images_per_second": 57_000.0}]}
    full = record | {"engines": [step, step | {"engine": "eager"}, plain]}
    for name, made in (("y", short), ("x", full)):
        (tmp_path / f"bench-cifar10-cuda-{name}.json").write_text(json.dumps(made))
    both = performance.page(tmp_path)  # what the newest did not measure stands below, from the one before
    assert both.index("| graph, bf16 | 57,000 |") < both.index("| eager, bf16 | 56,000 |")
    assert performance.page(tmp_path).count("| graph, bf16 |") == 2
    before = cold | {"started": "2025-01-01T00:00:00Z", "training_seconds": 200.0, "seconds": 230.0}
    (tmp_path / "cold-cifar10-cuda-w.json").write_text(json.dumps(before))
    found = {"kind": "pretrain", "name": "cifar10", "recipe": {"epochs": 200, "batch_size": 256, "method": "moco-v2"},
             "seed": 0, "commit": "abc", "jobs": 1, "finished": "2026-01-03", "seconds": 175.0, "steps": 39_062,
             "images_per_second": 62_500.0, "environment": record["environment"],
             "evaluations": {"linear": {"seconds": 11.0, "start_seconds": 0.9}}}  # fmt: skip
    for i, other in enumerate(({}, {"jobs": 2}, {"finished": "2024-01-01"}, {"name": "demo"})):
        (tmp_path / f"cifar10-{i}.json").write_text(json.dumps(found | other))
    hundred = cold | {"name": "cifar100", "started": "2025-06-01T00:00:00Z", "seconds": 220.0}
    (tmp_path / "cold-cifar100-cuda-w.json").write_text(json.dumps(hundred))
    rows = performance.page(tmp_path).split("All such runs")[1].splitlines()[5:9]
    assert rows == [
        "| made anew | ? | cifar10 | ressl | 211.0 | 62,500 | 30.0 | 15.0 | 5.5 |",
        "| made anew | ? | cifar100 | ressl | 220.0 | 62,500 | 30.0 | 15.0 | 5.5 |",
        "| made anew | ? | cifar10 | ressl | 230.0 | 62,500 | 40.0 | 15.0 | 5.5 |",
        "| as found | abc | cifar10 | moco-v2 |  | 62,500 | 15.0 | 11.0 | 0.9 |",
    ]
    drawn = performance.picture(tmp_path, tmp_path / "new" / "x.png")
    assert drawn.read_bytes()[:4] == b"\x89PNG"
    parts = performance.newest_parts(tmp_path, "cifar10")  # each engine as it was last measured
    assert [(row["engine"], row["images_per_second"]) for row in parts["engines"]] == [
        *(("graph", 57_000.0), ("eager", 56_000.0), ("PIL workers, eager", 8_000.0))
    ]
    assert performance.picture(tmp_path / "new", tmp_path / "y.png") is None


def test_targets_of_cost_and_files_are_read_from_the_newest_record_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    targets = importlib.import_module("targets")
    crops, files = (
        "ReSSL with 4 crops / SimCLR",
        "ResNet-50 fed from JPEG files, share of the speed on resident pictures",
    )
    moco = "ReSSL / MoCo v2, time of an ImageNet epoch"

    def found(*records: dict[str, object]) -> dict[str, list[str]]:
        for number, record in enumerate(records):
            made = {"started": f"2026-01-0{number + 1}", "environment": {"device": "cuda"}} | record
            (tmp_path / f"{number}.json").write_text(json.dumps(made))
        return {what: rest for what, *rest in targets.verdicts(tmp_path)}

    nothing = found()
    assert {tuple(nothing[what]) for what in (moco, crops, files)} == {
        ("", "<= 1.04", "not measured", ""), ("", "<= 1.02", "not measured", ""), ("", ">= 0.85", "not measured", ""),
    }  # fmt: skip
    ratios = {"kind": "cost", "name": "imagenet"}
    rows = [{"loader": "step on resident pictures", "share_of_step": 1.0},
            {"loader": "step fed by the loader", "share_of_step": 0.9}]  # fmt: skip
    seen = found(
        ratios
        | {"ratios": [{"ratio": "ReSSL / MoCo v2", "ours": 2.0}, {"ratio": "ReSSL (4 crops) / SimCLR", "ours": 1.3}]},
        ratios | {"ratios": [{"ratio": "ReSSL / MoCo v2", "ours": 0.97}]},  # a few rows alone
        ratios | {"ratios": []},  # one alone
        ratios | {"ratios": [{"ratio": "ReSSL / MoCo v2", "ours": 9.0}], "environment": {"device": "cpu"}},
        {"kind": "bench", "name": "imagenet-r50", "loader": rows},
        {"kind": "bench", "name": "imagenet-r50", "engines": []},  # this one did not read files
    )
    assert seen[moco] == ["0.970", "<= 1.04", "met", "?"]
    assert seen[crops] == ["1.30", "<= 1.02", "missed", "?"]
    assert seen[files] == ["0.900", ">= 0.85", "met", "?"]
