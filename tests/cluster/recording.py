"""What operators write on the way of a job, recorded: every write of the job object and of its pods, in the
order in which the API server took them. Any engine; nothing of one is known here.

    python -m tests.cluster.recording            writes tests/core/engines/recorded/*.json anew
    python -m tests.cluster.recording jaxjob     that of one engine
    python -m tests.cluster.recording kueue      tests/core/gangs/recorded/kueue.json, with Kueue's Workloads

The tests that play them again are test_recorded.py beside each of these folders.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allaboard.backends.kubernetes.client.resources import resource_for
from allaboard.engines import Engine
from tests.cluster.api import Api, Object

WORKLOAD = ("kueue.x-k8s.io/v1beta2", "Workload")
WRITES = "RECORD_ANEW"
"""Set: what is recorded is kept. Variables of allaboard's own are cleared by the tests."""
_OF_POD = ("name", "namespace", "labels", "uid", "creationTimestamp", "deletionTimestamp", "ownerReferences")
_TOLD = ("allaboard.io/members", "batch.kubernetes.io/job-completion-index")
"""Annotations by which a pod knows its place."""
_OF_JOB = ("name", "namespace", "labels", "annotations", "uid", "creationTimestamp", "deletionTimestamp")
_OF_WORKLOAD = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
_ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b")
_NOISE = frozenset(
    {
        "allocatedResources", "hostIP", "hostIPs", "image", "imageID", "lastProbeTime", "managedFields",
        "observedGeneration", "podIP", "podIPs", "qosClass", "resources", "user", "volumeMounts",
    }
)  # fmt: skip


@dataclass
class Recorder:
    """Of one job of a namespace, from the moment when it is made. ``queue``: with Kueue's Workload of it."""

    api: Api
    engine: Engine
    namespace: str
    job: str
    since: str = ""
    queue: bool = False
    instead: Mapping[str, str] = field(default_factory=dict)
    """Text of this cluster -> what stands in the recording for it."""

    def __post_init__(self) -> None:
        resource = resource_for(self.engine)
        path = f"/apis/{resource.api_version}/namespaces/{self.namespace}/{resource.plural}"
        self.since = self.since or self.api.request("GET", path)["metadata"]["resourceVersion"]

    def written(self) -> list[Object]:
        """Each write, as the merge patch from the last one (RFC 7386); null for an object that is gone."""
        writes: list[Object] = []
        before: dict[tuple[str, str], Object] = {}
        for kind, gone, obj in self._writes():
            name = obj["metadata"]["name"]
            now = {} if gone else json.loads(self._plain(_SHORT[kind](obj)))
            changed = _patch(before.get((kind, name), {}), now)
            before[kind, name] = now
            if not changed:
                continue
            patch = None if gone else changed
            is_pod = kind == "pod"
            writes.append({"pod": self._plain_text(name), "patch": patch} if is_pod else {kind: patch})
        return writes

    def _writes(self) -> Iterator[tuple[str, bool, Object]]:
        """(job, pod or workload, whether it is gone, the object), by the server's own order."""
        kind, api = self.engine, self.api
        jobs = api.written(kind.API_VERSION, kind.KIND, self.namespace, self.since)
        pods = api.written("v1", "Pod", self.namespace, self.since)
        mine = [("job", t, o) for t, o in jobs if o["metadata"]["name"] == self.job]
        mine += [("pod", t, o) for t, o in pods if self._is_mine(o)]
        if self.queue:
            workloads = api.written(*WORKLOAD, self.namespace, self.since)
            mine += [("workload", t, o) for t, o in workloads if self._is_of_mine(o)]
        for which, word, obj in sorted(mine, key=lambda write: int(write[2]["metadata"]["resourceVersion"])):
            yield which, word == "DELETED", obj

    def _is_of_mine(self, workload: Object) -> bool:
        owners = workload["metadata"].get("ownerReferences") or ()
        return any(owner["name"] == self.job for owner in owners)

    def _is_mine(self, pod: Object) -> bool:
        labels = pod["metadata"].get("labels") or {}
        return str(labels.get(self.engine.JOB_LABEL)) == self.job

    def _plain(self, obj: Object) -> str:
        return self._plain_text(json.dumps(obj))

    def _plain_text(self, text: str) -> str:
        for here, there in {self.namespace: "default", **self.instead}.items():
            text = text.replace(here, there)
        return _ADDRESS.sub("192.0.2.1", text)


