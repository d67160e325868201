"""The page of a promotion: every check, every champion, and what was not obeyed."""

from __future__ import annotations

from dataclasses import replace

from allaboard.promotion.champion import Decision, Promotion
from allaboard.promotion.gate import Check, Verdict
from allaboard_kfp.report import promotion_page
from tests.core.report.pages import Page


def test_the_gates_page_shows_every_check_and_every_champion() -> None:
    new = Promotion(
        2, "s3://b/models/2", 9, {"accuracy": 0.98}, at="2026-11-21T12:00:00.000Z", reason="nightly"
    )
    old = replace(new, number=1, checkpoint="s3://b/models/1", reason="")
    checks = (Check("threshold", "accuracy", True, 0.98, 0.97, None, "accuracy 0.98 is at least 0.97"),)
    found = Page(
        promotion_page(
            Decision(Verdict(True, checks), new, new), new.checkpoint, {"accuracy": 0.98}, [new, old]
        )
    )
    for words in (
        "promoted",
        "accuracy 0.98 is at least 0.97",
        "s3://b/models/1",
        "2 ★",
        "nightly",
        "number 2 now",
    ):
        assert words in found.words


def test_the_gates_page_says_when_it_stayed_shut() -> None:
    old = Promotion(1, "s3://b/models/1", metrics={"accuracy": 0.99})
    check = Check("champion", "accuracy", False, 0.98, 0.99, 0.99, "accuracy 0.98 is not better than 0.99")
    decision = Decision(Verdict(False, (check,)), None, old, problems=("x.json: torn; it is ignored",))
    found = Page(promotion_page(decision, "s3://b/2", {"accuracy": None, "note": "<x>"}, [old]))
    for words in ("not promoted", "stays number 1", "✗", "torn; it is ignored", "nan", "<x>"):
        assert words in found.words


def test_without_any_champion_the_page_says_so() -> None:
    found = Page(promotion_page(Decision(Verdict(False), None, None), "s3://b/2", {}, []))
    assert "There is no champion yet." in found.words
