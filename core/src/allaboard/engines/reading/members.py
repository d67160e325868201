"""The members of a JobSet, what tells them apart, and the names of their hosts.

Read from JobSet 0.12.0 (pkg/controllers, pkg/util/placement) and Kubernetes' Jobs. A pod of a JobSet is
``<jobset>-<replicated job>-<job index>-<pod index>`` at ``<subdomain>``, the JobSet's own name where none is
said. A run has a name of its own, its members are Jobs of one pod each, and replicated jobs are called as
their roles: what a host or an index says there has to be said in another way. Values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

INDEX, RANK = "$(ALLABOARD_INDEX)", "$(ALLABOARD_RANK)"
"""Variables that the engine gives to each member: its place in its group, and among all."""
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
PREFIX = "jobset.sigs.k8s.io/"
COORDINATOR = f"{PREFIX}coordinator"
_REFERENCE = re.compile(r"\$\(([-._A-Za-z0-9]+)\)")
_SPELLED = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")
"""A variable as Kubernetes and shells write it."""
_FIELD = re.compile(r"metadata\.(?:annotations|labels)\['([^']{1,200})'\]")
_LONGEST = 100_000
"""Characters of a value that is still followed."""


def host_of(rank: int) -> str:
    """Placeholder for the host of a member, whatever its name is."""
    return f"<host {rank}>"


@dataclass(frozen=True, slots=True)
class Member:
    """A pod: its Job and its place in it there, its group and its place in it here, its place among all."""

    job: int
    pod: int
    role: str
    index: int
    rank: int


@dataclass(slots=True)
class Part:
    """A replicated job: ``jobs`` Jobs of ``pods`` pods each. ``spec``: the rest of its Jobs' spec; ``roles``:
    the groups that it becomes, in rank order; ``group``: the group of JobSet's to which it belongs; ``own``:
    what its Jobs go on saying; ``first_job``, ``first_rank``: its place among all Jobs there, and all members
    here; ``trains``: the place of the container that trains.
    """

    name: str
    at: str
    jobs: int
    pods: int
    template: Any
    spec: dict[str, Any] = field(default_factory=dict)
    group: str | None = None
    own: dict[str, Any] = field(default_factory=dict)
    first_job: int = 0
    first_rank: int = 0
    roles: tuple[tuple[str, int], ...] = ()
    trains: int = 0

    @property
    def count(self) -> int:
        return self.jobs * self.pods

    def containers(self) -> list[Mapping[str, Any]]:
        """Those of its pods; one that is no mapping says nothing."""
        spec = self.template.get("spec") if isinstance(self.template, Mapping) else None
        given = spec.get("containers") if isinstance(spec, Mapping) else None
        listed = given if isinstance(given, (list, tuple)) else ()
        return [item if isinstance(item, Mapping) else {} for item in listed]

    def trainer(self) -> Mapping[str, Any]:
        """The container that trains."""
        return self.containers()[self.trains]

    def member(self, job: int, pod: int) -> Member:
        number = index = job * self.pods + pod
        for role, count in self.roles:
            if index < count:
                return Member(job, pod, role, index, self.first_rank + number)
            index -= count
        raise AssertionError("a part becomes as many members as it has")

    def some(self) -> list[Member]:
        """Members that stand for all: what is told of them grows evenly with both indices."""
        jobs, pods = (sorted({0, 1, most - 1} & {*range(most)}) for most in (self.jobs, self.pods))
        return [self.member(job, pod) for job in jobs for pod in pods]


@dataclass(frozen=True, slots=True)
class Gang:
    """All parts. ``name``: of the JobSet; ``subdomain``: where its hosts are; ``coordinator``: rank of the
    member whose host a label holds.
    """

    parts: Sequence[Part]
    name: str
    subdomain: str
    coordinator: int | None = None

    def by_rank(self) -> list[Part]:
        return sorted(self.parts, key=lambda part: part.first_rank)

    def groups(self) -> dict[str, int]:
        """Role -> how many members, in rank order."""
        return {role: count for part in self.by_rank() for role, count in part.roles}

    def part(self, name: Any) -> Part | None:
        return next((part for part in self.parts if part.name == name), None)

    def there(self, part: Part, label: str, who: Member) -> str | None:
        """Value of a member's label in the JobSet; None: it is not known here."""
        known = {
            COMPLETION_INDEX: who.pod,
            f"{PREFIX}job-index": who.job,
            f"{PREFIX}job-global-index": part.first_job + who.job,
            f"{PREFIX}replicatedjob-name": part.name,
            f"{PREFIX}replicatedjob-replicas": part.jobs,
            f"{PREFIX}global-replicas": sum(other.jobs for other in self.parts),
            f"{PREFIX}jobset-name": self.name,
            COORDINATOR: None if self.coordinator is None else host_of(self.coordinator),
        }
        return None if known.get(label) is None else str(known[label])

    def here(self, part: Part, label: str, who: Member) -> str | None:
        """Value of the label for the same member of a run; its name and its hosts are as true there."""
        known = {
            COMPLETION_INDEX: 0,
            f"{PREFIX}job-index": who.index,
            f"{PREFIX}job-global-index": who.rank,
            f"{PREFIX}replicatedjob-name": who.role,
            f"{PREFIX}replicatedjob-replicas": dict(part.roles)[who.role],
            f"{PREFIX}global-replicas": sum(other.count for other in self.parts),
        }
        return str(known[label]) if label in known else self.there(part, label, who)


