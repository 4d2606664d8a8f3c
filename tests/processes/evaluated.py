"""Evaluation of pictures that stay in their files, by two processes: ``python evaluated.py PLACE``, in one import.

Each rank writes down what it found; the test compares it with what one process alone finds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import together

from ressl import alike, cli, labelled, measuring
from ressl.data import unread
from ressl.data.reading import Chunk, read_chunks
from ressl.data.unread import Unread
from ressl.engine.processes import current, joined
from ressl.errors import ResslError
from ressl.evaluating import bench_of, evaluate_each
from ressl.evaluation.streamed import extract_unread
from ressl.measuring import Bench
from ressl.runs import Run
from ressl.subjects import subject_of_run

CHANGES: dict[str, dict[str, Any]] = {
    "linear-imagenet": {"epochs": 3, "batch_size": 16},  # in which one process alone meets the broken file
    "geometry": {"pictures": 11},
    "finetune": {"epochs": 1, "batch_size": 8, "fractions": (0.2,)},
    "linear-cosine": {"lr": 10.0, "epochs": 6, "batch_size": 16},  # of which each process has 8
    "linear-step": {"lr": 10.0, "epochs": 3, "batch_size": 15},  # which cannot be shared
    "linear-sweep": {"rates": ("cosine:10", "step:3"), "epochs": 3, "batch_size": 16, "augment": True},
}
PROTOCOLS = (*CHANGES, "knn", "knn-sweep", "classes", "linear")


@contextmanager
def streaming() -> Iterator[list[str]]:
    """No picture may stay in memory, and they are read a few at a time; the files that this process reads for it."""
    files: list[str] = []

    def spied(source: Any, *given: Any, **more: Any) -> Generator[Chunk]:
        files.extend(map(source.identify, range(len(source))))
        yield from read_chunks(source, *given, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alike, "may_be_held", lambda device: 0)
        patch.setattr(unread, "CHUNK", 8)
        patch.setattr(unread, "read_chunks", spied)
        patch.setattr(measuring, "workers", lambda: 0)
        yield files


def measured(place: Path) -> dict[str, Any]:
    """What this process finds, alone or as one of several."""
    run, photos = Run(place / "run"), str(place / "photos")
    with streaming() as files:
        bench = bench_of(subject_of_run(run), photos, "cpu", again=True)
        fit, held = bench.features()
        found = {
            "files": files.copy(),
            "features": [fit, held],
            "labels": [bench.data.train[1], bench.data.test[1]],
            "broken": dict(sorted(bench.broken.items())),
            "few": few(bench),
        }
        results = evaluate_each(run, PROTOCOLS, data=photos, device="cpu", changes=CHANGES, again=True)
        found["results"] = {name: result_of(one) for name, one in results}
    return found


def result_of(found: dict[str, Any]) -> dict[str, Any]:
    """Without what is another for every run."""
    return {key: value for key, value in found.items() if key != "environment" and not key.endswith("seconds")}


def few(bench: Bench) -> list[Any]:
    """So few that a process has none which can be read, and then none of them."""
    pictures, broken = bench.every.test[0], next(path for path in bench.broken if "/test/" in path)
    assert isinstance(pictures, Unread)
    bad = next(i for i in range(len(pictures)) if pictures.source.identify(i) == broken)
    take = lambda *index: extract_unread(
        bench.own, pictures.take(torch.tensor(index)), mean=(0.5,) * 3, std=(0.2,) * 3, size=16, team=current()
    )  # fmt: skip
    one = take(bad - 1, bad)
    with pytest.raises(ResslError) as said:
        take(bad)
    return [one.features, one.kept, str(said.value)]


def share(place: Path, rank: int) -> int:
    """Rank 0 takes its time to unpack the pictures; who comes before they are there would begin to unpack them, too."""
    plain, unpacked = labelled.open_source, place / "unpacked"

    def opened(*given: Any) -> Any:
        if rank == 0:
            time.sleep(0.0 if unpacked.exists() else 0.5)
            unpacked.touch()
        assert unpacked.exists()
        return plain(*given)

    labelled.open_source = opened  # type: ignore[attr-defined]
    with joined("cpu"):
        torch.save(measured(place), place / f"{rank}.pt")
    return 0


def apart(place: Path, rank: int, folder: str, *more: str) -> int:
    """The command in another folder on rank 1, where other things may lie by the same names."""
    os.chdir(place / (folder if rank else "."))
    return cli.main(["evaluate", "run", "--data", "photos", "--device", "cpu", "--protocol", "knn", *more])


def main(place: Path) -> None:
    print(together(2, lambda rank: share(place, rank)), flush=True)
    print("moved", together(2, lambda rank: apart(place, rank, "moved")), flush=True)
    for folder in ("fewer", "unread", "trained"):
        print(folder, together(2, lambda rank, to=folder: apart(place, rank, to, "--again")), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
