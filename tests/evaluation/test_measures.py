"""kNN sweep, geometry, confusion, projection, fine-tuning and the feature cache against references."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.manifold import trustworthiness
from sklearn.metrics import confusion_matrix
from torch import nn

from ressl.evaluation.cache import FeatureCache, fingerprint
from ressl.evaluation.classes import confusion, mistaken, per_class
from ressl.evaluation.finetune import FinetuneProtocol, finetune_evaluation
from ressl.evaluation.geometry import alignment, effective_rank, uniformity
from ressl.evaluation.knn import knn_accuracy, knn_sweep
from ressl.evaluation.projection import tsne
from ressl.nn import build_backbone


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_sweep_is_knn_for_each_k() -> None:
    bank, labels, queries, truth = noise(90, 6), torch.arange(90) % 4, noise(50, 6, seed=1), torch.arange(50) % 4
    found = knn_sweep(bank, labels, queries, truth, ks=(20, 1, 7, 500), chunk=16)
    assert list(found) == [1, 7, 20, 90]  # cut to the bank's size
    for k, value in found.items():
        assert value == pytest.approx(knn_accuracy(bank, labels, queries, truth, k=k))


def test_alignment_and_uniformity_are_their_definitions() -> None:
    a, b = noise(40, 5), noise(40, 5, seed=1)
    x, y = (F.normalize(z, dim=1).double() for z in (a, b))
    assert alignment(a, b) == pytest.approx(((x - y) ** 2).sum(1).mean().item(), rel=1e-5)
    assert alignment(a, 3 * a) == pytest.approx(0, abs=1e-10)
    pairs = torch.pdist(x).square()
    assert uniformity(a, chunk=7) == pytest.approx(torch.exp(-2 * pairs).mean().log().item(), rel=1e-5)
    assert uniformity(torch.ones(10, 3)) == pytest.approx(0, abs=1e-6)


def test_effective_rank_counts_directions() -> None:
    assert effective_rank(torch.eye(8)) == pytest.approx(8)
    assert effective_rank(noise(50, 1) @ noise(1, 8, seed=1)) == pytest.approx(1, abs=1e-3)
    s = np.linalg.svd(noise(50, 8).double().numpy(), compute_uv=False)
    p = s / s.sum()
    assert effective_rank(noise(50, 8)) == pytest.approx(np.exp(-(p * np.log(p)).sum()))


def test_confusion_is_scikit_learn_s() -> None:
    truth, predicted = torch.randint(0, 5, (200,)), torch.randint(0, 5, (200,))
    counts = confusion(truth, predicted, 6)
    assert np.array_equal(counts, confusion_matrix(truth, predicted, labels=range(6)))
    assert per_class(counts)[5] is None
    worst = mistaken(counts, 3)
    assert worst[0][2] == int(counts.clone().fill_diagonal_(0).max())
    assert all(a != b and int(counts[a, b]) == n for a, b, n in worst)


def test_the_map_keeps_neighbours() -> None:
    labels = torch.arange(90) % 3
    features = 4 * torch.eye(20)[labels] + noise(90, 20)
    plane = tsne(features)
    assert plane.shape == (90, 2)
    assert torch.equal(plane, tsne(features))  # a seed is a picture
    unit = F.normalize(features, dim=1).numpy()
    assert trustworthiness(unit, plane.numpy(), n_neighbors=10) > 0.85
    assert knn_accuracy(plane - plane.mean(0), labels, plane - plane.mean(0), labels, k=5) > 90


class TestFinetuning:
    MEAN = STD = (0.5, 0.5, 0.5)

    def pictures(self, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(n) % 2
        images = torch.randint(0, 256, (n, 3, 16, 16), generator=torch.Generator().manual_seed(seed))
        images[:, 1] = images[:, 1] * labels[:, None, None] // 2 + 60 * labels[:, None, None]
        return images.to(torch.uint8), labels

    def test_few_labels_are_enough_for_an_easy_task_and_the_backbone_is_left_alone(self) -> None:
        torch.manual_seed(0)
        backbone = build_backbone("resnet10", "medium", 4, 2).eval()
        before = fingerprint(backbone.state_dict())
        protocol = FinetuneProtocol(fractions=(0.1, 0.3), epochs=12, batch_size=6, draws=2)
        found = finetune_evaluation(
            backbone, self.pictures(120, 0), self.pictures(60, 1), protocol=protocol, mean=self.MEAN, std=self.STD,
            image_size=16, device=torch.device("cpu"),
        )["by_fraction"]  # fmt: skip
        assert [row["pictures"] for row in found] == [12, 36]
        assert found[1]["mean"] > 90
        assert len(found[0]["values"]) == 2
        assert found[0]["half"] is not None
        assert fingerprint(backbone.state_dict()) == before
        assert not backbone.training

    def test_a_network_that_takes_one_size_only_is_never_shown_another(self) -> None:
        """As vision transformers are; the test pictures are cut from a little more."""
        backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 4))
        found = finetune_evaluation(
            backbone, self.pictures(20, 0), self.pictures(10, 1), protocol=FinetuneProtocol(epochs=1), mean=self.MEAN,
            std=self.STD, image_size=12, resize=14, device=torch.device("cpu"),
        )["by_fraction"]  # fmt: skip
        assert [row["pictures"] for row in found] == [2, 2]


class TestCache:
    @pytest.fixture
    def backbone(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(3, 2)

    def test_features_are_made_once_and_again_after_damage_or_change(self, tmp_path: Path, backbone: nn.Module) -> None:
        made: list[int] = []

        def make() -> dict[str, torch.Tensor]:
            made.append(1)
            return {"train": torch.arange(4.0), "test": torch.arange(2.0)}

        asked = {"pictures": "abc", "input": [16, None]}
        first = FeatureCache(tmp_path / "f", backbone).get(asked, make)
        again = FeatureCache(tmp_path / "f", backbone).get(asked, make)
        assert len(made) == 1
        assert torch.equal(first["train"], again["train"])
        (file,) = (tmp_path / "f").iterdir()
        data = bytearray(file.read_bytes())
        data[-3] ^= 1  # one bit of one feature
        file.write_bytes(data)
        assert torch.equal(FeatureCache(tmp_path / "f", backbone).get(asked, make)["train"], first["train"])
        assert len(made) == 2
        file.write_bytes(file.read_bytes()[:50])
        FeatureCache(tmp_path / "f", backbone).get(asked, make)
        assert len(made) == 3
        FeatureCache(tmp_path / "f", backbone).get(asked | {"input": [16, 18]}, make)
        assert len(made) == 4
        with torch.no_grad():
            backbone.weight[0, 0] += 1e-6  # other weights: other features, and the old ones go
        FeatureCache(tmp_path / "f", backbone).get(asked, make)
        assert len(made) == 5
        assert len(list((tmp_path / "f").iterdir())) == 1

    def test_a_renamed_file_is_not_taken_for_another(self, tmp_path: Path, backbone: nn.Module) -> None:
        cache = FeatureCache(tmp_path, backbone)
        cache.get({"pictures": "a"}, lambda: {"x": torch.zeros(1)})
        (one,) = tmp_path.iterdir()
        cache.get({"pictures": "b"}, lambda: {"x": torch.ones(1)})
        (two,) = set(tmp_path.iterdir()) - {one}
        two.write_bytes(one.read_bytes())
        assert cache.get({"pictures": "b"}, lambda: {"x": torch.ones(1)})["x"].item() == 1

    def test_a_fingerprint_sees_every_byte(self) -> None:
        images = torch.zeros(3000, 3, 32, 32, dtype=torch.uint8)  # more than one piece
        before = fingerprint({"a": images})
        images[2999, 2, 31, 31] = 1
        assert fingerprint({"a": images}) != before
        assert fingerprint({"a": torch.zeros(4)}) != fingerprint({"a": torch.zeros(2, 2)})
