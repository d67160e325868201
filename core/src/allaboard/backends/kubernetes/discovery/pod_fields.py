"""Which job objects have the field by which a gang scheduler knows a gang's pods.

The definition of a kind lists the fields of its pods as of the Kubernetes release that its operator was built
for: MPI Operator 0.7.0 knows no ``schedulingGroup`` of Kubernetes 1.36, Training Operator 1.9.4 does. The API
server itself is asked, with a dry run that nobody keeps, since no release number tells.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from allaboard.backends.kubernetes.client import effects
from allaboard.backends.kubernetes.client.effects import Operation
from allaboard.backends.kubernetes.client.errors import ApiError, Invalid
from allaboard.backends.kubernetes.client.resources import resource_of
from allaboard.checking import require_valid
from allaboard.engines import ENGINES, Engine
from allaboard.errors import BackendUnreachable
from allaboard.gangs import GANGS, Gang
from allaboard.layout import lay_out
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.render.compatibility import pair_engine_and_gang
from allaboard.render.manifests import render

NAME = "allaboard-probe"


def engines_without_pod_fields(kinds: frozenset[str], namespace: str) -> Operation[frozenset[str]]:
    """The engines whose objects, as this cluster defines them, lack the pod field of a gang scheduler that it
    serves. One dry run for each engine that it serves; none on a cluster without such a scheduler.
    """
    found = set()
    for gang in GANGS.values():
        if gang.POD_FIELD is None or kinds.isdisjoint(gang.KINDS):
            continue
        for engine in ENGINES.values():
            if f"{engine.API_VERSION}/{engine.KIND}" not in kinds:
                continue
            for body in objects_with_field(engine, gang, namespace):
                if (yield from _is_unknown(gang.POD_FIELD, body)):
                    found.add(engine.NAME)
    return frozenset(found)


def objects_with_field(engine: Engine, gang: Gang, namespace: str) -> Iterator[dict[str, Any]]:
    """Of the objects of a small job, those whose pods have the field; none of an engine that does not go with
    this gang scheduler anyway.
    """
    if pair_engine_and_gang(engine, gang).how != "marks":
        return
    said = {"name": NAME, "framework": engine.FRAMEWORKS[0], "engine": engine.NAME, "image": "probe"}
    job = require_valid({**said, "command": ["mpirun"], "workers": 2, "gang": {"scheduler": gang.NAME}})
    facts = ClusterFacts(namespace=namespace)
    made = render(job, lay_out(job, engine, NAME), facts, launch=NAME, spec_hash=NAME)
    yield from (body for body in made.manifests if f'"{gang.POD_FIELD}"' in json.dumps(body))


def _is_unknown(field: str, body: dict[str, Any]) -> Operation[bool]:
    """Whether the API server does not know the field in such an object. It decodes an object strictly before
    it asks a webhook or compares values, so that every other answer means that it does.
    """
    try:
        yield from effects.create_dry_run(resource_of(body), body)
    except Invalid as error:
        return "unknown field" in error.message and field in error.message
    except (ApiError, BackendUnreachable):
        return False
    return False
