"""The operators and the kubelet of a `FakeCluster`: a small model of what they do to jobs and pods.

It models only what a client can observe: conditions and their order, names and labels of pods, owners, the
deadline that is checked only at changes, clean-up, ttl, suspension. It is the Training Operator for every
engine: what differs between kinds is asked of the engine. Sources as in `allaboard.engines.kubeflow`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sized
from datetime import UTC, datetime
from typing import Any, Protocol

from allaboard.backends.kubernetes.client.errors import Missing
from allaboard.backends.kubernetes.client.resources import EVENTS, PODS, Resource, resource_for
from allaboard.backends.kubernetes.discovery.components import KUEUE_WORKLOADS
from allaboard.backends.kubernetes.observe.queues import JOB_UID
from allaboard.engines import ENGINES, Engine, engine_of_object
from allaboard.engines import jobset_reading as jobset
from allaboard.engines.base import Counts, Verdict
from allaboard.engines.kubeflow import INDEX_LABEL, ROLE_LABEL, replica_type
from allaboard.gangs import kueue
from allaboard.render.pod_template import merged
from allaboard.runs.layout import Elastic, Group, Layout, Policy

Json = dict[str, Any]
OPERATOR_LABEL = "training.kubeflow.org/operator-name"
_WORDS = {("JobSet", "Succeeded"): "Completed", ("TrainJob", "Succeeded"): "Complete"}


def stamp(epoch: float) -> str:
    """A server's timestamp: whole seconds."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ClusterObjects(Protocol):
    """Interface of a `FakeCluster` for the operators and the kubelet."""

    now: float
    shows: tuple[Resource, ...]
    objects: dict[tuple[str, str, str, str], Json]

    @property
    def history(self) -> Sized: ...

    def create(self, resource: Resource, body: Json, namespace: str) -> Json: ...

    def delete(self, resource: Resource, name: str, namespace: str) -> object: ...

    def _put(self, resource: Resource, body: Json, change: str) -> None: ...

    def _remove(self, resource: Resource, body: Json) -> None: ...


