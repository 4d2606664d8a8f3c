"""What a step leaves behind: teachers, queues, banks and normalisers against loops over Python floats."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_equations import NAIVE, ready
from torch import Tensor
from written import B, N, Vector, dot, make, mean, pictures, rows, student, teacher, unit, wanted_by

from ressl.methods import METHODS
from ressl.methods.instdisc import UNKNOWN
from ressl.nn import EMATeacher, MemoryBank, MemoryQueue
from ressl.nn.kmeans import kmeans

VIEWS = {name: count for name, (_, count) in NAIVE.items()} | {"ressl": 2}


def stepped(name: str) -> tuple[Any, Any, list[Tensor], dict[str, Tensor]]:
    """A method before and after one step, in which its student moved; the step's views, and what it wanted."""
    method = make(name) if name == "ressl" else ready(name)
    views, wanted = pictures(VIEWS[name]), wanted_by(method)
    before = copy.deepcopy(method)
    carry = method(views, **wanted).carry
    with torch.no_grad():
        for p in method.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn_like(p))
    method.after_step(carry)
    return before, method, views, wanted


def having(kind: type) -> list[str]:
    return [name for name in METHODS if any(isinstance(part, kind) for part in make(name).modules())]


@pytest.mark.parametrize("name", having(EMATeacher))
def test_the_teacher_follows_the_student(name: str) -> None:
    before, method, _, _ = stepped(name)
    m = float(before.teacher.momentum)
    assert 0 < m < 1
    for label, now in method.teacher.module.named_parameters():
        part, _, rest = label.partition(".")
        theirs = (method.backbone, method.head)[int(part)].get_parameter(rest)
        was = before.teacher.module.get_parameter(label)
        expected = [m * t + (1 - m) * s for t, s in zip(was.flatten().tolist(), theirs.flatten().tolist(), strict=True)]
        assert now.flatten().tolist() == pytest.approx(expected, rel=1e-6, abs=1e-12), label
        assert not torch.equal(now, was)


Keys = Callable[[Any, list[Tensor]], list[Vector]]
taught: Keys = lambda twin, views: teacher(twin, views[0])
QUEUED: dict[str, dict[str, Keys]] = {
    **{name: {"queue": taught} for name in ("ressl", "moco-v2", "mochi", "pcl-v2", "clsa", "clsa-multi")},
    "seed": {"queue": lambda twin, views: unit(twin.frozen(views[0]))},
    "swav": {f"queue{i + 1}": lambda twin, views, i=i: student(twin, views[i]) for i in range(2)},
}


