"""The kinds of kubeflow.org/v1, whose spec is a run policy and a map of replicas.

An absent field means what the operator makes of it (Training Operator 1.9.4: pkg/apis/kubeflow.org/v1), which
is not always what it means in a job. Where both differ it is written out, and told: no cleanPodPolicy is
``none``, no backoffLimit is ``unlimited``. Operators before 1.3 had the run policy's fields in ``spec``
itself; those are taken as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from allaboard.engines.reading.pods import PodFields, job_fields, note_paths, read_pods
from allaboard.engines.reading.values import Conversion, Reading, duration, identity, is_ours, join, plain
from allaboard.text.names import nearest, one_of

_POLICY = (
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    "suspend",
    "schedulingPolicy",
    "managedBy",
)
_FIELDS = {
    "clean_pods": "cleanPodPolicy",
    "ttl": "ttlSecondsAfterFinished",
    "deadline": "activeDeadlineSeconds",
    "backoff_limit": "backoffLimit",
    "suspend": "suspend",
}
"""Field of a job's policy -> that of a run policy."""
_RESTART = {"Never": "never", "OnFailure": "on_failure", "Always": "always", "ExitCode": "exit_code"}
_CLEAN = {"None": "none", "Running": "running", "All": "all"}

Own = Callable[[Reading, dict[str, Any], dict[str, Any], Mapping[str, int]], None]
"""Moves what a kind has beside policy and replicas from its spec (the first mapping) to the fields of the job
(the second); the third: role -> how many.
"""


class Kind(Protocol):
    """Methods of an engine of kubeflow.org/v1 that reading needs
    (`allaboard.engines.kubeflow.KubeflowEngine`).
    """

    KIND: str
    NAME: str
    API_VERSION: str
    FRAMEWORKS: tuple[str, ...]
    CONTAINER: str
    SPECS: str
    DEFAULT_BACKOFF: int | None
    OWN_FIELDS: frozenset[str]

    def roles(self, framework: str) -> Mapping[str, int | None]: ...

    def default_replicas(self, role: str) -> int: ...

    def default_restart(self, framework: str) -> str: ...

    def default_restart_of(self, role: str) -> str: ...


def job_of_replicas(kind: Kind, obj: Mapping[str, Any], own: Own) -> Conversion:
    """The job that an object of this kind says. Raises BadInput with every problem and its path."""
    reading = Reading()
    _version(reading, kind, obj)
    job = {**identity(reading, obj), "framework": kind.FRAMEWORKS[0]}
    spec = reading.mapping(obj.get("spec"), "spec")
    policy, engine_spec = _policy(reading, spec, kind.DEFAULT_BACKOFF)
    replicas = _replicas(reading, kind, spec, is_ours(obj))
    job["engine_spec"] = engine_spec
    if not reading.problems:
        _join(reading, kind, job, policy, replicas)
    own(reading, spec, job, {role: replica.count for role, replica in replicas.items()})
    for name in sorted(kind.OWN_FIELDS & {*spec}):
        job["engine_spec"][name] = plain(spec.pop(name))
    reading.lose_rest(spec, "spec", f"a {kind.KIND} of kubeflow.org/v1 has no such field")
    reading.raise_problems(f"this {kind.KIND}")
    # What its engine alone understands, and a job that may be made of other kinds, do not go together.
    if job["engine_spec"]:
        job["engine"] = kind.NAME
    return reading.conversion(job)


def _version(reading: Reading, kind: Kind, obj: Mapping[str, Any]) -> None:
    version = obj.get("apiVersion")
    if version != kind.API_VERSION:
        reason = "the version that is served today; its fields have the same names"
        reading.change("apiVersion", plain(version), kind.API_VERSION, reason)


# The run policy.


