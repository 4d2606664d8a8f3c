"""The pipeline of the fast linear evaluation against a plain loop: the same steps on the same features."""

import pytest
import torch

from ressl import rng
from ressl.data.shapes import make_shapes
from ressl.data.views import View, Views
from ressl.engine.folding import fold
from ressl.evaluation.blocks import Blocks, pictures_at_once, steps_per_block
from ressl.evaluation.classifier import Classifier
from ressl.nn import build_backbone

EPOCHS = 4


@pytest.mark.parametrize(
    ("count", "batch", "most"),
    [(60, 10, 20), (70, 10, 40), (25, 10, 10), (24, 24, 64)],  # blocks full, the last one not, one step, one block
)
def test_the_pipeline_learns_what_the_plain_loop_learns(count, batch, most, monkeypatch):
    monkeypatch.setattr("ressl.evaluation.blocks.PIXELS", most * 16**2)
    torch.manual_seed(0)
    backbone = build_backbone("resnet10", "small", width=4, bn_groups=1).train()
    backbone(torch.randn(32, 3, 16, 16))
    net = fold(backbone.eval(), torch.float32)
    images, labels = make_shapes(count, size=16)
    views = Views([View(size=16, crop=(0.2, 1.0), flip=0.5)], (0.5,) * 3, (0.25,) * 3, 0)
    steps, cpu = count // batch, torch.device("cpu")

    def classifier():
        schedule = lambda step: 0.5 / (1 + step)
        inputs = net(torch.zeros(1, 3, 16, 16)).shape[1]
        return Classifier(inputs, int(labels.max()) + 1, schedule=schedule, nesterov=True, seed=0, device=cpu)

    plain = classifier()
    for epoch in range(EPOCHS):
        order = rng.permutation(0, epoch, count, rng.EVALUATION, cpu)[: steps * batch]
        for i in range(steps):
            rows = torch.arange(i * batch, (i + 1) * batch)
            plain.learn(net(views(images[order[rows]], epoch, rows)[0]), labels[order[rows]])

    fast = classifier()
    blocks = Blocks(net, views, images, labels, fast, batch, 0)
    for epoch in range(1, EPOCHS + 1):
        blocks.train_epoch()
        assert int(fast.step) == epoch * steps
    torch.testing.assert_close(fast.weight, plain.weight, rtol=1e-4, atol=1e-5)


def test_a_block_is_as_large_as_its_pictures_and_the_memory_let_it_be(monkeypatch):
    assert pictures_at_once(32, torch.device("cpu")) == 12_288
    assert steps_per_block(195, 256, pictures_at_once(32, torch.device("cpu"))) == 39  # five full blocks of CIFAR
    assert steps_per_block(5000, 256, pictures_at_once(224, torch.device("cpu"))) == 1
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 << 30, 8 << 30))
    few = pictures_at_once(32, torch.device("cuda"))
    assert few == (4 << 30) // 2400 // 32**2
    assert steps_per_block(195, 256, few) in range(few // 512, few // 256 + 1)