@pytest.mark.parametrize("name", having(MemoryQueue))
def test_the_queue_takes_the_keys_of_the_step(name: str) -> None:
    before, method, views, _ = stepped(name)
    for label, keys in QUEUED[name].items():
        old, new = (rows(getattr(net, label).keys) for net in (before, method))
        changed = [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        assert len(changed) == B
        expected = keys(before, views)
        for i, row in zip(changed, expected, strict=True):  # in their order
            assert new[i] == pytest.approx(row, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("name", having(MemoryBank))
def test_the_bank_takes_what_was_embedded(name: str) -> None:
    """Half of it; PCL v2's momentum encoder is slow enough, and its keys are taken as they are."""
    before, method, views, wanted = stepped(name)
    embedded, m = (teacher(before, views[0]), 0.0) if name == "pcl-v2" else (student(before, views[0]), 0.5)
    old, new = rows(before.bank.vectors), rows(method.bank.vectors)
    places = wanted["index"].tolist()
    for place, v in zip(places, embedded, strict=True):
        between = [[m * a + (1 - m) * b for a, b in zip(old[place], v, strict=True)]]
        assert new[place] == pytest.approx(unit(torch.tensor(between, dtype=torch.float64))[0], rel=1e-6, abs=1e-9)
    assert [new[i] for i in range(N) if i not in places] == [old[i] for i in range(N) if i not in places]


def test_instdisc_keeps_its_normaliser_as_a_moving_average() -> None:
    method, expected = ready("instdisc"), None
    assert method.log_Z.item() == pytest.approx(UNKNOWN)
    for _ in range(3):
        views, wanted = pictures(1), wanted_by(method)
        bank, v = rows(method.bank.vectors), student(method, views[0])
        noise = (copy.deepcopy(method.draws)(B, 9) * N).long().tolist()
        chosen = [(own, *noise[i]) for i, own in enumerate(wanted["index"].tolist())]
        Z = mean([torch.tensor(dot(v[i], bank[j]) / 0.07).exp().item() for i in range(B) for j in chosen[i]]) * N
        expected = Z if expected is None else 0.9 * expected + 0.1 * Z
        method.after_step(method(views, **wanted).carry)
        assert method.log_Z.exp().item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_instdisc_may_keep_its_first_normaliser_or_none(share: float) -> None:
    method, found = ready("instdisc", normaliser_momentum=share), list[float]()
    for _ in range(3):
        views, wanted = pictures(1), wanted_by(method)
        again = copy.deepcopy(method)
        again.log_Z.fill_(UNKNOWN)  # as in a first step
        method.after_step(method(views, **wanted).carry)
        again.after_step(again(views, **wanted).carry)
        found.append(method.log_Z.item())
        assert found[-1] == (found[0] if share == 1 else again.log_Z.item())
    assert (len(set(found)) == 1) == (share == 1)


def test_instdisc_counts_on_where_its_normaliser_is_too_large_for_a_float() -> None:
    """Z is n e^(1 / tau) where all embeddings lie in one place."""
    method = ready("instdisc", temperature=0.01)
    method.bank.vectors[:] = torch.nn.functional.one_hot(torch.tensor(0), method.bank.vectors.shape[1])
    with torch.no_grad():
        method.head.weight.zero_()
        method.head.bias[:] = method.bank.vectors[0]
    loss, carry, _ = method(pictures(1), **wanted_by(method))
    method.after_step(carry)
    assert method.log_Z.item() == pytest.approx(math.log(N) + 100)  # every similarity is one
    assert torch.isinf(method.log_Z.float().exp())
    # P = 1 / N, so that data and m draws of the noise are told apart with odds of 1 to m
    assert loss.item() == pytest.approx(math.log(1 + method.m) + method.m * math.log(1 + 1 / method.m), rel=1e-5)


@pytest.mark.parametrize("Z", [-1.0, 123.0])
def test_instdisc_reads_the_normaliser_of_earlier_versions(Z: float) -> None:
    method = ready("instdisc")
    kept = method.state_dict()
    del kept["log_Z"]
    kept["Z"] = torch.tensor(Z)
    method.load_state_dict(kept)
    assert method.log_Z.item() == pytest.approx(math.log(Z) if Z > 0 else UNKNOWN)
    assert "Z" in kept  # the caller's own


def test_clusterings_of_localagg_are_several_and_change_with_the_epoch() -> None:
    method = ready("localagg")
    H = len(method.clusters)
    made = [kmeans(method.bank.vectors, method.count, key=method.key, round=H + h).labels for h in range(H)]
    assert torch.equal(method.clusters, torch.stack(made))
    assert len({tuple(row.tolist()) for row in made}) == H > 1
    method.begin_epoch(2)
    assert torch.equal(
        method.clusters[0], kmeans(method.bank.vectors, method.count, key=method.key, round=2 * H).labels
    )


def test_negatives_of_adco_stay_on_the_sphere() -> None:
    method = stepped("adco")[1]
    for _ in range(2 * len(method.negatives) // B):  # until they have all begun, and beyond
        with torch.no_grad():
            method.negatives.mul_(1.7)
        method.after_step(method.target(pictures(2)[0]))
        norms = method.negatives.norm(dim=1)
        torch.testing.assert_close(norms, torch.ones_like(norms))
    assert method.filled == len(method.negatives)


def test_prototypes_of_pcl_are_its_clusters_on_the_sphere() -> None:
    method = ready("pcl-v2")
    for m, k in enumerate(method.granularities):
        found = kmeans(method.bank.vectors, k, key=method.key, round=len(method.granularities) + m)
        assert torch.equal(getattr(method, f"labels{m}"), found.labels)
        for made, centre in zip(rows(getattr(method, f"prototypes{m}")), unit(found.centroids), strict=True):
            assert made == pytest.approx(centre, rel=1e-6)
        assert (found.centroids.norm(dim=1) - 1).abs().max() > 0.01  # else nothing was normalised
