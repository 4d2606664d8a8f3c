"""What only one method has."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from sklearn.metrics import accuracy_score
from written import B, D, make, mean, moco, pictures, student, teacher, unit, wanted_by

from ressl.console import summary
from ressl.errors import ResslError
from ressl.methods import METHODS
from ressl.methods.cpc_v2 import layer_norm
from ressl.methods.localagg import aggregation
from ressl.methods.pcl_v2 import concentration
from ressl.methods.swav import sinkhorn


def test_sinkhorn_shares_prototypes_evenly_and_leaves_out_what_has_no_weight() -> None:
    scores = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 10
    weight = torch.tensor([1.0] * 6 + [0.0] * 3, dtype=torch.float64)
    codes = sinkhorn(scores, weight, 0.05, 100)
    assert torch.equal(codes[6:], torch.zeros(3, 4, dtype=torch.float64))
    torch.testing.assert_close(codes[:6].sum(0), torch.full((4,), 1.5, dtype=torch.float64))
    torch.testing.assert_close(codes[:6], sinkhorn(scores[:6], weight[:6], 0.05, 100))
    assert codes[:6].std() > 0.1


def test_swav_prototypes_hold_still_and_the_queue_waits_at_first() -> None:
    method = make("swav")
    views = pictures(2)
    method.set_progress(torch.tensor(0.001))
    output = method(views)
    output.loss.backward()
    assert method.prototypes.grad.abs().sum() == 0
    early = output.loss.item()
    with torch.no_grad():
        method.queue1.keys.add_(1.0)
    assert method(views).loss.item() == pytest.approx(early)
    method.set_progress(torch.tensor(0.5))
    assert method(views).loss.item() != pytest.approx(early, rel=1e-3)


def test_byol_s_momentum_rises_along_a_cosine_to_one() -> None:
    method = make("byol")
    for progress, expected in ((0.0, 0.99), (0.5, 0.995), (1.0, 1.0)):
        method.set_progress(torch.tensor(progress))
        assert method.teacher.momentum.item() == pytest.approx(expected, abs=1e-6)


def test_adco_s_negatives_climb_while_the_network_descends() -> None:
    """The gradient of the negatives is that of minus their own loss: a step down it is a step up the loss."""
    method, views = make("adco"), pictures(2)
    method(views).loss.backward()
    q, k = (torch.tensor(z, dtype=torch.float64) for z in (student(method, views[1]), teacher(method, views[0])))
    n = torch.tensor(unit(method.negatives), dtype=torch.float64, requires_grad=True)
    logits = torch.cat(((q * k).sum(1, keepdim=True), q @ n.T), 1) / 0.02
    (-logits.log_softmax(1)[:, 0].mean()).backward()
    inner = (n.grad * n.detach()).sum(1, keepdim=True)  # unit vectors move along the sphere
    torch.testing.assert_close(method.negatives.grad, -(n.grad - inner * n.detach()), rtol=1e-5, atol=1e-9)
    assert method.parameter_groups()[0]["params"] == [method.negatives]


def test_adco_s_negatives_begin_as_the_first_keys() -> None:
    method = make("adco")
    start = method.negatives.detach().clone()
    first, second = (torch.tensor(unit(torch.randn(B, D)), dtype=torch.float64) for _ in range(2))
    method.after_step(first)
    torch.testing.assert_close(method.negatives.detach(), torch.cat((first, start[B:])))
    method.after_step(second)  # 11 in all: the last of the second six has no place
    torch.testing.assert_close(method.negatives.detach(), torch.cat((first, second[:5])))
    method.after_step(-first)
    torch.testing.assert_close(method.negatives.detach(), torch.cat((first, second[:5])))


def test_mochi_mixes_nothing_before_its_time() -> None:
    method, views = make("mochi"), pictures(2)
    method.set_progress(torch.tensor(0.0))
    twin = copy.deepcopy(method)
    assert method(views).loss.item() == pytest.approx(moco(twin, views, {}), rel=1e-6)


def test_localagg_begins_with_every_picture_alone() -> None:
    method = make("localagg")
    logs = method(pictures(1), **wanted_by(method)).logs
    assert logs["close"].item() == 1.0
    logits = torch.randn(3, 5, dtype=torch.float64)
    assert torch.equal(aggregation(logits, torch.ones(3, 5, dtype=torch.bool)), torch.zeros(3, dtype=torch.float64))


def test_pcl_s_concentration_is_the_authors_rule() -> None:
    points, labels = torch.randn(30, 4, generator=torch.Generator().manual_seed(3)), torch.arange(30) % 7
    labels[labels == 6] = 0
    labels[0] = 6  # a cluster of one
    centroids = torch.stack([points[labels == c].mean(0) for c in range(7)])
    phi = []
    for c in range(7):
        d = [(p - centroids[c]).norm().item() for p in points[labels == c]]
        phi.append(mean(d) / math.log(len(d) + 10) if len(d) > 1 else 0.0)
    phi[6] = max(phi)
    clipped = torch.tensor(phi).clamp(*(torch.quantile(torch.tensor(phi), q) for q in (0.1, 0.9)))
    torch.testing.assert_close(concentration(points, centroids, labels, 0.2), 0.2 * clipped / clipped.mean())


def test_cpc_s_context_never_looks_down() -> None:
    method = make("cpc-v2")
    z = torch.randn(2, 6, 4, 3, dtype=torch.float64)
    before = method.context(z)
    z[:, :, 2] += 1.0
    changed = (method.context(z) - before).abs().amax((0, 1, 3))
    assert changed[:2].max() == 0
    assert changed[2:].min() > 0


def test_cpc_has_layer_norm_where_batch_norm_was() -> None:
    from ressl.nn import build_backbone

    method = METHODS["cpc-v2"](build_backbone("resnet10", "medium", 4, 2), patch=8, stride=4)
    kinds = {type(m).__name__ for m in method.backbone.modules()}
    assert "GroupNorm" in kinds
    assert not [kind for kind in kinds if "BatchNorm" in kind]


def test_cpc_leaves_a_network_of_timm_its_activations() -> None:
    timm = pytest.importorskip("timm")
    from ressl.nn import build_backbone

    acts = lambda net: [type(m).__name__ for m in net.modules() if isinstance(m, (torch.nn.ReLU, torch.nn.SiLU))]
    wanted = acts(timm.create_model("test_efficientnet", num_classes=0))
    method = METHODS["cpc-v2"](build_backbone("timm/test_efficientnet"), patch=16, stride=8)
    assert len(wanted) > 5
    assert acts(method.backbone) == wanted
    assert not [m for m in method.backbone.modules() if isinstance(m, torch.nn.BatchNorm2d)]

    class OtherNorm(torch.nn.BatchNorm2d):
        pass

    with pytest.raises(ResslError, match="OtherNorm"):
        layer_norm(torch.nn.Sequential(OtherNorm(3)))


def test_cpc_keeps_its_filters_at_a_mean_of_zero() -> None:
    """Layer norm leaves in what a channel is on average; without this, patches begin much more alike."""
    from ressl.nn import build_backbone

    torch.manual_seed(0)
    method = METHODS["cpc-v2"](build_backbone("resnet10", "medium", 4), patch=8, stride=4)
    filters = [m.weight for m in method.backbone.modules() if isinstance(m, torch.nn.Conv2d)]
    largest = lambda: max(w.mean((1, 2, 3)).abs().max().item() for w in filters)
    assert largest() < 1e-6
    with torch.no_grad():
        for w in filters:
            w += torch.rand_like(w)
    assert largest() > 0.1
    method.after_step(None)
    assert largest() < 1e-6
    features = method.backbone(torch.randn(64, 3, 16, 16)).detach()
    assert torch.corrcoef(features).mean() < 0.9  # and patches do not all look alike


def test_the_accuracy_of_supervised_training_is_shown_in_percent() -> None:
    method, (view,) = make("supervised"), pictures(1)
    guess = method.classifier(method.backbone(view)).argmax(1)
    labels = guess.clone()
    labels[:2] = (guess[:2] + 1) % 4  # two of six are wrong
    shown = {name: float(value) for name, value in method([view], labels=labels).logs.items()}
    assert summary(shown) == f"top-1 {100 * accuracy_score(labels, guess):.2f} %" == "top-1 66.67 %"
