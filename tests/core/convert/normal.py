"""A normal form of manifests of kubeflow.org/v1: two have the same when a cluster makes the same of them.

The operator's defaults are written out, quantities are numbers, what has no order and no meaning (names of
volumes, order of variables that do not refer to each other) is taken away. `without_additions` takes from a
rendered manifest what allaboard adds to every job: its labels and variables, /dev/shm, the end of the log as
termination message, the toleration of GPU nodes, the id of an elastic rendezvous.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

from allaboard.engines.kubeflow import RESTART, KubeflowEngine, replica_type
from allaboard.engines.reading.values import Loss, without_ours
from allaboard.job.pod_defaults import KEPT, MESH_ANNOTATIONS, MESH_LABELS

Json = dict[str, Any]
ADDED = ("TORCH_DISABLE_SHARE_RDZV_TCP_STORE",)
"""Variables that elastic gangs have."""
POLICY = (
    "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "suspend",
    "schedulingPolicy", "managedBy",
)  # fmt: skip
UNITS = {
    "": 1, "m": Decimal("0.001"), "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15,
    "E": 10**18, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip


def normal(manifest: Mapping[str, Any], engine: KubeflowEngine, names: bool = False) -> Json:
    """``names``: the name and the namespace count, too."""
    spec = _plain(manifest.get("spec") or {})
    policy = spec.pop("runPolicy", None) or {}
    for name in POLICY:
        if name in spec:
            policy.setdefault(name, spec.pop(name))
    policy.setdefault("cleanPodPolicy", "None")
    policy.setdefault("suspend", False)
    replicas = {
        replica_type(role.lower()): _replica(role, one, engine)
        for role, one in (spec.pop(engine.SPECS, None) or {}).items()
        if one.get("replicas") not in (0, "0")
    }
    if engine.DEFAULT_BACKOFF is not None:
        policy.setdefault("backoffLimit", engine.DEFAULT_BACKOFF)
    if engine.KIND == "PyTorchJob":
        spec |= _processes(spec, replicas)
    if engine.KIND == "MPIJob":
        spec = {"slotsPerWorker": 1, **spec}
    if engine.NAME == "mpijob" and (replicas.get("Launcher") or {}).get("restartPolicy") == "Never":
        policy["backoffLimit"] = 0
    if engine.KIND == "MXJob":
        spec.setdefault("jobMode", "MXTrain")
    metadata = manifest.get("metadata") or {}
    found = {
        "kind": manifest["kind"],
        "labels": _marks(metadata.get("labels")),
        "annotations": _marks(metadata.get("annotations")),
        "spec": {**spec, "runPolicy": policy, engine.SPECS: replicas},
    }
    return {**found, "name": metadata.get("name"), "in": metadata.get("namespace")} if names else found


def without_additions(rendered: Mapping[str, Any], source: Mapping[str, Any], engine: KubeflowEngine) -> Json:
    """``rendered`` without what allaboard adds and the source does not say."""
    result = copy.deepcopy(without_ours(dict(rendered)))
    theirs = {k.lower(): v for k, v in ((source.get("spec") or {}).get(engine.SPECS) or {}).items()}
    for role, one in result["spec"][engine.SPECS].items():
        without_usual_marks(one["template"], theirs[role.lower()]["template"])
        spec, source_spec = one["template"]["spec"], theirs[role.lower()]["template"]["spec"]
        said = _trains(source_spec, engine)
        trains = _trains(spec, engine)
        paths = [str(m.get("mountPath")).rstrip("/") for m in said.get("volumeMounts") or ()]
        if "/dev/shm" not in paths:
            trains["volumeMounts"] = [m for m in trains["volumeMounts"] if m["mountPath"] != "/dev/shm"]
        names = [variable["name"] for variable in said.get("env") or ()]
        trains["env"] = [v for v in trains.get("env", []) if v["name"] not in ADDED or v["name"] in names]
        used = [m["name"] for c in spec["containers"] for m in c.get("volumeMounts") or ()]
        used += [m["name"] for c in spec.get("initContainers", ()) for m in c.get("volumeMounts") or ()]
        spec["volumes"] = [v for v in spec.get("volumes", []) if v["name"] != "shm" or "shm" in used]
    elastic = (source.get("spec") or {}).get("elasticPolicy") or {}
    if "rdzvId" not in elastic:
        (result["spec"].get("elasticPolicy") or {}).pop("rdzvId", None)
    return dict(result)


USUAL = {
    "labels": MESH_LABELS,
    "annotations": {**MESH_ANNOTATIONS, **KEPT},
}


def without_usual_marks(template: Json, source: Mapping[str, Any]) -> None:
    """Takes from a rendered template what marks every member and its source does not say."""
    said = source.get("metadata") or {}
    for kind, usual in USUAL.items():
        for name in usual:
            if name not in (said.get(kind) or {}):
                (template.get("metadata", {}).get(kind) or {}).pop(name, None)


def _trains(spec: Mapping[str, Any], engine: KubeflowEngine) -> Json:
    """The container that trains."""
    containers = spec["containers"]
    found = next((c for c in containers if c.get("name") == engine.CONTAINER), containers[0])
    return cast(Json, found)


def without_losses(source: Mapping[str, Any], losses: list[Loss]) -> Json:
    """The source without what its conversion calls lost."""
    result = copy.deepcopy(dict(source))
    for loss in reversed(losses):
        _remove(result, loss.path)
    return result


def _remove(value: Any, path: str) -> None:
    """Takes away what stands at a path, whose names may hold dots."""
    if isinstance(value, list):
        match = re.match(r"\[(\d+)\]\.?(.*)", path, re.DOTALL)
        assert match, path
        if match[2]:
            _remove(value[int(match[1])], match[2])
        else:
            value[int(match[1])] = None
        return
    for name in sorted(value, key=len, reverse=True):
        if path == name:
            del value[name]
            return
        if path.startswith((f"{name}.", f"{name}[")) and value[name] is not None:
            _remove(value[name], path[len(name) :].removeprefix("."))
            return
    raise AssertionError(f"nothing stands at {path}")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items() if inner is not None}
    return [_plain(item) for item in value if item is not None] if isinstance(value, list) else value


def _marks(values: Any) -> Json:
    drop = ("allaboard.io/", "kubectl.kubernetes.io/last-applied-configuration")
    return {n: _text(v) for n, v in (values or {}).items() if not n.startswith(drop) and v is not None}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _processes(spec: Json, replicas: Json) -> Json:
    policy = spec.get("elasticPolicy")
    older = (policy or {}).pop("nProcPerNode", None)
    word = spec.get("nprocPerNode")
    said: Json = {"nprocPerNode": str(word if word is not None else older if older is not None else "auto")}
    if policy:
        workers = replicas["Worker"]["replicas"]
        least, most = policy.get("minReplicas"), policy.get("maxReplicas")
        policy |= {"minReplicas": least or most or workers, "maxReplicas": most or least or workers}
        policy.setdefault("rdzvBackend", "c10d")
        if policy.get("rdzvConf") == []:
            del policy["rdzvConf"]
        said["elasticPolicy"] = policy
    return said


def _replica(role: str, one: Json, engine: KubeflowEngine) -> Json:
    template = one.get("template") or {}
    metadata = template.get("metadata") or {}
    return {
        **{k: v for k, v in one.items() if k not in ("template",)},
        "replicas": int(one.get("replicas", engine.default_replicas(role.lower()))),
        "restartPolicy": one.get("restartPolicy") or RESTART[engine.default_restart_of(role.lower())],
        "labels": _marks(metadata.get("labels")),
        "annotations": _marks(metadata.get("annotations")),
        "spec": _pod(template.get("spec") or {}, engine),
    }


def _pod(spec: Json, engine: KubeflowEngine) -> Json:
    found = dict(spec)
    found.pop("restartPolicy", None)
    found.setdefault("terminationGracePeriodSeconds", 30)
    containers = [dict(c) for c in found.pop("containers", [])]
    if len(containers) == 1:
        containers[0]["name"] = engine.CONTAINER
    inits = [dict(c) for c in found.pop("initContainers", [])]
    new = _volume_names(found.pop("volumes", []), [*containers, *inits])
    found["volumes"] = sorted(new.values())
    found["containers"] = {c["name"]: _container(c, new) for c in containers}
    if inits:
        found["initContainers"] = [_container(c, new) for c in inits]
    asks = any("nvidia.com/" in name for c in found["containers"].values() for name in c["resources"][1])
    tolerations = [
        t for t in found.pop("tolerations", [])
        if not (asks and t == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"})
    ]  # fmt: skip
    if tolerations:
        unique = {json.dumps(t, sort_keys=True): t for t in tolerations}
        found["tolerations"] = [unique[key] for key in sorted(unique)]
    return found


def _volume_names(volumes: list[Json], containers: list[Json]) -> dict[str, str]:
    """A volume is called by what it is and where it is mounted."""
    names = {}
    for volume in volumes:
        source = {k: v for k, v in volume.items() if k != "name"}
        for inner in source.values():
            if isinstance(inner, dict):
                for drop in [k for k, v in inner.items() if v in (False, "") and k in ("readOnly", "medium")]:
                    del inner[drop]
                if "sizeLimit" in inner:
                    inner["sizeLimit"] = str(_amount(inner["sizeLimit"]))
        uses = sorted(
            f"{c.get('name')}:{m.get('mountPath')}"
            for c in containers
            for m in (c.get("volumeMounts") or [])
            if m.get("name") == volume["name"]
        )
        names[volume["name"]] = json.dumps([source, uses], sort_keys=True)
    return names


def _container(container: Json, volumes: Mapping[str, str]) -> Json:
    found = dict(container)
    for name in ("command", "args"):
        words = [_text(word) for word in found.pop(name, [])]
        if words:
            found[name] = words
    if found.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        del found["terminationMessagePolicy"]
    found["env"] = _environment(found.pop("env", []))
    found["volumeMounts"] = sorted(
        (
            {**{k: v for k, v in m.items() if not (k == "readOnly" and v is False)},
             "name": volumes.get(m.get("name"), m.get("name"))}
            for m in found.pop("volumeMounts", [])
        ),
        key=lambda m: str(m["mountPath"]),
    )  # fmt: skip
    resources = found.pop("resources", {}) or {}
    limits = {name: _amount(amount) for name, amount in (resources.get("limits") or {}).items()}
    requests = {name: _amount(amount) for name, amount in (resources.get("requests") or {}).items()}
    rest = {k: v for k, v in resources.items() if k not in ("limits", "requests")}
    found["resources"] = [{**limits, **requests}, limits, rest]
    return found


def _environment(variables: list[Json]) -> Json:
    """By name, the last of several; with which of the variables that it names stand before it."""
    last = {v["name"]: v for v in variables}
    order = [n for n, v in enumerate(variables) if last[v["name"]] is v]
    seen: list[str] = []
    found: Json = {}
    for n in order:
        variable = variables[n]
        name = variable["name"]
        if name.startswith("ALLABOARD_"):
            continue
        value = variable.get("value")
        rest = {k: v for k, v in variable.items() if k not in ("name", "value")}
        text = "" if value is None and not rest else None if value is None else _text(value)
        names = re.findall(r"\$\(([-._A-Za-z0-9]+)\)", text or "")
        found[name] = [text, rest, sorted({other for other in names if other in seen})]
        seen.append(name)
    return found


def _amount(value: Any) -> Decimal | str:
    match = re.fullmatch(r"\+?(\d+(?:\.\d*)?|\.\d+)([KMGTPE]i|[mkKMGTPE]?)", str(value))
    return (Decimal(match[1]) * UNITS[match[2]]).normalize() if match else str(value)
