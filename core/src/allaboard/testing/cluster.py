"""A cluster in memory, for tests of allaboard and of its users. What answers is at the level of
`allaboard.backends.kubernetes.client.api.Api`, so everything of the Kubernetes backend above the wire runs on
it, without a network, a process or a second of waiting.

>>> from allaboard.testing.cluster import FakeCluster
>>> cluster = FakeCluster(trains_for=60)
>>> import allaboard
>>> from allaboard.testing import a_job
>>> allaboard.run(a_job(image="registry.lab/train:1"), backend=cluster.backend()).ok
True

It keeps what the backend relies on: uids, resourceVersions, preconditions, AlreadyExists, strict fields (of
the objects that we write), label and field selectors, finalizers, graceful deletion, garbage collection by
owner, watches and 410. The operators of the engines, a kubelet and a garbage collector act when time
passes, which it does in `tick` alone: it is also what a blocked client does instead of sleeping.

What goes wrong is scripted per client: ``cluster.client(faults={3: "die"})`` kills that client as its third
request would be sent. The client of a real cluster is killed between any two requests just the same.
"""

from __future__ import annotations

import copy
import itertools
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, cast

from allaboard.backends.kubernetes.client.errors import (
    ApiError,
    Cause,
    Conflict,
    Exists,
    Gone,
    Invalid,
    Missing,
)
from allaboard.backends.kubernetes.client.protocol import Executed, Patience
from allaboard.backends.kubernetes.client.resources import (
    ACCESS_REVIEWS,
    CONFIGMAPS,
    KNOWN,
    NAMESPACES,
    PODS,
    Resource,
    extra_kinds,
    job_kinds,
)
from allaboard.backends.kubernetes.discovery.components import KUEUE_WORKLOADS
from allaboard.backends.kubernetes.state import leases
from allaboard.engines import ENGINES, engine_of_object
from allaboard.errors import BackendUnreachable
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.testing.operator import FakeOperator, stamp

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend, KubernetesBackend
    from allaboard.backends.kubernetes.client.api import Api

Json = dict[str, Any]
Key = tuple[str, str, str, str]

SERVED = (*KNOWN.values(), *job_kinds(), *extra_kinds(), KUEUE_WORKLOADS)
FOREGROUND = "foregroundDeletion"
_FIELDS = {
    "ConfigMap": {"data", "binaryData", "immutable"},
    "Lease": {"spec"},
    "Event": {
        "involvedObject", "reason", "message", "source", "firstTimestamp", "lastTimestamp", "count", "type",
        "eventTime", "series", "action", "related", "reportingComponent", "reportingInstance",
    },
    "PodGroup": {"spec", "status"},
    "ResourceClaimTemplate": {"spec"},
    **{engine.KIND: {"spec", "status"} for engine in ENGINES.values()},
}  # fmt: skip
_SPECS = {
    **{engine.KIND: engine.FIELDS for engine in ENGINES.values()},
    "Lease": {
        "acquireTime", "holderIdentity", "leaseDurationSeconds", "leaseTransitions", "preferredHolder",
        "renewTime", "strategy",
    },
}  # fmt: skip
_METADATA = {
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
}  # fmt: skip


class Died(BaseException):
    """The client was killed: nothing of it runs any more. Deliberately no Exception."""


