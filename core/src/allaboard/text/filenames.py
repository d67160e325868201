"""Names and checksums from untrusted files, checked before any file of that name is opened.

An index, a manifest, a tar header, a journal or a record may come from anywhere. Whatever of it becomes a
part of a path goes through one of these constructors where it is read, and has a type of its own from then
on: below the folder that it belongs to, on every system, and nowhere else. Each raises ValueError, in words.
"""

from __future__ import annotations

import re
from typing import NewType

Sha256 = NewType("Sha256", str)
"""64 lower-case hex digits."""

RelativeName = NewType("RelativeName", str)
"""A file's name below a folder, its levels between '/'."""

LONGEST = 1024
"""Bytes of a name with all its levels; what object stores allow."""
LONGEST_LEVEL = 255
"""Bytes of one level; what file systems allow."""

OWN = ".allaboard-"
"""Names of unfinished files begin with this."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def sha256(value: object) -> Sha256:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{_shown(value)} is not a SHA-256; write 64 digits from 0-9 and a-f")
    return Sha256(value)


def relative_name(value: object) -> RelativeName:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is not a file name; it must be text")
    trouble = _name_trouble(value)
    if trouble:
        raise ValueError(f"the name {_shown(value)} {trouble}")
    return RelativeName(value)


def leads_out(name: str) -> str | None:
    """Return the reason for which a path may lead out of the folder that it is put into; None: it never does.

    For names that are keys in a store and may become paths in a training script.
    """
    if name.startswith("/"):
        return "begins with '/'"
    if "\\" in name:
        return "holds a backslash"
    if _DRIVE.match(name):
        return "begins with a drive"
    if "\0" in name:
        return "holds a NUL byte"
    if ".." in name.split("/"):
        return "holds the level '..'"
    return None


def _name_trouble(name: str) -> str | None:
    levels = name.split("/")
    if not name:
        return "is empty"
    if out := leads_out(name):
        return out
    if "" in levels or "." in levels:
        return "holds an empty level or '.'"
    if _CONTROLS.search(name):
        return "holds a control character"
    if levels[-1].startswith(OWN):
        return f"begins with {OWN!r}, which is kept for unfinished files"
    try:
        sizes = [len(level.encode()) for level in levels]
    except UnicodeEncodeError:
        return "is not valid UTF-8"
    if sum(sizes) + len(sizes) - 1 > LONGEST or max(sizes) > LONGEST_LEVEL:
        return f"is too long; {LONGEST_LEVEL} bytes between two '/', {LONGEST} in all"
    return None


def _shown(value: object) -> str:
    text = ascii(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
