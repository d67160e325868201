"""The pod template of a replicated job in the words of a run: without the variables that the engine says, and
with the hosts and the numbers that members have there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from allaboard.conversion.members import (
    COMPLETION_VARIABLE,
    INDEX,
    JOBSET_NAME,
    RANK,
    Gang,
    Hosts,
    Part,
    Rendering,
    env_of,
    field_of,
    host_of,
    program_of,
    values_of,
)
from allaboard.conversion.values import Reading, plain

_FIRST_HOST = {
    "pytorch": "MASTER_ADDR",
    "xgboost": "MASTER_ADDR",
    "jax": "COORDINATOR_ADDRESS",
}
"""Framework -> the variable in which members find the host of rank 0."""
_OF_THE_RUN = ("PET_RDZV_ID", "PADDLE_JOB_ID", "PET_RDZV_CONF")
"""Variables that hold what is each run's own."""


class Template:
    """What the template of a part says in the words of a run."""

    def __init__(
        self,
        reading: Reading,
        gang: Gang,
        part: Part,
        rendering: Rendering,
        framework: str,
        name: str,
        ours: bool,
    ) -> None:
        self.reading, self.gang, self.part, self.ours = reading, gang, part, ours
        self.framework, self.name = framework, name
        self.told = [rendering.environment(part.rank(*one)) for one in part.some()]
        self.at = f"{part.at}.template.spec.template.spec"

    def said(self) -> Any:
        """The pod template, with the container that trains under the engine's name."""
        template = self.part.template
        if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
            return template
        spec = dict(template["spec"])
        for kind in ("containers", "initContainers"):
            found = spec.get(kind)
            if isinstance(found, (list, tuple)):
                spec[kind] = [
                    self._container(
                        item, f"{self.at}.{kind}[{n}]", kind == "containers" and n == self.part.trains
                    )
                    for n, item in enumerate(found)
                ]
        return {**template, "spec": spec}

    def _container(self, item: Any, at: str, trains: bool) -> Any:
        if not isinstance(item, Mapping):
            return item
        known = values_of(self.gang, self.part, env_of(item))
        hosts = Hosts(self.gang, known)
        kept = [
            v
            for n, v in enumerate(env_of(item))
            if not (trains and self._is_told(v, known, hosts, f"{at}.env[{n}]"))
        ]
        needs_name = False

        def text(value: Any, where: str) -> Any:
            nonlocal needs_name
            if not isinstance(value, str):
                return value
            new = hosts.said(value, lambda rank: self._host(rank, trains))
            if new != value:
                needs_name = needs_name or f"$({_NAME_VARIABLE})" in new
                self.reading.change(where, value, new, "a run has hosts of its own")
            if hosts.is_left(new):
                words = (
                    "names a member or a Job that is called otherwise in a run; name the first member alone"
                )
                self.reading.wrong(where, words)
            return new

        made = dict(item)
        for name in ("command", "args"):
            if isinstance(made.get(name), (list, tuple)):
                made[name] = [text(word, f"{at}.{name}[{n}]") for n, word in enumerate(made[name])]
        env = [self._variable(v, f"{at}.env", trains, text) for v in kept]
        env = [*self._completion(item, at, trains), *env]
        if needs_name:
            env.insert(0, _from_label(_NAME_VARIABLE, JOBSET_NAME))
        if env or "env" in made:
            made["env"] = env if isinstance(item.get("env"), (list, tuple, type(None))) else made["env"]
        return {**made, "name": self.name} if trains else made

    def _host(self, rank: int, trains: bool) -> str:
        """The name of a member's host in a run."""
        variable = _FIRST_HOST.get(self.framework)
        if rank == 0 and trains and variable in self.told[0]:
            return f"$({variable})"
        for part in self.gang.parts:
            if part.first_rank <= rank < part.first_rank + part.count:
                left = rank - part.first_rank
                role, index = part.member(*divmod(left, part.pods))
                return f"$({_NAME_VARIABLE})-{role}-{index}-0.$({_NAME_VARIABLE})"
        raise AssertionError("every rank is one of a part")

    # Variables.

    def _is_told(
        self, variable: Any, known: Mapping[str, Sequence[str] | None], hosts: Hosts, at: str
    ) -> bool:
        """Whether the engine says this variable; what it would say otherwise is told."""
        name = variable.get("name") if isinstance(variable, Mapping) else None
        if not isinstance(name, str) or not any(name in told for told in self.told):
            return False
        ours = [told.get(name, "") for told in self.told]
        values = known.get(name)
        shown = plain(variable.get("value", variable.get("valueFrom")))
        if values is None:
            self.reading.lose(at, plain(variable), f"the engine says {name}, and its value wins")
            return True
        theirs = [hosts.said(value, host_of) for value in values]
        same = _same(name, theirs, ours)
        if same is None:
            words = (
                f"{name} says something else than the engine, whose value would win: {_where(theirs, ours)}"
            )
            self.reading.wrong(at, words)
        elif not self.ours or not same:
            after = None if same else (ours[0] if "\0" not in ours[0] else None)
            why = "the engine says it to each member"
            self.reading.change(at, {"name": name, "value": shown}, after, why)
        return True

    def _variable(self, variable: Any, at: str, trains: bool, text: Any) -> Any:
        """A variable that tells a member its place, or names a host, in the words of a run."""
        if not isinstance(variable, Mapping):
            return variable
        name, label = variable.get("name"), field_of(variable)
        where = f"{at}.{name}"
        if label is None:
            return {**variable, "value": text(variable["value"], where)} if "value" in variable else variable
        there = [self.gang.there(self.part, label, *one) for one in self.part.some()]
        here = [self.gang.here(self.part, label, *one) for one in self.part.some()]
        if there == here or None in there:
            return variable
        said = self.gang.expression(self.part, [value for value in there if value is not None])
        if said is None:
            words = f"{label} tells members apart there, and nothing in a run says the same"
            self.reading.wrong(where, words)
            return variable
        self.reading.change(where, label, said, "members of a run are numbered in groups, by Jobs of one pod")
        return self._said(str(name), said, trains)

    def _completion(self, item: Mapping[str, Any], at: str, trains: bool) -> list[dict[str, Any]]:
        """The index that the Job tells its pods, where it is another one in a run."""
        texts = [*program_of(item), *(str(v.get("value")) for v in env_of(item) if isinstance(v, Mapping))]
        named = any(isinstance(v, Mapping) and v.get("name") == COMPLETION_VARIABLE for v in env_of(item))
        used = trains or any(COMPLETION_VARIABLE in text for text in texts)
        if self.part.pods == 1 or named or not used:
            return []
        said = self.gang.completion_index(self.part)
        if said is None:
            if any(COMPLETION_VARIABLE in text for text in texts):
                words = f"{COMPLETION_VARIABLE} tells members apart there, and nothing in a run says the same"
                self.reading.wrong(f"{at}.env", words)
            else:
                why = "a member is a Job of its own, of which this is 0"
                self.reading.lose(f"{at}.env.{COMPLETION_VARIABLE}", "the index of a pod in its Job", why)
            return []
        why = "a Job tells its pods; here each member is a Job of its own"
        self.reading.change(f"{at}.env.{COMPLETION_VARIABLE}", None, said, why)
        return [self._said(COMPLETION_VARIABLE, said, trains)]

    def _said(self, name: str, said: str, trains: bool) -> dict[str, Any]:
        """A variable with this value. Other containers than the one that trains have no variables of ours."""
        if trains or said not in _LABELS:
            return {"name": name, "value": said}
        return _from_label(name, _LABELS[said])


