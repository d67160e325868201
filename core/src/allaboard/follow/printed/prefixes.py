"""The prefixes that loggers and launchers put before a line: times, levels, names, ranks. Text in, values
out.

A prefix is told from the beginning of a sentence by its form alone: each part is a bracket, a time, a level,
the place of a line of code, or a name before a separator.
"""

from __future__ import annotations

import re

LONGEST = 240
"""Characters of a prefix."""
_COUNTER = (
    r"(?:epochs?|steps?|iter(?:ation)?s?|batch|global[_ ]step|num_updates|updates?|round|episodes?"
    r"|(?:total[_ ])?timesteps|progress)"
)
_PART = re.compile(
    rf"""
    \s+
  | [\[(<](?!\s*(?i:{_COUNTER})\b\s*[:=\#]?\s*\d)(?!\s*\d+\s*[/,]\s+\d|\d+/\d+\]\s?\[\s*\d+/)
    [^\[\](){{}}<>]{{0,80}}[\])>]:?
  | \d{{1,4}}[-/.:]\d[\d:.,/+-]*(?:T[\d:.,+-]+)?(?:Z|[AP]M\b|\b)
  | \d+(?=\s+[\w./-]+\.(?:py|cc|cpp):\d)
  | \d{{1,2}}(?=\s(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b)
  | (?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b
  | (?<=[a-z]\s)\d{{1,2}}(?=\s\d)
  | (?i:trace|debug|info|notice|warn(?:ing)?|error)\b
  | (?i:UTC|CET|GMT|AM|PM)\b
  | [IWEF]\d{{4}}\b
  | [┌│└] | \[\s(?=[A-Z][a-z]{{2,8}}:\s)
  | [\w.-]+/\d+(?=\s)
  | (?!(?i:{_COUNTER}|loss)\b)[A-Za-z_][\w.-]{{0,80}}:\d{{1,6}}(?=\s)
  | [\w-]{{1,60}}\.(?=\s{{1,3}}(?i:{_COUNTER})\s?[:=]?\s?\d)
  | [\w./-]+\.(?:py|cc|cpp)(?::\d+)?(?::\w+)?\]?
  | (?!(?i:{_COUNTER}|loss)\b)(?!\w*(?:Error|Exception|Warning)\b)
    (?![\w.-]{{1,60}}:\s{{1,3}}-?\d+\.\d+(?:[\s,|;]|$))
    [A-Za-z_][\w.-]{{0,60}}(?::[A-Za-z_]\w{{0,40}}:\d{{1,6}})?
    (?=\s{{0,3}}[|:>\]-](?:\s|$)|:[A-Za-z_\[]|\s(?i:info|debug|warning)\b)
  | (?:=>|->|>>>?|[|:>\]-])(?=\s|$|:|\[|\w)
    """,
    re.VERBOSE,
)
_TASK = re.compile(r"\s*(?P<task>\d{1,5}): (?!\s*\d)")
_RANK = re.compile(
    r"\[rank\s?:?(?P<a>\d{1,7})\]:?|\[[A-Za-z_][\w.-]{0,40}?(?P<b>\d{1,7})\]:"
    r"|\[\d{1,9},(?P<c>\d{1,7})\](?:<\w+>:?|:)|\[(?P<d>\d{1,7})\]<\w+>:?"
    r"|\[rank (?P<e>\d{1,7})\b[^\]]{0,40}\]:?",
    re.IGNORECASE,
)


def prefix_end(text: str, most: int = LONGEST) -> int:
    """The place where a line begins behind its prefix; no further than ``most``."""
    task = _TASK.match(text)
    at = task.end() if task is not None and task.end() <= most else 0
    while at < most:
        part = _PART.match(text, at)
        if part is None or part.end() == at:
            break
        at = part.end()
    return at


def is_prefix(text: str, end: int) -> bool:
    """True if a line, up to there, is nothing but a prefix."""
    return end == 0 or text[:end].isspace() or (end <= LONGEST and prefix_end(text, end) == end)


def rank_in(text: str) -> int | None:
    """The rank that the launcher, or the logger of a library, wrote before a line."""
    head = text[:LONGEST]
    match = _RANK.search(head) or _TASK.match(head)
    if match is None or not is_prefix(head, match.start()):
        return None
    return next(int(value) for value in match.groups() if value is not None)
