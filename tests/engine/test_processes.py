"""Where a process stands, how a batch's groups are shared, and who notices a process that is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ressl.continuing import restarted
from ressl.engine import processes, watch
from ressl.engine.launchers import Place, launch, own_cores, place_in
from ressl.engine.processes import ALONE, Team, device_for, groups_here, joined, lost_contact
from ressl.errors import ResslError
from ressl.recipes import get_recipe
from ressl.runs import Run


def test_torchrun_says_where_a_process_stands() -> None:
    said = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "1234"}
    assert place_in(said) == Place(3, 8, 1, "node0", 1234)
    assert place_in({}) is None


@pytest.mark.parametrize(
    ("nodes", "first"), [("gpu[03-05,9],cpu1", "gpu03"), ("a1,b2", "a1"), ("n[7]", "n7"), ("solo", "solo")]
)
def test_slurm_says_it_too(nodes: str, first: str) -> None:
    said = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0",
            "SLURM_JOB_ID": "4242", "SLURM_STEP_NODELIST": nodes}  # fmt: skip
    assert place_in(said) == Place(5, 16, 1, first, 24242)
    assert place_in(said | {"MASTER_ADDR": "x", "MASTER_PORT": "9"}) == Place(5, 16, 1, "x", 9)
    del said["SLURM_STEP_ID"]
    assert place_in(said) is None  # a shell inside an allocation


@pytest.mark.parametrize(
    ("said", "cores", "mine"),
    [
        ({}, 96, 96),
        ({"LOCAL_WORLD_SIZE": "8"}, 96, 12),
        ({"SLURM_NTASKS_PER_NODE": "8", "SLURM_CPUS_PER_TASK": "12"}, 12, 12),  # bound to its own
        ({"SLURM_NTASKS_PER_NODE": "8", "SLURM_CPUS_PER_TASK": "12"}, 96, 12),
        ({"SLURM_NTASKS_PER_NODE": "8"}, 96, 12),
        ({"LOCAL_WORLD_SIZE": "8", "SLURM_CPUS_PER_TASK": "96"}, 96, 12),  # torchrun inside one task
        ({"LOCAL_WORLD_SIZE": "8"}, 2, 1),
    ],
)
def test_a_process_knows_its_part_of_the_cores(
    said: dict[str, str], cores: int, mine: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "SLURM_CPUS_PER_TASK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert own_cores(cores) == mine


def test_variables_that_are_no_numbers_are_named() -> None:
    with pytest.raises(ResslError, match="RANK"):
        place_in({"RANK": "first", "WORLD_SIZE": "2"})


@pytest.mark.parametrize(
    ("rank", "world", "port"),
    [("3", "2", "29500"), ("-1", "2", "29500"), ("0", "0", "29500"), ("0", "-2", "29500"), ("0", "2", "99999"),
     ("0", "2", "-1"), ("0", "2", "0"), ("0", "9" * 20, "29500")],
)  # fmt: skip
def test_variables_that_make_no_sense_are_said_at_once(rank: str, world: str, port: str) -> None:
    """Left over in a shell, they had the process wait for ten minutes."""
    names = ("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")
    for mine, size in names[: 1 + (int(world) > 1)]:
        with pytest.raises(ResslError, match=f"rank {rank} of {world} processes that meet at port {port}"):
            place_in({mine: rank, size: world, "MASTER_PORT": port, "SLURM_STEP_ID": "0"})
    assert place_in({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "0"}) is not None


@pytest.mark.parametrize(("groups", "world", "each"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (1, 4, 1), (4, 8, 1)])
def test_groups_are_shared(groups: int, world: int, each: int) -> None:
    assert groups_here(groups, world) == each


def test_groups_that_cannot_be_shared_are_an_error() -> None:
    with pytest.raises(ResslError, match=r"8 batch-norm groups.*3 processes.*--bn-groups 6"):
        groups_here(8, 3)


def test_one_process_needs_nobody() -> None:
    with joined("cpu") as team:
        assert team is ALONE
        assert (team.agree(7), team.tell([1]), team.gather("x"), team.rhythm) == (7, [1], ["x"], 1)
    assert Team(0, 512).rhythm == 64


def test_each_process_has_its_own_card() -> None:
    cpu = torch.device("cpu")
    assert device_for(cpu, Team(1, 2)) == cpu
    with pytest.raises(ResslError, match="each takes its own"):
        device_for(torch.device("cuda:1"), Team(1, 2))


def test_errors_of_lost_connections_are_known_and_others_are_not() -> None:
    text = "[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:30513"
    assert lost_contact(RuntimeError(text))
    assert lost_contact(ConnectionResetError())
    assert not lost_contact(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not lost_contact(ValueError("gloo"))


def test_a_restarted_job_finds_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    Run.create("runs/mine", get_recipe("demo"), {"launch": launch()})
    Run.create("runs/other", get_recipe("demo"), {"launch": "someone else's"})
    assert restarted(None, False, 0) == (None, False)  # a first start
    assert restarted(None, False, 1) == (Path("runs/mine"), True)
    assert restarted("runs/other", False, 1) == ("runs/other", True)
    assert restarted("runs/new", False, 1) == ("runs/new", False)  # it died before there was a folder
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "b")
    assert restarted(None, False, 1) == (None, False)


class Store(dict[str, Any]):
    """The job's store, in this process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []

    def leave(self: watch.Watch, why: str) -> None:
        said.append(why)
        self.close()

    monkeypatch.setattr(watch.Watch, "_leave", leave)
    monkeypatch.setattr(watch, "EVERY", 0.05)
    return said


