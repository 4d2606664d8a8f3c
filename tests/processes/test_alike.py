"""Processes that do not see the same pictures say so, instead of waiting for each other or training on."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_faults import place, words  # noqa: F401 - a fixture
from test_together import free_port

from ressl.alike import Unread, check_kept, check_source, outline
from ressl.data.base import ArraySource, FileSource
from ressl.data.loaders import make_loader
from ressl.data.views import STRONG, WEAK
from ressl.engine.processes import LostContact, Team
from ressl.errors import ResslError
from ressl.memory import room


def team_of(*found: Any) -> Any:
    """Two processes, of which this one and the other have found that."""
    return SimpleNamespace(world=2, gather=lambda mine: list(found))


def pictures(n: int, seed: int = 0) -> ArraySource:
    draw = torch.Generator().manual_seed(seed)
    return ArraySource("a", torch.randint(0, 256, (n, 3, 8, 8), dtype=torch.uint8, generator=draw), torch.arange(n) % 3)


def test_an_outline_is_of_the_pictures_and_not_of_their_place() -> None:
    files = lambda base, names: FileSource("f", [f"{base}/{name}" for name in names], torch.zeros(len(names)).long())
    assert outline(files("/a", "xyz")) == outline(files("/elsewhere/b", "xyz"))
    one = outline(pictures(20))
    others = [
        outline(pictures(19)),
        outline(pictures(20, seed=1)),
        outline(ArraySource("a", pictures(20).images, torch.zeros(20).long())),
        outline(files("/a", "xyz")),
        outline(files("/a", "xyw")),
    ]
    assert len({one, *others}) == 6


def test_other_pictures_are_named() -> None:
    source = pictures(20)
    mine = [20, outline(source)]
    check_source(source, team_of(mine, mine))
    with pytest.raises(ResslError, match=r"rank 1 sees other pictures than rank 0 \(19 of them, rank 0 20\)"):
        check_source(source, team_of(mine, [19, "other"]))
    with pytest.raises(ResslError, match="as many, but others"):
        check_source(source, team_of(mine, [20, "other"]))


def test_a_file_that_one_could_not_read_is_named_and_may_be_tried_again() -> None:
    loader = make_loader(pictures(20), [WEAK, STRONG], 4, "cpu", 0).loader
    same = ["ResidentLoader", 20, {"x.jpg": "/a/x.jpg"}]
    check_kept(loader, ["/a/x.jpg"], team_of(same, ["ResidentLoader", 20, {"x.jpg": "/b/x.jpg"}]))
    with pytest.raises(Unread, match=r"rank 0 could not read /a/x.jpg, rank 1 could") as found:
        check_kept(loader, ["/a/x.jpg"], team_of(same, ["ResidentLoader", 21, {}]))
    assert found.value.exit_code == 1
    with pytest.raises(Unread, match=r"rank 1 holds 20 pictures \(StreamingLoader\)"):
        check_kept(loader, ["/a/x.jpg"], team_of(same, ["StreamingLoader", 20, {"x.jpg": "/b/x.jpg"}]))


def test_all_stream_where_one_has_no_room() -> None:
    made = make_loader(pictures(20), [WEAK, STRONG], 4, "cpu", 0, agreed=lambda mine: False)
    assert type(made.loader).__name__ == "StreamingLoader"
    assert "another process" in made.why


def test_the_processes_of_a_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = room(torch.device("cpu"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert room(torch.device("cpu")) == pytest.approx(alone / 8, rel=1e-6)


def two(act: Callable[[Team], Any]) -> list[Any]:
    """What two processes with nothing but a store between them make of it, rank 0's first."""
    store, found = dist.HashStore(), [None, None]

    def one(rank: int) -> None:
        try:
            found[rank] = act(Team(rank, 2, store=store))
        except (LostContact, ValueError) as error:
            found[rank] = type(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_who_waits_for_rank_0_waits_without_a_collective() -> None:
    """Those end after ten minutes, and what rank 0 unpacks may take hours."""

    def act(team: Team) -> list[float]:
        ends = []
        for _ in range(2):
            with team.first():
                time.sleep(0.3 if team.leads else 0.0)
                ends.append(time.monotonic())
        return ends

    first, second = two(act)
    assert all(later > earlier for earlier, later in zip(first, second, strict=True))


def test_who_waits_for_rank_0_hears_that_it_failed() -> None:
    def act(team: Team) -> None:
        with team.first():
            raise ValueError

    assert two(act) == [ValueError, LostContact]


def test_two_that_see_different_numbers_of_pictures_end_with_that(place: Path, tmp_path: Path) -> None:  # noqa: F811
    arrays, running = dict(np.load(place / "p.npz")), []
    port = str(free_port())
    for rank in (0, 1):
        here = tmp_path / str(rank)
        here.mkdir()
        fewer = {key: value[: len(value) - rank] for key, value in arrays.items()}
        np.savez(here / "p.npz", **fewer)
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        arguments = [word if word != str(place / "p.npz") else "p.npz" for word in words(place, tmp_path / "run")]
        running.append(
            subprocess.Popen(
                [sys.executable, "-m", "ressl", *arguments],
                cwd=here,
                text=True,
                env=os.environ | env | {"MASTER_PORT": port, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        )
    said = [process.communicate(timeout=100)[1] for process in running]
    assert [process.returncode for process in running] == [2, 2], said
    assert all("rank 1 sees other pictures than rank 0 (71 of them, rank 0 72)" in text for text in said)
    assert not (tmp_path / "run").exists()
