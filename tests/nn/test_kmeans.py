"""k-means against scikit-learn, and the parts that banks stand on."""

from __future__ import annotations

import pytest
import torch
from sklearn.cluster import KMeans
from torch._subclasses.fake_tensor import FakeTensorMode

from ressl import rng
from ressl.methods.pcl_v2 import concentration
from ressl.nn import Draws, MemoryBank, kmeans
from ressl.nn.kmeans import WAVES, _draws, _means, _start, cluster_sums


def clouds(n: int = 600, d: int = 8, k: int = 12, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    centres = 4 * torch.randn(k, d, generator=draw)
    return centres[torch.arange(n) % k] + torch.randn(n, d, generator=draw)


@pytest.mark.parametrize("k", [1, 5, 12, 80])
@pytest.mark.parametrize("kind", ["clouds", "noise"])
def test_inertia_is_as_low_as_scikit_learn_s(kind: str, k: int) -> None:
    points = clouds() if kind == "clouds" else torch.randn(600, 8, generator=torch.Generator().manual_seed(1))
    theirs = sum(KMeans(k, n_init=1, random_state=seed).fit(points.numpy()).inertia_ for seed in range(8))
    ours = sum(kmeans(points, k, key=seed).inertia.item() for seed in range(8))
    assert ours <= 1.05 * theirs


def test_labels_name_the_nearest_centroid_and_inertia_is_their_distance() -> None:
    points = clouds()
    found = kmeans(points, 9, key=3)
    distance = torch.cdist(points.double(), found.centroids.double()).pow(2)
    assert torch.equal(found.labels, distance.argmin(1))
    assert found.inertia.item() == pytest.approx(distance.min(1).values.sum().item(), rel=1e-4)
    # converged: a centroid is the mean of its points
    means = torch.stack([points[found.labels == c].mean(0) for c in range(9)])
    torch.testing.assert_close(found.centroids, means, rtol=1e-3, atol=1e-3)


def test_the_same_key_gives_the_same_clusters_and_another_round_others() -> None:
    points = clouds(k=40)
    first, again, other = (kmeans(points, 20, key=5, round=r) for r in (0, 0, 1))
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.centroids, again.centroids)
    assert not torch.equal(first.centroids, other.centroids)


def test_no_cluster_stays_empty_where_points_are_alike() -> None:
    points = torch.cat((torch.zeros(50, 3), torch.randn(10, 3, generator=torch.Generator().manual_seed(0))))
    found = kmeans(points, 10, key=0)
    assert found.centroids.isfinite().all()
    assert len(found.labels.unique()) >= 9
    with pytest.raises(ValueError, match="cannot make"):
        kmeans(points, 61, key=0)


@pytest.mark.parametrize("kind", ["even", "uneven", "one"])
def test_sums_of_clusters_are_those_of_a_loop(kind: str) -> None:
    """In single precision beside double; some clusters are empty, the first and the last among them."""
    draw = torch.Generator().manual_seed(0)
    values, u = torch.randn(5000, 7, generator=draw) + 1, torch.rand(5000, generator=draw)
    labels = {"even": 1 + (u * 38).long(), "uneven": 1 + (u**4 * 38).long(), "one": torch.full((5000,), 3)}[kind]
    sums, count = cluster_sums(values, labels, 40)
    for c in range(40):
        mine = values[labels == c].double()
        assert count[c] == len(mine)
        torch.testing.assert_close(sums[c], mine.sum(0), rtol=1e-6, atol=1e-6 * len(mine))
    assert torch.equal(sums, cluster_sums(values, labels, 40)[0])


@pytest.mark.parametrize("k", [1, 12, 300])
def test_the_host_is_asked_for_no_value_on_the_way(k: int) -> None:
    """Tensors without values go through: so a GPU never has to wait for the host between two rounds."""
    with FakeTensorMode():
        points = torch.randn(2000, 8, device="cuda")  # there need not be one
        found = kmeans(points, k, key=torch.tensor(3, device="cuda"))
        assert found.centroids.shape == (k, 8)
        assert concentration(points, found.centroids, found.labels, 0.2).shape == (k,)


