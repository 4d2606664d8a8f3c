"""The graphed linear evaluation against the plain one."""

import pytest
import torch

from ressl.data.shapes import make_shapes
from ressl.engine.folding import fold
from ressl.evaluation.blocks import steps_per_block
from ressl.evaluation.linear import LinearProtocol, linear_evaluation
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


@pytest.mark.parametrize("count", [1000, 1150])  # the last block full, and not
def test_the_curve_is_the_plain_loops(count):
    backbone, (images, labels) = settled(), make_shapes(count + 400, size=32)
    train, test = (images[:count], labels[:count]), (images[count:], labels[count:])
    protocol = LinearProtocol("cosine", lr=0.5, epochs=8, batch_size=50)
    assert steps_per_block(count // 50, 50) > 1
    how = {"protocol": protocol, "mean": (0.5,) * 3, "std": (0.25,) * 3}
    plain = linear_evaluation(backbone, train, test, device="cpu", **how)
    backbone.cuda().to(memory_format=torch.channels_last)
    fast = linear_evaluation(backbone, train, test, device="cuda", precision=torch.bfloat16, **how)
    assert max(abs(a - b) for a, b in zip(plain.curve, fast.curve, strict=True)) < 3.0
    assert plain.last > 20  # eight classes and an untrained network: it has learnt something to compare
