"""Results of a conversion, and the reader of an object's values: it reports all problems at once, with the
path in the object.

An object was written by anybody: each value has the type that is asked for, or there is a problem. Numbers
and truth values where text belongs, which YAML makes of ``1`` and ``yes`` and the API server refuses, are
taken as they are spelled, and that is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from allaboard.errors import BadInput, Problem
from allaboard.job.training_job import FIELDS
from allaboard.text.names import as_job_name, nearest, one_of, why_not_a_job_name
from allaboard.text.untrusted import SpelledFloat, SpelledInt, plain_number, show, spelled


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is said in another way; ``before`` None: it was not said, ``after`` None: it need not
    be.
    """

    path: str
    before: Any
    after: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that is not said any more."""

    path: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """The fields of a job, in fixed order, and what became of the rest of the object. ``paths``: where a
    field, or all fields below one, stood in the object.
    """

    job: Mapping[str, Any]
    changed: tuple[Change, ...] = ()
    lost: tuple[Loss, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)

    def path_of(self, path: str) -> str:
        """Path in the object from which a field of the job was read; the same path if that is not known."""
        at = path
        while at:
            if at in self.paths:
                return self.paths[at] + path[len(at) :]
            at = at[: max(at.rfind("."), at.rfind("["), 0)]
        return path


class Reading:
    """Reads one object; collects what is changed, lost and wrong."""

    def __init__(self) -> None:
        self.changed: list[Change] = []
        self.lost: list[Loss] = []
        self.problems: list[Problem] = []
        self.paths: dict[str, str] = {}

    def change(self, path: str, before: Any, after: Any, reason: str) -> None:
        self.changed.append(Change(path, before, after, reason))

    def lose(self, path: str, value: Any, reason: str) -> None:
        self.lost.append(Loss(path, value, reason))

    def lose_rest(self, fields: Mapping[str, Any], path: str, reason: str) -> None:
        """All fields that are left and say something."""
        for name, value in fields.items():
            if value is not None:
                self.lose(join(path, name), value, reason)

    def wrong(self, path: str, message: str, suggestion: str | None = None) -> None:
        self.problems.append(Problem(path, message, suggestion))

    def raise_problems(self, subject: str) -> None:
        """Raises BadInput with all problems, if there are any."""
        if self.problems:
            count = len(self.problems)
            raise BadInput(f"{subject} has {count} problem{'s' * (count > 1)}:", self.problems)

    def conversion(self, job: Mapping[str, Any]) -> Conversion:
        """The result: the fields of the job that say something, in their order. No arguments are said by an
        empty list.
        """
        stated = {name: job[name] for name in FIELDS if name in job and says(name, job[name])}
        return Conversion(stated, tuple(self.changed), tuple(self.lost), dict(self.paths))

    # Values. Absent (None) is absent: {}, [] or None comes back.

    def mapping(self, value: Any, path: str) -> dict[str, Any]:
        """A new mapping of the fields that say something."""
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected fields, not {shown(value)}")
            return {}
        return {str(name): inner for name, inner in value.items() if inner is not None}

    def items(self, value: Any, path: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            self.wrong(path, f"expected a list, not {shown(value)}")
            return []
        return list(value)

    def text(self, value: Any, path: str, *, secret: bool = False) -> str | None:
        """Text. A number or a truth value becomes text; ``secret``: without being shown."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, (bool, int, float)):
            text = str(value).lower() if isinstance(value, bool) else spelled(value)
            message = "text is expected; quoted, because the API server refuses anything else"
            self.change(path, None if secret else plain(value), None if secret else text, message)
            return text
        self.wrong(path, f"expected text, not {shown(value)}")
        return None

    def texts(self, value: Any, path: str) -> list[str]:
        texts = (self.text(item, f"{path}[{n}]") for n, item in enumerate(self._present(value, path)))
        return [text for text in texts if text is not None]

    def _present(self, value: Any, path: str) -> Iterator[Any]:
        for n, item in enumerate(self.items(value, path)):
            if item is None:
                self.wrong(f"{path}[{n}]", "expected text, not nothing")
            yield item

    def whole(self, value: Any, path: str, least: int = 0) -> int | None:
        """A whole number of at least so much; one in quotes is taken, too."""
        if value is None:
            return None
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
            self.change(path, value, int(value), "a number is expected, which the API server insists on")
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # as kfp and templates hand numbers on
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(path, f"expected a whole number, not {shown(value)}")
            return None
        if not least <= value < 2**31:
            self.wrong(path, f"{plain_number(value)} is outside {least} to {2**31 - 1}")
            return None
        return plain_number(value)  # type: ignore[return-value]

    def flag(self, value: Any, path: str) -> bool | None:
        if value is None or isinstance(value, bool):
            return value
        self.wrong(path, f"expected true or false, not {shown(value)}")
        return None

    def word(self, value: Any, meanings: Mapping[str, str], path: str) -> str | None:
        """Meaning of a word; any other value is a problem."""
        if value is None:
            return None
        if isinstance(value, str) and value in meanings:
            return meanings[value]
        near = nearest(value, meanings) if isinstance(value, str) else None
        self.wrong(path, f"{shown(value)} is not known; known: {one_of(meanings)}", near)
        return None


def says(name: str, value: Any) -> bool:
    """True if a field of a job with this value says anything."""
    return value is not None and (name == "args" or value not in ({}, []))


