"""ReSSL: relational self-supervised learning.

>>> import ressl
>>> run = ressl.pretrain(data="photos/", out="runs/photos", epochs=1)
>>> model, transform = ressl.load("runs/photos")
>>> found = ressl.embed("runs/photos", "photos/")
>>> found.features.shape  # of 32 photographs
(32, 256)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ressl.embedding import embed
    from ressl.evaluating import evaluate
    from ressl.loading import load
    from ressl.pretraining import pretrain

from ressl.errors import ResslError

__version__ = "0.1.0"
__all__ = ["ResslError", "embed", "evaluate", "load", "pretrain"]

_LAZY = {
    "pretrain": "ressl.pretraining",
    "evaluate": "ressl.evaluating",
    "load": "ressl.loading",
    "embed": "ressl.embedding",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that `import ressl` and `ressl --help` are quick."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ressl' has no attribute '{name}'")