class FakeCluster:
    """A cluster in memory: an API server, an operator, a kubelet and a garbage collector, with a clock of
    their own.

    ``trains_for``: seconds until every member of a job succeeds; None: until the test ends it. ``served``:
    the kinds that it knows; ``shows``: those that discovery lists, by which a launch chooses its gang
    scheduler. ``now``: its clock, epoch seconds.
    """

    def __init__(
        self,
        *,
        trains_for: float | None = None,
        namespaces: Sequence[str] = ("default", "kube-system"),
        served: Sequence[Resource] = SERVED,
        shows: Sequence[Resource] = (),
        now: float = 1_790_000_000.0,
    ) -> None:
        self.now, self.served, self.shows = now, tuple(served), tuple(shows)
        self.objects: dict[Key, Json] = {}
        self.history: list[tuple[int, str, Key, Json]] = []
        self.requests: list[tuple[str, str, str]] = []
        self.logs: dict[tuple[str, str], list[str]] = {}
        self.executed: dict[str, Executed | ApiError] = {}
        """Result of an exec in a pod, by the name of the pod; in other pods no command is found."""
        self.refusals: list[tuple[Resource, str, ApiError]] = []
        self.objections: list[Callable[[Resource, Json], None]] = []
        """Webhooks that are asked about what a patch makes of an object; they raise what they refuse."""
        self.compacted = 0
        self.keepers: list[FakeKeeper] = []
        self.followers = itertools.count(1)
        self.operator = FakeOperator(self, trains_for)
        self.lock = threading.RLock()
        self._version = itertools.count(101)
        self._uids = (f"{n:08d}-0000-4000-8000-000000000000" for n in itertools.count(1))
        for namespace in namespaces:
            self.add_namespace(namespace)

    # For tests: clients, time, and access to the objects.

    def client(
        self, faults: Mapping[int, str | Exception] | None = None, namespace: str = "default"
    ) -> FakeApi:
        """A blocking client. ``faults``: by the number of the request (from 1): ``die`` (killed before it is
        sent), ``die-after`` (killed before its answer), ``lost`` (carried out, its answer lost, sent again),
        ``unreachable`` (never carried out), ``unreachable-after`` (carried out; no answer ever came), or an
        error to be raised.
        """
        return FakeApi(self, dict(faults or {}), namespace)

    def backend(
        self,
        faults: Mapping[int, str | Exception] | None = None,
        namespace: str = "default",
        **given: Any,
    ) -> KubernetesBackend:
        """A backend over a new client, whose waiting makes time pass here."""
        from allaboard.backends.kubernetes.backend import KubernetesBackend

        api = cast("Api", self.client(faults, namespace))
        keeper = FakeKeeper(self, self.client(namespace=namespace))
        own = {"facts": ClusterFacts(namespace=namespace), "hub": FakeHub(self), "keeper": keeper}
        return KubernetesBackend(api, **{**own, **given})

    def async_backend(
        self, faults: Mapping[int, str | Exception] | None = None, **given: Any
    ) -> AsyncKubernetesBackend:
        """The same for a test that awaits."""
        from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend

        api = cast("Api", self.client(faults))
        keeper = AsyncFakeKeeper(FakeKeeper(self, self.client()))
        own = {"facts": ClusterFacts(), "hub": AsyncFakeHub(self), "keeper": keeper}
        return AsyncKubernetesBackend(api, **{**own, **given})

    def add_namespace(self, name: str) -> None:
        """Make a namespace."""
        body: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "namespace": ""}}
        body["metadata"] |= {"uid": next(self._uids), "creationTimestamp": stamp(self.now)}
        self._put(NAMESPACES, body, "ADDED")

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass: in steps of a second, 120 of them at most, the operator, the kubelet and the garbage
        collector act.
        """
        left, longest = max(seconds, 0.001), max(1.0, seconds / 120)
        while left > 0:
            step = min(longest, left)
            left -= step
            with self.lock:
                self.now += step
                self._collect()
                self.operator.act()
                self._collect()
        for keeper in list(self.keepers):
            keeper.renew()

    def all(self, resource: Resource, namespace: str = "default") -> list[Json]:
        """Copies of all objects of a kind, by name."""
        with self.lock:
            objects = [
                o
                for k, o in sorted(self.objects.items())
                if k[:3] == (resource.group, resource.plural, namespace)
            ]
            return copy.deepcopy(objects)

    def one(self, resource: Resource, name: str, namespace: str = "default") -> Json | None:
        """A copy of one object, None where it is not there."""
        stored = self.objects.get(_key(resource, namespace, name))
        return copy.deepcopy(stored)

    def refuse(self, resource: Resource, error: ApiError, name: str = "") -> None:
        """From now on, creating such an object fails with this: a quota, RBAC, a webhook."""
        self.refusals.append((resource, name, error))

    def compact(self) -> None:
        """Forget the past: watches that resume from it get 410."""
        self.compacted = self._version_now()

    def say(self, pod: str, text: str, namespace: str = "default") -> None:
        """A line in the log of a pod."""
        line = f"{stamp(self.now).removesuffix('Z')}.000000000Z {text}\n"
        self.logs.setdefault((namespace, pod), []).append(line)

    def end_members(self, job: str, exit_code: int = 0) -> None:
        """All running members of this job end with this exit code at the next tick."""
        self.operator.end(job, exit_code)

    # What the API server does. Namespaces are given, objects are copies.

    def get(self, resource: Resource, name: str, namespace: str) -> Json:
        """Answer a GET with a copy of the object. Raises Missing."""
        self._serves(resource)
        stored = self.objects.get(_key(resource, namespace, name))
        if stored is None:
            raise _missing(resource, name)
        return copy.deepcopy(stored)

    def list(
        self, resource: Resource, namespace: str, labels: str | None, fields: str | None
    ) -> tuple[list[Json], str]:
        """Answer a list with copies of the objects that match, and the resourceVersion."""
        self._serves(resource)
        matches = _selector(labels)
        objects = [
            copy.deepcopy(o)
            for (group, plural, ns, _), o in sorted(self.objects.items())
            if (group, plural) == (resource.group, resource.plural)
            and (namespace in ("", ns) or not resource.namespaced)
            and matches(o["metadata"].get("labels", {}))
            and _fields_match(fields, o)
        ]
        return objects, str(self._version_now())

    def create(self, resource: Resource, body: Json, namespace: str, dry_run: bool = False) -> Json:
        """Answer a POST: validate, refuse or store the object, and return it."""
        self._serves(resource)
        if resource == ACCESS_REVIEWS:
            return {**body, "status": {"allowed": True}}
        _validate(resource, body)
        name = body["metadata"]["name"]
        if resource.namespaced and _key(NAMESPACES, "", namespace) not in self.objects:
            raise _missing(NAMESPACES, namespace)
        for refused, only, error in self.refusals:
            if refused == resource and only in ("", name):
                raise error
        if _key(resource, namespace, name) in self.objects:
            raise Exists(f'{resource.name} "{name}" already exists', status=409, reason="AlreadyExists")
        made = copy.deepcopy(body)
        if made["metadata"].get("resourceVersion"):
            raise Invalid("resourceVersion should not be set on objects to be created", status=400)
        made.pop("status", None)
        made["metadata"] |= {
            "namespace": namespace,
            "uid": next(self._uids),
            "creationTimestamp": stamp(self.now),
            "generation": 1,
        }
        engine = engine_of_object(made)
        if engine is not None:
            made = with_defaults(made, engine.suspension(False))
        if not dry_run:
            self._put(resource, made, "ADDED")
        return copy.deepcopy(made)

    def replace(self, resource: Resource, body: Json, namespace: str, sub: str | None = None) -> Json:
        """Answer a PUT. Raises Missing, Conflict and Invalid as the API server does."""
        name = body["metadata"]["name"]
        old = self.get(resource, name, namespace)
        _validate(resource, body)
        self._compare(resource, old, body["metadata"])
        return self._update(resource, old, copy.deepcopy(body), sub)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Json,
        namespace: str,
        sub: str | None = None,
        dry_run: bool = False,
    ) -> Json:
        """Answer a merge patch. Raises Missing, Conflict and Invalid as the API server does."""
        old = self.get(resource, name, namespace)
        self._compare(resource, old, body.get("metadata", {}))
        new = merged(old, body)
        _validate(resource, new)
        for refused in self.objections:
            refused(resource, new)
        return new if dry_run else self._update(resource, old, new, sub)

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        grace: int | None = None,
    ) -> None:
        """Answer a DELETE, with the propagation policy and the preconditions."""
        self._serves(resource)
        old = self.objects.get(_key(resource, namespace, name))
        if old is None:
            return
        self._compare(resource, old, {"uid": uid, "resourceVersion": resource_version})
        new = copy.deepcopy(old)
        metadata = new["metadata"]
        if propagation == "Foreground" and FOREGROUND not in metadata.get("finalizers", []):
            metadata["finalizers"] = [*metadata.get("finalizers", []), FOREGROUND]
        waits = resource == PODS and new.get("status", {}).get("phase") == "Running" and grace != 0
        if metadata.get("finalizers") or waits:
            if resource == PODS:
                given = new["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
                # It says when the grace is over; another deletion can only bring that forward.
                ends = stamp(self.now + given)
                metadata["deletionTimestamp"] = min(ends, metadata.get("deletionTimestamp", ends))
                metadata["deletionGracePeriodSeconds"] = given
            else:
                metadata.setdefault("deletionTimestamp", stamp(self.now))
            if new != old:
                self._put(resource, new, "MODIFIED")
            return
        self._remove(resource, old)

    # The store.

    def _serves(self, resource: Resource) -> None:
        if resource not in self.served:
            error = Missing("the server could not find the requested resource", status=404, reason="NotFound")
            error.unserved = True
            raise error

    def _compare(self, resource: Resource, old: Json, wanted: Mapping[str, Any]) -> None:
        for field in ("uid", "resourceVersion"):
            if wanted.get(field) and wanted[field] != old["metadata"][field]:
                raise Conflict(
                    f'Operation cannot be fulfilled on {resource.name} "{old["metadata"]["name"]}": the '
                    f"{field} in the precondition ({wanted[field]}) is not that of the object",
                    status=409,
                    reason="Conflict",
                )

    def _update(self, resource: Resource, old: Json, new: Json, sub: str | None) -> Json:
        if sub == "status":
            new = {**old, "metadata": {**old["metadata"]}, "status": new.get("status", {})}
        elif "status" in old:
            new["status"] = old["status"]
        for fixed in (
            "uid",
            "creationTimestamp",
            "namespace",
            "generation",
            "resourceVersion",
            "deletionTimestamp",
        ):
            new["metadata"].pop(fixed, None)
            if fixed in old["metadata"]:
                new["metadata"][fixed] = old["metadata"][fixed]
        if new == old:
            return copy.deepcopy(old)
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers"):
            self._remove(resource, new)
        else:
            self._put(resource, new, "MODIFIED")
        return copy.deepcopy(new)

    def _put(self, resource: Resource, body: Json, change: str) -> None:
        number = next(self._version)
        body["metadata"]["resourceVersion"] = str(number)
        key = _key(resource, body["metadata"]["namespace"], body["metadata"]["name"])
        self.objects[key] = body
        self.history.append((number, change, key, copy.deepcopy(body)))

    def _remove(self, resource: Resource, body: Json) -> None:
        key = _key(resource, body["metadata"]["namespace"], body["metadata"]["name"])
        self.objects.pop(key, None)
        self.history.append((next(self._version), "DELETED", key, copy.deepcopy(body)))

    def _version_now(self) -> int:
        return self.history[-1][0] if self.history else 100

    def _collect(self) -> None:
        """The garbage collector: objects whose owners are all gone go; an owner that waits for its dependents
        goes once there are none.
        """
        changed = True
        while changed:
            changed = False
            living = {o["metadata"]["uid"]: o for o in self.objects.values()}
            for (group, plural, namespace, name), body in list(self.objects.items()):
                known = (*SERVED, *self.served)
                resource = next((r for r in known if (r.group, r.plural) == (group, plural)), PODS)
                metadata = body["metadata"]
                owners = [living.get(ref["uid"]) for ref in metadata.get("ownerReferences", [])]
                orphaned = owners and not any(owners)
                ending = owners and all(
                    o is not None and FOREGROUND in o["metadata"].get("finalizers", [])
                    and "deletionTimestamp" in o["metadata"]
                    for o in owners
                )  # fmt: skip
                if (orphaned or ending) and "deletionTimestamp" not in metadata:
                    self.delete(resource, name, namespace)
                    changed = True
                elif "deletionTimestamp" in metadata and FOREGROUND in metadata.get("finalizers", []):
                    blocking = any(
                        ref["uid"] == metadata["uid"] and ref.get("blockOwnerDeletion")
                        for o in self.objects.values()
                        for ref in o["metadata"].get("ownerReferences", [])
                    )
                    if not blocking:
                        self._remove(resource, body)
                        changed = True


class FakeApi:
    """A client of a `FakeCluster`, with the methods of `Api`. ``sent``: how many requests it has made."""

    def __init__(self, cluster: FakeCluster, faults: dict[int, str | Exception], namespace: str) -> None:
        self.cluster, self.faults, self.namespace = cluster, faults, namespace
        self.sent = 0
        self.dead = False
        self.server = "https://fake.example:6443"
        self.identity = "fake"
        self.on_silence: Callable[[str], None] | None = None
        self.pause: Callable[[float], None] = cluster.tick

    def get(self, resource: Resource, name: str, namespace: str | None = None, *, query: Any = None) -> Json:
        answer: Json = self._ask(
            "get", resource, name, namespace, lambda ns: self.cluster.get(resource, name, ns)
        )
        return answer

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int | None = 500,
        resource_version: str | None = None,
        at_most: int | None = None,
        table: bool = False,
    ) -> tuple[list[Json], str]:
        answer: tuple[list[Json], str] = self._ask(
            "list", resource, "", namespace, lambda ns: self.cluster.list(resource, ns, labels, fields)
        )
        answer = (answer[0][:at_most], answer[1])
        return ([_row(o) for o in answer[0]], answer[1]) if table else answer

    def create(
        self, resource: Resource, body: Json, namespace: str | None = None, *, dry_run: bool = False
    ) -> Json:
        name = body.get("metadata", {}).get("name", "")
        answer: Json = self._ask(
            "create", resource, name, namespace, lambda ns: self.cluster.create(resource, body, ns, dry_run)
        )
        return answer

    def replace(
        self, resource: Resource, body: Json, namespace: str | None = None, *, sub: str | None = None
    ) -> Json:
        name = body["metadata"]["name"]
        answer: Json = self._ask(
            "replace", resource, name, namespace, lambda ns: self.cluster.replace(resource, body, ns, sub)
        )
        return answer

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        namespace: str | None = None,
        *,
        kind: str = "merge",
        sub: str | None = None,
        dry_run: bool = False,
    ) -> Json:
        assert kind == "merge", f"the fake cluster knows merge patches alone, not {kind}"
        answer: Json = self._ask(
            "patch",
            resource,
            name,
            namespace,
            lambda ns: self.cluster.patch(resource, name, body, ns, sub, dry_run),
        )
        return answer

    def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: str = "Background",
        grace: int | None = None,
    ) -> None:
        self._ask(
            "delete",
            resource,
            name,
            namespace,
            lambda ns: self.cluster.delete(resource, name, ns, uid, resource_version, propagation, grace),
        )

    def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        resource_version: str,
        table: bool = False,
        **_: Any,
    ) -> Iterator[tuple[str, Json]]:
        """Events since a resourceVersion; then the stream ends, as a server's does. Raises Gone."""
        matches = _selector(labels)

        def since(ns: str) -> list[tuple[str, Json]]:
            if int(resource_version or 0) < self.cluster.compacted:
                raise Gone("too old resource version", status=410, reason="Expired")
            return [
                (change, _row(body) if table else body)
                for number, change, key, body in self.cluster.history
                if number > int(resource_version or 0)
                and key[:2] == (resource.group, resource.plural)
                and ns in ("", key[2])
                and matches(body["metadata"].get("labels", {}))
                and _fields_match(fields, body)
            ]

        yield from self._ask("watch", resource, "", namespace, since)

    def log(
        self,
        pod: str,
        namespace: str | None = None,
        *,
        container: str | None = None,
        since: str | None = None,
        tail: int | None = None,
        limit_bytes: int | None = None,
        previous: bool = False,
        follow: bool = False,
        **_: Any,
    ) -> FakeStream:
        """Log of the pod (`FakeCluster.say`), up to now, each line with its time; ``follow``: and what it
        writes from now on, as long as its container runs.
        """
        if follow:
            return FollowedStream(
                self.cluster, self.namespace if namespace is None else namespace, pod, since
            )

        def read(ns: str) -> list[bytes]:
            self.cluster.get(PODS, pod, ns)
            printed = [] if previous else self.cluster.logs.get((ns, pod), [])
            lines = [line for line in printed if since is None or line >= since[:19]]
            text = "".join(lines[-tail:] if tail else lines).encode()[:limit_bytes]
            return text.splitlines(keepends=True)

        return FakeStream(self._ask("log", PODS, pod, namespace, read))

    def execute(self, pod: str, command: Sequence[str], namespace: str | None = None, **_: Any) -> Executed:
        def run(ns: str) -> Executed:
            self.cluster.get(PODS, pod, ns)
            ended = self.cluster.executed.get(pod, _no_command(command[0]))
            if isinstance(ended, ApiError):
                raise ended
            return ended

        ended: Executed = self._ask("exec", PODS, pod, namespace, run)
        return ended

    def twin(self, patience: Patience) -> FakeApi:
        return self

    def __enter__(self) -> FakeApi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def raw(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        return self._ask(f"raw {method}", CONFIGMAPS, path, None, lambda ns: self.cluster.operator.raw(path))

    def server_time(self) -> float:
        return self.cluster.now

    def close(self) -> None:
        return None

    def _ask(
        self, verb: str, resource: Resource, name: str, namespace: str | None, act: Callable[[str], Any]
    ) -> Any:
        if self.dead:
            raise Died
        self.sent += 1
        fault = self.faults.get(self.sent)
        with self.cluster.lock:
            if fault == "die":
                self.dead = True
                raise Died(f"killed before request {self.sent}: {verb} {resource.name} {name}")
            if isinstance(fault, Exception):
                raise fault
            if fault == "unreachable":
                raise BackendUnreachable(f"API server {self.server} is not there; asked for: {verb} {name}")
            self.cluster.requests.append((verb, resource.name, name))
            try:
                answer = act(self.namespace if namespace is None else namespace)
            except ApiError:
                if fault == "die-after":
                    self.dead = True
                    raise Died from None
                raise
            if fault == "die-after":
                self.dead = True
                raise Died(f"killed before the answer to request {self.sent}: {verb} {resource.name} {name}")
            if fault == "unreachable-after":
                raise BackendUnreachable(f"API server {self.server} gave no answer to: {verb} {name}")
            if fault == "lost":  # the transport sends it again
                try:
                    return act(self.namespace if namespace is None else namespace)
                except ApiError as error:
                    error.retried = True
                    raise
            return answer


def _no_command(name: str) -> Executed:
    text = f'exec: "{name}": executable file not found in $PATH'
    return Executed(None, trouble=f"error executing command in container: {text}")


class FakeStream:
    """Lines that came, as `Api.log` hands them out."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = iter(lines)

    def __iter__(self) -> Iterator[bytes]:
        return self._lines

    def __next__(self) -> bytes:
        return next(self._lines)

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._lines = iter(())


class FollowedStream(FakeStream):
    """The log of a container as it is written. Raises Missing where there is no pod."""

    def __init__(self, cluster: FakeCluster, namespace: str, pod: str, since: str | None) -> None:
        super().__init__(())
        self._cluster, self._key, self._closed = cluster, (namespace, pod), False
        with cluster.lock:
            cluster.requests.append(("follow", PODS.name, pod))
            self._id = self._running()
            if self._id is None:
                cluster.get(PODS, pod, namespace)
            # It stays open when it is removed, as a file does.
            self._printed = cluster.logs.setdefault(self._key, [])
            self._at = sum(since is not None and line < since[:19] for line in self._printed)

    def _running(self) -> str | None:
        pod = self._cluster.one(PODS, self._key[1], self._key[0])
        statuses = [] if pod is None else pod["status"].get("containerStatuses") or []
        return next((c["containerID"] for c in statuses if "running" in c["state"]), None)

    def poll(self) -> bytes | None:
        """The next line, None while there is none. Raises StopIteration at its end."""
        with self._cluster.lock:
            if self._at < len(self._printed) and not self._closed:
                self._at += 1
                return self._printed[self._at - 1].encode()
            if self._closed or self._id is None or self._running() != self._id:
                raise StopIteration
            return None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while (line := self.poll()) is None:
            time.sleep(0.005)
        return line

    def close(self) -> None:
        self._closed = True


class FakeHub:
    """Tells of whatever happens to the job and the pods of a run, or to one job of others."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster

    @contextmanager
    def changes(self, run: str, resource: Resource, namespace: str | None = None) -> Iterator[FakeChanges]:
        yield FakeChanges(self.cluster, run)

    @contextmanager
    def changes_of(
        self, resource: Resource, name: str, namespace: str | None = None
    ) -> Iterator[FakeChanges]:
        yield FakeChanges(self.cluster, name)

    @contextmanager
    def copy(self, resource: Resource, namespace: str | None = None) -> Iterator[FakeCopy]:
        yield FakeCopy(self.cluster, resource, namespace or "")


class FakeCopy:
    """As `allaboard.backends.kubernetes.watch.informer.Copy`; waiting advances the cluster's time."""

    trouble = None

    def __init__(self, cluster: FakeCluster, resource: Resource, namespace: str) -> None:
        self.cluster, self.resource, self.namespace = cluster, resource, namespace

    def objects(self) -> list[Json]:
        return self.cluster.list(self.resource, self.namespace, None, None)[0]

    def wait(self, seconds: float) -> bool:
        self.cluster.tick(seconds)
        return False


class FakeChanges:
    """Waiting advances the cluster's time by five seconds at most, and wakes the caller."""

    def __init__(self, cluster: FakeCluster, run: str) -> None:
        self.cluster, self.run = cluster, run
        self._settled: int | None = None

    @property
    def quiet(self) -> bool:
        """As `allaboard.backends.kubernetes.watch.informer.Changes.quiet`."""
        if self._settled is None:
            return False
        since = self.cluster.history[self._settled :]
        return not any(name.startswith(self.run) for _, _, (_, _, _, name), _ in since)

    def settle(self) -> bool:
        quiet, self._settled = self.quiet, len(self.cluster.history)
        return quiet

    def wait(self, seconds: float) -> bool:
        self.cluster.tick(min(seconds, 5.0))
        return True


class AsyncFakeHub:
    """The same for those who await."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.hub = FakeHub(cluster)

    @asynccontextmanager
    async def changes(
        self, run: str, resource: Resource, namespace: str | None = None
    ) -> AsyncIterator[AsyncFakeChanges]:
        with self.hub.changes(run, resource, namespace) as changes:
            yield AsyncFakeChanges(changes)

    @asynccontextmanager
    async def changes_of(
        self, resource: Resource, name: str, namespace: str | None = None
    ) -> AsyncIterator[AsyncFakeChanges]:
        with self.hub.changes_of(resource, name, namespace) as changes:
            yield AsyncFakeChanges(changes)

    @asynccontextmanager
    async def names_of(
        self, resource: Resource, labels: str, namespace: str | None = None
    ) -> AsyncIterator[AsyncFakeNames]:
        yield AsyncFakeNames(self.hub.cluster, resource, labels)


class AsyncFakeNames:
    """As `allaboard.backends.kubernetes.watch.informer.AsyncNames`; waiting advances the cluster's time."""

    def __init__(self, cluster: FakeCluster, resource: Resource, labels: str) -> None:
        self._cluster, self._resource, self._meets = cluster, resource, _selector(labels)

    @property
    def names(self) -> frozenset[str] | None:
        every = (body["metadata"] for body in self._cluster.all(self._resource))
        return frozenset(each["name"] for each in every if self._meets(each.get("labels", {})))

    async def wait(self, seconds: float) -> bool:
        before = self.names
        self._cluster.tick(min(seconds, 5.0))
        return self.names != before


class AsyncFakeChanges:
    """The same for those who await."""

    def __init__(self, changes: FakeChanges) -> None:
        self._changes = changes
        self.settle = changes.settle

    @property
    def quiet(self) -> bool:
        return self._changes.quiet

    async def wait(self, seconds: float) -> bool:
        return self._changes.wait(seconds)


class FakeKeeper:
    """Renews a Lease as the cluster's time passes, until the test calls `died`."""

    def __init__(self, cluster: FakeCluster, api: FakeApi) -> None:
        self.cluster, self.api = cluster, api
        self.holder = f"follower-{next(cluster.followers)}"
        self.name: str | None = None
        cluster.keepers.append(self)

    def hold(self) -> str:
        if self.name is None:
            self.name = leases.take_lease(cast("Api", self.api), self.holder)
        return self.name

    def died(self) -> None:
        self.cluster.keepers.remove(self)

    def let_go(self) -> None:
        self.died()
        if self.name:
            leases.release_lease(cast("Api", self.api), self.holder)
            self.name = None

    def renew(self) -> None:
        if self.name:
            leases.renew_lease(cast("Api", self.api), self.holder)


class AsyncFakeKeeper:
    """The same, awaited."""

    def __init__(self, keeper: FakeKeeper) -> None:
        self.keeper = keeper

    async def hold(self) -> str:
        return self.keeper.hold()

    def died(self) -> None:
        self.keeper.died()

    async def let_go(self) -> None:
        self.keeper.let_go()


# Rules of the API server, each as small as it is.


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(copy.deepcopy(old)) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def with_defaults(given: Json, defaults: Mapping[str, Any]) -> Json:
    """Return an object with a CRD's defaults for fields that it does not say."""
    result = dict(given)
    for name, value in defaults.items():
        if isinstance(value, Mapping):
            result[name] = with_defaults(result.get(name) or {}, value)
        else:
            result.setdefault(name, value)
    return result


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return resource.group, resource.plural, namespace if resource.namespaced else "", name


def _missing(resource: Resource, name: str) -> Missing:
    error = Missing(f'{resource.name} "{name}" not found', status=404, reason="NotFound")
    error.absent = (resource.plural, name)
    return error


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def _validate(resource: Resource, body: Json) -> None:
    """Raises Invalid with every cause."""
    if (body.get("apiVersion"), body.get("kind")) != (resource.api_version, resource.kind):
        raise Invalid(f"the object is {body.get('kind')}, not {resource.kind}", status=400)
    unknown = [f"metadata.{f}" for f in body["metadata"] if f not in _METADATA]
    known = _FIELDS.get(resource.kind)
    if known is not None:
        unknown += [f for f in body if f not in known | {"apiVersion", "kind", "metadata"}]
    if resource.kind in _SPECS:
        unknown += [f"spec.{f}" for f in body.get("spec", {}) if f not in _SPECS[resource.kind]]
    if unknown:
        names = ", ".join(f'unknown field "{f}"' for f in unknown)
        raise Invalid(
            f"strict decoding error: {names}",
            status=400,
            reason="BadRequest",
            causes=[Cause(f, "unknown field", "UnknownField") for f in unknown],
        )
    causes = []
    if not _NAME.fullmatch(body["metadata"].get("name", "")):
        causes.append(Cause("metadata.name", f"Invalid value: {body['metadata'].get('name')!r}"))
    for name, value in body["metadata"].get("labels", {}).items():
        if not isinstance(value, str) or not _LABEL.fullmatch(value):
            causes.append(Cause("metadata.labels", f"Invalid value: {name}: {value!r}"))
    for name, value in body["metadata"].get("annotations", {}).items():
        if not isinstance(value, str):
            causes.append(Cause("metadata.annotations", f"{name}: must be a string, is {value!r}"))
    if resource == CONFIGMAPS and sum(map(len, (body.get("data") or {}).values())) > 1 << 20:
        causes.append(Cause("data", "Too long: must have at most 1048576 bytes"))
    if causes:
        raise Invalid("; ".join(map(str, causes)), status=422, reason="Invalid", causes=causes)


def _selector(text: str | None) -> Callable[[Mapping[str, str]], bool]:
    parts = re.split(r",(?![^()]*\))", text) if text else []

    def matches(labels: Mapping[str, str]) -> bool:
        return all(_holds(part.strip(), labels) for part in parts)

    return matches


def _holds(part: str, labels: Mapping[str, str]) -> bool:
    if match := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", part):
        name, word, values = match.groups()
        within = labels.get(name) in [v.strip() for v in values.split(",")]
        return within if word == "in" else not within
    if "!=" in part:
        name, _, value = part.partition("!=")
        return labels.get(name) != value
    if "=" in part:
        name, _, value = part.replace("==", "=").partition("=")
        return labels.get(name) == value
    return part.removeprefix("!") not in labels if part.startswith("!") else part in labels


def _fields_match(text: str | None, body: Json) -> bool:
    for part in text.split(",") if text else []:
        path, _, value = part.partition("=")
        actual: Any = body
        for name in path.split("."):
            actual = (actual or {}).get(name)
        if str(actual or "") != value:
            return False
    return True


def _row(body: Json) -> Json:
    """A Table row without its object: what the printer columns of a job show."""
    conditions = body.get("status", {}).get("conditions", [])
    return {"Name": body["metadata"]["name"], "State": conditions[-1]["type"] if conditions else ""}


__all__ = ["Died", "FakeApi", "FakeCluster", "merged", "stamp"]
