"""Bounded reading of the XML that an S3 server answers with: no document type, so that no entity expands;
few levels; text within the size that was read. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

_DEEPEST, _MOST = 16, 100_000


class Malformed(ValueError):
    """Not XML, or more than an answer of S3 has."""


@dataclass(eq=False)
class Element:
    """``name``: without its namespace."""

    name: str
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def find(self, *path: str) -> Element | None:
        """The first element at this path of names; None: there is none."""
        element: Element | None = self
        for name in path:
            element = (
                next((child for child in element.children if child.name == name), None) if element else None
            )
        return element

    def text_of(self, *path: str) -> str:
        """The text of the first element at a path; empty where there is none."""
        element = self.find(*path)
        return "" if element is None else element.text

    def all(self, name: str) -> Iterator[Element]:
        """The children of this name."""
        return (child for child in self.children if child.name == name)


def parse_xml(data: bytes) -> Element:
    """The root of a document. Raises `Malformed`."""
    root = Element("")
    open_elements, count = [root], 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if len(open_elements) > _DEEPEST or count > _MOST:
            raise Malformed("an answer of XML has too many elements")
        element = Element(name.rpartition(":")[2])
        open_elements[-1].children.append(element)
        open_elements.append(element)

    def end(name: str) -> None:
        element = open_elements.pop()
        element.text = "".join(texts.pop(id(element), ()))

    def text(part: str) -> None:
        texts.setdefault(id(open_elements[-1]), []).append(part)

    def doctype(*_: object) -> None:
        raise Malformed("an answer of XML declares a document type")

    texts: dict[int, list[str]] = {}
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = text, doctype
    parser.buffer_text = True
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise Malformed(f"an answer is no XML: {expat.ErrorString(error.code)}") from None
    return root.children[0]