def _patch(before: Object, now: Object) -> Object:
    """The merge patch that makes ``now`` of ``before``."""
    changed: Object = {name: None for name in before if name not in now}
    for name, value in now.items():
        last = before.get(name)
        if isinstance(value, dict) and isinstance(last, dict):
            changed |= {name: inner} if (inner := _patch(last, value)) else {}
        elif value != last:
            changed[name] = value
    return changed


def _of_job(obj: Object) -> Object:
    """A job object without what no engine reads."""
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "metadata": {name: obj["metadata"][name] for name in _OF_JOB if name in obj["metadata"]},
        "spec": obj.get("spec") or {},
        "status": _without_noise(obj.get("status") or {}),
    }


def _of_pod(obj: Object) -> Object:
    """A pod without its template: the names of its containers and its node."""
    spec = obj.get("spec") or {}
    metadata = {name: obj["metadata"][name] for name in _OF_POD if name in obj["metadata"]}
    told = {n: v for n, v in (obj["metadata"].get("annotations") or {}).items() if n.startswith(_TOLD)}
    metadata |= {"annotations": told} if told else {}
    short: Object = {"nodeName": spec["nodeName"]} if spec.get("nodeName") else {}
    for part in ("initContainers", "containers"):
        if spec.get(part):
            short[part] = [{"name": container["name"]} for container in spec[part]]
    return {
        "metadata": metadata,
        "spec": short,
        "status": _without_noise(obj.get("status") or {}),
    }


def _of_workload(obj: Object) -> Object:
    """A Workload without its pods' templates and what they were assigned."""
    spec, status = obj.get("spec") or {}, dict(obj.get("status") or {})
    status.pop("admission", None)
    status.pop("resourceRequests", None)
    return {
        "metadata": {name: obj["metadata"][name] for name in _OF_WORKLOAD if name in obj["metadata"]},
        "spec": {name: spec[name] for name in ("active", "queueName", "priority") if name in spec},
        "status": _without_noise(status),
    }


_SHORT: Mapping[str, Callable[[Object], Object]] = {
    "job": _of_job,
    "pod": _of_pod,
    "workload": _of_workload,
}


def _without_noise(value: Any) -> Any:
    if isinstance(value, dict):
        return {n: _without_noise(v) for n, v in value.items() if n not in _NOISE and v is not None}
    return [_without_noise(inner) for inner in value] if isinstance(value, list) else value


def keep(file: Path, operator: str, stories: Mapping[str, Object]) -> None:
    """Write a recording: one line for each write."""
    lines = ["{", f' "operator": {json.dumps(operator)},', ' "stories": {']
    for n, (name, story) in enumerate(stories.items()):
        lines += [f"  {json.dumps(name)}: {{"]
        lines += [f"   {json.dumps(key)}: {json.dumps(story[key])}," for key in ("job", "run")]
        writes = [f"    {json.dumps(write)}" for write in story["written"]]
        lines += ['   "written": [', ",\n".join(writes), f"   ]\n  }}{',' if n < len(stories) - 1 else ''}"]
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join([*lines, " }", "}"]) + "\n")


def main(engines: list[str]) -> int:
    """Play the stories on a cluster (tests/cluster/conftest.py says which) and keep them."""
    files = [f"tests/cluster/{name}.py" for name in ("test_recording", "test_recording_kueue")]
    command = [sys.executable, "-m", "pytest", "--e2e", "-q", "-n0", *files]
    command += ["-k", " or ".join(engines)] if engines else []
    return subprocess.run(command, env={**os.environ, WRITES: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
