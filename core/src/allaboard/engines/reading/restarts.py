"""Policy of a job from a JobSet: restarts of members, success and failure.

A member that fails has left its gang, so a job restarts the gang; a JobSet may restart its members one by
one first (backoffLimit of a Job). What the engine would say otherwise stays in ``engine_spec``, or is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allaboard.engines.reading.members import Gang
from allaboard.engines.reading.values import Reading, duration, plain
from allaboard.text.names import one_of

_TRIES = 6
"""Meaning of an absent backoffLimit of a Job."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """Policies that an engine makes of a job: the environment of the member of a rank, whose hosts are those
    of `allaboard.engines.reading.members.host_of`; the success policy, the failure policy, and the rules that
    end a Job at once.
    """

    environment: Callable[[int], Mapping[str, str]]
    success: Mapping[str, Any]
    failure: Mapping[str, Any] | None
    pod_failure: Sequence[Any]


Render = Callable[[Mapping[str, Any]], Rendering]
"""Rendering of the job with this ``policy``."""


def policies_of(
    reading: Reading,
    render: Render,
    spec: dict[str, Any],
    gang: Gang,
    engine_spec: dict[str, Any],
    container: str,
) -> dict[str, Any]:
    """``policy``; what of successPolicy and failurePolicy the engine would say otherwise goes to
    ``engine_spec``, and what the Jobs of a part would, to its ``own``. ``container``: the engine's name of
    the one that trains.
    """
    policy: dict[str, Any] = {}
    ttl = reading.whole(spec.pop("ttlSecondsAfterFinished", None), "spec.ttlSecondsAfterFinished")
    if ttl is not None:
        policy["ttl"] = duration(ttl)
    if reading.flag(spec.pop("suspend", None), "spec.suspend"):
        policy["suspend"] = True
    _deadline(reading, gang, policy)
    _pod_failures(reading, gang, container)
    _restarts(reading, render, spec, gang, policy, engine_spec)
    _success(reading, render, spec, gang, engine_spec)
    reading.paths |= {
        "policy": "spec.failurePolicy",
        "policy.ttl": "spec.ttlSecondsAfterFinished",
        "policy.suspend": "spec.suspend",
        "policy.deadline": f"{gang.parts[0].at}.template.spec.activeDeadlineSeconds",
        "policy.backoff_limit": "spec.failurePolicy.maxRestarts",
        "engine_spec": "spec",
    }
    return policy


def _deadline(reading: Reading, gang: Gang, policy: dict[str, Any]) -> None:
    name = "template.spec.activeDeadlineSeconds"
    deadlines = {
        part.at: reading.whole(part.spec.pop("activeDeadlineSeconds", None), f"{part.at}.{name}", 1)
        for part in gang.parts
    }
    values = {*deadlines.values()}
    if len(values) == 1 and None not in values:
        policy["deadline"] = duration(values.pop() or 0)
        return
    for part in gang.parts:
        if deadlines[part.at] is not None:  # those of other members have another one, or none
            part.own.setdefault("spec", {})["activeDeadlineSeconds"] = deadlines[part.at]


def _restarts(
    reading: Reading,
    render: Render,
    spec: dict[str, Any],
    gang: Gang,
    policy: dict[str, Any],
    engine_spec: dict[str, Any],
) -> None:
    """``restart`` and ``backoff_limit``. A Job's own tries are tries of the gang where it has none itself."""
    at = "spec.failurePolicy"
    failure = reading.mapping(spec.pop("failurePolicy", None), at)
    most = reading.whole(failure.pop("maxRestarts", None), f"{at}.maxRestarts") or 0
    failure_policy: dict[str, Any] = {}
    if strategy := reading.text(failure.pop("restartStrategy", None), f"{at}.restartStrategy"):
        failure_policy["restartStrategy"] = strategy
    if "rules" in failure:
        failure_policy["rules"] = _rules(reading, gang, failure.pop("rules"), f"{at}.rules")
    reading.lose_rest(failure, at, "a failure policy has no such field")
    name = "template.spec.backoffLimit"
    tries = {
        part.at: reading.whole(part.spec.pop("backoffLimit", None), f"{part.at}.{name}")
        for part in gang.parts
    }
    by_gang = bool(most or failure_policy.get("rules"))
    limit = most if by_gang else max(_TRIES if own is None else own for own in tries.values())
    policy["restart"] = "on_failure" if by_gang or limit else "never"
    if by_gang or limit:
        policy["backoff_limit"] = limit
    for part in gang.parts:
        own, reason = tries[part.at], "a member that fails restarts its gang"
        if own is None:
            reason = f"where nothing is written a Job has {_TRIES} tries of its own; {reason}"
        if own and by_gang:
            part.own.setdefault("spec", {})["backoffLimit"] = own
        elif own != 0:
            after = 0 if by_gang else limit
            reading.change(f"{part.at}.{name}", own, after, f"{reason} (policy.backoff_limit)")
    if not reading.problems:
        _as_rendered(reading, render, gang, policy, failure_policy, engine_spec, by_gang)


