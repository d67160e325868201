"""``{checkpoint}`` in a command or a variable: where the newest whole checkpoint is handed to a script.

    [python, train.py, --resume_from_checkpoint, "{checkpoint}"]     with its flag, or neither
    [python, train.py, "ckpt_path={checkpoint}"]                     the whole word, or nothing
    {RESUME_FROM: "{checkpoint}"}                                    a variable, or none

Only a word that is ``{checkpoint}``, or a name, ``=`` and ``{checkpoint}``, is meant: braces of a shell, of
JSON and of Python stay as they are. Pure, of the standard library alone, in the words of Python 3.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

TEMPLATE = "{checkpoint}"
_ASSIGNED = re.compile(r"([A-Za-z0-9_.+:/-]+=)\{checkpoint\}")


def is_template(word: str) -> bool:
    """Return whether a word of a command is filled in."""
    return word == TEMPLATE or _ASSIGNED.fullmatch(word) is not None


def has_template(command: Iterable[str], environment: Mapping[str, str]) -> bool:
    """Return whether anything of a member is filled in."""
    return any(map(is_template, command)) or TEMPLATE in environment.values()


def fill_command(command: Sequence[str], checkpoint: str | None) -> list[str]:
    """The command with the checkpoint's path; without one (None) without these words, and without the flag
    before a word that is all template.
    """
    filled: list[str] = []
    for word in command:
        if not is_template(word):
            filled.append(word)
        elif checkpoint is not None:
            filled.append(word[: -len(TEMPLATE)] + checkpoint)
        elif word == TEMPLATE and filled and filled[-1].startswith("-") and "=" not in filled[-1]:
            filled.pop()
    return filled


def fill_environment(environment: Mapping[str, str], checkpoint: str | None) -> dict[str, str]:
    """The variables with the checkpoint's path; without one (None) without those that are all template."""
    filled = {}
    for name, value in environment.items():
        if value != TEMPLATE:
            filled[name] = value
        elif checkpoint is not None:
            filled[name] = checkpoint
    return filled