def wait_for(said: list[str], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not said and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_neighbour_that_died_is_noticed_and_told(left: list[str]) -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    store = Store()
    store.set("sign/1", f"{watch._machine()} {neighbour.pid} {watch._started(neighbour.pid)} 1")
    guard = watch.Watch(store, 0, 2, limit=60)
    time.sleep(0.3)
    assert not left
    neighbour.kill()
    neighbour.wait()
    wait_for(left)
    guard.close()
    assert left == ["process 1 of this job has died"]
    assert store["gone"] == b"1"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_neighbour_that_stopped_is_ended(left: list[str]) -> None:
    neighbour = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    store = Store()
    store.set("sign/1", f"{watch._machine()} {neighbour.pid} {watch._started(neighbour.pid)} 1")
    guard = watch.Watch(store, 0, 2, limit=0.5)
    wait_for(left)
    guard.close()
    assert "no sign of life for 0.5 s" in left[0]
    assert neighbour.wait(5) == -9


def test_a_neighbour_that_stopped_before_its_first_sign_is_noticed(left: list[str]) -> None:
    guard = watch.Watch(Store(), 0, 2, limit=0.5)
    wait_for(left)
    guard.close()
    assert "process 1 of this job has shown no sign of life for 0.5 s" in left[0]


def test_a_store_that_no_longer_answers_is_noticed(left: list[str]) -> None:
    class Silent(Store):
        def check(self, keys: list[str]) -> bool:
            raise ConnectionError

    guard = watch.Watch(Silent(), 0, 2, limit=0.3)
    wait_for(left)
    guard.close()
    assert "store has not answered" in left[0]


def test_signs_of_life_keep_everyone_calm(left: list[str]) -> None:
    store = Store()
    guards = [watch.Watch(store, rank, 2, limit=2.0) for rank in range(2)]  # 40 signs: a busy machine may skip some
    time.sleep(2.5)
    for guard in guards:
        guard.close()
    assert not left


@pytest.mark.parametrize("text", ["abc", "", "0", "-1", "nan"])
def test_a_patience_that_is_none_is_said_before_the_processes_meet(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESSL_PATIENCE_SECONDS", text)
    with pytest.raises(ResslError, match="RESSL_PATIENCE_SECONDS must be a number of seconds above 0"):
        processes._meet(Place(0, 1, 0, "127.0.0.1", 0), "cpu")
    assert not dist.is_initialized()
