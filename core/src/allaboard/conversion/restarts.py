"""When members of a JobSet are started again, when it has succeeded, and when it fails: the policy of a job.

A member that fails has left its gang, so a job restarts the gang; a JobSet may restart its members one by
one first (backoffLimit of a Job). What the engine would say otherwise stays in ``engine_spec``, or is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from allaboard.conversion.members import Gang, Part, Rendering
from allaboard.conversion.pods import PodFields
from allaboard.conversion.values import Reading, duration, plain
from allaboard.names import one_of

_JOB_DEFAULT_BACKOFF = 6
"""What an absent backoffLimit of a Job means."""


class Kind(Protocol):
    """What is asked of the engine."""

    def rendering(self, job: Mapping[str, Any]) -> Rendering: ...


def bare(job: Mapping[str, Any], gang: Gang) -> dict[str, Any]:
    """As much of the job as tells what the engine says of its members."""
    kept = ("framework", "engine", "elastic", "processes_per_member")
    told = {name: job[name] for name in kept if name in job}
    return {"name": "bare", "image": "bare", "args": [], "groups": gang.groups(), **told}


def policies_of(
    reading: Reading,
    kind: Kind,
    spec: dict[str, Any],
    gang: Gang,
    job: dict[str, Any],
    pods: Mapping[str, PodFields],
) -> None:
    """``policy``, and what of successPolicy and failurePolicy the engine would say otherwise."""
    policy: dict[str, Any] = {}
    job["policy"] = policy
    ttl = reading.whole(spec.pop("ttlSecondsAfterFinished", None), "spec.ttlSecondsAfterFinished")
    if ttl is not None:
        policy["ttl"] = duration(ttl)
    if reading.flag(spec.pop("suspend", None), "spec.suspend"):
        policy["suspend"] = True
    _deadline(reading, gang, policy)
    _restarts(reading, kind, spec, gang, job, pods)
    _success(reading, kind, spec, gang, job)
    reading.paths |= {
        "policy": "spec.failurePolicy",
        "policy.ttl": "spec.ttlSecondsAfterFinished",
        "policy.suspend": "spec.suspend",
        "policy.deadline": f"{gang.parts[0].at}.template.spec.activeDeadlineSeconds",
        "policy.backoff_limit": "spec.failurePolicy.maxRestarts",
        "engine_spec": "spec",
        "elastic": f"{gang.parts[0].at}.template.spec.template",
    }


def _deadline(reading: Reading, gang: Gang, policy: dict[str, Any]) -> None:
    name = "activeDeadlineSeconds"
    said = [
        (part, reading.whole(part.spec.pop(name, None), f"{part.at}.template.spec.{name}", 1))
        for part in gang.parts
    ]
    values = {value for _, value in said}
    if len(values) == 1:
        (value,) = values
        if value is not None:
            policy["deadline"] = duration(value)
        return
    for part, value in said:
        if value is not None:
            why = "the Jobs of other members have another deadline; a job has one for all (policy.deadline)"
            reading.lose(f"{part.at}.template.spec.{name}", value, why)


def _restarts(
    reading: Reading,
    kind: Kind,
    spec: dict[str, Any],
    gang: Gang,
    job: dict[str, Any],
    pods: Mapping[str, PodFields],
) -> None:
    at, policy = "spec.failurePolicy", job["policy"]
    failure = reading.mapping(spec.pop("failurePolicy", None), at)
    restarts = reading.whole(failure.pop("maxRestarts", None), f"{at}.maxRestarts") or 0
    strategy = reading.text(failure.pop("restartStrategy", None), f"{at}.restartStrategy")
    said_rules = "rules" in failure
    rules = _rules(reading, gang, failure.pop("rules", None), f"{at}.rules")
    reading.lose_rest(failure, at, "a failure policy has no such field")
    limits = {
        part.name: reading.whole(part.spec.pop("backoffLimit", None), f"{part.at}.template.spec.backoffLimit")
        for part in gang.parts
    }
    own = {part.name: _pod_failure(reading, part) for part in gang.parts}
    if reading.problems:
        return
    tries = max(_JOB_DEFAULT_BACKOFF if limit is None else limit for limit in limits.values())
    elastic = "elastic" in job
    if not elastic and (restarts or rules):
        policy |= {"restart": "on_failure", "backoff_limit": restarts}
        _tell_tries(reading, gang, limits, 0)
    elif tries:
        policy |= {"restart": "on_failure", "backoff_limit": tries}
        if not elastic:
            _tell_tries(reading, gang, limits, tries)
        elif restarts or rules:
            reading.lose(at, restarts or "rules", "members of an elastic gang are restarted one by one")
    else:
        policy["restart"] = "never"
    there = {"maxRestarts": restarts, "restartStrategy": strategy or "Recreate", "rules": rules}
    _as_rendered(reading, kind, gang, job, there, own, said=(strategy, said_rules))
    for part in gang.parts:
        fields = pods[part.name]
        if fields.restart not in (None, "Never", "OnFailure" if elastic else "Never"):
            why = "a member that fails is restarted with its gang, which policy.restart says"
            reading.change(f"{fields.at}.spec.restartPolicy", fields.restart, "Never", why)


def _tell_tries(reading: Reading, gang: Gang, limits: Mapping[str, int | None], tries: int) -> None:
    """What becomes of the tries that each Job has."""
    for part in gang.parts:
        limit, at = limits[part.name], f"{part.at}.template.spec.backoffLimit"
        if limit == 0:
            continue
        if tries:
            why = "a member that fails restarts its gang, whose others have lost it; policy.backoff_limit"
            if limit is None:
                why += f"; where nothing is written a Job has {_JOB_DEFAULT_BACKOFF} tries"
            reading.change(at, limit, tries, why)
        elif limit is None:
            why = "where nothing is written a Job has 6 tries of its own; here its gang is restarted"
            reading.change(at, None, 0, why)
        else:
            reading.lose(at, limit, "a member that fails restarts its gang; maxRestarts counts")


def _rules(reading: Reading, gang: Gang, value: Any, at: str) -> list[dict[str, Any]]:
    """The rules of a failure policy, with the groups of a run as their targets."""
    found = []
    for n, item in enumerate(reading.items(value, at)):
        rule = reading.mapping(item, f"{at}[{n}]")
        targets = _targets(reading, gang, rule.pop("targetReplicatedJobs", None), f"{at}[{n}]")
        reading.text(rule.get("action"), f"{at}[{n}].action")
        found.append({**plain(rule), **({"targetReplicatedJobs": targets} if targets else {})})
    return found


def _targets(reading: Reading, gang: Gang, value: Any, at: str) -> list[str]:
    """The groups that replicated jobs became."""
    at = f"{at}.targetReplicatedJobs"
    names = reading.texts(value, at)
    for n, name in enumerate(names):
        if gang.part(name) is None:
            known = one_of(part.name for part in gang.parts)
            reading.wrong(f"{at}[{n}]", f"is no replicated job with members; there are {known}")
    return [role for name in names if (part := gang.part(name)) for role, _ in part.roles]


def _pod_failure(reading: Reading, part: Part) -> list[Any] | None:
    at = f"{part.at}.template.spec.podFailurePolicy"
    fields = reading.mapping(part.spec.pop("podFailurePolicy", None), at)
    rules: list[Any] | None = None
    if "rules" in fields:
        rules = [plain(rule) for rule in reading.items(fields.pop("rules"), f"{at}.rules")]
    reading.lose_rest(fields, at, "a pod failure policy has rules alone")
    return rules


def _as_rendered(
    reading: Reading,
    kind: Kind,
    gang: Gang,
    job: dict[str, Any],
    there: dict[str, Any],
    own: Mapping[str, list[Any] | None],
    said: tuple[str | None, bool],
) -> None:
    """Takes the restart policy of which the engine makes the same; what it would say otherwise stays in
    ``engine_spec`` or is told.
    """
    policy, fields = job["policy"], bare(job, gang)
    made = kind.rendering({**fields, "policy": policy})
    if policy["restart"] == "on_failure" and "elastic" not in job:
        other = {**policy, "restart": "exit_code"}
        by_code = kind.rendering({**fields, "policy": other})
        if by_code.failure == there and all(rules == by_code.pod_failure for rules in own.values()):
            job["policy"] = other
            return
    for part in gang.parts:
        rules, at = own[part.name], f"{part.at}.template.spec.podFailurePolicy"
        if rules and rules != made.pod_failure and plain(_defaulted(rules)) != _defaulted(made.pod_failure):
            reading.lose(at, rules, "a job says on_failure or exit_code, of which the engine makes its rules")
        elif not rules and made.pod_failure and said[1]:
            why = "a member that is taken away from its node ends its Job at once"
            reading.change(at, None, [*made.pod_failure], why)
    if made.failure is None or there == made.failure:
        return
    kept: dict[str, Any] = {}
    strategy, said_rules = said
    if strategy == "InPlaceRestart":
        why = "the gang is made anew, when all of its old members are gone"
        reading.lose("spec.failurePolicy.restartStrategy", strategy, why)
    elif strategy is not None and strategy != made.failure["restartStrategy"]:
        kept["restartStrategy"] = strategy
    elif strategy is None:
        why = "none of the new members may meet one of the old"
        reading.change("spec.failurePolicy.restartStrategy", None, made.failure["restartStrategy"], why)
    if said_rules and there["rules"] != made.failure["rules"]:
        kept["rules"] = there["rules"]
    elif not said_rules:
        why = "a member that is taken away from its node restarts the gang, too, and is not counted"
        reading.change("spec.failurePolicy.rules", None, made.failure["rules"], why)
    if kept:
        job["engine_spec"]["failurePolicy"] = kept


def _defaulted(rules: Sequence[Any]) -> list[Any]:
    """Rules with what the API server fills in, and without what says nothing."""
    found = []
    for rule in rules:
        if isinstance(rule, Mapping):
            conditions = rule.get("onPodConditions")
            listed = conditions if isinstance(conditions, (list, tuple)) else []
            conditions = [{"status": "True", **one} if isinstance(one, Mapping) else one for one in listed]
            rule = {**{n: v for n, v in rule.items() if v not in ([], None)}}
            rule |= {"onPodConditions": conditions} if conditions else {}
        found.append(rule)
    return found


def _success(reading: Reading, kind: Kind, spec: dict[str, Any], gang: Gang, job: dict[str, Any]) -> None:
    """Who decides. Nothing said means all members."""
    at = "spec.successPolicy"
    fields = reading.mapping(spec.pop("successPolicy", None), at)
    operators = {"All": "All", "Any": "Any"}
    operator = reading.word(fields.pop("operator", None), operators, f"{at}.operator") or "All"
    targets = _targets(reading, gang, fields.pop("targetReplicatedJobs", None), at)
    reading.lose_rest(fields, at, "a success policy has an operator and targets")
    if reading.problems:
        return
    every = [role for part in gang.by_rank() for role, _ in part.roles]
    deciding = [role for role in every if role in (targets or every)]
    parts = [part for part in gang.parts if {role for role, _ in part.roles} & {*deciding}]
    if operator == "Any" and sum(part.jobs for part in parts) == 1:
        operator = "All"  # of one Job, which succeeds with all of its pods
    elif operator == "Any" and any(part.pods > 1 for part in parts):
        why = "a Job of several pods succeeds with all of them; here each member is a Job, and all decide"
        reading.lose(f"{at}.operator", operator, why)
        operator = "All"
    made = kind.rendering({**bare(job, gang), "policy": job["policy"]}).success
    alone = len(deciding) == 1 and sum(part.count for part in parts) == 1
    same = deciding == [*made["targetReplicatedJobs"]] and (alone or operator == made["operator"])
    if not same:
        job["engine_spec"]["successPolicy"] = {"operator": operator, "targetReplicatedJobs": deciding}
