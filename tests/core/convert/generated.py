"""Manifests of kubeflow.org/v1 made by lot: whatever such a manifest may say, in any combination."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from allaboard.engines import ENGINES, Engine
from allaboard.engines.kubeflow import KubeflowEngine, replica_type

Json = dict[str, Any]
KUBEFLOW = [engine for engine in ENGINES.values() if isinstance(engine, KubeflowEngine)]
READ_BY_A_JOB = [engine for engine in KUBEFLOW if engine.API_VERSION == "kubeflow.org/v1"]


def a_manifest(rng: random.Random, engine: KubeflowEngine | None = None) -> Json:
    """One that the API server and the operator take."""
    engine = engine or rng.choice(READ_BY_A_JOB)
    alike = _a_template(rng, engine) if rng.random() < 0.5 else None
    specs = {replica_type(role): _replicas(rng, engine, most, alike) for role, most in _roles(rng, engine)}
    spec: Json = {engine.SPECS: specs}
    if policy := _some(rng, _POLICY):
        spec["runPolicy"] = policy
    if engine.KIND == "PyTorchJob":
        spec |= _pytorch(rng, specs)
    if engine.KIND == "TFJob":
        spec |= _some(rng, {"successPolicy": _of("AllWorkers", ""), "enableDynamicWorker": _of(True, False)})
    metadata: Json = {"name": f"train-{rng.randrange(1000)}"}
    metadata |= _some(rng, {"labels": _labels, "annotations": _annotations, "namespace": _of("team-a")})
    return {"apiVersion": engine.API_VERSION, "kind": engine.KIND, "metadata": metadata, "spec": spec}


Make = Callable[[random.Random], Any]


def _of(*values: Any) -> Make:
    return lambda rng: rng.choice(values)


def _some(rng: random.Random, fields: dict[str, Make], chance: float = 0.3) -> Json:
    return {name: make(rng) for name, make in fields.items() if rng.random() < chance}


def _labels(rng: random.Random) -> Json:
    return {name: rng.choice(["a", "b"]) for name in rng.sample(["app", "example.com/team", "tier"], 2)}


def _annotations(rng: random.Random) -> Json:
    return {"sidecar.istio.io/inject": rng.choice(["false", "true"]), "note": rng.choice(["ä b", "{}"])}


_POLICY: dict[str, Make] = {
    "cleanPodPolicy": _of("None", "Running", "All"),
    "backoffLimit": _of(0, 3, 100),
    "activeDeadlineSeconds": _of(90, 3600, 86400),
    "ttlSecondsAfterFinished": _of(0, 61, 604800),
    "suspend": _of(True, False),
    "managedBy": _of("kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"),
    "schedulingPolicy": _of({"minAvailable": 1, "queue": "q"}, {"priorityClass": "high"}),
}


def _roles(rng: random.Random, engine: KubeflowEngine) -> list[tuple[str, int | None]]:
    roles = engine.roles(engine.FRAMEWORKS[0])
    wanted = {role: most for role, most in roles.items() if rng.random() < 0.6}
    if engine.KIND == "MXJob":  # who tunes does not train
        wanted = {role: most for role, most in wanted.items() if not role.startswith("tuner")}
    leads = {"XGBoostJob": "master", "TFJob": "worker", "MPIJob": "launcher", "MXJob": "scheduler"}
    needed = leads.get(engine.KIND)
    if needed is not None or not wanted:
        wanted[needed or "worker"] = roles[needed or "worker"]
    if "chief" in wanted:
        wanted.pop("master", None)
    return [*wanted.items()]


def _replicas(rng: random.Random, engine: KubeflowEngine, most: int | None, alike: Json | None) -> Json:
    found: Json = {"template": alike or _a_template(rng, engine)}
    policies = ("Never", "OnFailure", *(() if engine.KIND == "MPIJob" else ("Always", "ExitCode")))
    found |= _some(rng, {"restartPolicy": _of(*policies)}, 0.7)
    return found | _some(rng, {"replicas": _of(1) if most == 1 else _of(1, 2, 7)}, 0.8)


def _pytorch(rng: random.Random, specs: Json) -> Json:
    found = _some(rng, {"nprocPerNode": _of("auto", "gpu", "cpu", "4")})
    if "Worker" not in specs or rng.random() < 0.5:
        return found
    elastic: dict[str, Make] = {
        "minReplicas": _of(1, 2),
        "maxReplicas": _of(3, 20),
        "maxRestarts": _of(0, 100),
        "rdzvBackend": _of("c10d", "etcd", "static"),
        "rdzvId": _of("mine"),
        "rdzvHost": _of("meet.example"),
        "rdzvPort": _of(29400),
        "standalone": _of(True, False),
        "rdzvConf": _of([{"key": "timeout", "value": "900"}]),
        "metrics": _of(
            [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization"}}}]
        ),
    }
    if "nprocPerNode" not in found:
        elastic["nProcPerNode"] = _of(2)
    return {**found, "elasticPolicy": {"minReplicas": 1, **_some(rng, elastic)}}


# JobSets.


def a_jobset(rng: random.Random) -> Json:
    """A JobSet that trains: the names, numbers and variables by which its members know each other differ."""
    shapes = [["workers"], ["leader", "workers"], ["workers", "driver"], ["master", "worker"]]
    names = rng.choice(shapes)
    alike = _a_template(rng, _JOBSET) if rng.random() < 0.5 else None
    said = rng.choice([[], _meeting(rng, names)])
    parts = [_replicated(rng, name, alike, said) for name in names]
    spec: Json = {"replicatedJobs": parts, **_some(rng, _JOBSET_FIELDS)}
    if rng.random() < 0.2:
        spec["coordinator"] = {"replicatedJob": names[0], "jobIndex": 0}
    if rng.random() < 0.3:
        spec["successPolicy"] = {"operator": "All", "targetReplicatedJobs": [rng.choice(names)]}
    metadata: Json = {"name": "train"}
    metadata |= _some(rng, {"labels": _labels, "annotations": _annotations, "namespace": _of("team-a")})
    return {"apiVersion": _JOBSET.API_VERSION, "kind": _JOBSET.KIND, "metadata": metadata, "spec": spec}


def _meeting(rng: random.Random, names: list[str]) -> list[Json]:
    """Variables of PyTorch, in which the first member is named in one of the ways that users have."""
    name = {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": _MARK.format("jobset-name")}}}
    first = next((name for name in names if name in ("leader", "driver", "master")), names[0])
    host = rng.choice([f"train-{first}-0-0.train", f"$(NAME)-{first}-0-0.$(NAME)", f"train-{first}-0-0"])
    return [name, {"name": "MASTER_ADDR", "value": host}, {"name": "MASTER_PORT", "value": "3389"}]


def _replicated(rng: random.Random, name: str, alike: Json | None, said: list[Json]) -> Json:
    template = copy.deepcopy(alike or _a_template(rng, _JOBSET))
    containers = template["spec"]["containers"]
    trains = next(one for one in containers if one["name"] == _JOBSET.CONTAINER)
    trains["env"] = [*trains.get("env", []), *said]
    leads = name in ("leader", "driver", "master")
    pods = 1 if leads else rng.choice([1, 2, 7])
    spec: Json = {"template": template, "parallelism": pods, "completions": pods}
    spec |= _some(rng, {"backoffLimit": _of(0, 0, 0, 3), "completionMode": _of("Indexed")}, 0.8)
    if rng.random() < 0.1:
        spec["podFailurePolicy"] = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "X"}]}]}
    jobs = {} if leads else _some(rng, {"replicas": _of(1, 2) if pods == 1 else _of(1)})
    spec |= _some(rng, {"podReplacementPolicy": _of("Failed"), "ttlSecondsAfterFinished": _of(9)}, 0.1)
    marked = _some(rng, {"metadata": _of({"labels": {"team": "speech"}})}, 0.1)
    group = _some(rng, {"groupName": _of("g")}, 0.1)
    return {"name": name, **jobs, **group, "template": {**marked, "spec": spec}}


_JOBSET = ENGINES["jobset"]
_MARK = "metadata.annotations['jobset.sigs.k8s.io/{}']"
_JOBSET_FIELDS: dict[str, Make] = {
    "suspend": _of(True, False),
    "ttlSecondsAfterFinished": _of(0, 61, 604800),
    "managedBy": _of("kueue.x-k8s.io/multikueue"),
    "network": _of({"enableDNSHostnames": True}, {"publishNotReadyAddresses": False}),
    "startupPolicy": _of({"startupPolicyOrder": "InOrder"}, {"startupPolicyOrder": "AnyOrder"}),
    "failurePolicy": _of(
        {"maxRestarts": 3},
        {"maxRestarts": 1, "restartStrategy": "Recreate"},
        {"maxRestarts": 0, "rules": [{"name": "own", "action": "FailJobSet", "onJobFailureReasons": ["X"]}]},
    ),
}


# Pods.


def _a_template(rng: random.Random, engine: Engine) -> Json:
    volumes = [{"name": name, **make(rng)} for name, make in _VOLUMES.items() if rng.random() < 0.25]
    names = [volume["name"] for volume in volumes]
    train: Json = {"name": engine.CONTAINER, "image": f"registry.example/train:{rng.choice('ab')}"}
    train |= _some(rng, _CONTAINER)
    if mounts := _mounts(rng, names):
        train["volumeMounts"] = mounts
    if variables := _variables(rng):
        train["env"] = variables
    containers = [train]
    if rng.random() < 0.2:
        side: Json = {"name": "proxy", "image": "registry.example/proxy:1"}
        containers.insert(
            rng.choice([0, 1]), side | _some(rng, {"volumeMounts": lambda r: _mounts(r, names)})
        )
    spec: Json = {"containers": containers, **_some(rng, _POD, 0.15)}
    if volumes:
        spec["volumes"] = volumes
    if rng.random() < 0.2:
        first: Json = {"name": "fetch", "image": "registry.example/fetch:1", "command": ["fetch"]}
        spec["initContainers"] = [first | _some(rng, {"volumeMounts": lambda r: _mounts(r, names)}, 0.6)]
    return {**_some(rng, {"metadata": _metadata}), "spec": spec}


def _metadata(rng: random.Random) -> Json:
    return _some(rng, {"labels": _labels, "annotations": _annotations, "creationTimestamp": _of(None)}, 0.6)


def _mounts(rng: random.Random, volumes: list[str]) -> list[Json]:
    paths = rng.sample(["/data", "/dev/shm", "/a/b/", "/shm", "/etc/keys", "/allaboard"], 5)
    found = []
    for name in volumes:
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            if paths:
                extra = {"readOnly": _of(True, False), "subPath": _of("part")}
                found.append({"name": name, "mountPath": paths.pop(), **_some(rng, extra)})
    return found


_VOLUMES: dict[str, Make] = {
    "shm": _of({"emptyDir": {"medium": "Memory"}}, {"persistentVolumeClaim": {"claimName": "c"}}),
    "storage-0": _of({"persistentVolumeClaim": {"claimName": "d", "readOnly": True}}, {"emptyDir": {}}),
    "data": _of(
        {"persistentVolumeClaim": {"claimName": "datasets"}},
        {"emptyDir": {"medium": "Memory", "sizeLimit": "1.5Gi"}},
        {"hostPath": {"path": "/srv"}},
        {"nfs": {"server": "nfs.example", "path": "/srv"}},
    ),
    "keys": _of({"secret": {"secretName": "keys"}}, {"secret": {"secretName": "keys", "defaultMode": 256}}),
    "more": _of({"persistentVolumeClaim": {"claimName": "c"}}, {"configMap": {"name": "settings"}}),
}


def _variables(rng: random.Random) -> list[Json]:
    field = {"valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    secret = {"valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}
    pool: list[Json] = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A) and $(C)"},
        {"name": "IP", **field},
        {"name": "URL", "value": "http://$(IP)"},
        {"name": "C"},
        {"name": "TOKEN", **secret},
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "ESCAPED", "value": "$$(A)"},
    ]
    return rng.sample(pool, rng.choice([0, 0, 1, 3, 6]))


_CONTAINER: dict[str, Make] = {
    "command": _of(["python", "train.py"], ["sh", "-c", "echo a\nexec b"]),
    "args": _of(["--epochs=2"], [], ["a b", "$(A)"]),
    "workingDir": _of("/work"),
    "imagePullPolicy": _of("Always", "IfNotPresent"),
    "ports": _of([{"containerPort": 23456, "name": "own"}]),
    "resources": _of(
        {},
        {"limits": {"nvidia.com/gpu": 1}},
        {"limits": {"nvidia.com/gpu": "8", "memory": "64Gi", "cpu": 16}, "requests": {"cpu": "500m"}},
        {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"memory": "1024Mi", "ephemeral-storage": "1Gi"}},
        {"requests": {"memory": "1Gi"}, "limits": {"cpu": "2"}},
        {"limits": {"nvidia.com/mig-1g.10gb": 2}},
        {"limits": {"nvidia.com/mig-1g.10gb.me": 1, "vpc.amazonaws.com/efa": 4}},
        {"limits": {"amd.com/gpu": 1}, "requests": {"cpu": "0.0001"}},
        {"limits": {"nvidia.com/gpu": 0}},
    ),
    "securityContext": _of({"capabilities": {"add": ["IPC_LOCK"]}}, {}),
    "envFrom": _of(
        [{"secretRef": {"name": "keys"}}],
        [{"secretRef": {"name": "keys"}}, {"configMapRef": {"name": "settings"}}],
        [{"prefix": "A_", "secretRef": {"name": "keys"}}],
    ),
    "terminationMessagePolicy": _of("File", "FallbackToLogsOnError"),
}
_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
_POD: dict[str, Make] = {
    "nodeSelector": _of({"zone": "a"}, {"nvidia.com/gpu.product": "H100"}),
    "tolerations": _of([_TOLERATION], [{"operator": "Exists"}, _TOLERATION, {"key": "spot", "value": "x"}]),
    "affinity": _of(
        {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "nvidia.com/gpu.sharing-strategy", "operator": "NotIn",
                                   "values": ["time-slicing", "mps"]}]}]}}},
    ),
    "hostNetwork": _of(True),
    "dnsPolicy": _of("ClusterFirstWithHostNet"),
    "hostIPC": _of(True, False),
    "schedulerName": _of("volcano"),
    "priorityClassName": _of("high"),
    "serviceAccountName": _of("trainer"),
    "imagePullSecrets": _of([{"name": "pull"}]),
    "restartPolicy": _of("Never", "OnFailure"),
    "runtimeClassName": _of("nvidia"),
    "securityContext": _of({"runAsUser": 1000, "fsGroup": 100}),
    "terminationGracePeriodSeconds": _of(0, 30, 120),
    "topologySpreadConstraints": _of(
        [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]
    ),
    "hostAliases": _of([{"ip": "10.0.0.1", "hostnames": ["a"]}]),
}  # fmt: skip
