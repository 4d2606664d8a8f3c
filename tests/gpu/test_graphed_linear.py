"""The graphed linear evaluation against the plain one."""

from dataclasses import replace

import pytest
import torch

from ressl.data.shapes import make_shapes
from ressl.data.views import View, Views
from ressl.engine.folding import fold
from ressl.engine.ways import Ways
from ressl.evaluation import blocks
from ressl.evaluation.classifier import Classifier
from ressl.evaluation.linear import LinearProtocol, linear_evaluation, linear_evaluations
from ressl.nn import build_backbone


def settled(width=32):
    torch.manual_seed(0)
    backbone = build_backbone("resnet18", "small", width=width, bn_groups=2).train()
    for _ in range(10):
        backbone(torch.randn(32, 3, 32, 32))
    return backbone.eval()


@pytest.mark.parametrize(("name", "stem"), [("resnet18", "small"), ("resnet18", "medium"), ("resnet50", "imagenet")])
def test_folded_features_are_the_modules(name, stem):
    torch.manual_seed(0)
    backbone = build_backbone(name, stem, bn_groups=2).train()
    for _ in range(5):
        backbone(torch.randn(16, 3, 64, 64))
    backbone.eval().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(16, 3, 64, 64, device="cuda")
    with torch.no_grad():
        expected = backbone.double()(x.double())
        backbone.float()
        found = fold(backbone, torch.bfloat16)(x)
    assert ((found - expected).norm() / expected.norm()).item() < 2e-2


def test_features_without_the_borders_are_the_same():
    torch.manual_seed(0)
    backbone = build_backbone("resnet18", "small", bn_groups=1).eval().cuda().to(memory_format=torch.channels_last)
    x = torch.randn(1030, 3, 32, 32, device="cuda")
    plain, ours = (fold(backbone, torch.bfloat16, Ways(inside=inside))(x) for inside in (False, True))
    assert ((ours - plain).norm() / plain.norm()).item() < 1e-2


@pytest.mark.parametrize(("name", "stem", "side"), [("resnet18", "small", 32), ("resnet18", "imagenet", 27)])
def test_a_look_by_the_kernel_is_the_plain_one(name, stem, side):
    from ressl.engine.looking import Looking

    net = fold(build_backbone(name, stem, bn_groups=2).eval().cuda(), torch.bfloat16)
    images, labels = (x.cuda() for x in make_shapes(500, size=side))
    views = Views([View(size=32, crop=(0.08, 1.0), flip=0.5)], (0.5, 0.4, 0.3), (0.25, 0.2, 0.3), 1)
    how = {"schedule": lambda step: 0.1, "nesterov": True, "seed": 0, "device": images.device}
    made = blocks.Blocks(net, views, images, labels, Classifier(512, 8, **how), 50, 0)
    assert isinstance(made.show, Looking)
    made._begin()
    mine, plain = ((net.room(500, 32, images.device).fill_(torch.nan), torch.zeros_like(made.y)) for _ in range(2))
    made.look(*mine)  # compiles it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made.look(*mine)
    for epoch in (0, 3):
        made.epoch.fill_(epoch)  # a graph reads the device's numbers
        graph.replay()
        made.show, kernel = made._show, made.show
        made._look(*plain)
        made.show = kernel
        torch.testing.assert_close(mine[0], plain[0], rtol=2**-6, atol=2e-2)  # a stem adds 27 of them
        assert mine[1].equal(plain[1])


@pytest.mark.parametrize("ours", [True, False])  # views by our kernel, and by the compiler
@pytest.mark.parametrize("count", [1000, 1150])  # the last block full, and not
def test_the_curve_is_the_plain_loops(count, ours, monkeypatch):
    if not ours:
        monkeypatch.setattr(blocks, "by_kernel", lambda *args: None)
    monkeypatch.setattr(blocks, "PIXELS", 500 * 32**2)
    backbone, (images, labels) = settled(), make_shapes(count + 400, size=32)
    train, test = (images[:count], labels[:count]), (images[count:], labels[count:])
    protocol = LinearProtocol("cosine", lr=0.5, epochs=8, batch_size=50)
    assert 1 < blocks.steps_per_block(count // 50, 50, 500) < count // 50
    how = {"protocol": protocol, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    plain = linear_evaluation(backbone, train, test, device="cpu", **how)
    backbone.cuda().to(memory_format=torch.channels_last)
    fast = linear_evaluation(backbone, train, test, device="cuda", precision=torch.bfloat16, **how)
    assert max(abs(a - b) for a, b in zip(plain.curve, fast.curve, strict=True)) < 3.0
    assert plain.last > 20  # eight classes and an untrained network: it has learnt something to compare


def test_those_that_learn_together_learn_what_each_learns_alone():
    backbone, (images, labels) = settled().cuda().to(memory_format=torch.channels_last), make_shapes(1400, size=32)
    train, test = (images[:1000], labels[:1000]), (images[1000:], labels[1000:])
    protocols = [LinearProtocol(name, lr=lr, epochs=8, batch_size=50) for name, lr in (("cosine", 0.5), ("step", 2.0))]
    how = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "device": "cuda", "precision": torch.bfloat16}
    together = linear_evaluations(backbone, train, test, protocols=protocols, **how)
    for protocol, found in zip(protocols, together, strict=True):
        alone = linear_evaluation(backbone, train, test, protocol=protocol, **how)
        assert max(abs(a - b) for a, b in zip(alone.curve, found.curve, strict=True)) < 1.0
        assert found.last > 20
    slow = linear_evaluation(backbone, train, test, protocol=replace(protocols[0], lr=1e-6), **how)
    assert slow.last < together[0].last - 5  # curves that are alike because nothing was learnt would be no test
