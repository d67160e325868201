"""Checkpoints of other libraries: found in a folder, and judged by what their own formats promise.

for judgement in judge_place(open_store("out")):
    judgement.unit.name, judgement.format, judgement.verdict, judgement.reason
newest(judgements)                                       # the whole one to go on from

A file for each family. Nothing is loaded: headers, directories and JSON are read within bounds, and a pickle
is read as opcodes. What no family knows, or what does not promise enough, is unknown, and a plain folder.
"""

from __future__ import annotations

from allaboard.checkpoints.foreign.finding import judge_place, newest
from allaboard.checkpoints.foreign.unit import Facts, Judgement, Unit, Verdict

__all__ = ["Facts", "Judgement", "Unit", "Verdict", "judge_place", "newest"]
