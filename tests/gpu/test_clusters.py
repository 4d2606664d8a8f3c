"""k-means on a GPU: the same to the bit every time, and as good as on a CPU."""

import pytest
import torch
import torch.nn.functional as F

from ressl.methods.pcl_v2 import concentration
from ressl.nn import kmeans
from ressl.nn.kmeans import cluster_sums


@pytest.mark.parametrize("k", [1, 200])
def test_clusters_are_the_same_every_time(k):
    draw = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(100, 32, generator=draw)
    points = F.normalize(centres[torch.arange(20_000) % 100] + torch.randn(20_000, 32, generator=draw), dim=1)
    key = torch.tensor(5, device="cuda")
    first, again = (kmeans(points.cuda(), k, key=key) for _ in range(2))
    assert torch.equal(first.labels, again.labels)
    assert torch.equal(first.centroids, again.centroids)
    spreads = [concentration(points.cuda(), found.centroids, found.labels, 0.2) for found in (first, again)]
    assert torch.equal(*spreads)
    assert first.inertia.item() == pytest.approx(kmeans(points, k, key=5).inertia.item(), rel=0.02)


@pytest.mark.parametrize("of", [300, 1])  # clusters that have any point
def test_sums_of_clusters_are_those_of_a_cpu(of):
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(50_000, 128, generator=draw)
    labels = 1 + torch.randint(0, of, (50_000,), generator=draw)
    sums, count = cluster_sums(values.cuda(), labels.cuda(), 302)
    wanted = torch.zeros(302, 128, dtype=torch.float64).index_add_(0, labels, values.double())
    torch.testing.assert_close(sums.cpu(), wanted, rtol=1e-5, atol=1e-2)
    assert count.cpu().tolist() == labels.bincount(minlength=302).tolist()
