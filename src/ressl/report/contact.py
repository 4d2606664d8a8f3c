"""A contact sheet: one picture, and those found for it, with a line under each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw

from ressl.report.fonts import font_for

_INK, _PAPER, _ACCENT, _EMPTY = "#22303c", "#ffffff", "#1f6f8b", "#e3e8ec"
_GAP, _TEXT = 12, 34


def contact_sheet(
    query: Image.Image, found: Sequence[tuple[Image.Image | None, str]], path: Path, side: int = 160, columns: int = 6
) -> Path:
    """The query framed on top, then the found in rows, nearest first. None stands for a picture that is gone."""
    columns = max(1, min(columns, len(found)))
    rows = -(-len(found) // columns)
    cell = side + _TEXT
    sheet = Image.new("RGB", (_GAP + columns * (side + _GAP), _GAP + (rows + 1) * (cell + _GAP)), _PAPER)
    draw = ImageDraw.Draw(sheet)
    _place(sheet, draw, query, "query", (_GAP, _GAP), side, _ACCENT)
    for i, (picture, text) in enumerate(found):
        corner = (_GAP + i % columns * (side + _GAP), _GAP + (1 + i // columns) * (cell + _GAP))
        _place(sheet, draw, picture, text, corner, side, None)
    sheet.save(path, "PNG")
    return path


def _place(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    picture: Image.Image | None,
    text: str,
    corner: tuple[int, int],
    side: int,
    frame: str | None,
) -> None:
    x, y = corner
    if picture is None:
        draw.rectangle((x, y, x + side - 1, y + side - 1), fill=_EMPTY)
    else:
        scale = side / max(picture.size)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        # Small pictures are shown in sharp pixels: blurred, a 32 px picture cannot be recognised.
        way = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.LANCZOS
        sheet.paste(picture.convert("RGB").resize(size, way), (x + (side - size[0]) // 2, y + (side - size[1]) // 2))
    if frame is not None:
        draw.rectangle((x - 4, y - 4, x + side + 3, y + side + 3), outline=frame, width=3)
    font = font_for(text, 11)
    for line, words in enumerate(text.split("\n")[:2]):
        while words and draw.textlength(words, font=font) > side:
            words = words[:-2].rstrip("…") + "…" if len(words) > 2 else ""
        draw.text((x, y + side + 5 + 14 * line), words, fill=_INK, font=font)
