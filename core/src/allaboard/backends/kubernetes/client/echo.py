"""Hides the credentials of this process in what an API server answers: refusals, errors in a watch and lines
of a log may quote them.

Objects are left as they are: they are written back.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from typing import Any

from allaboard.backends.kubernetes.client.protocol import parse_body
from allaboard.text.redaction import KNOWN_FROM, hide_known, hide_known_in, spellings

BEGIN = 16
"""Bytes of a word by which logs are looked through: to look for a whole token costs some times as much."""
KEPT = 32
"""Words that are kept: an answer may quote a token that has been renewed since."""


class Echo:
    """The credentials that were shown so far. May be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._words: tuple[str, ...] = ()
        self._begins: tuple[bytes, ...] = ()

    def shown(self, texts: Iterable[str]) -> None:
        """From now on these are hidden."""
        new = [word for word in texts if len(word) >= KNOWN_FROM and word not in self._words]
        if new:
            with self._lock:
                self._words = tuple(dict.fromkeys([*self._words, *new]))[-KEPT:]
                spelt = (
                    spelling.encode("utf-8", "surrogatepass")[:BEGIN] for spelling in spellings(self._words)
                )
                self._begins = tuple(dict.fromkeys(spelt))

    def value(self, value: Any) -> Any:
        """A plain value without them, whatever it spells them like."""
        return hide_known_in(value, self._words)

    def body(self, body: bytes) -> bytes:
        """The body of an answer that is no object: JSON without them in any of its texts, or a text."""
        if not self._words:
            return body
        try:
            return json.dumps(self.value(parse_body(body))).encode()
        except ValueError:
            return hide_known(body.decode("utf-8", "replace"), self._words).encode("utf-8", "replace")

    def lines(self, lines: list[bytes]) -> list[bytes]:
        """Lines of a log without them. Every log passes here: most are only looked through."""
        whole = b"".join(lines)
        return [*map(self._line, lines)] if any(begin in whole for begin in self._begins) else lines

    def _line(self, line: bytes) -> bytes:
        text = line.decode("utf-8", "surrogateescape")
        return hide_known(text, self._words).encode("utf-8", "surrogateescape")
