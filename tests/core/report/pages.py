"""A page as a browser would see it."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser
from importlib import resources


class Page(HTMLParser):
    """``rows``: the cells of the tables, by the heading above each. Fails for what is never closed."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.script = ""
        self.policy = ""
        self.rows: dict[str, list[list[str]]] = {}
        self.heading = ""
        self.feed(text)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "data", "action", "onload")
        ]
        if tag == "meta" and ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr" and "tbody" in self.open:
            self.rows.setdefault(self.heading, []).append([])
        if tag == "td":
            self.rows[self.heading][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        if "script" in self.open:
            self.script += data
            return
        self.words += data + " "
        if "h2" in self.open:
            self.heading = data
        if "td" in self.open:
            self.rows[self.heading][-1][-1] += data


def hashed(page: Page) -> bool:
    """Whether the one script of the page is ours, and the only one that its policy lets run."""
    ours = resources.files("allaboard.report").joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(page.script.encode()).digest()).decode()
    rules = dict(rule.strip().partition(" ")[::2] for rule in page.policy.split(";"))
    return page.script == ours and rules == {
        "default-src": "'none'", "style-src": "'unsafe-inline'", "script-src": f"'sha256-{digest}'",
    }  # fmt: skip