_NAME_VARIABLE = "JOBSET_NAME"
_LABELS = {INDEX: "jobset.sigs.k8s.io/job-index", RANK: "jobset.sigs.k8s.io/job-global-index"}


def _from_label(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


_PORT = re.compile("\0:\\d{1,5}")


def _same(name: str, theirs: Sequence[str], ours: Sequence[str]) -> bool | None:
    """Whether a variable says the same as the engine's; False: it need not, None: it must, and does not."""
    if list(theirs) == list(ours):
        return True
    if name.endswith("_PORT") or name in _OF_THE_RUN:
        return False
    if name == "PYTHONUNBUFFERED":
        return False if all(theirs) else None
    bare = [[_PORT.sub("\0", value) for value in values] for values in (theirs, ours)]
    if bare[0] == bare[1]:
        return False
    if name == "TF_CONFIG":
        read = [[_task(value) for value in values] for values in bare]
        return False if read[0] == read[1] and None not in read[0] else None
    return None


def _task(text: str) -> Any:
    """What TF_CONFIG says, in an order of its own."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return json.dumps({name: value.get(name) for name in ("cluster", "task")}, sort_keys=True)


def _where(theirs: Sequence[str], ours: Sequence[str]) -> str:
    """Which member is meant, where one is."""
    for there, here in zip(theirs, ours, strict=True):
        if there != here:
            plainly = "\0" not in here + there and len(there) < 30
            return f"a member has {there or 'nothing'} there and {here} here" if plainly else "another member"
    return "another member"
