"""Each method's loss against its paper's equation, written out with loops over Python floats."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ressl.methods import METHODS, Method
from ressl.methods.localagg import aggregation
from ressl.methods.pcl_v2 import concentration
from ressl.methods.swav import sinkhorn

B, D, N = 6, 5, 20  # batch, embedding, pictures in the bank
SMALL: dict[str, dict[str, Any]] = {
    "ressl": {"hidden_dim": 7, "output_dim": D, "queue_size": 11},
    "moco-v2": {"hidden_dim": 7, "output_dim": D, "queue_size": 11},
    "simclr": {"hidden_dim": 7, "output_dim": D},
    "byol": {"hidden_dim": 7, "output_dim": D},
    "simsiam": {"output_dim": D, "predictor_dim": 3},
    "supervised": {"num_classes": 4},
    "swav": {"hidden_dim": 7, "output_dim": D, "prototypes": 4, "queue_size": 8},
    "instdisc": {"output_dim": D, "bank_size": N, "negatives": 9},
    "localagg": {"output_dim": D, "bank_size": N, "background": 8, "clusters": 4, "clusterings": 2},
    "mochi": {"hidden_dim": 7, "output_dim": D, "queue_size": 11, "hardest": 4, "mixed": 5, "mixed_with_query": 3},
    "cpc-v2": {"patch": 4, "stride": 2, "rows_ignored": 0, "hidden_dim": 6, "output_dim": D},
    "pcl-v2": {"hidden_dim": 7, "output_dim": D, "queue_size": 11, "bank_size": N, "granularities": (3, 5)},
    "adco": {"hidden_dim": 7, "output_dim": D, "negatives": 11},
    "clsa": {"hidden_dim": 7, "output_dim": D, "queue_size": 11},
    "clsa-multi": {"hidden_dim": 7, "output_dim": D, "queue_size": 11},
    "seed": {"hidden_dim": 7, "output_dim": D, "queue_size": 11, "teacher_backbone": "resnet10", "teacher_width": 4,
             "teacher_hidden_dim": 6},
}  # fmt: skip


class Plain(nn.Module):
    """A backbone of two layers: fast, and any picture size will do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.features_dim = nn.Conv2d(3, 6, 3), 6

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.first(x)).mean((2, 3))


