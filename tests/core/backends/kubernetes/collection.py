"""Collections of rows behind a scripted server, listed and watched as an API server does it: versions,
history, bookmarks, too old, pages. What a test wants to go wrong it sets: `forbidden`, `refuse`, `cut`,
`compact`.
"""

from __future__ import annotations

import json
import select
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.core.backends.kubernetes.scripted import Answer, event, failure, refused, says, streams, table


@dataclass
class Collection:
    """Of all kinds: a plural and a name for each row."""

    rows: dict[tuple[str, str], str] = field(default_factory=dict)
    history: list[tuple[int, str, str, str, str]] = field(default_factory=list)
    version: int = 100
    oldest: int = 0
    forbidden: set[str] = field(default_factory=set)
    refuse: Answer | None = None
    asked: Counter[str] = field(default_factory=Counter)
    resumed: list[int] = field(default_factory=list)
    watching: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)
    _epoch: int = 0
    _marks: int = 0

    def put(self, name: str, state: str, plural: str = "pytorchjobs") -> None:
        with self.changed:
            kind = "MODIFIED" if (plural, name) in self.rows else "ADDED"
            self.rows[plural, name] = state
            self._happened(kind, plural, name, state)

    def remove(self, name: str, plural: str = "pytorchjobs") -> None:
        with self.changed:
            self._happened("DELETED", plural, name, self.rows.pop((plural, name)))

    def _happened(self, kind: str, plural: str, name: str, state: str) -> None:
        self.version += 1
        self.history.append((self.version, kind, plural, name, state))
        self.changed.notify_all()

    def cut(self) -> None:
        """Every open watch is cut."""
        with self.changed:
            self._epoch += 1
            self.changed.notify_all()

    def mark(self) -> None:
        """A bookmark in every open watch: whoever has it has been told all that happened before."""
        with self.changed:
            self._marks += 1
            self.changed.notify_all()

    def compact(self) -> None:
        """What happened until now is forgotten: who is behind is told that it is too old."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.history.clear()

    def until(self, condition: Any, seconds: float = 120.0) -> None:
        """Wait until something holds here, or fail."""
        with self.changed:
            deadline = time.monotonic() + seconds
            while not condition(self):
                assert time.monotonic() < deadline, f"it never came to that: {self}"
                self.changed.wait(0.02)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        split = urlsplit(handler.path)
        query = dict(parse_qsl(split.query))
        verb = "watch" if "watch" in query else "list"
        plural = split.path.rpartition("/")[2]
        with self.changed:
            self.asked[verb] += 1
            self.asked[f"{verb} {plural}"] += 1
            self.changed.notify_all()
        if self.refuse is not None:
            return self.refuse(handler)
        if verb in self.forbidden:
            return refused(403, "Forbidden", f"cannot {verb} {plural}")(handler)
        if verb == "list":
            return self._list(handler, plural, query)
        return self._watch(handler, plural, query)

    def _of(self, plural: str, query: dict[str, str]) -> list[tuple[str, str]]:
        wanted = query.get("fieldSelector", "").removeprefix("metadata.name=")
        found = [(name, state) for (kind, name), state in self.rows.items() if kind == plural]
        return [row for row in found if not wanted or row[0] == wanted]

    def _list(self, handler: BaseHTTPRequestHandler, plural: str, query: dict[str, str]) -> None:
        with self.changed:
            rows, version = self._of(plural, query), str(self.version)
        start, limit = int(query.get("continue", 0)), int(query.get("limit", 0) or len(rows) or 1)
        token = str(start + limit) if start + limit < len(rows) else ""
        says(table(rows[start : start + limit], version, token))(handler)

    def _watch(self, handler: BaseHTTPRequestHandler, plural: str, query: dict[str, str]) -> None:
        seen = int(query["resourceVersion"])
        wanted = query.get("fieldSelector", "").removeprefix("metadata.name=")
        with self.changed:
            self.resumed.append(seen)
            epoch = self._epoch
        if seen < self.oldest:
            return streams(failure(410, "Expired", "too old resource version"))(handler)
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        first, end = True, time.monotonic() + float(query["timeoutSeconds"])
        with self.changed:
            self.watching += 1
            marks = self._marks
        try:
            while True:
                with self.changed:
                    if not (self._since(seen, plural) or epoch != self._epoch or marks != self._marks):
                        self.changed.wait(0.02)
                    fresh, version = self._since(seen, plural), self.version
                    now_cut, now_marked = epoch != self._epoch, marks != self._marks
                    marks = self._marks
                if _hung_up(handler):
                    return None
                if now_cut:
                    handler.close_connection = True
                    handler.connection.shutdown(2)
                    return None
                for number, kind, _, name, state in fresh:
                    seen = number
                    if not wanted or name == wanted:
                        self._send(handler, event(kind, table([(name, state)], str(number), columns=first)))
                        first = False
                if now_marked:
                    seen = max(seen, version)
                    self._send(handler, event("BOOKMARK", table([("", "")], str(version), columns=first)))
                if time.monotonic() >= end:
                    self._send(handler, event("BOOKMARK", table([("", "")], str(version), columns=first)))
                    handler.wfile.write(b"0\r\n\r\n")
                    return None
        finally:
            with self.changed:
                self.watching -= 1
                self.changed.notify_all()

    def _since(self, seen: int, plural: str) -> list[tuple[int, str, str, str, str]]:
        return [e for e in self.history if e[0] > seen and e[2] == plural]

    def _send(self, handler: BaseHTTPRequestHandler, thing: dict[str, Any]) -> None:
        data = json.dumps(thing).encode() + b"\n"
        handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        handler.wfile.flush()


def _hung_up(handler: BaseHTTPRequestHandler) -> bool:
    """A client that watches says nothing; what can be read from it is its end."""
    readable, _, _ = select.select([handler.connection], [], [], 0)
    return bool(readable)