def _rules(reading: Reading, gang: Gang, value: Any, at: str) -> list[dict[str, Any]]:
    """The rules of a failure policy, with the groups of a run as their targets."""
    rules = []
    for n, item in enumerate(reading.items(value, at)):
        rule = reading.mapping(item, f"{at}[{n}]")
        targets = _targets(reading, gang, rule.pop("targetReplicatedJobs", None), f"{at}[{n}]")
        rules.append({**plain(rule), **({"targetReplicatedJobs": targets} if targets else {})})
    return rules


def _targets(reading: Reading, gang: Gang, value: Any, at: str) -> list[str]:
    """The groups that replicated jobs became."""
    at = f"{at}.targetReplicatedJobs"
    names = reading.texts(value, at)
    for n, name in enumerate(names):
        if gang.part(name) is None:
            known = one_of(part.name for part in gang.parts)
            reading.wrong(f"{at}[{n}]", f"is not a replicated job with members; there are {known}")
    return [role for name in names if (part := gang.part(name)) for role, _ in part.roles]


def _as_rendered(
    reading: Reading,
    render: Render,
    gang: Gang,
    policy: dict[str, Any],
    failure_policy: Mapping[str, Any],
    engine_spec: dict[str, Any],
    by_gang: bool,
) -> None:
    """Compare the policy with what the engine renders, and report the differences."""
    by_code = {**policy, "restart": "exit_code"}
    if policy["restart"] == "on_failure" and failure_policy == _without_limit(render(by_code).failure):
        policy["restart"] = "exit_code"
    made = render(policy)
    usual = _without_limit(made.failure)
    _tell_pod_failures(reading, gang, made.pod_failure, "rules" in failure_policy)
    with_own = any("podFailurePolicy" in part.own.get("spec", ()) for part in gang.parts)
    if usual and with_own and "rules" not in failure_policy:
        failure_policy = {**failure_policy, "rules": [*_rules_beside(usual["rules"], by_gang)]}
    if failure_policy.get("restartStrategy") == "InPlaceRestart":
        reason = "the gang is made anew, when all of its old members are gone"
        reading.lose("spec.failurePolicy.restartStrategy", failure_policy["restartStrategy"], reason)
        failure_policy = {name: value for name, value in failure_policy.items() if name != "restartStrategy"}
    if policy["restart"] == "never" and failure_policy:
        reading.change("spec.failurePolicy", plain(failure_policy), None, "nothing is started again")
    kept = {name: value for name, value in failure_policy.items() if name in usual and value != usual[name]}
    if kept:
        engine_spec["failurePolicy"] = kept
    unsaid = {name: value for name, value in usual.items() if name not in failure_policy}
    if unsaid:
        reason = (
            "none of the new members may meet one of the old, and a restart because a member was taken away "
            "from its node does not count"
        )
        reading.change("spec.failurePolicy", None, unsaid, reason)


def _without_limit(failure: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (failure or {}).items() if name != "maxRestarts"}


