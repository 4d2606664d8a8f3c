"""The demo at a size for tests: the same way through, and its numbers against a plain computation of them."""

import json

import pytest
import torch.nn.functional as F
from PIL import Image

from ressl.console import Silent
from ressl.data.sources import open_source
from ressl.demo import NAMES, demo
from ressl.evaluation.linear import LinearProtocol


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    brief = LinearProtocol(schedule="cosine", lr=0.1, epochs=1, augment=False, standardize=True)
    out = tmp_path_factory.mktemp("demo") / "run"
    return demo(out, device="cpu", display=Silent(), width=4, epochs=1, batch_size=256, linear=brief)


def test_three_kinds_of_features_are_scored_by_two_protocols(result):
    assert list(result.scores) == list(NAMES) == ["pixels", "untrained", "ressl"]
    assert all(0 < score[name] < 100 for score in result.scores.values() for name in ("knn", "linear"))
    written = json.loads((result.run.path / "evaluation" / "demo.json").read_text())
    assert written["scores"] == result.scores


def test_the_score_of_raw_pixels_is_a_plain_weighted_vote(result):
    train, test = open_source("shapes"), open_source("shapes", "test")
    a, b = (F.normalize(source.images.flatten(1).double(), dim=1) for source in (train, test))
    similarity, neighbour = (b @ a.T).topk(50)
    right = 0
    for weights, labels, truth in zip((similarity / 0.1).exp(), train.labels[neighbour], test.labels, strict=True):
        votes = [float(weights[labels == c].sum()) for c in range(len(train.classes))]
        right += votes.index(max(votes)) == int(truth)
    assert result.scores["pixels"]["knn"] == pytest.approx(100 * right / len(test), abs=0.3)  # float32 may turn a tie


def test_the_trained_backbone_is_not_the_untrained_one(result):
    assert result.scores["ressl"] != result.scores["untrained"]


def test_it_leaves_pictures(result):
    assert [path.name for path in result.figures] == ["curves.png", "neighbours.png"]
    for path in result.figures:
        with Image.open(path) as picture:
            assert min(picture.size) > 200
            assert len(picture.convert("RGB").getcolors(1 << 24)) > 50  # something is drawn


def test_it_leaves_a_page_with_its_numbers(result):
    text = result.report.read_text()
    assert result.report == result.run.path / "report.html"
    for scores in result.scores.values():
        assert f"{scores['knn']:.1f}" in text
    assert text.count('class="map"') == 1
