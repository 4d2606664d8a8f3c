"""The one error a user is meant to see.

Ground floor of the house: every room may import it. The command line prints the message as one
sentence and exits with code 2; in Python it is an ordinary exception.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW = 6  # names that are listed beside the nearest


class ResslError(Exception):
    """Something the user can mend. The message is one sentence that names the fix."""

    exit_code = 2


def printable(text: str) -> str:
    """Text fit for a one-line message: names from outside may hold line breaks, and bytes that are no text."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def unknown(kind: str, given: object, known: Iterable[str]) -> ResslError:
    """The error for a name that does not exist, offering the nearest one that does."""
    names = sorted(known)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20:,} more" if len(names) > 20 else "")
    hint = f"known: {shown}."
    if near:  # which may be a wrong guess: where there are few names, all stand beside it
        hint = f"did you mean '{near[0]}'?" + (f" {hint}" if len(names) <= FEW else "")
    return ResslError(f"unknown {kind} '{printable(str(given))}'; {hint}")
