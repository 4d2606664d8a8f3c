"""Docstrings as the site shows them: examples as code, and other tools' roles as plain names."""

from __future__ import annotations

import re
from typing import Any

import griffe


def shown(text: str) -> str:
    """Fence every run of ``>>>`` lines with what they print.

    >>> print(shown("See :func:`a.b`."))
    See `a.b`.
    """
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    fence = lambda match: f"```pycon\n{match[0].rstrip()}\n```"
    return re.sub(r"^>>> .*?(?=\n\s*\n|\Z)", fence, text, flags=re.MULTILINE | re.DOTALL)


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)