def test_points_to_start_from_are_different_ones() -> None:
    """Also where points are alike, so that none is far from what was chosen before."""
    points = torch.randn(200, 4, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    for k in (200, 300, 399, 400):
        chosen = _start(points, points.pow(2).sum(1), k, 3, 0)
        assert len(set(chosen.tolist())) == k


def test_rounds_start_from_other_points_and_waves_draw_other_numbers() -> None:
    n, waves = 3000, 5
    first, second = (torch.stack(list(_draws(n, waves, 3, r, torch.device("cpu")))) for r in range(2))
    every = torch.cat((first, second))
    assert len({row[:3] for row in map(tuple, every.tolist())}) == 2 * waves
    assert torch.corrcoef(every).fill_diagonal_(0).abs().max() < 0.1
    one_by_one = [rng.uniform(3, WAVES + w, torch.arange(n), 1, rng.CLUSTERS)[:, 0] for w in range(waves)]
    torch.testing.assert_close(second.exp().float(), torch.stack(one_by_one))
    u = every.exp()  # and they are uniform
    assert u.mean().item() == pytest.approx(0.5, abs=0.01)
    assert u.std().item() == pytest.approx(12**-0.5, abs=0.01)


def test_every_empty_cluster_takes_another_far_point() -> None:
    points = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.0], [50.0]])
    labels, distance = torch.tensor([1, 1, 1, 3, 3, 3]), torch.tensor([1.0, 0.0, 1.0, 2.0, 1.0, 40.0])
    means = _means(points, labels, distance, 5)  # 0, 2 and 4 are empty
    assert means[[1, 3], 0].tolist() == pytest.approx([1.0, 71 / 3])
    assert means[[0, 2, 4], 0].tolist() == [50.0, 10.0, *points[distance.topk(3).indices[2]].tolist()]


@pytest.mark.parametrize("iterations", [0, 1, 20])
def test_labels_and_inertia_are_of_the_centroids_that_are_returned(iterations: int) -> None:
    points = clouds(300, 4, 7)
    found = kmeans(points, 9, key=1, iterations=iterations)
    distance = torch.cdist(points.double(), found.centroids.double()).pow(2)
    assert torch.equal(found.labels, distance.argmin(1))
    assert found.inertia.item() == pytest.approx(distance.amin(1).sum().item(), rel=1e-4)


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
def test_points_that_lie_close_together_far_from_the_origin_are_told_apart(spread: float) -> None:
    centred = clouds(400, 6, 8)
    direction = torch.nn.functional.normalize(torch.randn(6, generator=torch.Generator().manual_seed(2)), dim=0)
    points = 10 * direction + spread * centred
    found, wanted = kmeans(points, 8, key=4), kmeans(((points - points.mean(0)).double()), 8, key=4)
    distance = torch.cdist(points.double(), found.centroids.double())
    assert (found.labels == distance.argmin(1)).float().mean() > 0.99
    assert found.inertia.item() == pytest.approx(wanted.inertia.item(), rel=0.02)


def test_a_bank_averages_and_keeps_unit_length() -> None:
    bank = MemoryBank(6, 4, momentum=0.5)
    before = bank.vectors.clone()
    z = torch.nn.functional.normalize(torch.randn(2, 4), dim=1)
    bank.update(torch.tensor([4, 1]), z)
    for row, index in zip(z, (4, 1), strict=True):
        mixed = 0.5 * before[index] + 0.5 * row
        torch.testing.assert_close(bank.vectors[index], mixed / mixed.norm())
    assert torch.equal(bank.vectors[[0, 2, 3, 5]], before[[0, 2, 3, 5]])


def test_draws_go_on_where_a_state_dict_left_them() -> None:
    draws, twin = Draws(), Draws()
    first, second = draws(4, 3), draws(4, 3)
    assert not torch.equal(first, second)
    assert first.min() >= 0
    assert first.max() < 1
    twin.load_state_dict(draws.state_dict())
    assert torch.equal(draws(5, 2), twin(5, 2))
