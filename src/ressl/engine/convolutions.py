"""Convolutions for the CUDA engine: weight gradients beside the rest of the backward, and a cheap first layer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ressl.engine.launching import twice
from ressl.engine.streams import beside, join
from ressl.engine.ways import Way, Ways

_backward = torch.ops.aten.convolution_backward.default


class WeightGradients:
    """Runs weight gradients on a stream of their own.

    Nothing in a backward waits for them until the optimiser does. So a product that keeps the tensor cores busy can
    share the card with the norms' backward, which keeps the memory busy.
    """

    DEPTH = 2  # layers whose inputs may be alive for it: enough to overlap, few enough to bound the memory

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # elsewhere one after the other
        self.pending: deque[tuple[torch.cuda.Event, tuple[Tensor, ...]]] = deque()
        self.sums: dict[int, Tensor] = {}  # what a weight's first use returned, by the weight's address

    def run(self, weight: Tensor, make: Callable[[], Tensor], *inputs: Tensor) -> Tensor | None:
        """``make()`` on the stream: the gradient of ``weight``, whose uses have one sum.

        The first use returns it. Later ones (crops of other sizes) are added to it on the stream and return None: were
        autograd to add them up, the main stream would have to wait for each. ``inputs`` are kept until that stream has
        seen the end.
        """
        with beside(self.stream):
            result = make()
            known = self.sums.get(weight.data_ptr())
            if known is not None:
                known += result
            done = self.stream.record_event() if self.stream is not None else None
        if done is not None:
            self.pending.append((done, inputs))
            while len(self.pending) > self.DEPTH:
                torch.cuda.current_stream(result.device).wait_event(self.pending.popleft()[0])
        if known is not None:
            return None
        # Another tensor of the same memory: of one that we held, autograd would keep a copy, made too early.
        result, self.sums[weight.data_ptr()] = twice(result)
        return result

    def join(self) -> None:
        """Before the gradients are read."""
        self.sums.clear()
        if self.pending:  # else the stream was not used, and a capture must not wait for what it has not seen
            join(self.stream)
            self.pending.clear()


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, stride: list[int], padding: list[int], beside: WeightGradients | None,
        way: Way | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(x, weight)
        ctx.how, ctx.beside = (stride, padding, [1, 1], False, [0, 0], 1), beside
        ctx.back = None if way is None else way.back
        return F.conv2d(x, weight, None, stride, padding) if way is None else way.forth(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (x, weight), dy = ctx.saved_tensors, gradients[0]
        part = lambda which: _backward(dy, x, weight, None, *ctx.how, which)
        dx = dw = None
        if ctx.needs_input_grad[1]:
            make = lambda: part([False, True, False])[1]
            dw = make() if ctx.beside is None else ctx.beside.run(weight, make, dy, x)
        if ctx.needs_input_grad[0]:
            dx = part([True, False, False])[0] if ctx.back is None else ctx.back(dy)
        return dx, dw, None, None, None, None


def convolve(layer: nn.Conv2d, x: Tensor, beside: WeightGradients | None, ways: Ways | None = None) -> Tensor:
    """``layer(x)``, its weight gradient to come ``beside`` the rest, by one of our ``ways`` where that is faster."""
    simple = (
        layer.bias is None and layer.groups == 1 and layer.dilation == (1, 1) and not isinstance(layer.padding, str)
    )
    same = layer.weight.dtype == x.dtype  # else autocast casts the weight, and its gradient before it is there
    if not simple or not same:
        return layer(x)
    stride, padding = list(layer.stride), [int(p) for p in layer.padding]
    way = None if ways is None else ways(x, layer.weight, stride, padding)
    if torch.is_grad_enabled() and (beside is not None or way is not None):
        result: Tensor = _Convolution.apply(x, layer.weight, stride, padding, beside, way)
        return result
    return layer(x) if way is None else way.forth(x)


def stem_columns(x: Tensor) -> Tensor:
    """The 3 x 3 neighbourhood of every pixel as its channels, with zeros up to a multiple of eight.

    B x 3 x H x W -> B x 32 x H x W, channels last: the first convolution is then one matrix product, where the library
    would multiply three channels padded to eight, nine times.
    """
    H, W = x.shape[-2:]
    padded = F.pad(x, (1, 1, 1, 1))
    shifted = [padded[:, :, dy : dy + H, dx : dx + W] for dy in range(3) for dx in range(3)]
    columns = torch.cat(shifted, 1)
    return F.pad(columns, (0, 0, 0, 0, 0, -columns.shape[1] % 8)).contiguous(memory_format=torch.channels_last)


def stem_pixels(x: Tensor) -> Tensor:
    """Every 2 x 2 pixels as one with a border of two before and one behind, and zeros up to a multiple of 16 channels.

    B x 3 x H x W -> B x 16 x (H / 2 + 3) x (W / 2 + 3), channels last: a 7 x 7 convolution in steps of two is then a
    4 x 4 one in steps of one, the same products with fewer zeros among them.
    """
    gathered = F.pixel_unshuffle(x, 2)
    padded = F.pad(gathered, (2, 1, 2, 1, 0, -gathered.shape[1] % 16))
    return padded.contiguous(memory_format=torch.channels_last)


Seen = Callable[[Tensor], Tensor]


def stem(layer: nn.Conv2d, x: Tensor, columns: Seen = stem_columns, pixels: Seen = stem_pixels) -> Tensor:
    """A first convolution over few channels; the functions of the pictures may be compiled ones."""
    how = (layer.kernel_size, layer.stride, layer.padding) if layer.bias is None else None
    if how == ((3, 3), (1, 1), (1, 1)):
        with torch.no_grad():  # pictures have no gradient
            seen = columns(x)  # B x 32 x H x W
        weight = layer.weight.permute(0, 2, 3, 1).flatten(1)  # out x 27, channels fastest, as the columns are
        weight = F.pad(weight, (0, seen.shape[1] - weight.shape[1]))
        return F.linear(seen.permute(0, 2, 3, 1), weight).permute(0, 3, 1, 2)
    if how == ((7, 7), (2, 2), (3, 3)) and x.shape[-2] % 2 == x.shape[-1] % 2 == 0:
        with torch.no_grad():
            seen = pixels(x)
        weight = F.pixel_unshuffle(F.pad(layer.weight, (1, 0, 1, 0)), 2)  # an 8 x 8 kernel, gathered as the pixels are
        weight = F.pad(weight, (0, 0, 0, 0, 0, seen.shape[1] - weight.shape[1]))
        return F.conv2d(seen, weight.contiguous(memory_format=torch.channels_last))
    return padded_stem(layer, x)


def padded_stem(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The first convolution with its three channels padded to eight, which tensor cores can take."""
    missing = -x.shape[1] % 8
    weight = F.pad(layer.weight, (0, 0, 0, 0, 0, missing))
    x = F.pad(x, (0, 0, 0, 0, 0, missing)).contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, weight, layer.bias, layer.stride, layer.padding)
