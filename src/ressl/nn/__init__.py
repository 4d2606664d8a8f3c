"""Parts with state, each usable alone: backbones, heads, EMA teacher, memory queue, grouped batch norm, shuffle."""

from ressl.nn.backbones import BACKBONES, STEMS, build_backbone
from ressl.nn.batchnorm import GroupedBatchNorm2d, group_batch_norm
from ressl.nn.crops import forward_crops
from ressl.nn.ema import EMATeacher
from ressl.nn.heads import ProjectionHead, l2_normalize
from ressl.nn.processes import all_rows, mean_over_processes, my_rows, rank, world
from ressl.nn.queue import MemoryQueue
from ressl.nn.shuffle import BatchShuffle

__all__ = [
    "BACKBONES",
    "STEMS",
    "BatchShuffle",
    "EMATeacher",
    "GroupedBatchNorm2d",
    "MemoryQueue",
    "ProjectionHead",
    "all_rows",
    "build_backbone",
    "forward_crops",
    "group_batch_norm",
    "l2_normalize",
    "mean_over_processes",
    "my_rows",
    "rank",
    "world",
]
