"""Fonts for names from anywhere: matplotlib's own, and for letters that it lacks one that this system has."""

from __future__ import annotations

import logging
from pathlib import Path

import matplotlib
from matplotlib import font_manager
from PIL import ImageFont

OWN = "DejaVu Sans"
EAST_ASIAN = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "Source Han Sans", "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic",
    "Arial Unicode MS",
)  # fmt: skip
# Of a family without its normal weight another is as good, and no news.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)

_FIRST = "\u2e80"  # what East Asian scripts have begins here


def families() -> list[str]:
    """What is asked for a letter, in turn; a family that is not installed would be a warning for each."""
    there = set(font_manager.get_font_names())
    return [OWN, *(name for name in EAST_ASIAN if name in there)]


def font_for(text: str, size: int) -> ImageFont.FreeTypeFont:
    """One for all letters of ``text``, as far as this system has one; Pillow does not ask a second."""
    if any(letter >= _FIRST for letter in text) and (others := families()[1:]):
        return ImageFont.truetype(font_manager.findfont(others[0]), size)
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"), size)