def _policy(
    reading: Reading, spec: dict[str, Any], usual: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """``policy`` and ``engine_spec`` of the job. ``usual``: an absent backoffLimit; None: there is none."""
    at = "spec.runPolicy"
    written = reading.mapping(spec.pop("runPolicy", None), at)
    paths = {name: f"{at}.{name}" for name in _POLICY}
    for name in _POLICY:
        if name in spec:
            value = spec.pop(name)
            if name not in written and value is not None:
                written[name], paths[name] = value, f"spec.{name}"
                reading.change(f"spec.{name}", plain(value), plain(value), f"stands in {at} today")
    reading.paths |= {f"policy.{field}": paths[name] for field, name in _FIELDS.items()}
    policy: dict[str, Any] = {"clean_pods": _clean(reading, written.pop("cleanPodPolicy", None), paths)}
    limit = reading.whole(written.pop("backoffLimit", None), paths["backoffLimit"])
    if limit is None:
        word = "no limit" if usual is None else str(usual)
        reason = f"where nothing is written it is {word} there, and 3 of a job"
        reading.change(paths["backoffLimit"], None, "unlimited" if usual is None else usual, reason)
        limit = usual
    policy["backoff_limit"] = "unlimited" if limit is None else limit
    for field, name in (("deadline", "activeDeadlineSeconds"), ("ttl", "ttlSecondsAfterFinished")):
        seconds = reading.whole(written.pop(name, None), paths[name])
        if seconds is not None:
            policy[field] = duration(seconds)
    if reading.flag(written.pop("suspend", None), paths["suspend"]):
        policy["suspend"] = True
    kept: dict[str, Any] = {}
    if gang := reading.mapping(written.pop("schedulingPolicy", None), paths["schedulingPolicy"]):
        kept["schedulingPolicy"] = plain(gang)
    manager = reading.text(written.pop("managedBy", None), paths["managedBy"])
    if manager is not None:
        kept["managedBy"] = manager
    reading.lose_rest(written, at, "a run policy has no such field")
    return policy, {"runPolicy": kept} if kept else {}


def _clean(reading: Reading, value: Any, paths: Mapping[str, str]) -> str:
    at = paths["cleanPodPolicy"]
    if value is None:
        reason = "the operator keeps what still runs where nothing is written; a job's own is running"
        reading.change(at, None, "none", reason)
        return "none"
    word = reading.text(value, at) or ""
    if word not in _CLEAN:
        reading.change(at, word, "all", "the operator takes any other word for All")
    return _CLEAN.get(word, "all")


# The replicas.


class _Replica:
    """One entry of the replica map. ``restart``: in a job's word."""

    def __init__(self, at: str, count: int, restart: str, template: Any) -> None:
        self.at, self.count, self.restart, self.template = at, count, restart, template
        self.fields = PodFields()


def _replicas(reading: Reading, kind: Kind, spec: dict[str, Any], ours: bool) -> dict[str, _Replica]:
    """Role -> what stands there, in the order of the engine's roles."""
    at = f"spec.{kind.SPECS}"
    written = spec.pop(kind.SPECS, None)
    roles = kind.roles(kind.FRAMEWORKS[0])
    if written is None:
        reading.wrong(at, f"is missing; a {kind.KIND} has its members there ({one_of(roles)})")
    replicas: dict[str, _Replica] = {}
    for name, value in reading.mapping(written, at).items():
        here, role = join(at, name), name.lower()
        if role not in roles:
            near = nearest(role, roles)
            hint = f", and perhaps means {near}" if near else ""
            reading.lose(here, value, f"the operator knows no such replicas of a {kind.KIND}{hint}")
        elif role in replicas:
            reading.wrong(here, f"appears twice, and as {replicas[role].at.rpartition('.')[2]}")
        elif replica := _replica(reading, kind, role, value, here):
            replicas[role] = replica
    if not replicas and written is not None:
        reading.wrong(at, f"has no members; a {kind.KIND} has {one_of(roles)}")
    if not reading.problems:
        templates = {role: (replica.template, f"{replica.at}.template") for role, replica in replicas.items()}
        for role, fields in read_pods(reading, templates, kind.CONTAINER, ours=ours).items():
            replicas[role].fields = fields
            _overwritten_restart(reading, fields, replicas[role].restart)
    return {role: replicas[role] for role in roles if role in replicas}


def _replica(reading: Reading, kind: Kind, role: str, value: Any, at: str) -> _Replica | None:
    fields = reading.mapping(value, at)
    count = reading.whole(fields.pop("replicas", None), f"{at}.replicas")
    restart = reading.word(fields.pop("restartPolicy", None), _RESTART, f"{at}.restartPolicy")
    template = fields.pop("template", None)
    reading.lose_rest(fields, at, "a group of replicas has no such field")
    count = kind.default_replicas(role) if count is None else count
    if count == 0:
        reading.lose(at, value, "a group of a job has at least one member")
        return None
    if template is None:
        reading.wrong(f"{at}.template", "is missing; its members are made of it")
    return _Replica(at, count, restart or kind.default_restart_of(role), template)


def _overwritten_restart(reading: Reading, fields: PodFields, restart: str) -> None:
    """The operator writes the policy of the replicas into their pods."""
    if fields.restart is not None and _RESTART.get(fields.restart) != restart:
        at = f"{fields.at}.spec.restartPolicy"
        reason = "the operator writes restartPolicy of the replicas over it"
        reading.change(at, fields.restart, None, reason)


def _join(
    reading: Reading,
    kind: Kind,
    job: dict[str, Any],
    policy: dict[str, Any],
    replicas: Mapping[str, _Replica],
) -> None:
    """Puts the fields of all groups and their policy into the job."""
    pods = {role: replica.fields for role, replica in replicas.items()}
    shared, own = job_fields(pods)
    restarts = _common([replica.restart for replica in replicas.values()])
    if restarts != kind.default_restart(kind.FRAMEWORKS[0]):
        policy = {"restart": restarts, **policy}
    job |= {**shared, "policy": policy, "groups": {}}
    for role, replica in replicas.items():
        own_fields = own[role] if replica.restart == restarts else {**own[role], "restart": replica.restart}
        reading.paths[f"groups.{role}.restart"] = f"{replica.at}.restartPolicy"
        job["groups"][role] = {"replicas": replica.count, **own_fields} if own_fields else replica.count
        reading.paths[f"groups.{role}"] = replica.at
    reading.paths["groups"] = f"spec.{kind.SPECS}"
    for field, name in (("policy", "runPolicy"), ("engine_spec", "")):
        reading.paths[field] = f"spec.{name}".rstrip(".")
    note_paths(reading, pods, own)


def _common(policies: Sequence[str]) -> str:
    """The most frequent one, the first of several."""
    return max(dict.fromkeys(policies), key=policies.count)
