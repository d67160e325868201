"""Fields that a cluster's definitions of job objects lack, of those that a job may be written with.

A definition lists the fields that its operator's release knows, those of pods as of the Kubernetes release
that it was built for: MPI Operator 0.7.0 knows no ``schedulingGroup`` of Kubernetes 1.36, Training Operator
1.9.4 does; Trainer 2.1 knows no ``runtimePatches``. The API server itself is asked, with dry runs that nobody
keeps, since no release number tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allaboard.backends.kubernetes.client.errors import ApiError, Invalid
from allaboard.backends.kubernetes.client.resources import resource_of
from allaboard.checking.job import require_valid
from allaboard.engines import Engine
from allaboard.errors import BackendUnreachable
from allaboard.gangs import GANGS, Gang
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.render.compatibility import pair_engine_and_gang
from allaboard.render.manifests import render
from allaboard.runs.layout import lay_out

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

NAME = "allaboard-probe"
_UNKNOWN = re.compile(r'unknown field "([^"]*)"')


def complete_lacking(api: Api, facts: ClusterFacts, engines: Iterable[Engine]) -> ClusterFacts:
    """The facts with what the objects of these engines lack. Of an engine that stands in `lacking` the
    cluster is not asked again.
    """
    asked = [engine for engine in engines if engine.NAME not in facts.lacking]
    fresh = lacking_fields(api, facts.kinds or frozenset(), facts.namespace, asked)
    return replace(facts, lacking={**facts.lacking, **fresh})


def lacking_fields(
    api: Api, kinds: frozenset[str], namespace: str, engines: Iterable[Engine]
) -> dict[str, tuple[str, ...]]:
    """The fields that the objects of each of these engines lack. It takes a dry run for each engine that the
    cluster serves, where it also serves a gang scheduler that needs a field of pods, and one for each kind of
    an engine's `MAY_LACK`.
    """
    lacking: dict[str, tuple[str, ...]] = {}
    for engine in engines:
        if f"{engine.API_VERSION}/{engine.KIND}" not in kinds:
            continue
        unknown: set[str] = set()
        for gang in GANGS.values():
            if gang.POD_FIELD is not None and not kinds.isdisjoint(gang.KINDS):
                for body in objects_with_field(engine, gang, namespace):
                    unknown |= {gang.POD_FIELD} & _unknown_fields(api, body)
        for kind, spec in engine.MAY_LACK.items():
            body = _object(engine, kind, namespace, spec)
            unknown |= {*_names(spec)} & _unknown_fields(api, body)
        lacking[engine.NAME] = tuple(sorted(unknown))
    return lacking


def objects_with_field(engine: Engine, gang: Gang, namespace: str) -> Iterator[dict[str, Any]]:
    """Of the objects of a small job, those whose pods have the field of this gang scheduler; none of an
    engine that does not go with it anyway.
    """
    if pair_engine_and_gang(engine, gang).how != "marks":
        return
    fields = {"name": NAME, "framework": engine.FRAMEWORKS[0], "engine": engine.NAME, "image": "probe"}
    job = require_valid({**fields, "command": ["mpirun"], "workers": 2, "gang": {"scheduler": gang.NAME}})
    facts = ClusterFacts(namespace=namespace)
    made = render(job, lay_out(job, engine, NAME), facts, launch=NAME, spec_hash=NAME)
    yield from (body for body in made.manifests if f'"{gang.POD_FIELD}"' in json.dumps(body))


def _object(engine: Engine, kind: str, namespace: str, spec: Any) -> dict[str, Any]:
    metadata = {"name": NAME, "namespace": namespace}
    return {"apiVersion": engine.API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _names(value: Any) -> Iterator[str]:
    """The names of all fields of a value, at any depth."""
    if isinstance(value, dict):
        yield from value
        value = [*value.values()]
    for item in value if isinstance(value, list) else ():
        yield from _names(item)


def _unknown_fields(api: Api, body: dict[str, Any]) -> set[str]:
    """The last names of the fields of an object that the API server does not know. It decodes an object
    strictly before it asks a webhook or compares values, so that every other answer means that it knows all.
    """
    try:
        api.create(resource_of(body), dict(body), dry_run=True)
    except Invalid as error:
        return {path.rpartition(".")[2] for path in _UNKNOWN.findall(error.message)}
    except (ApiError, BackendUnreachable):
        return set()
    return set()
