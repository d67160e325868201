"""YAML text that a person or another program wrote, read within the bounds of `allaboard.text.untrusted`.

YAML 1.1 as PyYAML reads it, with four differences: a field may stand once, its name is text, dates and times
(``2026-11-22``, ``12:30``) stay text, and tags are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NoReturn

from allaboard.text.untrusted import (
    LIMITS,
    TOO_DEEP,
    Limits,
    SpelledFloat,
    SpelledInt,
    Unreadable,
    decode,
    find_flaws,
    show,
    spell,
)


def parse_yaml(data: bytes | str, limits: Limits = LIMITS) -> list[Any]:
    """The documents of a YAML text, empty ones left out. Raises `Unreadable`."""
    import yaml

    text = decode(data, limits)
    try:
        # The events come one after another, without recursion; only what they show to be small is composed.
        _check_events(yaml.parse(text, Loader=_event_loader(yaml)), limits)
        loaded = yaml.load_all(text, Loader=_loader(yaml, limits))
        documents = [document for document in loaded if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        if mark and _is_indented_by_tab(text, mark.line):
            reason = "a tab indents this line; YAML takes blanks alone"
        raise Unreadable(f"is not YAML: {show(str(reason), 200, quote=False)}{where}") from None
    except RecursionError:
        raise Unreadable(TOO_DEEP.format(limits.depth)) from None
    for document in documents:
        for path, trouble in find_flaws(document, limits):
            raise Unreadable(f"is not valid: {path}: {trouble}" if path else f"is not valid: {trouble}")
    return documents


def _is_indented_by_tab(text: str, number: int) -> bool:
    lines = text.splitlines()
    line = lines[number] if number < len(lines) else ""
    return "\t" in line[: len(line) - len(line.lstrip())]


def _event_loader(yaml: Any) -> Any:
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _check_events(events: Iterator[Any], limits: Limits) -> None:
    """Refuse what is too deep, or too much once its aliases are followed, and an alias within itself."""
    sizes: dict[str, int | None] = {}  # of each anchor; None while it is open
    open_: list[tuple[str | None, int]] = []
    total = 0
    for event in events:
        kind = type(event).__name__
        tag = getattr(event, "tag", None)
        if tag is not None and not (kind == "ScalarEvent" and tag in _TEXT_TAGS):
            raise _refuse_event(f"the tag {show(tag, quote=False)} is not known; write plain values", event)
        if kind == "DocumentStartEvent":
            sizes = {}
        elif kind == "AliasEvent":
            size = sizes.get(event.anchor, 1)
            if size is None:
                raise _refuse_event(f"the alias *{show(event.anchor, quote=False)} holds itself", event)
            total += size
        elif kind == "ScalarEvent":
            total += 1
            if event.anchor:
                sizes[event.anchor] = 1
        elif kind in ("SequenceStartEvent", "MappingStartEvent"):
            open_.append((event.anchor, total))
            total += 1
            if event.anchor:
                sizes[event.anchor] = None
            if len(open_) > limits.depth:
                raise Unreadable(TOO_DEEP.format(limits.depth) + _at(event))
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            anchor, before = open_.pop()
            if anchor:
                sizes[anchor] = total - before
        if total > limits.values:
            raise Unreadable(f"holds more than {limits.values:,} values once its aliases are followed")


_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
"""Tags by which an author marks a value as text."""


def _refuse_event(trouble: str, event: Any) -> Unreadable:
    return Unreadable(f"is not YAML that can be read: {trouble}{_at(event)}")


def _at(event: Any) -> str:
    return f" (line {event.start_mark.line + 1}, column {event.start_mark.column + 1})"


def _loader(yaml: Any, limits: Limits) -> Any:
    base = _event_loader(yaml)
    error = yaml.constructor.ConstructorError

    class Loader(base):  # type: ignore[misc, valid-type]
        """Safe YAML with unique keys, numbers that know their spelling, and dates as text."""

    def stop(node: Any, trouble: str) -> NoReturn:
        raise error(None, None, trouble, node.start_mark)

    def mapping(loader: Any, node: Any) -> dict[str, Any]:
        seen: set[Any] = set()
        merges = 0
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                merges += 1
                if merges > 1:
                    stop(key, "the field '<<' appears twice")
            elif not isinstance(key, yaml.ScalarNode):
                stop(key, "a field's name is text, not a list or a mapping")
            elif key.value in seen:
                stop(key, f"the field {show(key.value)} appears twice")
            else:
                seen.add(key.value)
        loader.flatten_mapping(node)
        values = {}
        for key, value in node.value:
            name = loader.construct_object(key, deep=True)
            if not isinstance(name, str):
                stop(key, f"the field's name {show(key.value, quote=False)} is not text; quote it")
            values[name] = loader.construct_object(value, deep=True)
        return values

    def whole(loader: Any, node: Any) -> Any:
        word = node.value
        if ":" in word:
            return word  # sexagesimal in YAML 1.1; people mean a time: 12:30
        if len(word) > limits.digits:
            stop(node, f"a number has {len(word)} characters; {limits.digits} are allowed")
        try:
            return spell(SpelledInt(loader.construct_yaml_int(node)), word)
        except ValueError:  # 0b_ has the form of a number, and no digits
            return word

    def number(loader: Any, node: Any) -> Any:
        word = node.value
        if ":" in word:
            return word
        if len(word) > limits.digits:
            stop(node, f"a number has {len(word)} characters; {limits.digits} are allowed")
        value = SpelledFloat(loader.construct_yaml_float(node))
        if not math.isfinite(value):
            stop(node, f"{show(word, quote=False)} is not a finite number")
        return spell(value, word)

    def text(loader: Any, node: Any) -> str:
        return str(node.value)

    def unknown(loader: Any, node: Any) -> NoReturn:
        stop(node, f"the tag {show(node.tag, quote=False)} is not known; write plain values")

    Loader.add_constructor("tag:yaml.org,2002:map", mapping)
    Loader.add_constructor("tag:yaml.org,2002:int", whole)
    Loader.add_constructor("tag:yaml.org,2002:float", number)
    Loader.add_constructor("tag:yaml.org,2002:timestamp", text)
    # A bare = or <<, which YAML 1.1 reserves.
    Loader.add_constructor("tag:yaml.org,2002:value", text)
    Loader.add_constructor("tag:yaml.org,2002:merge", text)
    Loader.add_constructor(None, unknown)
    return Loader
