"""Watching a run: what makes it stop, and a collapse that is named while it happens."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ressl.errors import ResslError

PATIENCE = 5  # log points in a row before a collapse is called one
ENTROPY_CEILING = 0.998  # of log K: the target says nothing; healthy runs begin at up to 0.993
SPREAD_FLOOR = 0.005  # 1 - |mean of unit vectors|: all point one way; healthy runs begin at about 0.02


class NonFinite(ResslError):
    """A loss, gradient or weight that is not a number; no checkpoint has it."""


class Collapse:
    """Reads the logs and says, once, that and why the features collapsed."""

    def __init__(self, queue_size: int | None, temperatures: tuple[float, float] | None, warmup_steps: int) -> None:
        self.ceiling = math.log(queue_size) if queue_size else None
        self.temperatures = temperatures  # (tau_t, tau_s)
        self.warmup_steps = warmup_steps
        self._seen = 0
        self._told = False

    def look(self, step: int, logs: Mapping[str, float]) -> str | None:
        """A warning at the log point where a collapse has become certain, else None."""
        flat = self.ceiling is not None and logs.get("teacher_entropy", 0.0) > ENTROPY_CEILING * self.ceiling
        narrow = logs.get("spread", 1.0) < SPREAD_FLOOR
        if step < self.warmup_steps or not (flat or narrow):
            self._seen = 0
            return None
        self._seen += 1
        if self._seen < PATIENCE or self._told:
            return None
        self._told = True
        return f"step {step}: the features have collapsed: {self._what(flat, narrow, logs)}; {self._why()}"

    def _what(self, flat: bool, narrow: bool, logs: Mapping[str, float]) -> str:
        said = []
        if flat and self.ceiling is not None:
            entropy = logs["teacher_entropy"]
            said.append(f"the teacher's relation is flat (entropy {entropy:.2f} of at most {self.ceiling:.2f})")
        if narrow:
            said.append(f"all embeddings point one way (spread {logs['spread']:.3f})")
        return " and ".join(said)

    def _why(self) -> str:
        if self.temperatures is not None:
            tau_t, tau_s = self.temperatures
            if tau_t >= 0.75 * tau_s:
                return (
                    f"likely cause: teacher_temperature {tau_t} is too close to student_temperature {tau_s}, "
                    "so the target is not sharp enough to guide; 0.04 to 0.05 with 0.1 works"
                )
        return (
            "likely cause: a learning rate too high for the batch, too few batch-norm groups, "
            "or a teacher momentum too low"
        )
