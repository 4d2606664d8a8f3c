"""Clocks that wait for the device, and the ceilings of the machine."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Timed(NamedTuple):
    """Seconds per call: the median over five stretches, and what lies between the shortest and the longest of them."""

    median: float
    spread: float  # as a share of the median


def seconds_per_call(call: Callable[[], object], device: torch.device, seconds: float, warm_up: int = 2) -> float:
    return timed(call, device, seconds, warm_up).median


def timed(call: Callable[[], object], device: torch.device, seconds: float, warm_up: int = 2) -> Timed:
    """Five stretches that together last about ``seconds``."""
    for _ in range(warm_up):
        call()
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    each = max(1, round(seconds / 5 / max(time.perf_counter() - start, 1e-6)))
    stretches = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(each):
            call()
        wait(device)
        stretches.append((time.perf_counter() - start) / each)
    shortest, _, median, _, longest = sorted(stretches)
    return Timed(median, (longest - shortest) / median)


def seconds_of_one(call: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Seconds per call over one stretch: in short ones, what workers have lying there would hide what they need."""
    wait(device)
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < seconds:
        call()
        count += 1
    wait(device)
    return (time.perf_counter() - start) / count


def in_stock(workers: int) -> int:
    """Batches to take before the clock starts: two, and what the workers had lying there before anybody asked."""
    return 2 + 2 * workers


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """``call``, which has run before, as a CUDA graph: what it takes the device, whatever it takes the host."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], None] = graph.replay
    return replay


def ceilings(device: torch.device, seconds: float) -> dict[str, float]:
    """What the machine can do at best: a large matrix product (TFLOP/s) and a large copy (TB/s, read plus written).

    Random data: products of zeros run faster than real ones.
    """
    on_gpu = device.type == "cuda"
    n, dtype = (8192, torch.bfloat16) if on_gpu else (1024, torch.float32)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    product = seconds_per_call(lambda: a @ b, device, seconds)
    block = torch.randint(0, 255, ((4 if on_gpu else 1) * 2**28,), dtype=torch.uint8, device=device)
    target = torch.empty_like(block)
    copy = seconds_per_call(lambda: target.copy_(block), device, seconds)
    return {
        "matrix_tflops": round(2 * n**3 / product / 1e12, 3),
        "copy_tb_per_s": round(2 * block.numel() / copy / 1e12, 4),
    }


def count_memory_anew(device: torch.device) -> None:
    """The peak of what comes, without what was there before and is held by nobody."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


@contextlib.contextmanager
def as_torch_comes() -> Iterator[None]:
    """Float32 products in float32, as torch has them unless told otherwise; its convolutions are in TF32, and tried."""
    precision, tried = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.benchmark = tried


def peak_memory_gb(device: torch.device) -> float | None:
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 3) if device.type == "cuda" else None
