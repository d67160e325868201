"""The colours of the pages can be read by everybody: WCAG 2.2, level AA. Text has a contrast of 4.5 to what
is behind it (1.4.3), lines and marks have 3 (1.4.11); light and dark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.meta.source import CORE, ROOT

SHEETS = (CORE.source / "report/page.css", ROOT / "provider/ui/src/style.css")
TEXT = ("ink", "soft", "good", "bad", "warn", "calm")
MARKS = ("s0", "s1", "s2", "s3", "s4", "s5")
BEHIND = ("paper", "card")


def themes() -> Iterator[tuple[str, dict[str, str]]]:
    """The colours of each sheet by name, light and dark, and in Airflow's dark pages."""
    page, parts = (sheet.read_text() for sheet in SHEETS)
    pairs = re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", page)
    assert {name for name, *_ in pairs} == {*TEXT, *MARKS, *BEHIND, "line", "axis"}
    dark = {name: colour for name, _, colour in pairs}
    (framed,) = re.findall(r'data-theme="dark"\] \{([^}]*)', page)
    yield "page-light", {name: colour for name, colour, _ in pairs}
    yield "page-dark", dark
    yield "page-framed-dark", dark | dict(re.findall(r"--(\w+): (#\w+)", framed))
    blocks = re.findall(r"\{([^{}]*--ink:[^{}]*)", parts)
    for name, block in zip(("light", "dark"), blocks, strict=True):
        yield f"parts-{name}", dict(re.findall(r"--(\w+): *(#\w+)", block))


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


@pytest.mark.parametrize("colours", [pytest.param(found, id=name) for name, found in themes()])
def test_text_and_marks_stand_out(colours: dict[str, str]) -> None:
    faint = {
        f"{name} on {behind}": round(contrast(colours[name], colours[behind]), 2)
        for names, least in ((TEXT, 4.5), (MARKS, 3.0))
        for name in names
        for behind in BEHIND
        if name in colours and contrast(colours[name], colours[behind]) < least
    }
    assert faint == {}
