"""Parts with state, each usable alone: backbones, heads, EMA teacher, memory queue, grouped batch norm, shuffle."""

from ressl.nn.backbones import BACKBONES, STEMS, build_backbone
from ressl.nn.bank import MemoryBank
from ressl.nn.batchnorm import GroupedBatchNorm1d, GroupedBatchNorm2d, group_batch_norm, groups_of
from ressl.nn.crops import each, forward_crops
from ressl.nn.draws import Draws
from ressl.nn.ema import EMATeacher
from ressl.nn.heads import MLP, ProjectionHead, head_of, head_words, l2_normalize
from ressl.nn.kmeans import Clusters, few_clusters, kmeans
from ressl.nn.processes import all_rows, my_rows, rank, world
from ressl.nn.queue import MemoryQueue
from ressl.nn.shuffle import BatchShuffle

__all__ = [
    "BACKBONES",
    "MLP",
    "STEMS",
    "BatchShuffle",
    "Clusters",
    "Draws",
    "EMATeacher",
    "GroupedBatchNorm1d",
    "GroupedBatchNorm2d",
    "MemoryBank",
    "MemoryQueue",
    "ProjectionHead",
    "all_rows",
    "build_backbone",
    "each",
    "few_clusters",
    "forward_crops",
    "group_batch_norm",
    "groups_of",
    "head_of",
    "head_words",
    "kmeans",
    "l2_normalize",
    "my_rows",
    "rank",
    "world",
]
