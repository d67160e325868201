"""The Roles that a cluster gives to those who submit, to those who look, to `boost` and to the reaper, as the
YAML of this folder; the kinds of jobs in it are those of the engines. Preflight asks the API server for the
same rights, read out of the same text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from allaboard import __version__
from allaboard.backends.kubernetes.client.resources import PVCS, SECRETS, extra_kinds, job_kinds, resource_of
from allaboard.errors import BadInput
from allaboard.gangs import GANGS
from allaboard.text.names import why_not_an_image

ROLES = ("submitter", "viewer", "mpi", "claims", "stacks", "capacity", "boost", "reaper")
PREFLIGHT = "allaboard-preflight"
"""The Role without which nothing fails: it lets preflight see more."""


@dataclass(frozen=True, slots=True)
class Access:
    """One thing to be allowed. ``sub``: of a subresource, ``log`` of pods."""

    verb: str
    group: str
    resource: str
    sub: str = ""

    def __str__(self) -> str:
        target = f"{self.resource}/{self.sub}" if self.sub else self.resource
        return f"{self.verb} {f'{target}.{self.group}' if self.group else target}"


OF_SENSORS = Access("watch", "", "configmaps")
"""An access that no job needs: a sensor waits for a run that is not there yet."""

_OF_JOBS = re.compile(r"^  - apiGroups: \[\$group\]\n(?:    .*\n)+", re.MULTILINE)
_OTHERS = re.compile(r" Add your other kinds of \S+ here: (.+)\.$", re.MULTILINE)


_RULE = "  - apiGroups: [{group}]\n    resources: [{kind}]\n    verbs: [{verbs}]\n"


def text(role: str) -> str:
    """The file, with a rule for the kinds of jobs of each API group, and for what they bring."""
    form = resources.files(__name__).joinpath(f"{role}.yaml").read_text(encoding="utf-8")
    kinds: dict[str, set[str]] = {}
    for kind in job_kinds():
        kinds.setdefault(kind.group, set()).add(kind.plural)

    ours = {plural for plurals in kinds.values() for plural in plurals}

    def rules(match: re.Match[str]) -> str:
        jobs = (
            match[0].replace("$group", group).replace("$jobs", ", ".join(sorted(plurals)))
            for group, plurals in kinds.items()
        )
        verbs = "get, list, create, patch, delete" if "create" in match[0] else "list"
        reads = "list" in match[0]  # the reaper does without: what a job brings goes with the job
        # Secrets have a Role of their own.
        others = (kind for kind in extra_kinds() if reads and kind != SECRETS)
        extras = (_RULE.format(group=kind.group, kind=kind.plural, verbs=verbs) for kind in others)
        return "".join((*jobs, *extras))

    def others(match: re.Match[str]) -> str:
        left = [name for name in match[1].split(", ") if name not in ours]
        return match[0].replace(match[1], ", ".join(left)) if left else ""

    return _OTHERS.sub(others, _OF_JOBS.sub(rules, form))


def manifest(role: str, namespace: str) -> str:
    """The objects for one namespace, with the comments that explain them. Raises BadInput for an
    ALLABOARD_IMAGE that is no image.
    """
    documents = []
    of_cluster = False
    image = os.environ.get("ALLABOARD_IMAGE") or f"registry.lab/allaboard:{__version__}"
    if (trouble := why_not_an_image(image)) is not None:
        raise BadInput(f"ALLABOARD_IMAGE: {trouble}")
    for line in text(role).replace("$namespace", namespace).replace("$image", image).splitlines():
        documents.append(line)
        if line.startswith("kind: "):
            of_cluster = line.startswith("kind: Cluster")
        if line == "metadata:" and not of_cluster:
            documents.append(f"  namespace: {namespace}")
        elif line.strip() == "- kind: ServiceAccount":
            documents.append(f"    namespace: {namespace}")
    return "\n".join(documents) + "\n"


def objects(role: str) -> list[dict[str, Any]]:
    import yaml

    return [document for document in yaml.safe_load_all(text(role)) if document]


def wanted_accesses(role: str, name: str | None = None) -> list[Access]:
    """The rights that the Roles of this file allow; ``name``: those of one Role alone, else of all but
    `PREFLIGHT`.
    """
    accesses = []
    for document in objects(role):
        if document["kind"] in ("Role", "ClusterRole") and (
            document["metadata"]["name"] == name if name else not _optional(document)
        ):
            accesses += [access for rule in document["rules"] for access in _of(rule)]
    return accesses


def needed(kinds: Iterable[tuple[str, str]], name: str | None = None) -> list[Access]:
    """The rights that a submitter needs whose objects are of these kinds (group, plural): the kinds of other
    engines and gangs are left out, and so are claims, and what only sensors do.
    """
    of_jobs = {*kinds}
    if name:
        wanted = wanted_accesses("submitter", name)
    else:
        wanted = [access for role in ("submitter", "mpi", "claims") for access in wanted_accesses(role)]
    return [
        access
        for access in wanted
        if access != OF_SENSORS
        and (
            (access.group, access.resource) in of_jobs
            or not (_is_of_jobs(access) or (not name and access.resource == PVCS.plural))
        )
    ]


def _is_of_jobs(access: Access) -> bool:
    """True if it is about a kind of jobs, about what holds a gang together, or about a queue of Kueue."""
    if access.group.endswith("kueue.x-k8s.io"):
        return True
    every = (kind for gang in GANGS.values() for kind in (*gang.KINDS, *gang.COMPOSITE))
    gangs = (kind.rpartition("/")[::2] for kind in every)
    kinds = [
        *job_kinds(),
        *extra_kinds(),
        *(resource_of({"apiVersion": v, "kind": kind}) for v, kind in gangs),
    ]
    return (access.group, access.resource) in {(kind.group, kind.plural) for kind in kinds}


def _optional(role: Mapping[str, Any]) -> bool:
    return bool(role["metadata"]["name"] == PREFLIGHT)


def _of(rule: Mapping[str, Any]) -> Iterator[Access]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            plural, _, sub = resource.partition("/")
            for verb in rule["verbs"]:
                yield Access(verb, group, plural, sub)