def _rules_beside(usual: Sequence[Mapping[str, Any]], by_gang: bool) -> Iterator[Mapping[str, Any]]:
    """The rules of a failure policy beside pod failure policies of the JobSet's own, whose reason means no
    more than that of any failure: it counts, or, where the gang has no tries, is the end.
    """
    if not by_gang:
        reasons = ["PodFailurePolicy"]
        yield {"name": "podFailurePolicy", "action": "FailJobSet", "onJobFailureReasons": reasons}
    yield from (rule for rule in usual if "PodFailurePolicy" not in rule["onJobFailureReasons"])


def _pod_failures(reading: Reading, gang: Gang, container: str) -> None:
    """Reads pod failure policies, with the engine's name for the container that trains."""
    for part in gang.parts:
        at = f"{part.at}.template.spec.podFailurePolicy"
        fields = reading.mapping(part.spec.pop("podFailurePolicy", None), at)
        trains = part.trainer().get("name")
        rules = [
            _defaulted(rule, trains, container)
            for rule in reading.items(fields.pop("rules", None), f"{at}.rules")
        ]
        reading.lose_rest(fields, at, "a pod failure policy has rules alone")
        if rules:
            part.own.setdefault("spec", {})["podFailurePolicy"] = {"rules": rules}


def _tell_pod_failures(reading: Reading, gang: Gang, made: Sequence[Any], with_rules: bool) -> None:
    """Those that the engine makes; ``with_rules``: the failure policy that reads their reason is the
    JobSet's.
    """
    for part in gang.parts:
        spec = part.own.get("spec", {})
        if "podFailurePolicy" not in spec and made and with_rules:
            reason = "a member that is taken away from its node ends its Job at once, with this reason"
            reading.change(f"{part.at}.template.spec.podFailurePolicy", None, [*made], reason)
        elif spec.get("podFailurePolicy") == {"rules": [*made]}:
            del spec["podFailurePolicy"]
        if part.own.get("spec") == {}:
            del part.own["spec"]


def _defaulted(rule: Any, trains: Any, container: str) -> Any:
    """A rule with what the API server fills in, without what says nothing, and with the engine's name for
    the container that trains.
    """
    if not isinstance(rule, Mapping):
        return rule
    defaulted = {name: value for name, value in plain(rule).items() if value != []}
    codes = defaulted.get("onExitCodes")
    if isinstance(codes, dict) and codes.get("containerName") == trains is not None:
        defaulted["onExitCodes"] = {**codes, "containerName": container}
    conditions = defaulted.get("onPodConditions")
    if isinstance(conditions, list):
        defaulted["onPodConditions"] = [
            {"status": "True", **condition} if isinstance(condition, dict) else condition
            for condition in conditions
        ]
    return defaulted


def _success(
    reading: Reading, render: Render, spec: dict[str, Any], gang: Gang, engine_spec: dict[str, Any]
) -> None:
    """Read the success policy. Without one all members decide."""
    at = "spec.successPolicy"
    fields = reading.mapping(spec.pop("successPolicy", None), at)
    operator = reading.word(fields.pop("operator", None), {"All": "All", "Any": "Any"}, f"{at}.operator")
    targets = _targets(reading, gang, fields.pop("targetReplicatedJobs", None), at)
    reading.lose_rest(fields, at, "a success policy has an operator and targets")
    if reading.problems:
        return
    deciding = [role for role in gang.groups() if not targets or role in targets]
    several = sum(count for role, count in gang.groups().items() if role in deciding) > 1
    parts = [part for part in gang.parts if part.roles[0][0] in deciding]
    if operator == "Any" and any(part.pods > 1 for part in parts):
        if sum(part.jobs for part in parts) > 1:
            reason = (
                "a Job of several pods succeeds with all of them; here each member is a Job, and all decide"
            )
            reading.lose(f"{at}.operator", operator, reason)
        operator = "All"
    made = render({}).success
    wanted = {"operator": operator or "All", "targetReplicatedJobs": deciding}
    if deciding != made["targetReplicatedJobs"] or (several and wanted["operator"] != made["operator"]):
        engine_spec["successPolicy"] = wanted
