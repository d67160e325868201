"""Diagnoses: the reason why a run waits, fails or looks wrong. Values in, values out.

A rule is a small function of a `Case` (`rule.py`), in the file of the place where its cause happens; codes
are stable ids that alerts can match. Evidence quotes its source and never paraphrases; without evidence the
diagnosis is ``unknown``. `rules.py` ranks what the rules find.
"""

from typing import TYPE_CHECKING, Any

from allaboard.diagnosis.finding import Diagnosis, Evidence

if TYPE_CHECKING:
    from allaboard.diagnosis.rules import diagnose

__all__ = ["Diagnosis", "Evidence", "diagnose"]


def __getattr__(name: str) -> Any:
    # A supervisor reads stacks and ranks nothing: it starts without what only `diagnose` needs.
    if name == "diagnose":
        from allaboard.diagnosis.rules import diagnose

        return diagnose
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