def expression(part: Part, values: Sequence[str]) -> str | None:
    """Expression for these values of `Part.some` in a run: a text, `INDEX`, `RANK`; None: there is none."""
    if len({*values}) == 1:
        return values[0]
    some = part.some()
    if list(values) == [str(who.index) for who in some]:
        return INDEX
    return RANK if list(values) == [str(who.rank) for who in some] else None


# Containers, as they are written.


def env_of(container: Mapping[str, Any]) -> list[Any]:
    """The variables of a container; none where no list stands."""
    variables = container.get("env")
    return list(variables) if isinstance(variables, (list, tuple)) else []


def program_of(container: Mapping[str, Any]) -> list[str]:
    """The words of its command and its arguments."""
    arguments: list[Any] = []
    for name in ("command", "args"):
        given = container.get(name)
        arguments += given if isinstance(given, (list, tuple)) else []
    return [word for word in arguments if isinstance(word, str)]


def limits_of(container: Mapping[str, Any]) -> Mapping[Any, Any]:
    """Limits of a container's resources."""
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return limits if isinstance(limits, Mapping) else {}


def label_of(variable: Mapping[str, Any]) -> str | None:
    """The label or annotation from which a variable comes."""
    source = variable.get("valueFrom")
    ref = source.get("fieldRef") if isinstance(source, Mapping) else None
    path = ref.get("fieldPath") if isinstance(ref, Mapping) else None
    match = _FIELD.fullmatch(path) if isinstance(path, str) else None
    return match[1] if match else None


Known = Mapping[str, Sequence[str] | None]
"""Name of a variable -> what it says to each of `Part.some`; None: that is not known here."""


def values_of(gang: Gang, part: Part, variables: Sequence[Any]) -> Known:
    """Values of a container's variables in the JobSet."""
    known: dict[str, Sequence[str] | None] = {}
    for variable in variables:
        name = variable.get("name") if isinstance(variable, Mapping) else None
        if not isinstance(name, str):
            continue
        label, value = label_of(variable), variable.get("value", "")
        if label is not None:
            texts = [gang.there(part, label, who) for who in part.some()]
            known[name] = None if None in texts else [text for text in texts if text is not None]
        elif "valueFrom" in variable or isinstance(value, (Mapping, list)) or value is None:
            known[name] = None
        else:
            known[name] = _expanded(str(value), known, len(part.some()))
    return known


def _expanded(value: str, known: Known, count: int) -> Sequence[str] | None:
    """A value with those to which it refers."""
    named = [known[name] for name in _REFERENCE.findall(value) if name in known]
    if None in named or len(value) + sum(len(texts[0]) for texts in named if texts) > _LONGEST:
        return None
    return [
        _REFERENCE.sub(lambda match, n=n: (known.get(match[1]) or {n: match[0]})[n], value)  # type: ignore[misc]
        for n in range(count)
    ]


# Hosts.


class Hosts:
    """The hosts of members that the texts of a container name. ``known``: its variables."""

    def __init__(self, gang: Gang, known: Known) -> None:
        self._gang = gang
        names = {gang.name, gang.subdomain, *(part.name for part in gang.parts)}
        self._names = {
            variable: values[0]
            for variable, values in known.items()
            if values and values[0] in names and len({*values}) == 1
        }
        name, parts = re.escape(gang.name), "|".join(re.escape(part.name) for part in gang.parts)
        at = rf"\.{re.escape(gang.subdomain)}(?:\.[a-z0-9-]+\.svc(?:\.cluster\.local)?)?(?![\w-])"
        ends = rf"(?:{at}|(?![\w-]|\.\w))"
        self._host = re.compile(rf"(?<![\w.-]){name}-({parts})-(\d{{1,9}})-(\d{{1,9}}){ends}")
        self._built = re.compile(rf"(?<![\w.-]){name}-(?:{parts})-(?=[\d$`{{%<*])")

    def renamed(self, text: str, name: Callable[[int], str | None]) -> str:
        """The text with other names for the hosts of members, by their ranks; None: it has no other one."""

        def other(match: re.Match[str]) -> str:
            part, job, pod = self._gang.part(match[1]), int(match[2]), int(match[3])
            if part is None or job >= part.jobs or pod >= part.pods:
                return match[0]
            return name(part.member(job, pod).rank) or match[0]

        spelled_out = self._spelled_out(text)
        new = self._host.sub(other, spelled_out)
        return text if new == spelled_out else new

    def names_one(self, text: str) -> bool:
        """True if a text names a member, or builds such a name."""
        return self._built.search(self._spelled_out(text)) is not None

    def _spelled_out(self, text: str) -> str:
        """The text with the names of which hosts are made in place of the variables that hold them."""

        def value(match: re.Match[str]) -> str:
            return self._names.get(match[1] or match[2] or match[3], match[0])

        return _SPELLED.sub(value, text) if self._names and len(text) <= _LONGEST else text