def join(path: str, name: str) -> str:
    """The path of a field, fit to be shown."""
    name = show(name, quote=False)
    return f"{path}.{name}" if path else name


def shown(value: Any) -> str:
    """A value in a message: its kind alone, unless it is short and plain."""
    if isinstance(value, Mapping):
        return "fields"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, str):
        return show(value)
    return str(plain(value)).lower() if isinstance(value, bool) else show(str(plain(value)), quote=False)


def plain(value: Any) -> Any:
    """A value of its own, as JSON has it: without nulls in mappings, numbers without their spelling."""
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return plain_number(value) if isinstance(value, (SpelledInt, SpelledFloat)) else value


def duration(seconds: int) -> str:
    """Seconds in the largest unit that holds them exactly: ``12h``, ``90s``."""
    for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % factor == 0:
            return f"{seconds // factor}{unit}"
    return f"{seconds}s"


# What every object has.

OURS = "allaboard.io/"
_SERVERS = frozenset(
    {
        "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "managedFields",
        "deletionGracePeriodSeconds", "selfLink", "clusterName",
    }
)  # fmt: skip
"""Fields of metadata that the API server writes."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_MANAGED_BY = ("app.kubernetes.io/managed-by", "allaboard")


def marks(reading: Reading, value: Any, path: str) -> dict[str, str]:
    """Labels or annotations, without those that allaboard and kubectl write."""
    read = {}
    for name, text in reading.mapping(value, path).items():
        if name.startswith(OURS) or name == _LAST_APPLIED or (name, text) == _MANAGED_BY:
            continue
        read_text = reading.text(text, join(path, name))
        if read_text is not None:
            read[name] = read_text
    return read


def identity(reading: Reading, obj: Mapping[str, Any]) -> dict[str, Any]:
    """``name`` and ``metadata`` of a job, from an object's metadata; what stands beside its spec is told."""
    known = ("apiVersion", "kind", "metadata", "spec", "status")
    rest = {str(name): value for name, value in obj.items() if name not in known}
    reading.lose_rest(rest, "", "an object has no such field")
    fields = reading.mapping(obj.get("metadata"), "metadata")
    name, prefix = fields.pop("name", None), fields.pop("generateName", None)
    if is_ours(obj) and isinstance(fields.get("labels"), Mapping):
        name = fields["labels"].get(f"{OURS}job", name)  # the object is called as its run
    job = {"name": _name(reading, name, prefix)}
    namespace = reading.text(fields.pop("namespace", None), "metadata.namespace")
    if namespace:
        reason = f"a job does not say where it runs; give -n {show(namespace, quote=False)}"
        reading.change("metadata.namespace", namespace, None, reason)
    own = {}
    for kind in ("labels", "annotations"):
        if texts := marks(reading, fields.pop(kind, None), f"metadata.{kind}"):
            own[kind] = texts
            reading.paths[f"metadata.{kind}"] = f"metadata.{kind}"
    reading.lose_rest(
        {name: value for name, value in fields.items() if name not in _SERVERS and value != []},
        "metadata",
        "a job is an object of its own, with labels and annotations alone",
    )
    return {**job, **({"metadata": own} if own else {})}


def _name(reading: Reading, name: Any, prefix: Any) -> str:
    at = "metadata.generateName" if name is None and prefix is not None else "metadata.name"
    written = reading.text(prefix if at.endswith("generateName") else name, at)
    if written is None:
        if not any(problem.path == at for problem in reading.problems):
            reading.wrong(at, "is missing; every job has a name")
        return "job"
    reading.paths["name"] = at
    if at == "metadata.name" and why_not_a_job_name(written) is None:
        return written
    legal = as_job_name(written)
    reason = "a run's objects are called <name>-<hash>" if at.endswith("generateName") else "is too long"
    if reason == "is too long" and len(written) <= 40:
        reason = "is not a legal job name"
    reading.change(at, written, legal, reason)
    return legal


def is_ours(obj: Mapping[str, Any]) -> bool:
    """True if allaboard made the object."""
    metadata = obj.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return isinstance(annotations, Mapping) and f"{OURS}launch" in annotations


def without_ours(value: Any) -> Any:
    """A rendered object without what tells allaboard that it is its own: labels, annotations, variables."""
    if isinstance(value, Mapping):
        kept = {name: without_ours(inner) for name, inner in value.items() if not _is_mark(name, inner)}
        return {n: v for n, v in kept.items() if v != {} or n not in ("labels", "annotations", "metadata")}
    if isinstance(value, list):
        theirs = [item for item in value if not _is_variable(item)]
        # By which the others know their place.
        needed = [item for item in value if _is_variable(item) and _is_referred_to(item["name"], theirs)]
        return [without_ours(item) for item in value if item in theirs or item in needed]
    return value


def _is_referred_to(name: str, items: list[Any]) -> bool:
    values = (str(item.get("value")) for item in items if isinstance(item, Mapping))
    return any(f"$({name})" in value for value in values)


def _is_mark(name: Any, value: Any) -> bool:
    return isinstance(name, str) and (name.startswith(OURS) or (name, value) == _MANAGED_BY)


def _is_variable(item: Any) -> bool:
    return isinstance(item, Mapping) and str(item.get("name")).startswith("ALLABOARD_")
