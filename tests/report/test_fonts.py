"""Names in other scripts: asked for are fonts that are there, and DejaVu first."""

from __future__ import annotations

import pytest
from matplotlib import font_manager

from ressl.report import fonts


def test_only_fonts_of_this_system_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(fonts.families()) <= set(font_manager.get_font_names())
    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["Malgun Gothic", "DejaVu Sans", "Comic Sans MS"])
    assert fonts.families() == ["DejaVu Sans", "Malgun Gothic"]


def test_a_font_is_chosen_by_the_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "families", lambda: ["DejaVu Sans", "DejaVu Serif"])  # stands for one of the others
    assert fonts.font_for("Größe, кошка", 11).getname()[0] == "DejaVu Sans"
    assert fonts.font_for("a 猫", 11).getname()[0] == "DejaVu Serif"
    monkeypatch.setattr(fonts, "families", lambda: ["DejaVu Sans"])
    assert fonts.font_for("a 猫", 11).getname()[0] == "DejaVu Sans"
