"""The page of the rules is what the code says."""

from __future__ import annotations

from pathlib import Path

from allaboard.lint import RULES
from allaboard.lint.page import page

PAGE = Path(__file__).parents[3] / "core" / "docs" / "lint.md"


def test_page_and_code_agree() -> None:
    """A difference is a change of a rule: run `make docs`."""
    assert PAGE.read_text() == page()


def test_every_rule_has_its_section_with_why_fix_and_source() -> None:
    sections = {text.partition("\n")[0]: text for text in page().split("\n## ")[1:]}
    assert sections.keys() == RULES.keys()
    for code, rule in RULES.items():
        assert rule.reason in sections[code] and rule.source in sections[code]
        fixes = {rule.fix, rule.job_fix} if "job" in rule.reads else {rule.fix}
        assert all(fix[1:] in sections[code] for fix in fixes)
