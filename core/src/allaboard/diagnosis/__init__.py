"""Why a run waits, fails or looks wrong. Values in, values out.

A rule is a small function of an observation; codes are stable ids that alerts can match. Evidence quotes its
source and never paraphrases; without evidence the diagnosis is ``unknown``.
"""

from allaboard.diagnosis.rules import Diagnosis, Evidence, diagnose

__all__ = ["Diagnosis", "Evidence", "diagnose"]