def make(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    method = METHODS[name](Plain(), **(SMALL[name] | options)).double().train()
    method.set_progress(torch.tensor(0.5, dtype=torch.float64))
    return method


def pictures(count: int, side: int = 8) -> list[Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(B, 3, side, side, dtype=torch.float64, generator=draw) for _ in range(count)]


Vector = list[float]


def unit(x: Tensor) -> list[Vector]:
    return [[v / math.sqrt(sum(w**2 for w in row)) for v in row] for row in x.tolist()]


def dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(logits: Sequence[float]) -> Vector:
    e = [math.exp(v) for v in logits]
    return [v / sum(e) for v in e]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def rows(x: Tensor) -> list[Vector]:
    found: list[Vector] = x.tolist()
    return found


def contrastive(q: Vector, k: Vector, negatives: Sequence[Vector], tau: float) -> float:
    return -math.log(softmax([dot(q, k) / tau, *(dot(q, n) / tau for n in negatives)])[0])


def student(twin: Any, view: Tensor) -> list[Vector]:
    return unit(twin.head(twin.backbone(view)))


def teacher(twin: Any, view: Tensor) -> list[Vector]:
    return unit(twin.teacher.module(view))


def moco(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    q, k, Q = student(twin, views[1]), teacher(twin, views[0]), rows(twin.queue.keys)
    return mean([contrastive(q[i], k[i], Q, 0.2) for i in range(B)])


def simclr(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    z = [*student(twin, views[0]), *student(twin, views[1])]
    pair = lambda i: (i + B) % (2 * B)
    rest = lambda i: [z[j] for j in range(2 * B) if j not in (i, pair(i))]
    return mean([contrastive(z[i], z[pair(i)], rest(i), 0.1) for i in range(2 * B)])


def byol(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    p = [unit(twin.predictor(twin.head(twin.backbone(view)))) for view in views]
    t = [teacher(twin, view) for view in views]
    square = lambda a, b: sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return mean([square(p[0][i], t[1][i]) + square(p[1][i], t[0][i]) for i in range(B)])


def simsiam(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    z = [twin.head(twin.backbone(view)) for view in views]
    p, z = [unit(twin.predictor(x)) for x in z], [unit(x) for x in z]
    return mean([-dot(p[0][i], z[1][i]) / 2 - dot(p[1][i], z[0][i]) / 2 for i in range(B)])


def supervised(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    logits = rows(twin.classifier(twin.backbone(views[0])))
    return mean([-math.log(softmax(logits[i])[int(wanted["labels"][i])]) for i in range(B)])


def even(scores: list[Vector], epsilon: float, iterations: int) -> list[Vector]:
    """Sinkhorn-Knopp: columns and rows of exp(scores / epsilon) made even in turns."""
    Q = [[math.exp(s / epsilon) for s in row] for row in scores]
    for _ in range(iterations):
        columns = [sum(row[p] for row in Q) for p in range(len(Q[0]))]
        Q = [[v / columns[p] / len(columns) for p, v in enumerate(row)] for row in Q]
        Q = [[v / sum(row) / len(Q) for v in row] for row in Q]
    return [[v * len(Q) for v in row] for row in Q]


def swav(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    z, C = [student(twin, view) for view in views], unit(twin.prototypes)
    scores = [[[dot(v, c) for c in C] for v in crop] for crop in z]
    terms = []
    for i, queue in enumerate((twin.queue1, twin.queue2)):
        past = [[dot(v, c) for c in C] for v in rows(queue.keys)]
        codes = even([*scores[i], *past], 0.05, 3)[:B]
        for v in range(len(views)):
            if v != i:
                p = [softmax([s / 0.1 for s in row]) for row in scores[v]]
                terms.append(mean([-dot(code, [math.log(x) for x in q]) for code, q in zip(codes, p, strict=True)]))
    return mean(terms)


def instdisc(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    v, bank, m = student(twin, views[0]), rows(twin.bank.vectors), 9
    noise = (twin.draws(B, m) * N).long().tolist()
    own = wanted["index"].tolist()
    weight = [[math.exp(dot(v[i], bank[j]) / 0.07) for j in (own[i], *noise[i])] for i in range(B)]
    Z = mean([w for row in weight for w in row]) * N
    h = lambda w: (w / Z) / (w / Z + m / N)
    return mean([-math.log(h(row[0])) - sum(math.log(1 - h(w)) for w in row[1:]) for row in weight])


def localagg(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    v, bank, labels = student(twin, views[0]), rows(twin.bank.vectors), twin.clusters.tolist()
    total, sizes = [], []
    for i, own in enumerate(wanted["index"].tolist()):
        s = [dot(v[i], b) for b in bank]
        background = sorted(range(N), key=lambda j, own=own, s=s: (j != own, -s[j]))[:8]
        close = [j for j in background if any(row[j] == row[own] for row in labels)]
        weight = [math.exp(x / 0.07) for x in s]
        total.append(-math.log(sum(weight[j] for j in close) / sum(weight[j] for j in background)))
        sizes.append(len(close))
    assert any(1 < size < 8 for size in sizes)  # else the clusters would not matter
    return mean(total)


def mochi(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    q, k, Q = student(twin, views[1]), teacher(twin, views[0]), rows(twin.queue.keys)
    u, total = twin.draws(B, 3 * 5 + 2 * 3).tolist(), []
    for i in range(B):
        hard = sorted(Q, key=lambda n, i=i: -dot(q[i], n))[:4]
        mixed = []
        for s in range(5):
            a, b, share = hard[int(u[i][s] * 4)], hard[int(u[i][5 + s] * 4)], u[i][10 + s]
            mixed.append([share * x + (1 - share) * y for x, y in zip(a, b, strict=True)])
        for s in range(3):
            a, share = hard[int(u[i][15 + s] * 4)], 0.5 * u[i][18 + s]
            mixed.append([share * x + (1 - share) * y for x, y in zip(q[i], a, strict=True)])
        total.append(contrastive(q[i], k[i], [*Q, *unit(torch.tensor(mixed, dtype=torch.float64))], 0.2))
    return mean(total)


def cpc(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    image, places = views[0], range(0, 5, 2)  # 8 px in patches of 4, every 2: a grid of 3 x 3
    u = twin.draws(B, 45).double()
    z = torch.zeros(B, 3, 3, 6, dtype=torch.float64)
    for b in range(B):
        for row, y in enumerate(places):
            for column, x in enumerate(places):
                drop, which, mirror, contrast, brightness = u[b, 5 * (3 * row + column) :][:5].tolist()
                patch = image[b, :, y : y + 4, x : x + 4]
                patch = patch[int(3 * which)].expand(3, -1, -1) if drop < 0.8 else patch
                patch = patch.flip(2) if mirror < 0.5 else patch
                patch = patch * (1 + 0.4 * (2 * contrast - 1)) + 0.4 * (2 * brightness - 1)
                z[b, row, column] = twin.backbone.network(patch[None])[0].detach()
    everything = [v.tolist() for b in range(B) for v in twin.targets(z[b]).flatten(0, 1)]  # 9 of each picture
    # Where in the picture is what stands at (row, column) for one who looks from above, right, below or left.
    seen = [lambda r, c: (r, c), lambda r, c: (c, 2 - r), lambda r, c: (2 - r, 2 - c), lambda r, c: (2 - c, r)]
    terms = []
    for k in (1, 2):  # both of them: rows_ignored is 0 here
        each = []
        for at in seen:
            grid = torch.stack([torch.stack([z[(slice(None), *at(r, c))] for c in range(3)], 2) for r in range(3)], 2)
            context = twin.context(grid)  # B x 6 x 3 x 3
            for b, row, column in itertools.product(range(B), range(3 - k), range(3)):
                p = twin.predictions[k - 1](context[b, :, row, column]).tolist()
                r, c = at(row + k, column)
                each.append(-math.log(softmax([0.1 * dot(p, v) for v in everything])[b * 9 + r * 3 + c]))
        terms.append(mean(each))
    return mean(terms)


def pcl(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    q, terms = student(twin, views[1]), []
    for m in range(2):
        C, phi, labels = (getattr(twin, f"{name}{m}").tolist() for name in ("prototypes", "phi", "labels"))
        own = [labels[j] for j in wanted["index"].tolist()]
        logits = [[dot(v, c) / f for c, f in zip(C, phi, strict=True)] for v in q]
        terms.append(mean([-math.log(softmax(logits[i])[own[i]]) for i in range(B)]))
    return moco(twin, views, wanted) + mean(terms)


def adco(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    q, k, n = student(twin, views[1]), teacher(twin, views[0]), unit(twin.negatives)
    return mean([contrastive(q[i], k[i], n, 0.12) for i in range(B)])


def clsa(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    q, k, Q = student(twin, views[1]), teacher(twin, views[0]), rows(twin.queue.keys)
    relation = lambda z, i: softmax([dot(z, k[i]) / 0.2, *(dot(z, n) / 0.2 for n in Q)])
    terms = []
    for view in views[2:]:
        s = student(twin, view)
        p, r = ([relation(z[i], i) for i in range(B)] for z in (q, s))
        terms.append(mean([-dot(p[i], [math.log(x) for x in r[i]]) for i in range(B)]))
    return moco(twin, views, wanted) + mean(terms)


def seed(twin: Any, views: list[Tensor], wanted: dict[str, Tensor]) -> float:
    s, t, Q = student(twin, views[0]), unit(twin.frozen(views[0])), rows(twin.queue.keys)
    relation = lambda z, i, tau: softmax([dot(z, t[i]) / tau, *(dot(z, n) / tau for n in Q)])
    return mean([-dot(relation(t[i], i, 0.01), [math.log(x) for x in relation(s[i], i, 0.2)]) for i in range(B)])


Naive = Callable[[Any, list[Tensor], dict[str, Tensor]], float]
NAIVE: dict[str, tuple[Naive, int]] = {  # with the number of views
    "moco-v2": (moco, 2), "simclr": (simclr, 2), "byol": (byol, 2), "simsiam": (simsiam, 2),
    "supervised": (supervised, 1), "swav": (swav, 4), "instdisc": (instdisc, 1), "localagg": (localagg, 1),
    "mochi": (mochi, 2), "cpc-v2": (cpc, 1), "pcl-v2": (pcl, 2), "adco": (adco, 2), "clsa": (clsa, 3),
    "clsa-multi": (clsa, 5), "seed": (seed, 1),
}  # fmt: skip


def wanted_by(method: Method) -> dict[str, Tensor]:
    given = {"index": torch.tensor([3, 0, 19, 7, 11, 2]), "labels": torch.tensor([0, 3, 1, 1, 2, 0])}
    return {name: given[name] for name in method.wants}


def test_every_method_has_an_equation_here_or_in_a_test_of_its_own() -> None:
    assert set(NAIVE) == set(METHODS) - {"ressl"}


@pytest.mark.parametrize("name", NAIVE)
def test_the_loss_is_the_equation(name: str) -> None:
    naive, count = NAIVE[name]
    method = make(name)
    with torch.no_grad():  # teacher and student differ, or half of the equation would go unseen
        for p in method.parameters():
            p.add_(0.1 * torch.randn_like(p))
        if name == "swav":
            method.after_step((torch.ones(2, D), torch.ones(2, D)))  # prototypes are of unit length again
    if name in ("localagg", "pcl-v2"):
        method.begin_epoch(method.cluster_after)
    views, wanted = pictures(count), wanted_by(method)
    twin = copy.deepcopy(method)
    expected = naive(twin, views, wanted)
    assert method(views, **wanted).loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", NAIVE)
def test_gradients_reach_what_learns_and_nothing_else(name: str) -> None:
    _, count = NAIVE[name]
    method = make(name)
    method(pictures(count), **wanted_by(method)).loss.backward()
    for label, p in method.named_parameters():
        if p.requires_grad:
            assert p.grad is not None, label
            assert p.grad.abs().sum() > 0, label
        else:
            assert p.grad is None, label
            assert label.startswith(("teacher.", "frozen.")), label


# --- what only one method has ---


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
