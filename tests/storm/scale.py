"""How hard the storm blows: a short form in every test run, the full one with STORM=full; the same draws every time."""

from __future__ import annotations

import os
import random

FULL = os.environ.get("STORM") == "full"
SEED = int(os.environ.get("STORM_SEED", "7"))
MUTANT = os.environ.get("STORM_MUTANT", "")  # a safety that is switched off, to see the storm notice (mutants.py)


def times(full: int, short: int) -> int:
    return full if FULL else short


def shards(full: int, short: int = 1) -> range:
    """Parts of one row, so that several processes can share it."""
    return range(full if FULL else short)


def share(total: int, part: int, parts: int) -> range:
    """The cases of one part."""
    return range(part, total, parts)


def draw(*what: object) -> random.Random:
    """A generator for this purpose and no other."""
    return random.Random(f"{SEED}/{what}")
