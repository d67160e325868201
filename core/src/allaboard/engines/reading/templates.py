"""The pod template of a replicated job in the words of a run: without the variables that the engine says, and
with the hosts and the numbers that members have there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from allaboard.engines.reading.members import (
    COMPLETION_INDEX,
    COORDINATOR,
    INDEX,
    PREFIX,
    RANK,
    Gang,
    Hosts,
    Known,
    Part,
    env_of,
    expression,
    host_of,
    label_of,
    program_of,
    values_of,
)
from allaboard.engines.reading.values import Reading, plain

_FIRST_HOST = {"pytorch": "MASTER_ADDR", "xgboost": "MASTER_ADDR", "jax": "COORDINATOR_ADDRESS"}
"""Framework -> the variable in which members find the host of rank 0."""
_COMPLETION_VARIABLE = "JOB_COMPLETION_INDEX"
"""Variable that a Job gives to its pods, unless their template has it."""
_LABELS = {INDEX: f"{PREFIX}job-index", RANK: f"{PREFIX}job-global-index"}
_OF_GROUPS = ("group-name", "group-replicas", "job-group-index")
_OF_THE_RUN = ("PET_RDZV_ID", "PADDLE_JOB_ID")
"""Variables that hold what is each run's own."""
_APART = "has a value that nothing in a run has"


class Template:
    """Template of a part, rewritten for a run. ``environment``: variables that the engine gives to the member
    of a rank; ``name``: of the container that trains, to the engine; ``ours``: allaboard made it.
    """

    def __init__(
        self,
        reading: Reading,
        gang: Gang,
        part: Part,
        environment: Callable[[int], Mapping[str, str]],
        framework: str,
        name: str,
        ours: bool,
    ) -> None:
        self.reading, self.gang, self.part, self.name, self.ours = reading, gang, part, name, ours
        self.environments = [environment(who.rank) for who in part.some()]
        variable = _FIRST_HOST.get(framework)
        self.first_host = f"$({variable})" if variable in self.environments[0] else None

    def pod_template(self) -> Any:
        """The pod template, with the container that trains under the engine's name."""
        template = self.part.template
        if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
            return template
        spec = dict(template["spec"])
        for kind in ("containers", "initContainers"):
            at = f"{self.part.at}.template.spec.template.spec.{kind}"
            if isinstance(spec.get(kind), (list, tuple)):
                spec[kind] = [
                    self._container(item, f"{at}[{n}]", kind == "containers" and n == self.part.trains)
                    for n, item in enumerate(spec[kind])
                ]
        return {**template, "spec": spec}

    def _container(self, item: Any, at: str, trains: bool) -> Any:
        if not isinstance(item, Mapping):
            return item
        known = values_of(self.gang, self.part, env_of(item))
        hosts = Hosts(self.gang, known)
        made = {**item, "name": self.name} if trains else dict(item)
        for name in ("command", "args"):
            if isinstance(made.get(name), (list, tuple)):
                numbered = enumerate(made[name])
                made[name] = [self._text(word, f"{at}.{name}[{n}]", hosts, trains) for n, word in numbered]
        if isinstance(item.get("env"), (list, tuple, type(None))):
            env = self._completion_index(item, at, trains)
            for n, variable in enumerate(env_of(item)):
                if not trains or not self._is_told(variable, known, hosts, f"{at}.env[{n}]"):
                    env.append(self._variable(variable, f"{at}.env[{n}]", hosts, trains))
            if env or "env" in made:
                made["env"] = env
        return made

    def _text(self, value: Any, at: str, hosts: Hosts, trains: bool) -> Any:
        """A text in which the host of the first member is the variable that holds it."""
        if not isinstance(value, str):
            return value
        new = hosts.renamed(value, lambda rank: self.first_host if rank == 0 and trains else None)
        if hosts.names_one(new):
            hint = f", as {self.first_host} in the container that trains" if self.first_host else ""
            message = f"names a member, whose name differs in each run; only the first is known{hint}"
            self.reading.wrong(at, message)
        elif new != value:
            self.reading.change(at, value, new, "a run has hosts of its own")
        return new

    # Variables.

    def _is_told(self, variable: Any, known: Known, hosts: Hosts, at: str) -> bool:
        """True if the engine sets this variable; a value that differs from the engine's is reported."""
        name = variable.get("name") if isinstance(variable, Mapping) else None
        if not isinstance(name, str) or not any(name in environment for environment in self.environments):
            return False
        ours, values = [environment.get(name, "") for environment in self.environments], known.get(name)
        if values is None:
            self.reading.lose(at, plain(variable), f"the engine says {name}, and its value wins")
            return True
        theirs = [hosts.renamed(value, host_of) for value in values]
        if not _may_differ(name, theirs, ours):
            message = f"{name} differs from the engine's value, which would win{_shown(theirs, ours)}"
            self.reading.wrong(at, message)
        elif theirs != ours or not self.ours:
            after = ours[0] if theirs != ours and "<host" not in ours[0] else None
            self.reading.change(at, plain(variable), after, "the engine says it to each member")
        return True

    def _variable(self, variable: Any, at: str, hosts: Hosts, trains: bool) -> Any:
        """A variable that tells a member its place, or names a host, in the words of a run."""
        if not isinstance(variable, Mapping):
            return variable
        label = label_of(variable)
        if label is None:
            value = variable.get("value")
            new = self._text(value, f"{at}.value", hosts, trains)
            return {**variable, "value": new} if isinstance(value, str) else variable
        some = self.part.some()
        there = [self.gang.there(self.part, label, who) for who in some]
        if label in (PREFIX + name for name in _OF_GROUPS):
            self.reading.wrong(at, f"{label} {_APART}")
        if None in there or there == [self.gang.here(self.part, label, who) for who in some]:
            return variable
        expressed = expression(self.part, [value for value in there if value is not None])
        if label == COORDINATOR:
            expressed = self.first_host if expressed == host_of(0) and trains else None
        if expressed is None:
            self.reading.wrong(at, f"{label} {_APART}")
            return variable
        self.reading.change(at, label, expressed, "the label has another value in a run")
        return _saying(str(variable.get("name")), expressed, trains)

    def _completion_index(self, item: Mapping[str, Any], at: str, trains: bool) -> list[Any]:
        """The variable of the index that a Job tells its pods, where it is another one in a run."""
        texts = [*program_of(item), *(str(v.get("value")) for v in env_of(item) if isinstance(v, Mapping))]
        named = any(isinstance(v, Mapping) and v.get("name") == _COMPLETION_VARIABLE for v in env_of(item))
        used = any(_COMPLETION_VARIABLE in text for text in texts)
        if self.part.pods == 1 or named or not (trains or used):
            return []
        at, value = f"{at}.env", expression(self.part, [str(who.pod) for who in self.part.some()])
        if value is not None:
            reason = (
                f"{_COMPLETION_VARIABLE}, which a Job tells its pods; here each member is a Job of its own"
            )
            self.reading.change(at, None, value, reason)
            return [_saying(_COMPLETION_VARIABLE, value, trains)]
        if used:
            self.reading.wrong(at, f"{_COMPLETION_VARIABLE} {_APART}")
        else:
            reason = "the index of a pod in its Job; a member is a Job of its own, of which this is 0"
            self.reading.lose(at, {"label": COMPLETION_INDEX}, reason)
        return []


