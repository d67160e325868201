"""Fields of a job for the Jobs of which its members are made, as JobSet applies them.

``engine_spec.replicatedJobs`` has the shape of a JobSet's: each entry names a group and holds those fields of
its Jobs that no field of a job says. They are merged over what is written from the job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from allaboard.errors import Problem
from allaboard.text.names import nearest, one_of

Json = Mapping[str, Any]
FIELD = "replicatedJobs"
_WRITTEN = frozenset(
    {"completionMode", "completions", "manualSelector", "parallelism", "selector", "suspend", "template"}
)
"""Fields of a Job that are written from the rest of the job, or by JobSet."""
JOB_FIELDS = frozenset(
    {
        "activeDeadlineSeconds",
        "backoffLimit",
        "backoffLimitPerIndex",
        "managedBy",
        "maxFailedIndexes",
        "podFailurePolicy",
        "podReplacementPolicy",
        "successPolicy",
        "ttlSecondsAfterFinished",
    }
)
"""Fields of a Job that a job may say of its members' (Kubernetes 1.37, batch/v1 JobSpec)."""
_METADATA = frozenset({"annotations", "labels"})
_LONGEST_LABEL = 63


def own_jobs(engine_spec: Json) -> dict[str, Json]:
    """Group -> what a sound job says of its Jobs."""
    return {entry["name"]: entry for entry in engine_spec.get(FIELD) or ()}


def with_own(written: Json, own: Json | None) -> dict[str, Any]:
    """A replicated job with what the job says of it."""
    if own is None:
        return dict(written)
    template, job_template = dict(written["template"]), own.get("template") or {}
    for name, fields in job_template.items():
        there = template.get(name) or {}
        if name == "metadata":
            fields = {kind: {**there.get(kind, {}), **values} for kind, values in fields.items()}
        template[name] = {**there, **fields}
    return {**written, **own, "template": template}


def template_objections(entries: Any, groups: Collection[str], *, one_by_one: bool) -> Iterator[Problem]:
    """Problems of ``engine_spec.replicatedJobs`` in a job of these groups. ``one_by_one``: its members are
    restarted by their nodes.
    """
    seen, at = set(), f"engine_spec.{FIELD}"
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        yield Problem(at, "expected a list; each entry names a group and has the template of its Jobs")
        return
    for n, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(entry, Mapping) or not isinstance(name, str) or name not in groups:
            message = f"expected the name of a group: {one_of(groups)}"
            yield Problem(
                f"{at}[{n}].name", message, nearest(name, groups) if isinstance(name, str) else None
            )
            continue
        if name in seen:
            yield Problem(f"{at}[{n}].name", "appears twice; give both in one entry")
        seen.add(name)
        yield from _entry_objections(entry, f"{at}[{n}]", one_by_one)


def _entry_objections(entry: Json, at: str, one_by_one: bool) -> Iterator[Problem]:
    yield from _unknown(entry, {"name", "groupName", "template"}, at)
    parts = entry.get("template", {})
    if not isinstance(parts, Mapping):
        yield Problem(f"{at}.template", "expected metadata and spec of its Jobs")
        return
    yield from _unknown(parts, {"metadata", "spec"}, f"{at}.template")
    for part, known in (("metadata", _METADATA), ("spec", JOB_FIELDS)):
        fields = parts.get(part, {})
        if not isinstance(fields, Mapping):
            yield Problem(f"{at}.template.{part}", f"expected the fields {one_of(sorted(known))}")
            continue
        yield from _unknown(fields, known, f"{at}.template.{part}")
        for kind, values in fields.items() if part == "metadata" else ():
            if kind in known and not isinstance(values, Mapping):
                yield Problem(f"{at}.template.metadata.{kind}", "expected names and their values")
    if one_by_one and isinstance(parts.get("spec"), Mapping) and "podFailurePolicy" in parts["spec"]:
        message = (
            "members of MPI and of elastic gangs are restarted by their nodes, and Kubernetes takes no pod "
            "failure policy for such pods; leave it out, or say policy.restart: never"
        )
        yield Problem(f"{at}.template.spec.podFailurePolicy", message)


def _unknown(fields: Json, known: frozenset[str] | set[str], at: str) -> Iterator[Problem]:
    for name in fields:
        if name in known:
            continue
        if name in _WRITTEN | {"replicas", "dependsOn"}:
            message = "comes from other fields of the job; set those and take it out here"
            yield Problem(f"{at}.{name}", message)
        else:
            yield Problem(f"{at}.{name}", f"expected {one_of(sorted(known))}", nearest(str(name), known))


def most_with_coordinator(engine_spec: Json) -> int:
    """Characters of the name of a JobSet whose coordinator a label can hold:
    ``<name>-<role>-<index>-0.<name>``.
    """
    coordinator = engine_spec.get("coordinator")
    if not isinstance(coordinator, Mapping):
        return _LONGEST_LABEL
    who = f"{coordinator.get('replicatedJob')}-{coordinator.get('jobIndex', 0)}"
    return max(0, _LONGEST_LABEL - len(f"-{who}-0.")) // 2
