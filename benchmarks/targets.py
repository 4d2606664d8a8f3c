"""What the newest records say about the targets for one H200: `python benchmarks/targets.py [results]`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def newest(folder: Path, kind: str, name: str, device: str = "cuda") -> Record | None:
    """The newest record of a kind, made on a GPU unless said otherwise."""
    return next(newest_first(folder, kind, name, device), None)


def of_kind(folder: Path, kind: str) -> list[Record]:
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    return [record for record in found if record.get("kind") == kind]


def newest_first(folder: Path, kind: str, name: str, device: str = "cuda") -> Iterator[Record]:
    """``name``: of a recipe, or ``one|another``."""
    names = name.split("|")
    fitting = [r for r in of_kind(folder, kind) if r["name"] in names and r["environment"]["device"] == device]
    yield from sorted(fitting, key=lambda r: str(r.get("started") or r["finished"]), reverse=True)


def newest_with(
    folder: Path, kind: str, name: str, read: Callable[[Record], Any], device: str = "cuda"
) -> tuple[Record, Any] | None:
    """The newest record in which there is something to ``read``: a benchmark may measure one part today."""
    for record in newest_first(folder, kind, name, device):
        with contextlib.suppress(KeyError, StopIteration, TypeError):
            return record, read(record)
    return None


def engine(record: Record, name: str) -> Record:
    return next(row for row in record["engines"] if row["engine"].startswith(name))


def swept(record: Record, field: str, value: int) -> float:
    return float(next(row for row in record["sweeps"][field] if row[field] == value)["images_per_second"])


def epochs_alone(record: Record) -> float:
    return float(record["linear"]["seconds"] - record["linear"]["start_seconds"])


def cost_ratio(record: Record, name: str) -> float:
    """Of one row's time over another's; a record that lacks one of them has none."""
    return float(next(pair["ours"] for pair in record["ratios"] if pair["ratio"] == name))


def fed_by_files(record: Record) -> float:
    rows = record["loader"]
    return float(next(row["share_of_step"] for row in rows if row["loader"] == "step fed by the loader"))


# (what, kind and recipe of the record, how to read it, target, whether more is better)
TARGETS: list[tuple[str, str, Callable[[Record], float], float, bool]] = [
    ("CIFAR-10, batch 256, images/s", "cifar10", lambda r: engine(r, "graph")["images_per_second"], 55_000, True),
    (
        "the same, times the PIL + fp32 reference",
        "cifar10",
        lambda r: engine(r, "graph")["images_per_second"] / engine(r, "PIL")["images_per_second"],
        7,
        True,
    ),
    ("CIFAR-10, batch 1024, images/s", "cifar10", lambda r: swept(r, "batch_size", 1024), 80_000, True),
    (
        "CIFAR-10, GB of the step beyond the data",
        "cifar10",
        lambda r: engine(r, "graph")["step_memory_gb"] - engine(r, "graph")["data_memory_gb"],
        1.2,
        False,
    ),
    ("Tiny ImageNet, images/s", "tiny-imagenet", lambda r: engine(r, "graph")["images_per_second"], 42_000, True),
    ("ResNet-50, 224 px, images/s", "imagenet-r50", lambda r: engine(r, "graph")["images_per_second"], 5_000, True),
    ("ResNet-50, share of the loss", "imagenet-r50", lambda r: r["loss"]["share_of_step"], 0.02, False),
    (
        "ResNet-50 fed from JPEG files, share of the speed on resident pictures",
        "imagenet-r50",
        fed_by_files,
        0.85,
        True,
    ),
    (
        "ReSSL / MoCo v2, time of an ImageNet epoch",
        "cost imagenet",
        lambda r: cost_ratio(r, "ReSSL / MoCo v2"),
        1.04,
        False,
    ),
    ("ReSSL with 4 crops / SimCLR", "cost imagenet", lambda r: cost_ratio(r, "ReSSL (4 crops) / SimCLR"), 1.02, False),
    ("50,000 pictures of 32 px to features, s", "cifar10", lambda r: r["embed"]["seconds"], 5, False),
    ("CIFAR-10 from nothing to its linear accuracy, s", "cold cifar10", lambda r: r["seconds"], 220, False),
    ("the same, linear accuracy, %", "cold cifar10", lambda r: r["linear"]["last"], 90.0, True),
    (
        "linear evaluation of such a run (CIFAR-10 or CIFAR-100), 100 epochs, s",
        "cold cifar10|cifar100",
        lambda r: r["linear"]["seconds"],
        10,
        False,
    ),
    ("the same without its start, s", "cold cifar10|cifar100", epochs_alone, 10, False),
    (
        "100 epochs alone, of random pictures (`ressl bench --parts linear`), s",
        "cifar10",
        lambda r: r["linear"][0]["hundred_epochs_seconds"],
        10,
        False,
    ),
]


def verdicts(folder: Path) -> Iterator[list[str]]:
    """(what, measured, target, whether it is met, by which commit) of every target."""
    for what, name, read, target, more in TARGETS:
        *kind, recipe = name.split()
        found = newest_with(folder, *(kind or ["bench"]), recipe, read)
        wanted = f"{'>=' if more else '<='} {target:,}"
        if found is None:
            yield [what, "", wanted, "not measured", ""]
        else:
            record, value = found
            met = value >= target if more else value <= target
            yield [what, shown(value), wanted, "met" if met else "missed", record["environment"].get("commit", "?")]


def shown(value: float) -> str:
    """With as many digits as tell it from its target."""
    return f"{value:,.{next(digits for digits, least in enumerate((1000, 100, 1, 0)) if value >= least)}f}"


def main() -> None:
    for what, value, wanted, verdict, commit in verdicts(Path(sys.argv[1] if len(sys.argv) > 1 else "results")):
        print(f"{what:75} {value:>10}  target {wanted:>9}  {verdict:12} {commit}")


if __name__ == "__main__":
    main()
