"""The colours of the pages can be read by everybody: WCAG 2.2, level AA. Text has a contrast of 4.5 to what
is behind it (1.4.3), lines and marks have 3 (1.4.11); light and dark.
"""

from __future__ import annotations

import re

import pytest

from tests.meta.source import CORE, ROOT

SHEETS = (CORE.source / "report/page.css", ROOT / "provider/ui/src/style.css")
TEXT = ("ink", "soft", "good", "bad", "warn", "calm")
MARKS = ("s0", "s1", "s2", "s3", "s4", "s5")
BEHIND = ("paper", "card")
THEMES = [
    pytest.param(dict(re.findall(r"--(\w+): *(#\w+)", block)), id=f"{sheet.stem}-{name}")
    for sheet in SHEETS
    for name, block in zip(
        ("light", "dark"), re.findall(r"\{([^{}]*--ink:[^{}]*)", sheet.read_text()), strict=True
    )
]


def brightness(colour: str) -> float:
    """The relative luminance of ``#rgb`` or ``#rrggbb``."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((brightness(one), brightness(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_contrast_of_black_to_white() -> None:
    assert contrast("#fff", "#000000") == pytest.approx(21)


@pytest.mark.parametrize("colours", THEMES)
def test_text_and_marks_stand_out(colours: dict[str, str]) -> None:
    faint = {
        f"{name} on {behind}": round(contrast(colours[name], colours[behind]), 2)
        for names, least in ((TEXT, 4.5), (MARKS, 3.0))
        for name in names
        for behind in BEHIND
        if contrast(colours[name], colours[behind]) < least
    }
    assert faint == {}
