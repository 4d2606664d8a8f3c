"""Two processes compute what one computes: the same losses, weights, teacher, queue and statistics."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
import team as work
from once import once

from ressl.bench.scaling import traffic
from ressl.errors import ResslError
from ressl.nn.batchnorm import share_batch_norm

WORLD = 2


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes found; they are started once."""
    out = once(tmp_path_factory, "team", start)
    return [torch.load(out / f"{r}.pt", weights_only=True) for r in range(WORLD)]


def start(out: Path) -> None:
    place = {"WORLD_SIZE": str(WORLD), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    script = str(Path(work.__file__))
    running = [
        subprocess.Popen(
            [sys.executable, script, str(out)],
            # As on two machines, of which one lost a process: the other's agent has counted no restart.
            env=os.environ | place | {"RANK": str(r), "LOCAL_RANK": str(r), "TORCHELASTIC_RESTART_COUNT": str(r)},
        )
        for r in range(WORLD)
    ]
    assert [process.wait(timeout=110) for process in running] == [0] * WORLD


def assert_twins(alone: dict[str, Any], together: list[dict[str, Any]], rtol: float, atol: float) -> None:
    for mine in together:
        torch.testing.assert_close(mine["losses"], alone["losses"], rtol=rtol, atol=atol)
        assert mine["state"].keys() == alone["state"].keys()
        for name, tensor in alone["state"].items():
            if name.endswith("num_batches_tracked"):
                continue  # grouped norms do not count, and nothing reads it
            torch.testing.assert_close(mine["state"][name], tensor, rtol=rtol, atol=atol, msg=lambda m, n=name: n + m)
    for name, tensor in together[0]["state"].items():  # and the processes agree to the bit
        assert torch.equal(tensor, together[1]["state"][name]), name


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("method", work.TWINS)
def test_two_processes_equal_one_with_two_groups(method: str, found: list[dict[str, Any]]) -> None:
    """In double precision, where 20 steps cannot amplify a rounding into a difference; logs are kept in single."""
    alone = work.train(work.recipe_of(method), precision=torch.float64)
    assert_twins(alone, [mine[method] for mine in found], 1e-6, 1e-7)
    other = work.train(work.recipe_of(method, bn_groups=1), precision=torch.float64)
    assert not torch.allclose(alone["losses"], other["losses"], rtol=1e-3)  # one group is another model


@pytest.mark.filterwarnings("ignore:In CPU autocast")
@pytest.mark.parametrize("method", work.WHOLE)
def test_two_processes_equal_one_without_groups(method: str, found: list[dict[str, Any]]) -> None:
    """Statistics of the whole batch, of each of several views that go through the network at once."""
    alone = work.train(work.recipe_of(method, bn_groups=1), precision=torch.float64)
    assert_twins(alone, [mine[f"whole {method}"] for mine in found], 1e-6, 1e-7)


@pytest.mark.skipif(not work.TIMM, reason="timm is not installed")
@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_norms_of_timm_see_the_whole_batch_too(found: list[dict[str, Any]]) -> None:
    alone = work.train(work.recipe_of("simclr", bn_groups=1, backbone=work.ACTS), precision=torch.float64, steps=8)
    assert_twins(alone, [mine["acts"] for mine in found], 1e-6, 1e-7)


def test_norms_of_an_unknown_kind_are_refused_and_not_left_with_a_share() -> None:
    class OtherNorm(nn.BatchNorm2d):
        pass

    with pytest.raises(ResslError, match="OtherNorm"):
        share_batch_norm(nn.Sequential(OtherNorm(3)), whole=True)
    share_batch_norm(nn.Sequential(OtherNorm(3)))  # of a recipe with groups: the backbone was asked before


def test_two_processes_equal_one_in_single_precision(found: list[dict[str, Any]]) -> None:
    assert_twins(work.train(work.recipe_of("ressl")), [mine["float32"] for mine in found], 1e-3, 1e-4)


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_multi_crop_is_the_same_on_two_processes(found: list[dict[str, Any]]) -> None:
    alone = work.train(work.recipe_of("ressl", views=work.CROPS), precision=torch.float64, steps=8)
    assert_twins(alone, [mine["crops"] for mine in found], 1e-6, 1e-7)


@pytest.mark.filterwarnings("ignore:In CPU autocast")
def test_batch_norm_in_the_head_sees_the_whole_batch(found: list[dict[str, Any]]) -> None:
    alone = work.train(work.recipe_of("ressl", head_batch_norm=True), precision=torch.float64)
    assert_twins(alone, [mine["head"] for mine in found], 1e-6, 1e-7)


def test_a_step_that_is_bad_on_one_process_is_taken_by_none(found: list[dict[str, Any]]) -> None:
    for mine in found:
        weights = mine["bad_step"]["weights"]
        assert mine["bad_step"]["bad"] == 2
        assert torch.equal(weights[2], weights[1])
        assert weights.isfinite().all()
        assert not torch.equal(weights[1], weights[0])
    assert torch.equal(found[0]["bad_step"]["weights"], found[1]["bad_step"]["weights"])


def test_the_whole_batch_norm_has_the_statistics_and_gradients_of_one(found: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    x, target = torch.randn(12, 5), torch.randn(12, 5)
    x.requires_grad_()
    module = nn.BatchNorm1d(5).train()
    ((module(x) - target) ** 2).mean().backward()
    assert x.grad is not None
    for rank, mine in enumerate(found):
        torch.testing.assert_close(mine["norm"]["gradient"], x.grad[rank::WORLD], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(mine["norm"]["state"], dict(module.state_dict()))


def test_rows_come_in_the_order_of_the_batch_and_gradients_go_back(found: list[dict[str, Any]]) -> None:
    x = torch.arange(12.0).reshape(6, 2)
    for rank, mine in enumerate(found):
        assert torch.equal(mine["rows"]["whole"], x)
        assert torch.equal(mine["rows"]["gradient"], WORLD * 2 * x[rank::WORLD])  # both processes used them


def test_the_shuffle_deals_across_processes(found: list[dict[str, Any]]) -> None:
    """Against a naive loop: hands of the shuffled batch, every second sample each."""
    torch.manual_seed(0)
    shuffle, x = work.BatchShuffle(), torch.randn(8, 3)
    for name in ("one", "two"):
        order, _ = shuffle(8)
        expected = torch.empty_like(x)
        for hand in (order[0::WORLD], order[1::WORLD]):
            for i in hand.tolist():
                expected[i] = x[i] - x[hand].mean(0)
        for rank, mine in enumerate(found):
            torch.testing.assert_close(mine["shuffled"][name], expected[rank::WORLD])


def test_a_shared_forward_is_the_forward(found: list[dict[str, Any]]) -> None:
    alone = work.features(work.ALONE)
    for mine in found:
        torch.testing.assert_close(mine["features"]["features"], alone["features"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine["features"]["one"], alone["one"], rtol=1e-4, atol=1e-5)


def test_what_is_sent_in_a_step_is_what_the_arithmetic_says(found: list[dict[str, Any]]) -> None:
    """The bytes of docs/SCALING.md, counted where they are sent; of each, the others receive their share."""
    recipe = work.recipe_of("ressl")
    said = traffic(recipe, WORLD, recipe.batch_size // WORLD)
    ring, others = 2 * (WORLD - 1) / WORLD, WORLD - 1
    for mine in found:
        sent = mine["sent"]
        assert sent["gradients"] * ring == said.gradients
        assert (sent["statistics"] - sent["logs"]) * ring == said.statistics
        assert sent["shuffle"] * others / WORLD == said.shuffle  # on average: a share of the rows stays where it is
        assert sent["keys"] * others == said.keys


def test_processes_tell_gather_and_agree(found: list[dict[str, Any]]) -> None:
    for rank, mine in enumerate(found):
        assert mine["talk"]["told"] == {"rank": 0, "text": "é"}
        assert mine["talk"]["gathered"] == [[""], ["x"]]
        assert mine["talk"]["agreed"] == 1
        assert mine["talk"]["order"] == [rank]
