"""Why a run waits, fails or looks wrong. Values in, values out.

A rule is a small function on an observation; codes are the stable ids that alerts match on. Evidence quotes
what was seen, never paraphrases it; without evidence the answer is ``unknown``.
"""

from allaboard.diagnosis.rules import Diagnosis, Evidence, diagnose

__all__ = ["Diagnosis", "Evidence", "diagnose"]
