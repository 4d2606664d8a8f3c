"""Speed and memory, measured side by side in one run on the machine at hand."""

from ressl.bench.suite import bench

__all__ = ["bench"]