class FakeOperator:
    """``trains_for``: seconds until a member ends well, None: never by itself. ``paused``: the operator is
    away. ``stuck``: pods of these names never leave (their node is gone). ``positions``: Kueue's Workloads
    that wait, the next first; empty: its server of positions is off. ``queued_for``: seconds for which Kueue
    holds back every job that names a queue; None: there is no Kueue.
    """

    def __init__(self, cluster: ClusterObjects, trains_for: float | None) -> None:
        self.cluster, self.trains_for = cluster, trains_for
        self.paused = False
        self.starts_after = 0.0
        self.stuck: set[str] = set()
        self.positions: list[str] = []
        self.queued_for: float | None = None
        self.ends: dict[str, int] = {}
        self._looked: dict[str, tuple[str, ...]] = {}

    def end(self, job: str, exit_code: int) -> None:
        self.ends[job] = exit_code

    def act(self) -> None:
        """Do what is due by now: first in the pods, then to the jobs."""
        for pod in self._pods():
            self._kubelet(pod)
        for body in self._jobs() if self.queued_for is not None else ():
            self._admit(body, self.queued_for or 0.0)
        if not self.paused:
            for body in self._jobs():
                self._reconcile(body)
        self.ends.clear()

    def _admit(self, job: Json, after: float) -> None:
        """Kueue: it suspends a job until there is room for it, and says so in a Workload."""
        metadata, engine = job["metadata"], _engine(job)
        queue = (metadata.get("labels") or {}).get(kueue.QUEUE)
        held = self.cluster.now < _epoch(metadata["creationTimestamp"]) + after
        if queue is None or engine.read(job, ()).suspended == held:
            return
        key = (KUEUE_WORKLOADS.group, KUEUE_WORKLOADS.plural, metadata["namespace"], metadata["name"])
        if key not in self.cluster.objects:
            own = {"name": metadata["name"], "labels": {JOB_UID: metadata["uid"]}}
            body = {"apiVersion": KUEUE_WORKLOADS.api_version, "kind": KUEUE_WORKLOADS.kind, "metadata": own}
            self.cluster.create(
                KUEUE_WORKLOADS, {**body, "spec": {"queueName": queue}}, metadata["namespace"]
            )
        condition = {
            "type": "QuotaReserved",
            "status": "False" if held else "True",
            "reason": "WaitingForQuota",
        }
        condition |= {"message": "insufficient unused quota for cpu in flavor any, 2 more needed"}
        self.cluster.objects[key]["status"] = {"conditions": [condition]}
        self.cluster._put(resource_for(engine), merged(job, engine.suspension(held)), "MODIFIED")

    def raw(self, path: str) -> Json:
        """Discovery: the version, the groups and the kinds that are served."""
        if path == "/version":
            return {"gitVersion": "v1.36.0"}
        served = self.cluster.shows
        if path == "/apis":
            groups: dict[str, list[Json]] = {}
            for api_version in sorted({r.api_version for r in served if r.group}):
                group, _, version = api_version.partition("/")
                groups.setdefault(group, []).append({"groupVersion": api_version, "version": version})
            return {"groups": [{"name": name, "versions": versions} for name, versions in groups.items()]}
        if path.endswith("/pendingworkloads"):
            if not self.positions:
                raise Missing("the server could not find the requested resource", status=404)
            places = enumerate(self.positions)
            return {"items": [{"metadata": {"name": w}, "positionInClusterQueue": n} for n, w in places]}
        of = [r for r in served if path in (f"/apis/{r.group}/{r.version}", f"/api/{r.version}")]
        return {"resources": [{"name": r.plural, "kind": r.kind, "namespaced": r.namespaced} for r in of]}

    def _jobs(self) -> list[Json]:
        every = (resource_for(engine) for engine in ENGINES.values())
        kinds = dict.fromkeys((kind.group, kind.plural) for kind in every)  # one may have several versions
        return [job for kind in kinds for job in self._of(*kind)]

    def _pods(self) -> list[Json]:
        return self._of(PODS.group, PODS.plural)

    def _of(self, group: str, plural: str) -> list[Json]:
        return [copy.deepcopy(o) for k, o in list(self.cluster.objects.items()) if k[:2] == (group, plural)]

    # The kubelet.

    def _kubelet(self, pod: Json) -> None:
        cluster, metadata, status = self.cluster, pod["metadata"], pod.setdefault("status", {})
        if "deletionTimestamp" in metadata:
            if metadata["name"] not in self.stuck:
                cluster._remove(PODS, pod)
            return
        phase = status.get("phase", "Pending")
        if phase == "Pending" and cluster.now >= _epoch(metadata["creationTimestamp"]) + self.starts_after:
            self._set(pod, phase="Running", ready=True)
        elif phase == "Running":
            job = _owner(pod)
            began = _epoch(status["startTime"])
            if job in self.ends:
                self._member_ends(pod, self.ends[job])
            elif self.trains_for is not None and cluster.now >= began + self.trains_for:
                self._member_ends(pod, 0)

    def _member_ends(self, pod: Json, exit_code: int) -> None:
        if exit_code and pod["spec"].get("restartPolicy") in ("OnFailure", "Always"):
            statuses = pod["status"]["containerStatuses"]
            statuses[0]["restartCount"] += 1
            statuses[0]["lastState"] = {"terminated": self._terminated(exit_code)}
            self.cluster._put(PODS, pod, "MODIFIED")
        else:
            self._set(pod, phase="Failed" if exit_code else "Succeeded", exit_code=exit_code)

    def _terminated(self, exit_code: int) -> Json:
        now = stamp(self.cluster.now)
        reason = "Error" if exit_code else "Completed"
        return {"exitCode": exit_code, "reason": reason, "startedAt": now, "finishedAt": now}

    def _set(self, pod: Json, *, phase: str, ready: bool = False, exit_code: int | None = None) -> None:
        now = stamp(self.cluster.now)
        before = pod.get("status", {})
        name = pod["spec"]["containers"][0]["name"]
        restarts = (before.get("containerStatuses") or [{}])[0].get("restartCount", 0)
        running = {"running": {"startedAt": now}}
        container = f"fake://{pod['metadata']['uid']}/{restarts}"
        ended = {"containerID": container, **self._terminated(exit_code or 0)}
        state = running if exit_code is None else {"terminated": ended}
        pod["spec"]["nodeName"] = "node-1"
        pod["status"] = {
            "phase": phase,
            "startTime": before.get("startTime", now),
            "podIP": "10.0.0.1",
            "conditions": [
                {"type": kind, "status": "True", "lastTransitionTime": now}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
            "containerStatuses": [
                {
                    "name": name,
                    "containerID": container,
                    "image": pod["spec"]["containers"][0].get("image", ""),
                    "imageID": "",
                    "ready": ready,
                    "restartCount": restarts,
                    "state": state,
                    "lastState": {},
                }
            ],
        }
        self.cluster._put(PODS, pod, "MODIFIED")

    # The operator.

    def _reconcile(self, job: Json) -> None:
        metadata, resource = job["metadata"], resource_for(_engine(job))
        if "deletionTimestamp" in metadata:
            return
        pods = self._pods_of(job)
        # It wakes when the job or a pod of it changed. Deadlines have no timer of their own.
        woken = (metadata["resourceVersion"], *(p["metadata"]["resourceVersion"] for p in pods))
        finished = _has_ended(job)
        if finished:
            self._after_the_end(job, pods)
            return
        if self._looked.get(metadata["uid"]) == woken:
            return
        before = copy.deepcopy(job)
        self._work(job, pods)
        if job != before:
            self.cluster._put(resource, job, "MODIFIED")
        key = (resource.group, resource.plural, metadata["namespace"], metadata["name"])
        now = self.cluster.objects.get(key)
        if now is not None:
            versions = (p["metadata"]["resourceVersion"] for p in self._pods_of(job))
            self._looked[metadata["uid"]] = (now["metadata"]["resourceVersion"], *versions)

    def _work(self, job: Json, pods: list[Json]) -> None:
        policy, status = job["spec"].get("runPolicy", {}), job.setdefault("status", {})
        engine, name = _engine(job), job["metadata"]["name"]
        self._condition(job, "Created", engine.message("Created", name, master=True))
        if engine.read(job, ()).suspended:
            for pod in pods:
                self._delete(pod)
            self._flip(job, "Running", f"{engine.KIND}Suspended")
            self._condition(job, "Suspended", engine.message("Suspended", name, master=True))
            return
        if _true(job, "Suspended"):
            self._flip(job, "Suspended", f"{engine.KIND}Resumed")
            status["startTime"] = self._now()
        status.setdefault("startTime", self._now())
        limit = policy.get("activeDeadlineSeconds")
        if limit is not None and self.cluster.now - _epoch(status["startTime"]) >= limit:
            self._finish(job, "Failed", engine.message("Deadline", name, master=True))
            return
        if self._over_the_limit(job, pods):
            self._finish(job, "Failed", engine.message("BackoffLimit", name, master=True))
            return
        self._members(job, pods)

    def _over_the_limit(self, job: Json, pods: list[Json]) -> bool:
        limit = job["spec"].get("runPolicy", {}).get("backoffLimit")
        counts = [
            s["restartCount"] for p in pods for s in p.get("status", {}).get("containerStatuses", [])
            if p["status"]["phase"] == "Running"
        ]  # fmt: skip
        return limit is not None and sum(counts) >= max(limit, 1) > 0

    def _members(self, job: Json, pods: list[Json]) -> None:
        engine, name = _engine(job), job["metadata"]["name"]
        by_name = {p["metadata"]["name"]: p for p in pods}
        statuses: Json = {}
        groups = [*engine.templates(job, self._of("trainer.kubeflow.org", "trainingruntimes"))]
        seen = {role: Counts(replicas) for role, replicas, _ in groups}
        layout, verdict = _layout(engine, job, seen), Verdict()
        for role, replicas, template in groups:
            members = []
            for index in range(replicas):
                its = engine.pod_name(name, f"{role}-{index}")
                members.append(by_name.get(its) or self._create(job, role, index, template))
            phases = [p.get("status", {}).get("phase", "Pending") for p in members]
            counts = {w: phases.count(w.title()) for w in ("succeeded", "failed")}
            counts["active"] = phases.count("Running")
            statuses[replica_type(role)] = {k: v for k, v in counts.items() if v}
            if counts["failed"] and role not in engine.SPARED:
                message = engine.message("Failed", name, master=True, role=role, count=counts["failed"])
                self._finish(job, "Failed", message)
                return
            # Role by role, as operators go about it: the next one does not fail what is decided already.
            seen[role] = Counts(len(members), **counts, first_succeeded=phases[:1] == ["Succeeded"])
            verdict = engine.judge(layout, seen)
            if verdict.succeeded:
                job["status"]["replicaStatuses"] = statuses
                self._finish(job, "Succeeded", engine.message("Succeeded", name, master=True))
                return
        job["status"]["replicaStatuses"] = statuses
        if verdict.running:
            self._condition(job, "Running", engine.message("Running", name, master=True))

    def _create(self, job: Json, role: str, index: int, own: Mapping[str, Any]) -> Json:
        engine, metadata, template = _engine(job), job["metadata"], copy.deepcopy(dict(own))
        labels = {
            **template.get("metadata", {}).get("labels", {}),
            engine.JOB_LABEL: metadata["name"],
            **_identity(engine, role, index),
        }
        owner = {
            "apiVersion": engine.API_VERSION,
            "kind": engine.KIND,
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": engine.pod_name(metadata["name"], f"{role}-{index}"),
                "labels": labels,
                "annotations": template.get("metadata", {}).get("annotations", {}),
                "ownerReferences": [owner],
            },
            "spec": {"restartPolicy": "OnFailure", **template["spec"]},
        }
        return self.cluster.create(PODS, body, metadata["namespace"])

    def _after_the_end(self, job: Json, pods: list[Json]) -> None:
        policy = job["spec"].get("runPolicy", {})
        clean = policy.get("cleanPodPolicy", "None")
        for pod in pods:
            living = pod.get("status", {}).get("phase", "Pending") in ("Running", "Pending")
            if (clean == "All" or (clean == "Running" and living)) and "deletionTimestamp" not in pod[
                "metadata"
            ]:
                self._delete(pod)
        ttl, done = policy.get("ttlSecondsAfterFinished"), job["status"].get("completionTime")
        if ttl is not None and done is not None and self.cluster.now >= _epoch(done) + ttl:
            resource = resource_for(_engine(job))
            self.cluster.delete(resource, job["metadata"]["name"], job["metadata"]["namespace"])

    def _finish(self, job: Json, kind: str, message: str) -> None:
        self._flip(job, "Running", None)
        self._condition(job, _WORDS.get((job["kind"], kind), kind), message)
        job["status"].setdefault("completionTime", self._now())
        ends = {word: reason for reason, word in _engine(job).ENDS.items()}
        if kind.lower() in ends:
            self._tell(job, ends[kind.lower()], message)

    def _tell(self, job: Json, reason: str, message: str) -> None:
        metadata = job["metadata"]
        about = {"apiVersion": job["apiVersion"], "kind": job["kind"], "uid": metadata["uid"]}
        name = f"{metadata['name']}.{len(self.cluster.history):x}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name},
            "involvedObject": {**about, "name": metadata["name"], "namespace": metadata["namespace"]},
            "reason": reason,
            "message": message,
            "type": "Normal",
            "lastTimestamp": self._now(),
        }
        self.cluster.create(EVENTS, body, metadata["namespace"])

    def _condition(self, job: Json, kind: str, message: str) -> None:
        if _true(job, kind):
            return
        now = self._now()
        kept = [c for c in job["status"].get("conditions", []) if c["type"] != kind]
        new = {
            "type": kind,
            "status": "True",
            "reason": f"{job['kind']}{kind}",
            "message": message,
            "lastUpdateTime": now,
            "lastTransitionTime": now,
        }
        job["status"]["conditions"] = [*kept, new]

    def _flip(self, job: Json, kind: str, reason: str | None) -> None:
        for condition in job["status"].get("conditions", []):
            if condition["type"] == kind and condition["status"] == "True":
                condition["status"] = "False"
                condition["reason"] = reason or condition["reason"]

    def _pods_of(self, job: Json) -> list[Json]:
        uid = job["metadata"]["uid"]
        return [
            p for p in self._pods() if any(r["uid"] == uid for r in p["metadata"].get("ownerReferences", []))
        ]

    def _delete(self, pod: Json) -> None:
        self.cluster.delete(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"])

    def _now(self) -> str:
        return stamp(self.cluster.now)


def _identity(engine: Engine, role: str, index: int) -> Json:
    """The labels by which a pod says which member it is."""
    if engine.JOB_LABEL == jobset.NAME_LABEL:
        ranked = {jobset.INDEX_LABEL: str(index), jobset.COMPLETION_INDEX: "0"}
        return {jobset.ROLE_LABEL: role, **ranked}
    return {OPERATOR_LABEL: f"{engine.NAME}-controller", ROLE_LABEL: role, INDEX_LABEL: str(index)}


def _has_ended(job: Json) -> bool:
    conditions = _engine(job).read(job, ()).conditions
    return any(c.type in ("Succeeded", "Failed") and c.status == "True" for c in conditions)


def _owner(pod: Json) -> str | None:
    """The name of the job whose pod this is."""
    owners = pod["metadata"].get("ownerReferences", [])
    return next((owner["name"] for owner in owners if owner.get("controller")), None)


def _engine(job: Json) -> Engine:
    engine = engine_of_object(job)
    assert engine is not None, "the operators act on jobs of engines alone"
    return engine


def _layout(engine: Engine, job: Json, counts: Mapping[str, Counts]) -> Layout:
    """Layout that `Engine.judge` needs of a job: its members, and whether it is elastic."""
    name = job["metadata"]["name"]
    total = sum(count.replicas for count in counts.values())
    elastic = Elastic(1, total) if "elasticPolicy" in job["spec"] else None
    groups = tuple(Group(role, count.replicas, ()) for role, count in counts.items())
    framework = engine.FRAMEWORKS[0]
    policy = Policy(engine.default_restart(framework))
    return Layout(name, name, 1, 1, engine.NAME, framework, groups, policy, elastic=elastic)


def _true(job: Json, kind: str) -> bool:
    return any(
        c["type"] == kind and c["status"] == "True" for c in job.get("status", {}).get("conditions", [])
    )


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
