"""The arithmetic of docs/SCALING.md: by hand here, by the program there."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from ressl.bench.scaling import Machine, efficiency, traffic
from ressl.recipes import get_recipe

ROOT = Path(__file__).parent.parent
DOC = ROOT / "docs" / "SCALING.md"
MACHINE = Machine(step_seconds=0.05)


def test_traffic_by_hand():
    sent = traffic(get_recipe("imagenet-r50"), 8, 32)
    assert sent.gradients == 2 * 7 / 8 * 33_998_400 * 4
    assert sent.statistics == 2 * 7 / 8 * 106_240 * 4
    assert sent.keys == 7 * 32 * 512 * 4
    assert sent.shuffle == 7 / 8 * 32 * (3 * 224 * 224 + 512) * 2
    assert traffic(get_recipe("imagenet-r50"), 1, 32).total == 0


def test_one_process_is_fully_efficient_and_more_are_less():
    recipe = get_recipe("imagenet-r50")
    found = [efficiency(traffic(recipe, n, 256), n, MACHINE) for n in (1, 8, 64, 512)]
    assert found[0] == 1.0
    assert found == sorted(found, reverse=True)


def bench(**parts: Any) -> dict[str, Any]:
    made = {"device": "cuda", "gpu": "some GPU", "torch": "2.11", "commit": "abc"}
    return {"kind": "bench", "name": "imagenet-r50", "started": "2026-01-02T00:00:00Z", "environment": made} | parts


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("scaling")


def test_the_tables_of_the_document_are_computed(generator) -> None:
    text, recipe = DOC.read_text(encoding="utf-8"), get_recipe("imagenet-r50")
    _, row, _ = generator.newest_of(ROOT / "results", generator.ALONE)
    assert row["engine"] == "graph"
    assert f"measured: {row['milliseconds']:.1f} ms for 256 samples" in text

    def cells(n: int, each: int) -> str:
        sent, machine = traffic(recipe, n, each), Machine(step_seconds=row["milliseconds"] / 1000 * each / 256)
        megabytes = [f"{x / 1e6:,.1f}" for x in (sent.gradients, sent.statistics, sent.keys, sent.shuffle)]
        return f"{' | '.join(megabytes)} | {100 * efficiency(sent, n, machine):.0f} % |"

    for n in (8, 64, 512):
        assert f"| {n} | {cells(n, 256)}" in text
    for n in (2, 8, 16):  # the recipe's own batch
        assert f"| {n} | {256 // n} | {row['milliseconds'] * 32 / 256 * 8 / n:.1f} | {cells(n, 256 // n)}" in text


def test_what_the_document_makes_of_the_tables_holds(generator) -> None:
    _, row, _ = generator.newest_of(ROOT / "results", generator.ALONE)
    seconds, machine, recipe = row["milliseconds"] / 1000, Machine(step_seconds=0.0), get_recipe("imagenet-r50")
    hides = lambda n, each, rate: traffic(recipe, n, each).gradients / rate < machine.hidden * seconds * each / 256
    assert hides(8, 32, machine.inside)
    assert not hides(16, 16, machine.between)
    many = traffic(recipe, 512, 256)
    assert hides(512, 256, machine.between)
    assert many.keys > (many.total - many.gradients) / 2  # most of what does not hide
    assert recipe.options["queue_size"] == 512 * 256


def test_the_measured_table_is_what_the_records_say(generator) -> None:
    """Run 'python benchmarks/scaling.py' after a new record."""
    text = DOC.read_text(encoding="utf-8")
    assert generator.page(text, ROOT / "results") == text


def test_measured_figures_are_the_newest_and_the_rest_says_so(generator, tmp_path: Path) -> None:
    text = DOC.read_text(encoding="utf-8")
    assert generator.page(text, tmp_path).count("| not measured yet |") == 4
    assert "The step alone has not been measured yet" in generator.page(text, tmp_path)
    step = {"engine": "graph", "precision": "bf16", "batch": 256, "images_per_second": 4900.0, "peak_memory_gb": 12.0,
            "milliseconds": 52.2}  # fmt: skip
    fed = {"loader": "step fed by the loader", "workers": 16, "images_per_second": 4410.0, "share_of_step": 0.9,
           "idle_share": 0.0849, "files": "50,000 files of photos, 375 x 500 at the median"}  # fmt: skip
    phases = [{"phase": name, "milliseconds": 13.0, "share": 0.25} for name in ("views", "forward", "backward", "rest")]
    profile = {"engine": "compile", "precision": "bf16", "batch": 256, "milliseconds": 52.0, "phases": phases}
    slow = step | {"engine": "compile", "images_per_second": 3000.0}
    fast = {"name": "ReSSL", **step, "images_per_second": 5100.0, "milliseconds": 50.2}
    cost, eager = (bench(small=False, rows=[row]) for row in (fast, fast | {"engine": "eager"}))
    records = [
        bench(engines=[step, slow], loader=[fed]),
        bench(loader=[fed | {"images_per_second": 1.0}], profile=profile, started="2026-01-01T00:00:00Z"),  # older
        cost | {"kind": "cost", "name": "imagenet", "started": "2026-01-03T00:00:00Z"},
        bench(engines=[step | {"images_per_second": 7.0}], name="cifar10", started="2026-01-04T00:00:00Z"),
        eager | {"kind": "cost", "name": "imagenet", "started": "2026-01-05T00:00:00Z"},
    ]
    for number, record in enumerate(records):
        (tmp_path / f"{number}.json").write_text(json.dumps(record))
    made = generator.page(text, tmp_path)
    assert "not measured yet" not in made
    assert "| 5,100 images/s, 12.0 GB | `ressl cost` | some GPU, torch 2.11, commit abc |" in made
    files = "50,000 files of photos, 375 x 500 at the median, 16 workers"
    assert f"| 4,410 images/s, 90 % of the speed on resident pictures ({files}) |" in made
    assert "| 8.5 % |" in made
    assert "| views 25.0 %, forward 25.0 %, backward 25.0 %, rest 25.0 % (of 52.0 ms, compile) |" in made
    assert "50.2 ms for 256 samples, as one CUDA graph (the first row above)" in made
    assert "with `--engine compile`: 3,000 images/s, 12.0 GB." in made
    unchanged = lambda page: (
        page.split(generator.NEXT)[1].split(generator.PREDICTED)[0],
        page.split(generator.MEANING)[1],
    )
    assert unchanged(made) == unchanged(text)
    (tmp_path / "2.json").write_text(json.dumps(cost | {"kind": "cost", "name": "imagenet", "small": True}))  # a toy
    assert "| 4,900 images/s, 12.0 GB | `ressl bench imagenet-r50 --parts engines:graph` |" in generator.page(
        text, tmp_path
    )


def test_an_assumption_is_not_changed_by_chance():
    with pytest.raises(AttributeError):
        Machine(step_seconds=1.0).step_seconds = 2.0  # type: ignore[misc]
