"""Which values the numbers among a method's options may have; one of a user's own method may have any."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ressl.errors import ResslError

COUNTS = {  # name: the least of them
    **dict.fromkeys(("hidden_dim", "output_dim", "predictor_dim", "teacher_hidden_dim", "teacher_width"), 1),
    **dict.fromkeys(("num_classes", "bank_size", "queue_size", "negatives", "hardest", "background"), 1),
    **dict.fromkeys(("clusters", "clusterings", "granularities", "prototypes", "sinkhorn_iterations"), 1),
    **dict.fromkeys(("patch", "stride", "rows_ahead", "context_layers", "projector_layers"), 1),
    **dict.fromkeys(("mixed", "mixed_with_query", "rows_ignored"), 0),
}
ABOVE_ZERO = {"temperature", "student_temperature", "teacher_temperature", "negatives_temperature", "epsilon"}
AT_LEAST_ZERO = {"divergence", "negatives_decay", "negatives_lr_scale", "patch_jitter", "scale"}
BELOW_ONE = {"bank_momentum"}  # a place in the bank that never moves stays noise
SHARES = {"teacher_momentum", "normaliser_momentum", "color_drop"}
SHARES |= {"mix_from", "queue_from", "prototypes_from", "cluster_from"}  # of the training


def check_ranges(options: Mapping[str, Any]) -> None:
    """Raise for the first option with which nothing could be learned."""
    for name, value in options.items():
        for number in value if isinstance(value, tuple) else (value,):
            if wanted := _wanted(name, number):
                raise ResslError(f"{name} must be {wanted}, not {number}")
        if name in COUNTS and value == ():
            raise ResslError(f"{name} must name at least one number")


def _wanted(name: str, number: Any) -> str | None:
    """What it is not; None if it is as it must be."""
    if name in COUNTS:
        return f"at least {COUNTS[name]}" if number < COUNTS[name] else None
    if name in SHARES:
        return None if 0 <= number <= 1 else "between 0 and 1"
    if name in BELOW_ONE:
        return None if 0 <= number < 1 else "at least 0 and below 1"
    if name in ABOVE_ZERO:
        return None if 0 < number < math.inf else "above 0"
    if name in AT_LEAST_ZERO:
        return None if 0 <= number < math.inf else "at least 0"
    return None
