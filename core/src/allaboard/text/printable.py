r"""Foreign text that is about to reach a terminal or a log of lines: nothing in it may act, hide or forge.

`visible` is applied at the printing edge, once, to whatever others wrote: names, uris, lines of members,
sentences of API servers, records of other users. Control characters (ESC, CR, NUL, C1, ...), separators of
lines and paragraphs, characters that reverse or hide text, and lone surrogates become escapes such as
``\x1b``, ``\u202e``; a newline too, unless the text is meant to have several lines. All other Unicode stays
as it is.

Values are kept as they are everywhere else (records, JSON, objects): what is not printed is not escaped.
"""

from __future__ import annotations

import re
import unicodedata

# Controls, formats, surrogates, and the separators at which `str.splitlines` and some viewers break lines.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Letters and marks by category that no font draws: they hide text or make two names look alike.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
# Variation selectors above 16; 15 and 16 belong to emoji.
_SELECTORS = range(0xE0100, 0xE01F0)

_ORDINARY = re.compile(r"[\x20-\x7e]*+")
_CUT = "..."


def visible(text: object, *, newlines: bool = False, tabs: bool = False, most: int | None = None) -> str:
    r"""``text`` with everything that a terminal would obey or hide as an escape.

    ``newlines``: ``\n`` stays (of ``\r\n`` too). ``tabs``: ``\t`` stays. ``most``: at most so many characters
    of the result, of which the last three are ``...`` where something was cut. Done twice it changes nothing
    more. Never raises.
    """
    whole = text if isinstance(text, str) else _text(text)
    if most is not None:
        # An escape is never shorter than its character: what is beyond `most` is never seen.
        shown = _shown(whole[: most + 1], newlines, tabs)
        return shown if len(shown) <= most else shown[: max(0, most - len(_CUT))] + _CUT[:most]
    return _shown(whole, newlines, tabs)


def visible_json(text: str) -> str:
    """A text of JSON of the same value, with JSON's own escapes for what a terminal obeys or hides."""
    return text if text.isascii() and "\x7f" not in text else "".join(_in_json(c) for c in text)


def _in_json(character: str) -> str:
    if character == "\n" or _one(character) == character:
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def last_state(line: str) -> str:
    r"""Return what a terminal shows at the end of a line that carriage returns redraw (progress bars): the
    last part that is not empty. ``10%\r20%\r`` is ``20%``.
    """
    if "\r" not in line:
        return line
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # whatever its author's __str__ raises
        return f"<{type(value).__name__}>"


def _shown(text: str, newlines: bool, tabs: bool) -> str:
    if _ORDINARY.fullmatch(text) or (text.isprintable() and not _BLANK.intersection(text)):
        return text if not _has_selectors(text) else "".join(_one(c) for c in text)
    if newlines:
        text = text.replace("\r\n", "\n")
    keep = ("\n" if newlines else "") + ("\t" if tabs else "")
    return "".join(c if c in keep else _one(c) for c in text)


def _has_selectors(text: str) -> bool:
    return not text.isascii() and any(ord(c) in _SELECTORS for c in text)


def _one(character: str) -> str:
    hidden = unicodedata.category(character) in _HIDDEN or character in _BLANK or ord(character) in _SELECTORS
    if not hidden:
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
