"""What this process shows to an API server does not come out of it again: an answer that quotes it (refusals,
errors in a watch, lines of a log) is told without it.

Objects are left as they are: they are written back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

from allaboard.redaction import KNOWN_FROM, hide_known, hide_known_in, spellings

KEPT = 32
"""Words that are kept: an answer may quote a token that has been renewed since."""


class Echo:
    """What has been shown so far. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._words: tuple[str, ...] = ()
        self._bytes: tuple[bytes, ...] = ()

    def shown(self, words: Iterable[str]) -> None:
        """From now on these are hidden."""
        new = [word for word in words if len(word) >= KNOWN_FROM and word not in self._words]
        if new:
            with self._lock:
                self._words = tuple(dict.fromkeys([*self._words, *new]))[-KEPT:]
                self._bytes = tuple(one.encode("utf-8", "surrogatepass") for one in spellings(self._words))

    def value(self, value: Any) -> Any:
        """A plain value without them, whatever it spells them like."""
        return hide_known_in(value, self._words)

    def body(self, body: bytes) -> bytes:
        """The body of an answer that is no object: JSON without them in any of its texts, or a text."""
        if not self._words:
            return body
        try:
            return json.dumps(self.value(json.loads(body))).encode()
        except (ValueError, RecursionError):
            return hide_known(body.decode("utf-8", "replace"), self._words).encode("utf-8", "replace")

    def line(self, line: bytes) -> bytes:
        """A line of a log without them. All lines pass here: most are only looked through."""
        if not any(one in line for one in self._bytes):
            return line
        text = line.decode("utf-8", "surrogateescape")
        return hide_known(text, self._words).encode("utf-8", "surrogateescape")
