"""The page of the causes is what the rules say."""

from __future__ import annotations

from pathlib import Path

from allaboard.diagnosis.causes import all_rules
from allaboard.diagnosis.page import ROOMS, page

PAGE = Path(__file__).parents[3] / "core" / "docs" / "causes.md"


def test_page_and_code_agree() -> None:
    """A difference is a change of a rule: run `make docs`."""
    assert PAGE.read_text() == page()


def test_every_cause_has_its_section() -> None:
    sections = {text.partition("\n")[0]: text for text in page().split("\n## ")[1:]}
    assert sections.keys() == all_rules().keys()
    for code, one in all_rules().items():
        cause = one.cause
        assert (
            cause.means in sections[code]
            and cause.looks in sections[code]
            and cause.fix[1:] in sections[code]
        )
        assert cause.room in ROOMS
        assert cause.needs or code == "unknown"
