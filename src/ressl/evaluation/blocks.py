"""Linear evaluation at the speed of the card: three blocks of steps on their way at once.

The backbone is frozen, so the features of many steps are made together. While the network makes a block's features, the
classifier learns from the block before, and the views of the block after are made, each on a stream of its own: the
network keeps the tensor cores busy, the others hardly anything. All of it is a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ressl import rng
from ressl.data.views import Views
from ressl.engine.compiling import compiled
from ressl.engine.folding import Folded
from ressl.engine.streams import beside, join
from ressl.evaluation.classifier import Classifier, Classroom

PIXELS = 12 << 20  # of a block's views, at most: 12,288 of 32 px, 250 of 224 px
_BYTES = 2400  # of free memory for a pixel: four activations of 64 channels in bf16 and the views, four times over


def steps_per_block(steps: int, batch: int, most: int) -> int:
    """How many steps make a block: about as many as ``most`` pictures, the last block full if it can be."""
    most = max(1, min(most // batch, steps))
    return min(range(max(1, most // 2), most + 1), key=lambda k: (-steps % k, -k))


def pictures_at_once(side: int, device: torch.device) -> int:
    """How many views of that side may go through a backbone together."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else PIXELS * _BYTES
    return min(PIXELS, free // _BYTES) // side**2


Show = Callable[[Tensor, Tensor, Tensor, Tensor], None]  # see Blocks._show


def by_kernel(net: Folded, views: Views, images: Tensor) -> Show | None:
    """Our kernel, for pictures on a GPU and views that it can make."""
    if images.device.type != "cuda":
        return None
    try:
        from ressl.engine.looking import Looking, can_look  # here, because Triton is not on every machine
    except ImportError:
        return None
    return Looking(views, images, net) if can_look(views.views[0], images) else None


class Blocks:
    """Trains ``classifier`` on fresh views of ``images``, one epoch at a time."""

    def __init__(
        self, net: Folded, views: Views, images: Tensor, labels: Tensor, classifier: Classifier | Classroom, batch: int,
        seed: int,
    ) -> None:  # fmt: skip
        device = images.device
        self.net, self.views, self.images, self.labels, self.classifier = net, views, images, labels, classifier
        self.batch, self.seed, self.steps = batch, seed, len(images) // batch
        self.k = steps_per_block(self.steps, batch, pictures_at_once(views.views[0].size, device))
        self.count = -(-self.steps // self.k)  # blocks an epoch
        number = lambda: torch.zeros((), dtype=torch.int64, device=device)
        self.order = torch.zeros(len(images), dtype=torch.int64, device=device)
        self.rows = torch.arange(self.k * batch, dtype=torch.int64, device=device)
        self.epoch = number()
        # Where in its epoch the block to look at next begins, the one whose features come next, and the one to learn.
        self.first, self.seen, self.known = number(), number(), number()
        self.x = torch.zeros(self.k * batch, classifier.inputs, device=device)
        self.y = torch.zeros(self.k * batch, dtype=torch.int64, device=device)
        # What was looked at, in turns: one is read by the network while the other is written.
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.looked = 0  # blocks whose views were asked for
        self.on_gpu = device.type == "cuda"  # elsewhere the same, one thing after the other
        kernel = by_kernel(net, views, images)
        self.show: Show = kernel or self._show
        # The compiler takes seconds to start, and there is nothing for it to do where our kernel does it all.
        self.look = compiled(self._look) if self.on_gpu and kernel is None else self._look
        self.sides = [torch.cuda.Stream(device) for _ in range(2)] if self.on_gpu else [None, None]
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def _show(self, prepared: Tensor, index: Tensor, epoch: Tensor, rows: Tensor) -> None:
        """Write what the network goes on with from the pictures of those numbers, in plain operations."""
        new = self.net.prepare(self.views(self.images[index], epoch, rows)[0])
        prepared.copy_(new)  # compiled, it is written there in the first place

    def _look(self, prepared: Tensor, labels: Tensor) -> None:
        """Views and labels of the block that begins at ``first``."""
        rows = self.first + self.rows
        index = self.order[rows.clamp(max=self.steps * self.batch - 1)]
        self.show(prepared, index, self.epoch, rows)
        labels.copy_(self.labels[index])

    def _learn(self) -> None:
        for i, (x, y) in enumerate(zip(self.x.split(self.batch), self.y.split(self.batch), strict=True)):
            self.classifier.learn(x, y, self.known + (i + 1) * self.batch <= self.steps * self.batch)

    def _keep(self, features: Tensor, turn: int) -> None:
        self.x.copy_(features)
        self.y.copy_(self.pairs[turn][1])

    def _advance(self) -> None:
        self.known.copy_(self.seen)
        self.seen.copy_(self.first)
        self.first.add_(len(self.rows))

    @torch.no_grad()
    def _body(self, turn: int) -> None:
        """Learn a block, make the features of the next, and look at the one after that."""
        with beside(self.sides[0]):
            self._learn()
        with beside(self.sides[1]):
            self.look(*self.pairs[1 - turn])
        features = self.net.network(self.pairs[turn][0])
        join(*self.sides)
        self._keep(features, turn)
        self._advance()

    def _begin(self) -> None:
        """Before a block is looked at; with the first one of an epoch comes its order."""
        if self.looked % self.count == 0:
            epoch = self.looked // self.count
            self.order.copy_(rng.permutation(self.seed, epoch, len(self.images), rng.EVALUATION, self.order.device))
            self.epoch.fill_(epoch)
            self.first.zero_()
        self.looked += 1

    @torch.no_grad()
    def _start(self) -> None:
        """The graphs, and the first two blocks."""
        room = lambda: self.net.room(len(self.rows), self.views.views[0].size, self.images.device)
        self.pairs = [(room(), torch.zeros_like(self.y)) for _ in range(2)]
        if self.on_gpu:
            self._capture()
        for turn in (0, 1):
            self._begin()
            self.look(*self.pairs[turn])
            self._advance()
        self._keep(self.net.network(self.pairs[0][0]), 0)

    def _capture(self) -> None:
        saved = [tensor.clone() for tensor in self.classifier.state()]
        side = torch.cuda.Stream()
        with beside(side):
            for turn in (0, 1):
                self._body(turn)
        join(side)
        for turn in (0, 1):
            graph = torch.cuda.CUDAGraph()
            # One after the other, they can work in the same memory.
            with torch.cuda.graph(graph, pool=self.graphs[0].pool() if self.graphs else None):
                self._body(turn)
            self.graphs.append(graph)
        for tensor, value in zip(self.classifier.state(), saved, strict=True):
            tensor.copy_(value)

    def train_epoch(self) -> None:
        """All steps of the next epoch."""
        if not self.pairs:
            self._start()
        for _ in range(self.count):
            self._begin()
            turn = self.looked % 2
            if self.on_gpu:
                self.graphs[turn].replay()
            else:
                self._body(turn)
