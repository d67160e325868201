"""A run in a few lines of Markdown: what is in them, and that what others wrote is no markup."""

from __future__ import annotations

from typing import Any

from allaboard_kfp.summary import run_markdown

CAUSE = {
    "code": "python_exception",
    "summary": "the script raised *an* error <script>alert(1)</script>",
    "blame": "master-0",
    "evidence": [{"object": "master-0", "field": "log", "text": "before\n```\n# no heading\n````\nafter"}],
    "fix": "fix [the script](http://elsewhere)",
    "retryable": False,
}


def told(**fields: Any) -> str:
    data = {"headline": "a-1 failed", "message": "", "ok": False, "metrics": [], "diagnoses": []}
    return run_markdown({**data, **fields})


def test_a_failure_says_why_where_and_what_to_do() -> None:
    lines = told(diagnoses=[CAUSE]).splitlines()
    assert lines[0] == "## a-1 failed"
    assert "### python\\_exception" in lines and "Look first at: master-0" in lines
    assert lines[-1] == "Another try would repeat it."


def test_what_others_wrote_is_text_and_no_markup() -> None:
    text = told(diagnoses=[CAUSE])
    assert "\\<script\\>" in text and "\\[the script\\]" in text and "\\*an\\*" in text
    # A longer fence than any in the text: nothing within ends the block.
    opened, closed = (n for n, line in enumerate(text.splitlines()) if line == "`" * 5)
    assert text.splitlines()[opened + 1 : closed] == ["before", "```", "# no heading", "````", "after"]


def test_a_success_has_its_numbers() -> None:
    text = told(headline="a-1 succeeded", ok=True, metrics=[{"name": "val|loss", "value": 0.125}])
    assert "| val\\|loss | 0.125 |" in text and "Another try" not in text
