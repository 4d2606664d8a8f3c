"""Linear evaluation at the speed of the card: features of a block of steps and the steps on the block before it.

The backbone is frozen, so the features of many steps are made at once, and while they are made the classifier, whose
kernels are tiny, learns from the previous ones on a stream of its own. All of it is one CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ressl import rng
from ressl.data.views import Views
from ressl.engine.folding import Folded
from ressl.evaluation.classifier import Classifier

PICTURES = 4096  # that go through the backbone at once, at most


def steps_per_block(steps: int, batch: int) -> int:
    """How many steps make a block: about as many as fit, and such that the last block is full if it can be."""
    most = max(1, min(PICTURES // batch, steps))
    return min(range(max(1, most // 2), most + 1), key=lambda k: (-steps % k, -k))


class Blocks:
    """Trains ``classifier`` on fresh views of ``images``, one epoch at a time."""

    def __init__(
        self, net: Folded, views: Views, images: Tensor, labels: Tensor, classifier: Classifier, batch: int, seed: int
    ) -> None:
        device = images.device
        self.net, self.views, self.images, self.labels, self.classifier = net, views, images, labels, classifier
        self.batch, self.seed, self.steps = batch, seed, len(images) // batch
        self.k = steps_per_block(self.steps, batch)
        self.count = -(-self.steps // self.k)  # blocks an epoch
        number = lambda: torch.zeros((), dtype=torch.int64, device=device)
        self.order = torch.zeros(len(images), dtype=torch.int64, device=device)
        self.rows = torch.arange(self.k * batch, dtype=torch.int64, device=device)
        self.epoch, self.first, self.learnt = number(), number(), number()  # learnt: where the block to learn began
        self.x = torch.zeros(self.k * batch, classifier.weight.shape[1] - 1, device=device)
        self.y = torch.zeros(self.k * batch, dtype=torch.int64, device=device)
        self.look = torch.compile(self._look)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.side = torch.cuda.Stream(device)
        self.made = 0  # blocks whose features were asked for

    def _look(self) -> tuple[Tensor, Tensor]:
        """What the network's first layer reads, and the labels, of the block that begins at ``first``."""
        rows = self.first + self.rows
        index = self.order[rows.clamp(max=self.steps * self.batch - 1)]
        return self.net.prepare(self.views(self.images[index], self.epoch, rows)[0]), self.labels[index]

    @torch.no_grad()
    def _learn(self) -> None:
        for i, (x, y) in enumerate(zip(self.x.split(self.batch), self.y.split(self.batch), strict=True)):
            self.classifier.learn(x, y, self.learnt + (i + 1) * self.batch <= self.steps * self.batch)

    @torch.no_grad()
    def _body(self) -> None:
        main = torch.cuda.current_stream()
        self.side.wait_stream(main)
        with torch.cuda.stream(self.side):
            self._learn()
        prepared, y = self.look()
        x = self.net.network(prepared)
        main.wait_stream(self.side)
        self._keep(x, y)

    def _keep(self, x: Tensor, y: Tensor) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        self.learnt.copy_(self.first)
        self.first.add_(len(self.rows))

    def _begin(self) -> None:
        """Before the first block of an epoch is made."""
        epoch = self.made // self.count
        self.order.copy_(rng.permutation(self.seed, epoch, len(self.images), rng.EVALUATION, self.order.device))
        self.epoch.fill_(epoch)
        self.first.zero_()

    def _start(self) -> None:
        """The first block, the kernels, and the graph."""
        saved = [tensor.clone() for tensor in self.classifier.state()]
        self._begin()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._body()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._body()
        for tensor, value in zip(self.classifier.state(), saved, strict=True):
            tensor.copy_(value)
        self.first.zero_()
        with torch.no_grad():
            prepared, y = self.look()
            self._keep(self.net.network(prepared), y)
        self.made = 1

    def train_epoch(self) -> None:
        """All steps of the next epoch."""
        if self.graph is None:
            self._start()
        assert self.graph is not None
        for _ in range(self.count):  # each makes one block and learns the one before
            if self.made % self.count == 0:
                self._begin()
            self.graph.replay()
            self.made += 1
