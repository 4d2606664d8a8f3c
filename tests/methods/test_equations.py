"""Each method's loss against its paper's equation, written out with loops over Python floats."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from written import (
    B,
    D,
    N,
    Vector,
    contrastive,
    dot,
    make,
    mean,
    moco,
    pictures,
    rows,
    softmax,
    student,
    teacher,
    unit,
    wanted_by,
)

from ressl.methods import METHODS


def simclr(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    z = [*student(twin, views[0]), *student(twin, views[1])]
    pair = lambda i: (i + B) % (2 * B)
    rest = lambda i: [z[j] for j in range(2 * B) if j not in (i, pair(i))]
    return mean([contrastive(z[i], z[pair(i)], rest(i), 0.1) for i in range(2 * B)])


def byol(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    p = [unit(twin.predictor(twin.head(twin.backbone(view)))) for view in views]
    t = [teacher(twin, view) for view in views]
    square = lambda a, b: sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    return mean([square(p[0][i], t[1][i]) + square(p[1][i], t[0][i]) for i in range(B)])


def simsiam(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    p = [unit(twin.predictor(twin.head(twin.backbone(view)))) for view in views]
    z = [student(still, view) for view in views]
    return mean([-dot(p[0][i], z[1][i]) / 2 - dot(p[1][i], z[0][i]) / 2 for i in range(B)])


def supervised(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
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


def swav(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    both = []
    for net in (twin, still):
        C = rows(net.prototypes)
        both.append([[[dot(v, c) for c in C] for v in student(net, view)] for view in views])
    (scores, before), terms = both, []
    for i, queue in enumerate((twin.queue1, twin.queue2)):
        past = [[dot(v, c) for c in C] for v in rows(queue.keys)]
        codes = even([*before[i], *past], 0.05, 3)[:B]
        for v in range(len(views)):
            if v != i:
                p = [softmax([s / 0.1 for s in row]) for row in scores[v]]
                terms.append(mean([-dot(code, [math.log(x) for x in q]) for code, q in zip(codes, p, strict=True)]))
    return mean(terms)


def instdisc(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    v, bank, m = student(twin, views[0]), rows(twin.bank.vectors), 9
    noise = (twin.draws(B, m) * N).long().tolist()
    own = wanted["index"].tolist()
    weigh = lambda v: [[math.exp(dot(v[i], bank[j]) / 0.07) for j in (own[i], *noise[i])] for i in range(B)]
    weight = weigh(v)
    Z = mean([w for row in weigh(student(still, views[0])) for w in row]) * N
    h = lambda w: (w / Z) / (w / Z + m / N)
    return mean([-math.log(h(row[0])) - sum(math.log(1 - h(w)) for w in row[1:]) for row in weight])


def localagg(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
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


def mochi(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    q, k, Q = student(twin, views[1]), teacher(twin, views[0]), rows(twin.queue.keys)
    u, total, fixed = twin.draws(B, 3 * 5 + 2 * 3).tolist(), [], student(still, views[1])
    for i in range(B):
        hard = sorted(Q, key=lambda n, i=i: -dot(q[i], n))[:4]
        mixed = []
        for s in range(5):
            a, b, share = hard[int(u[i][s] * 4)], hard[int(u[i][5 + s] * 4)], u[i][10 + s]
            mixed.append([share * x + (1 - share) * y for x, y in zip(a, b, strict=True)])
        for s in range(3):
            a, share = hard[int(u[i][15 + s] * 4)], 0.5 * u[i][18 + s]
            mixed.append([share * x + (1 - share) * y for x, y in zip(fixed[i], a, strict=True)])
        total.append(contrastive(q[i], k[i], [*Q, *unit(torch.tensor(mixed, dtype=torch.float64))], 0.2))
    return mean(total)


def cpc(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
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


def pcl(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    q, terms = student(twin, views[1]), []
    for m in range(2):
        C, phi, labels = (getattr(twin, f"{name}{m}").tolist() for name in ("prototypes", "phi", "labels"))
        own = [labels[j] for j in wanted["index"].tolist()]
        logits = [[dot(v, c) / f for c, f in zip(C, phi, strict=True)] for v in q]
        terms.append(mean([-math.log(softmax(logits[i])[own[i]]) for i in range(B)]))
    return moco(twin, views, wanted, still) + mean(terms)


def adco(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    q, k, n = student(twin, views[1]), teacher(twin, views[0]), unit(twin.negatives)
    return mean([contrastive(q[i], k[i], n, 0.12) for i in range(B)])


def clsa(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    k, Q = teacher(twin, views[0]), rows(twin.queue.keys)
    relation = lambda z, i: softmax([dot(z, k[i]) / 0.2, *(dot(z, n) / 0.2 for n in Q)])
    terms, q = [], student(still, views[1])
    for view in views[2:]:
        s = student(twin, view)
        p, r = ([relation(z[i], i) for i in range(B)] for z in (q, s))
        terms.append(mean([-dot(p[i], [math.log(x) for x in r[i]]) for i in range(B)]))
    return moco(twin, views, wanted, still) + mean(terms)


def seed(twin: Any, views: list[Tensor], wanted: dict[str, Tensor], still: Any) -> float:
    s, t, Q = student(twin, views[0]), unit(twin.frozen(views[0])), rows(twin.queue.keys)
    relation = lambda z, i, tau: softmax([dot(z, t[i]) / tau, *(dot(z, n) / tau for n in Q)])
    return mean([-dot(relation(t[i], i, 0.01), [math.log(x) for x in relation(s[i], i, 0.2)]) for i in range(B)])


# The network, its views and what it wants; and the network whose results are held still, where a paper does.
Naive = Callable[[Any, list[Tensor], dict[str, Tensor], Any], float]
NAIVE: dict[str, tuple[Naive, int]] = {  # with the number of views
    "moco-v2": (moco, 2), "simclr": (simclr, 2), "byol": (byol, 2), "simsiam": (simsiam, 2),
    "supervised": (supervised, 1), "swav": (swav, 4), "instdisc": (instdisc, 1), "localagg": (localagg, 1),
    "mochi": (mochi, 2), "cpc-v2": (cpc, 1), "pcl-v2": (pcl, 2), "adco": (adco, 2), "clsa": (clsa, 3),
    "clsa-multi": (clsa, 5), "seed": (seed, 1),
}  # fmt: skip


def test_every_method_has_an_equation_here_or_in_a_test_of_its_own() -> None:
    assert set(NAIVE) == set(METHODS) - {"ressl"}


def ready(name: str, **options: Any) -> Any:
    """A method whose teacher and student differ, or half of its equation would go unseen; with clusters."""
    method = make(name, **options)
    with torch.no_grad():
        for p in method.parameters():
            p.add_(0.1 * torch.randn_like(p))
        if name == "swav":
            method.after_step((torch.ones(2, D), torch.ones(2, D)))  # prototypes are of unit length again
    if name in ("localagg", "pcl-v2"):
        method.begin_epoch(1)  # makes clusters
    return method


@pytest.mark.parametrize("name", NAIVE)
def test_the_loss_is_the_equation(name: str) -> None:
    naive, count = NAIVE[name]
    method = ready(name)
    views, wanted = pictures(count), wanted_by(method)
    twin = copy.deepcopy(method)
    expected = naive(twin, views, wanted, twin)
    assert method(views, **wanted).loss.item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", NAIVE)
def test_the_gradient_is_the_equations(name: str) -> None:
    """In a random direction, against the difference of the written loss on either side: what a paper holds still is."""
    naive, count = NAIVE[name]
    method = ready(name)
    views, wanted = pictures(count), wanted_by(method)
    still, sides, drawn = copy.deepcopy(method), [], torch.Generator().manual_seed(3)
    method(views, **wanted).loss.backward()
    # AdCo's negatives go the other way, see test_particulars.py.
    learning = {n: p for n, p in method.named_parameters() if p.requires_grad and n != "negatives"}
    direction = {n: torch.randn(p.shape, dtype=p.dtype, generator=drawn) for n, p in learning.items()}
    for sign in (1, -1):
        moved = copy.deepcopy(still)
        with torch.no_grad():
            for label, way in direction.items():
                moved.get_parameter(label).add_(sign * 1e-7 * way)
        sides.append(naive(moved, views, wanted, still))
    slope = sum((p.grad * direction[label]).sum().item() for label, p in learning.items() if p.grad is not None)
    assert slope == pytest.approx((sides[0] - sides[1]) / 2e-7, rel=1e-4, abs=1e-6)


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