def _saying(name: str, value: str, trains: bool) -> dict[str, Any]:
    """A variable with this value. Other containers than the one that trains have no variables of ours."""
    if trains or value not in _LABELS:
        return {"name": name, "value": value}
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{_LABELS[value]}']"}}}


_PORT = re.compile(r"(?<=>):\d{1,5}")


def _may_differ(name: str, theirs: Sequence[str], ours: Sequence[str]) -> bool:
    """True if a variable equals the engine's but for ports and parts that differ in each run."""
    if name.endswith("_PORT") or name in _OF_THE_RUN or (name == "PYTHONUNBUFFERED" and all(theirs)):
        return True
    left, right = ([_PORT.sub("", value) for value in values] for values in (theirs, ours))
    if name == "TF_CONFIG":
        left, right = [_task(value) for value in left], [_task(value) for value in right]
    return left == right


def _task(text: str) -> str:
    """Task of a TF_CONFIG, in a fixed order."""
    try:
        value = json.loads(text)
        return json.dumps([value["cluster"], value["task"]], sort_keys=True)
    except (ValueError, TypeError, LookupError, RecursionError):
        return text


def _shown(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """The first that differs, where it can be shown."""
    there, here = next(pair for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1])
    plainly = "<host" not in there + here and len(there) < 30
    return f": {there or 'nothing'}, and here {here}" if plainly else ""
