"""A page as a browser would see it."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """``rows``: the cells of the tables, by the heading above each. Fails for what is never closed."""

    VOID = frozenset({"meta", "br", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.words = ""
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
        self.words += data + " "
        if "h2" in self.open:
            self.heading = data
        if "td" in self.open:
            self.rows[self.heading][-1][-1] += data
