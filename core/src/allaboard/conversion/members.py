"""The members of a JobSet: what names and numbers tell them apart there, and what tells the same in a run.

Read from JobSet 0.12.0 (pkg/controllers, pkg/util/placement) and Kubernetes' Jobs. A pod of a JobSet is
``<jobset>-<replicated job>-<job index>-<pod index>`` at ``<subdomain>``, the JobSet's own name where none is
said. A run has a name of its own, its members are Jobs of one pod each, and replicated jobs are called as
their roles: every such host, and every index that counts otherwise, has to be said in another way, or there
is no job. Values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

INDEX, RANK = "$(ALLABOARD_INDEX)", "$(ALLABOARD_RANK)"
"""What the engine tells each member: its place in its group, and among all."""
COMPLETION_VARIABLE = "JOB_COMPLETION_INDEX"
"""What a Job tells its pods, unless their template says it."""
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_PREFIX = "jobset.sigs.k8s.io/"
JOBSET_NAME = f"{_PREFIX}jobset-name"
_REFERENCE = re.compile(r"\$\(([-._A-Za-z0-9]+)\)")
_FIELD = re.compile(r"metadata\.(?:annotations|labels)\['([^']{1,200})'\]")
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def host_of(rank: int) -> str:
    """A host that stands for that of a member, whatever it is called. No text of a manifest holds a NUL."""
    return f"\0{rank}\0"


@dataclass(frozen=True, slots=True)
class Rendering:
    """What an engine makes of a job: what it tells the member of a rank, whose hosts are `host_of` theirs;
    who decides, when it is started again, and what ends a Job at once.
    """

    environment: Callable[[int], Mapping[str, str]]
    success: Mapping[str, Any]
    failure: Mapping[str, Any] | None
    pod_failure: Sequence[Any]


@dataclass(slots=True)
class Part:
    """A replicated job: ``jobs`` Jobs of ``pods`` pods each. ``spec``: the rest of its Jobs' spec; ``roles``:
    the groups that it becomes, in rank order; ``first_job``, ``first_rank``: its place among all Jobs there,
    and all members here; ``trains``: the place of the container that trains.
    """

    name: str
    at: str
    jobs: int
    pods: int
    template: Any
    spec: dict[str, Any] = field(default_factory=dict)
    group: str = "default"
    first_job: int = 0
    first_rank: int = 0
    roles: tuple[tuple[str, int], ...] = ()
    trains: int = 0

    def containers(self) -> list[Mapping[str, Any]]:
        """Those of its pods; one that is no mapping says nothing."""
        spec = self.template.get("spec") if isinstance(self.template, Mapping) else None
        found = spec.get("containers") if isinstance(spec, Mapping) else None
        listed = found if isinstance(found, (list, tuple)) else ()
        return [item if isinstance(item, Mapping) else {} for item in listed]

    def trainer(self) -> Mapping[str, Any]:
        """The container that trains."""
        return self.containers()[self.trains]

    @property
    def count(self) -> int:
        return self.jobs * self.pods

    def some(self) -> list[tuple[int, int]]:
        """Members, each by the index of its Job and its pod, that stand for all: what is told of them grows
        evenly with both.
        """
        jobs, pods = ({0, 1, most - 1} & {*range(most)} for most in (self.jobs, self.pods))
        return sorted(product(jobs, pods))

    def number(self, job: int, pod: int) -> int:
        """The place of a member in its part."""
        return job * self.pods + pod

    def rank(self, job: int, pod: int) -> int:
        return self.first_rank + self.number(job, pod)

    def member(self, job: int, pod: int) -> tuple[str, int]:
        """The role of a member here, and its index there."""
        left = self.number(job, pod)
        for role, count in self.roles:
            if left < count:
                return role, left
            left -= count
        raise AssertionError("a part becomes as many members as it has")


@dataclass(frozen=True, slots=True)
class Gang:
    """All parts. ``name``: of the JobSet, None where it is drawn by lot; ``subdomain``: where hosts are, None
    where that is its name; ``coordinator``: rank of the member that a label names.
    """

    parts: Sequence[Part]
    name: str | None
    subdomain: str | None
    coordinator: int | None = None

    def by_rank(self) -> list[Part]:
        return sorted(self.parts, key=lambda part: part.first_rank)

    def groups(self) -> dict[str, int]:
        """Role -> how many members, in rank order."""
        return {role: count for part in self.by_rank() for role, count in part.roles}

    def part(self, name: Any) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def there(self, part: Part, label: str, job: int, pod: int) -> str | None:
        """What a label of a member says in the JobSet; None: nothing that is known here."""
        groups = [other for other in self.parts if other.group == part.group]
        before = sum(other.jobs for other in groups if other.first_job < part.first_job)
        known = {
            COMPLETION_INDEX: pod,
            f"{_PREFIX}job-index": job,
            f"{_PREFIX}job-global-index": part.first_job + job,
            f"{_PREFIX}replicatedjob-name": part.name,
            f"{_PREFIX}replicatedjob-replicas": part.jobs,
            f"{_PREFIX}global-replicas": sum(other.jobs for other in self.parts),
            f"{_PREFIX}group-name": part.group,
            f"{_PREFIX}group-replicas": sum(other.jobs for other in groups),
            f"{_PREFIX}job-group-index": before + job,
            f"{_PREFIX}coordinator": None if self.coordinator is None else host_of(self.coordinator),
        }
        return None if known.get(label) is None else str(known[label])

    def here(self, part: Part, label: str, job: int, pod: int) -> str | None:
        """What the label says of the same member of a run."""
        role, index = part.member(job, pod)
        total = sum(other.count for other in self.parts)
        known = {
            COMPLETION_INDEX: 0,
            f"{_PREFIX}job-index": index,
            f"{_PREFIX}job-global-index": part.rank(job, pod),
            f"{_PREFIX}replicatedjob-name": role,
            f"{_PREFIX}replicatedjob-replicas": dict(part.roles)[role],
            f"{_PREFIX}global-replicas": total,
            f"{_PREFIX}group-name": "default",
            f"{_PREFIX}group-replicas": total,
            f"{_PREFIX}job-group-index": part.rank(job, pod),
            f"{_PREFIX}coordinator": None if self.coordinator is None else host_of(self.coordinator),
        }
        return None if known.get(label) is None else str(known[label])

    def expression(self, part: Part, values: Sequence[str]) -> str | None:
        """What says these values of `Part.some` in a run: a text, `INDEX`, `RANK`; None: nothing does."""
        if all(value == values[0] for value in values) and "\0" not in values[0]:
            return values[0]
        if list(values) == [str(part.member(*one)[1]) for one in part.some()]:
            return INDEX
        return RANK if list(values) == [str(part.rank(*one)) for one in part.some()] else None

    def completion_index(self, part: Part) -> str | None:
        """What says the index that a Job tells its pods."""
        return self.expression(part, [str(pod) for _, pod in part.some()])


# Containers, as they are written.


def env_of(container: Mapping[str, Any]) -> list[Any]:
    """The variables of a container; none where no list stands."""
    found = container.get("env")
    return list(found) if isinstance(found, (list, tuple)) else []


def program_of(container: Mapping[str, Any]) -> list[str]:
    """The words of its command and its arguments."""
    words: list[Any] = []
    for name in ("command", "args"):
        found = container.get(name)
        words += found if isinstance(found, (list, tuple)) else []
    return [word for word in words if isinstance(word, str)]


def limits_of(container: Mapping[str, Any]) -> Mapping[Any, Any]:
    """What it may use at most."""
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return limits if isinstance(limits, Mapping) else {}


# Hosts.


class Hosts:
    """The hosts of members that a container's texts name. ``variables``: of this container, with the values
    that are known.
    """

    def __init__(self, gang: Gang, variables: Mapping[str, Sequence[str] | None]) -> None:
        self._gang = gang
        names = [*_spellings(gang.name, variables), *_spellings(_NAME, variables)]
        domain = gang.subdomain or gang.name
        domains = [*names, *_spellings(domain, variables)]
        parts = "|".join(sorted((re.escape(part.name) for part in gang.parts), key=len, reverse=True))
        self._host = self._built = None
        if names:
            name, where = "|".join(names), "|".join(domains)
            cluster = r"(?:\.[a-z0-9-]{1,63}\.svc(?:\.cluster\.local)?)?"
            self._host = re.compile(
                rf"(?<![\w.-])(?:{name})-(?P<part>{parts})-(?P<job>\d{{1,9}})-(?P<pod>\d{{1,9}})"
                rf"(?:\.(?:{where}){cluster}(?![\w-])|(?![\w-]|\.\w))"
            )
            self._built = re.compile(rf"(?<![\w.-])(?:{name})-(?:{parts})-(?=[\d$`{{%<*])")

    def ranks(self, text: str) -> list[int]:
        """The members that a text names, by rank."""
        return [rank for _, rank in self._found(text) if rank is not None]

    def said(self, text: str, name: Callable[[int], str]) -> str:
        """The text with other names for the hosts of members."""
        if self._host is None:
            return text
        found = dict(self._found(text))
        return self._host.sub(
            lambda match: match[0] if found[match.start()] is None else name(found[match.start()] or 0), text
        )

    def is_left(self, text: str) -> bool:
        """Whether a text still builds the name of a member or of a Job."""
        return self._built is not None and self._built.search(text) is not None

    def _found(self, text: str) -> Iterator[tuple[int, int | None]]:
        for match in self._host.finditer(text) if self._host is not None else ():
            part, job, pod = self._gang.part(match["part"]), int(match["job"]), int(match["pod"])
            within = part is not None and job < part.jobs and pod < part.pods
            yield match.start(), part.rank(job, pod) if part is not None and within else None


_LONGEST = 100_000
"""Characters of a value that is still followed."""
_SPELLINGS = 20
"""Variables with one value that are still looked for."""
_NAME = "\0jobset\0"
"""What a variable holds that takes the name of the JobSet from its label."""


def _spellings(value: str | None, variables: Mapping[str, Sequence[str] | None]) -> Iterator[str]:
    """Patterns for a value: itself, and the variables that hold it."""
    if value is None:
        return
    if value != _NAME:
        yield re.escape(value)
    holding = [
        name
        for name, values in variables.items()
        if values and all(one == value for one in values) and _SHELL_NAME.fullmatch(name)
    ]
    for name in holding[:_SPELLINGS]:
        yield rf"\$\{{{name}\}}|\$\({name}\)|\${name}(?![A-Za-z0-9_])"


# Variables.


def field_of(variable: Mapping[str, Any]) -> str | None:
    """The label or annotation from which a variable comes."""
    source = variable.get("valueFrom")
    ref = source.get("fieldRef") if isinstance(source, Mapping) else None
    path = ref.get("fieldPath") if isinstance(ref, Mapping) else None
    match = _FIELD.fullmatch(path) if isinstance(path, str) else None
    return match[1] if match else None


def values_of(gang: Gang, part: Part, variables: Sequence[Any]) -> dict[str, Sequence[str] | None]:
    """Name -> what the variable says to each of `Part.some`; None: that is not known here."""
    known: dict[str, Sequence[str] | None] = {}
    for variable in variables:
        name = variable.get("name") if isinstance(variable, Mapping) else None
        if not isinstance(name, str):
            continue
        label, value = field_of(variable), variable.get("value", "")
        if label == JOBSET_NAME:
            known[name] = [_NAME for _ in part.some()]
        elif label is not None:
            found = [gang.there(part, label, *one) for one in part.some()]
            known[name] = None if None in found else [text for text in found if text is not None]
        elif "valueFrom" in variable or isinstance(value, (Mapping, list)) or value is None:
            known[name] = None
        else:
            known[name] = _expanded(str(value), known, len(part.some()))
    return known


def _expanded(value: str, known: Mapping[str, Sequence[str] | None], count: int) -> Sequence[str] | None:
    """A value with those to which it refers."""
    named = [known[name] for name in _REFERENCE.findall(value) if name in known]
    if None in named or len(value) + sum(len(texts[0]) for texts in named if texts) > _LONGEST:
        return None
    return [
        _REFERENCE.sub(lambda match, n=n: (known.get(match[1]) or {n: match[0]})[n], value)  # type: ignore[misc]
        for n in range(count)
    ]
