"""A pod template, taken apart into the fields of a job: image, command, environment, resources, storage,
secrets. What no field says stays in ``pod``, which is merged over the template that is made of the fields
(`allaboard.render.pod_template`), so that both together say what the template said.

What is made of a field differs from the template in nothing that counts: a field is used where it says
exactly the same, and only there.

- ``environment`` holds variables with a value of their own. Those that come from elsewhere, and those that
  refer to them, stay in ``pod`` in their order: $(NAME) is expanded only after NAME.
- ``cpu`` is a request; ``memory`` a request that is its limit. Limits of cpu, and all else, stay in ``pod``.
- Labels and annotations that keep members out of a mesh, and autoscalers away from them, are made anew; what
  says the contrary stays.
- GPUs get ``shared: true``: the template did not keep off GPUs that are shared.
- ``storage`` and ``secrets`` hold what the container that trains mounts whole, alone and by one path.
- Names of volumes have no meaning; one that allaboard gives away itself gets another one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allaboard.engines.reading.values import Reading, join, marks, plain, says
from allaboard.job import gpus
from allaboard.job.fields import VOLUME_SOURCES
from allaboard.job.pod_defaults import (
    HOST_NETWORK,
    KEPT,
    MESH_ANNOTATIONS,
    MESH_LABELS,
    PINS,
    PULL_POLICIES,
    RESTRICTED_CONTAINER,
    RESTRICTED_POD,
    is_for_rdma,
)
from allaboard.text import units
from allaboard.text.redaction import names_a_secret

_VARIABLE = re.compile(r"[A-Za-z_.\-][A-Za-z0-9_.\-]*")
_REFERENCE = re.compile(r"\$\(([-._A-Za-z0-9]+)\)")
_GPU = "nvidia.com/gpu"
GPU_LABELS = (gpus.PRODUCT, "cloud.google.com/gke-accelerator")
"""Node labels that tell the GPU: NVIDIA's feature discovery, GKE."""
_TAKEN = re.compile(r"shm|code|(storage|secret)-\d+")
"""Names of volumes that are made of a job's fields."""
_GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
"""The toleration that members with GPUs have anyway."""
_ALONE = {
    "key": "nvidia.com/gpu.sharing-strategy", "operator": "NotIn", "values": ["time-slicing", "mps"],
}  # fmt: skip
"""The rule by which members keep off GPUs that are shared."""
GRACE = 30
"""Seconds between SIGTERM and SIGKILL that Kubernetes and a job have by default."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Fields that a job has once for all groups; a group that differs says them in its ``pod``."""

    storage: bool = True
    secrets: bool = True
    grace: bool = True
    account: bool = True
    pull_policy: bool = True
    host_network: bool = True
    security: bool = True


@dataclass(slots=True)
class PodFields:
    """Fields of one template. ``restart``: the pod's restartPolicy, as it is written; ``pod``: the rest, to
    be merged over the template of the job; ``at``: the path of the template, ``container_at``: that of the
    container that trains.
    """

    at: str = ""
    container_at: str = ""
    image: str | None = None
    command: list[str] | None = None
    args: list[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    storage: list[dict[str, Any]] = field(default_factory=list)
    secrets: list[dict[str, Any]] = field(default_factory=list)
    grace: int | None = None
    account: str | None = None
    pull_policy: str | None = None
    host_network: bool = False
    security: str | None = None
    restart: str | None = None
    pod: dict[str, Any] = field(default_factory=dict)


def read_pods(
    reading: Reading, templates: Mapping[str, tuple[Any, str]], container: str, *, ours: bool = False
) -> dict[str, PodFields]:
    """The fields of several pod templates, role -> (template, its path). ``container``: the name of the one
    that trains; ``ours``: allaboard made them.
    """
    dry = Reading()
    first = [
        read_pod(dry, template, at, container, Wanted(), ours=ours) for template, at in templates.values()
    ]
    wanted = Wanted(
        storage=_all_equal([fields.storage for fields in first]),
        secrets=_all_equal([fields.secrets for fields in first]),
        grace=_all_equal([fields.grace for fields in first]),
        account=_all_equal([fields.account for fields in first]),
        pull_policy=_all_equal([fields.pull_policy for fields in first]),
        host_network=_all_equal([fields.host_network for fields in first]),
        security=_all_equal([fields.security for fields in first]),
    )
    return {
        role: read_pod(reading, template, at, container, wanted, ours=ours)
        for role, (template, at) in templates.items()
    }


def _all_equal(values: Sequence[Any]) -> bool:
    return all(value == values[0] for value in values)


def read_pod(
    reading: Reading, template: Any, at: str, container: str, wanted: Wanted, *, ours: bool = False
) -> PodFields:
    """The fields of one pod template."""
    fields = PodFields(at=at)
    whole = reading.mapping(template, at)
    metadata = _metadata(reading, whole.pop("metadata", None), join(at, "metadata"))
    spec = _known(reading, whole.pop("spec", None), join(at, "spec"))
    reading.lose_rest(whole, at, "a pod template has metadata and spec")
    containers = [
        reading.mapping(item, f"{at}.spec.containers[{n}]")
        for n, item in enumerate(reading.items(spec.pop("containers", None), f"{at}.spec.containers"))
    ]
    n = _which_trains(reading, containers, f"{at}.spec.containers", container)
    if n is None:
        return fields
    fields.container_at = f"{at}.spec.containers[{n}]"
    trains = containers.pop(n)
    trains.pop("name", None)
    _program(reading, trains, fields)
    _variables(reading, trains, fields, ours)
    _say_once(reading, trains, spec, fields)
    rest_of_spec = {"containers": containers, "initContainers": spec.get("initContainers")}
    _mounts(trains, spec, fields, wanted, rest_of_spec)
    if wanted.secrets:
        _secret_variables(trains, fields)
    _rights(trains, spec, fields, wanted, containers)
    _resources(trains, spec, fields)
    _usual_marks(metadata, spec)
    if trains.get("terminationMessagePolicy") == "FallbackToLogsOnError":
        del trains["terminationMessagePolicy"]  # as it will be made
    fields.restart = reading.text(spec.pop("restartPolicy", None), f"{at}.spec.restartPolicy")
    grace = spec.get("terminationGracePeriodSeconds")
    if type(grace) is not bool and isinstance(grace, int) and 0 <= grace < 10**6 and wanted.grace:
        fields.grace = None if grace == GRACE else grace
        del spec["terminationGracePeriodSeconds"]
    account = spec.get("serviceAccountName")
    # Beside its older name, which would stay as it is, nothing is moved.
    if isinstance(account, str) and account and wanted.account and "serviceAccount" not in spec:
        fields.account = account
        del spec["serviceAccountName"]
    others = [{"name": container, **plain(trains)}] if trains else []
    others += [plain(item) for item in containers]
    spec = {**plain(spec), **({"containers": others} if others else {})}
    _rename_volumes(spec)
    fields.pod = {
        **({"metadata": metadata} if metadata else {}),
        **({"spec": spec} if spec else {}),
    }
    return fields


def _metadata(reading: Reading, value: Any, at: str) -> dict[str, Any]:
    fields = reading.mapping(value, at)
    read = {}
    for kind in ("labels", "annotations"):
        if texts := marks(reading, fields.pop(kind, None), f"{at}.{kind}"):
            read[kind] = texts
    for name in ("creationTimestamp", "name"):
        if (written := fields.pop(name, None)) is not None and name == "name":
            reading.change(f"{at}.name", plain(written), None, "the operator names pods by itself")
    reading.lose_rest(fields, at, "a pod of a job has labels and annotations alone")
    return read


def _known(reading: Reading, value: Any, at: str) -> dict[str, Any]:
    """The fields of a pod's spec, without the directives of a merge, which are no fields of an object."""
    return {
        name: _without_directives(reading, inner, join(at, name))
        for name, inner in reading.mapping(value, at).items()
        if not _is_directive(reading, name, inner, at)
    }


def _without_directives(reading: Reading, value: Any, at: str) -> Any:
    if isinstance(value, Mapping):
        return _known(reading, value, at)
    if isinstance(value, (list, tuple)):
        return [_without_directives(reading, item, f"{at}[{n}]") for n, item in enumerate(value)]
    return value


def _is_directive(reading: Reading, name: str, value: Any, at: str) -> bool:
    if not name.startswith("$"):
        return False
    reading.lose(join(at, name), value, "an object has no such field")
    return True


def _which_trains(
    reading: Reading, containers: Sequence[Mapping[str, Any]], at: str, container: str
) -> int | None:
    """The place of the container that trains. One alone trains, whatever it is called."""
    for n, item in enumerate(containers):
        if item.get("name") == container:
            return n
    if len(containers) == 1:
        named = containers[0].get("name")
        reason = "the operator looks for the container of this name"
        reading.change(f"{at}[0].name", plain(named), container, reason)
        return 0
    trouble = f"has no container {container!r}, which is the one that trains" if containers else "is missing"
    reading.wrong(at, trouble)
    return None


def _program(reading: Reading, trains: dict[str, Any], fields: PodFields) -> None:
    at = fields.container_at
    fields.image = reading.text(trains.pop("image", None), f"{at}.image")
    for name in ("command", "args"):
        arguments = reading.texts(trains.pop(name, None), f"{at}.{name}")
        if arguments:
            setattr(fields, name, arguments)


def _say_once(reading: Reading, trains: dict[str, Any], spec: dict[str, Any], fields: PodFields) -> None:
    """Takes together what appears twice under one key of a merge: ``pod`` says each once."""
    ports: dict[tuple[str, str], Any] = {}
    for n, port in enumerate(_listed(trains.get("ports"))):
        if not isinstance(port, Mapping):
            return  # the job's check tells
        key = (str(port.get("containerPort")), str(port.get("protocol", "TCP")))
        if key in ports:
            reason = "the port has another name already, and a job has one for each"
            reading.lose(f"{fields.container_at}.ports[{n}]", port, reason)
        ports.setdefault(key, port)
    if ports:
        trains["ports"] = [*ports.values()]
    hosts: dict[str, dict[str, Any]] = {}
    for alias in _listed(spec.get("hostAliases")):
        names = alias.get("hostnames") if isinstance(alias, Mapping) else None
        if not isinstance(names, list):
            return
        known = hosts.setdefault(str(alias.get("ip")), {**alias, "hostnames": []})
        known["hostnames"] += [name for name in names if name not in known["hostnames"]]
    if hosts:
        spec["hostAliases"] = [*hosts.values()]


# Environment.


_TOLD = frozenset({"ALLABOARD_INDEX", "ALLABOARD_RANK"})
"""Variables that an engine gives to each member by itself, also if a manifest made by allaboard has them."""


def _variables(reading: Reading, trains: dict[str, Any], fields: PodFields, ours: bool) -> None:
    """Moves variables with a value of their own into ``environment``."""
    at = f"{fields.container_at}.env"
    read: dict[str, dict[str, Any]] = {}
    for n, item in enumerate(reading.items(trains.pop("env", None), at)):
        variable = reading.mapping(item, f"{at}[{n}]")
        name = reading.text(variable.get("name"), f"{at}[{n}].name")
        if name is None:
            reading.wrong(f"{at}[{n}]", "is a variable without a name")
            continue
        if ours and name.startswith("ALLABOARD_"):
            _own_variable(reading, name, variable, f"{at}[{n}]")
            continue
        if name in _TOLD and "valueFrom" in variable:
            continue
        if "value" in variable or "valueFrom" not in variable:
            secret = names_a_secret(name)
            variable["value"] = reading.text(variable.get("value"), f"{at}[{n}].value", secret=secret) or ""
        if name in read:
            reason = f"the variable {name} appears twice, and the last one counts"
            reading.change(f"{at}[{n}]", None, None, reason)
            del read[name]
        read[name] = variable
    moved: list[Any] = []
    elsewhere: set[str] = set()
    forward = _refers_forward(read)
    for name, variable in read.items():
        value = variable.get("value", "")
        plainly = {*variable} == {"name", "value"} and _VARIABLE.fullmatch(name) and len(name) < 256
        if plainly and not forward and not elsewhere & {*_REFERENCE.findall(value)}:
            fields.environment[name] = value
        else:
            elsewhere.add(name)
            moved.append(variable)
    if moved:
        trains["env"] = moved


def _refers_forward(variables: Mapping[str, Mapping[str, Any]]) -> bool:
    """True if a variable names a later one, which stays unexpanded: no other order is right."""
    seen: set[str] = set()
    for name, variable in variables.items():
        seen.add(name)
        if any(
            other in variables and other not in seen
            for other in _REFERENCE.findall(variable.get("value", ""))
        ):
            return True
    return False


_MADE = ("ALLABOARD_CHECKPOINT", "ALLABOARD_START_FROM", "ALLABOARD_DATA")


def _own_variable(reading: Reading, name: str, variable: Mapping[str, Any], at: str) -> None:
    """Report the loss of a variable of allaboard's own: it is made anew with the job, and the place of its
    data is not known from there.
    """
    if name.startswith(_MADE):
        reading.lose(at, variable, "was made of the job's checkpoints and data; write those again")


def _secret_variables(trains: dict[str, Any], fields: PodFields) -> None:
    """Moves ``envFrom`` into ``secrets`` if it holds plain references to Secrets alone."""
    sources = trains.get("envFrom")
    if not isinstance(sources, list) or not sources:
        return
    names = [_only(source, "secretRef", "name") for source in sources]
    if all(names) and len({*names}) == len(names):
        fields.secrets = [{"name": name, "env": True} for name in names] + fields.secrets
        del trains["envFrom"]


def _only(value: Any, *path: str) -> str | None:
    """The text at this path of a mapping that says nothing else."""
    for name in path:
        if not isinstance(value, Mapping) or {*value} != {name}:
            return None
        value = value[name]
    return value if isinstance(value, str) and value else None


# Volumes.


def _mounts(
    trains: dict[str, Any],
    spec: dict[str, Any],
    fields: PodFields,
    wanted: Wanted,
    others: Mapping[str, Any],
) -> None:
    """Moves volumes that one path of the container that trains shows whole into ``storage`` and
    ``secrets``.
    """
    mounts, volumes = trains.get("volumeMounts"), spec.get("volumes")
    if not isinstance(mounts, list) or not isinstance(volumes, list):
        return
    used_by_others = json.dumps(plain(others), default=str)
    left_mounts, left_volumes = [], list(volumes)
    named = [_name_of(volume) for volume in volumes]
    for mount in mounts:
        name = _name_of(mount)
        plainly = _is_plain_mount(mount) and named.count(name) == 1
        alone = sum(_name_of(other) == name for other in mounts) == 1 and f'"{name}"' not in used_by_others
        twice = sum(_path(other) == _path(mount) for other in mounts) > 1
        volume = volumes[named.index(name)] if plainly and alone and not twice else None
        claims = [_claim(other) for other in volumes]
        field_name, entry = _entry(volume, mount, wanted, claims)
        if entry is None:
            left_mounts.append(mount)
            continue
        getattr(fields, field_name).append(entry)
        left_volumes = [other for other in left_volumes if _name_of(other) != name]
    for key, holder, left in (("volumeMounts", trains, left_mounts), ("volumes", spec, left_volumes)):
        holder.pop(key)
        if left:
            holder[key] = left


def _name_of(item: Any) -> str | None:
    name = item.get("name") if isinstance(item, Mapping) else None
    return name if isinstance(name, str) else None


def _path(mount: Any) -> str:
    return str(mount.get("mountPath")).rstrip("/") if isinstance(mount, Mapping) else ""


def _claim(volume: Any) -> Any:
    source = volume.get("persistentVolumeClaim") if isinstance(volume, Mapping) else None
    return source.get("claimName") if isinstance(source, Mapping) else None


def _is_plain_mount(mount: Any) -> bool:
    if not isinstance(mount, Mapping) or {*mount} - {"name", "mountPath", "readOnly"}:
        return False
    path = mount.get("mountPath")
    plainly = isinstance(path, str) and path.startswith("/") and ":" not in path and path.strip("/")
    parts = path.split("/") if isinstance(path, str) else []
    return (
        bool(plainly)
        and ".." not in parts
        and "." not in parts
        and isinstance(mount.get("readOnly", False), bool)
    )


def _entry(
    volume: Any, mount: Mapping[str, Any], wanted: Wanted, claims: Sequence[Any]
) -> tuple[str, dict[str, Any] | None]:
    """The item of ``storage`` or ``secrets`` that says the same; None: there is none."""
    if not isinstance(volume, Mapping) or len(volume) != 2:
        return "storage", None
    where, read_only = mount["mountPath"], mount.get("readOnly", False)
    secret = _only(volume.get("secret"), "secretName")
    if secret and wanted.secrets and read_only:
        return "secrets", {"name": secret, "mount": where}
    if not wanted.storage:
        return "storage", None
    marked = {"read_only": True} if read_only else {}
    claim = volume.get("persistentVolumeClaim")
    if isinstance(claim, Mapping) and not {*claim} - {"claimName", "readOnly"}:
        name = claim.get("claimName")
        # A claim is attached as its mounts use it.
        if isinstance(name, str) and claims.count(name) == 1 and claim.get("readOnly", False) is read_only:
            return "storage", {"mount": where, "pvc": name, **marked}
    scratch = volume.get("emptyDir")
    if isinstance(scratch, Mapping) and not {*scratch} - {"medium", "sizeLimit"}:
        medium, limit = scratch.get("medium", ""), scratch.get("sizeLimit")
        if medium in ("", "Memory") and (limit is None or _exact_size(limit)):
            kind = "memory" if medium else "disk"
            size = {} if limit is None else {"size": plain(limit)}
            return "storage", {"mount": where, "empty_dir": kind, **size, **marked}
    source = _other_source(volume)
    return "storage", {"mount": where, **source, **marked} if source else None


def _other_source(volume: Mapping[str, Any]) -> dict[str, Any] | None:
    """The field of ``storage`` that says where a volume comes from; None: none does."""
    ((kind, source),) = ((name, value) for name, value in volume.items() if name != "name")
    if not isinstance(source, Mapping):
        return None
    if kind == "hostPath":
        path = _only(source, "path")
        return {"host_path": path} if path and _is_plain_mount({"mountPath": path}) else None
    if kind == "ephemeral":
        return _ephemeral(source)
    return {"volume": {kind: plain(source)}} if kind in VOLUME_SOURCES and kind not in _FILES else None


_FILES = frozenset({"configMap", "downwardAPI", "projected", "secret"})
"""Volumes that hold what a job says elsewhere: they stay in ``pod``."""


def _ephemeral(source: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a volume that is made with its pod, if nothing but size and class are chosen."""
    template = source.get("volumeClaimTemplate")
    spec = template.get("spec") if isinstance(template, Mapping) and {*template} == {"spec"} else None
    if {*source} != {"volumeClaimTemplate"} or not isinstance(spec, Mapping):
        return None
    if {*spec} - {"accessModes", "resources", "storageClassName"} or spec.get("accessModes") != [
        "ReadWriteOnce"
    ]:
        return None
    resources, storage_class = spec.get("resources"), spec.get("storageClassName")
    requests = (
        resources.get("requests") if isinstance(resources, Mapping) and {*resources} == {"requests"} else None
    )
    if (
        not isinstance(requests, Mapping)
        or {*requests} != {"storage"}
        or not _exact_size(requests["storage"])
    ):
        return None
    if "storageClassName" in spec and (not isinstance(storage_class, str) or not storage_class):
        return None
    named = {"storage_class": storage_class} if storage_class else {}
    return {"ephemeral": {"size": plain(requests["storage"]), **named}}


def _rename_volumes(spec: dict[str, Any]) -> None:
    """Other names for volumes whose names are given away to others."""
    names = [_name_of(volume) for volume in _listed(spec.get("volumes"))]
    taken = {name for name in names if name and _TAKEN.fullmatch(name)}
    if not taken:
        return
    new: dict[str | None, str] = {}
    for name in sorted(taken):
        free = (f"own-{name}" + (f"-{n}" if n else "") for n in range(len(names) + 1))
        new[name] = next(other for other in free if other not in names)
    for volume in spec["volumes"]:
        if _name_of(volume) in new:
            volume["name"] = new[volume["name"]]
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for container in _listed(spec.get(kind)):
            for field_name in ("volumeMounts", "volumeDevices"):
                mounts = container.get(field_name) if isinstance(container, Mapping) else None
                for mount in _listed(mounts):
                    if _name_of(mount) in new:
                        mount["name"] = new[mount["name"]]


def _listed(value: Any) -> list[Any]:
    """The items of a list; none of what is no list, which the job's check tells."""
    return value if isinstance(value, list) else []


# Resources.


def _resources(trains: dict[str, Any], spec: dict[str, Any], fields: PodFields) -> None:
    """Moves requests and limits into ``resources`` as far as those say exactly the same."""
    written = trains.get("resources")
    if not isinstance(written, Mapping):
        return
    sides = {side: written.get(side) for side in ("requests", "limits")}
    if any(value is not None and not isinstance(value, Mapping) for value in sides.values()):
        return  # the job's check says it
    limits = dict(sides["limits"] or {})
    # What has a limit and no request requests its limit.
    requests = {**limits, **(sides["requests"] or {})}
    resources: dict[str, Any] = {}
    cpu = requests.get("cpu")
    if _exact_cores(cpu):
        resources["cpu"] = plain(requests.pop("cpu"))
    memory = limits.get("memory")
    if _exact_size(memory):
        resources["memory"] = plain(limits.pop("memory"))
        if _same_size(requests.get("memory"), memory):
            requests.pop("memory")
    _gpus(requests, limits, resources)
    if devices := _devices(requests, limits, trains, fields):
        resources["devices"] = devices
    if "gpu" in resources or "mig" in resources:
        _placement(spec, resources)
    # A request that is its limit need not be said.
    for name in [*requests]:
        if name in limits and requests[name] == limits[name] and name not in resources:
            requests.pop(name)
    rest = {side: plain(left) for side, left in (("requests", requests), ("limits", limits)) if left}
    rest |= {name: value for name, value in written.items() if name not in sides}
    fields.resources = resources
    del trains["resources"]
    if rest:
        trains["resources"] = rest


def _gpus(requests: dict[str, Any], limits: dict[str, Any], resources: dict[str, Any]) -> None:
    """One kind of GPU, as many as limits say."""
    kinds = [name for name in limits if name == _GPU or gpus.profile_of(name)]
    if len(kinds) != 1 or any(name in requests and name not in limits for name in (_GPU, *kinds)):
        return
    (kind,) = kinds
    count = _count(limits[kind])
    if not count or _count(requests.get(kind)) != count:
        return
    if (profile := gpus.profile_of(kind)) is not None:
        if not gpus.cards_with(profile):
            return  # a job's check knows no such profile
        resources["mig"] = profile
    resources["gpu"] = count
    limits.pop(kind)
    requests.pop(kind)


def _devices(
    requests: dict[str, Any], limits: dict[str, Any], trains: dict[str, Any], fields: PodFields
) -> dict[str, int]:
    """Other devices. One for RDMA comes with the right to pin memory, or none is found."""
    counts = {name: _count(amount) for name, amount in limits.items() if not gpus.why_not_a_device(str(name))}
    devices = {name: n for name, n in counts.items() if n and _count(requests.get(name)) == n}
    if any(map(is_for_rdma, devices)) and fields.security is None:
        if not _may_pin(trains):
            devices = {name: n for name, n in devices.items() if not is_for_rdma(name)}
        elif plain(trains["securityContext"]) == PINS:
            del trains["securityContext"]
    for name in devices:
        limits.pop(name)
        requests.pop(name)
    return devices


def _may_pin(trains: Mapping[str, Any]) -> bool:
    """True if a container says which capabilities it adds, which are kept, or that it may pin memory."""
    context = trains.get("securityContext")
    capabilities = context.get("capabilities") if isinstance(context, Mapping) else None
    return isinstance(capabilities, Mapping) and bool(capabilities.get("add"))


def _count(amount: Any) -> int | None:
    if isinstance(amount, bool):
        return None
    if isinstance(amount, int):
        return int(amount) if 0 < amount <= 1000 else None
    return int(amount) if isinstance(amount, str) and re.fullmatch(r"[1-9][0-9]{0,2}", amount) else None


def _placement(spec: dict[str, Any], resources: dict[str, Any]) -> None:
    """Remove the placement that members with GPUs get anyway, and read the GPU that a node must have."""
    tolerations = spec.get("tolerations")
    if isinstance(tolerations, list):
        left = [item for item in tolerations if plain(item) != _GPU_TOLERATION]
        spec.pop("tolerations")
        spec |= {"tolerations": left} if left else {}
    if not _keeps_alone(spec):
        resources["shared"] = True
    selector = spec.get("nodeSelector")
    named = [label for label in GPU_LABELS if isinstance(selector, Mapping) and label in selector]
    if len(named) == 1 and isinstance(selector, Mapping) and isinstance(selector[named[0]], str):
        resources["gpu_type"] = f"{named[0]}={selector[named[0]]}"
        rest = {label: value for label, value in selector.items() if label != named[0]}
        spec.pop("nodeSelector")
        spec |= {"nodeSelector": rest} if rest else {}


def _keeps_alone(spec: dict[str, Any]) -> bool:
    """True if the template keeps off shared GPUs by the rule that allaboard writes; the rule is removed."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": [_ALONE]}]}
    rule = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    if plain(spec.get("affinity")) != rule:
        return False
    del spec["affinity"]
    return True


def _exact_cores(amount: Any) -> bool:
    """True if cpu says this amount to the last thousandth."""
    try:
        cores = units.cores(amount) if isinstance(amount, (str, int, float)) else 0
    except ValueError:
        return False
    return cores > 0 and abs(round(cores * 1000) - cores * 1000) < 1e-9


def _exact_size(amount: Any) -> bool:
    try:
        return isinstance(amount, (str, int)) and not isinstance(amount, bool) and units.size(amount) > 0
    except ValueError:
        return False


def _same_size(size: Any, other: Any) -> bool:
    return _exact_size(size) and units.size(size) == units.size(other)


# What members have anyway, and words for several fields.


def _rights(
    trains: dict[str, Any],
    spec: dict[str, Any],
    fields: PodFields,
    wanted: Wanted,
    others: Sequence[Mapping[str, Any]],
) -> None:
    """Moves when images are pulled, the network and the level restricted into their fields. ``others``: the
    containers beside the one that trains.
    """
    word_of = {policy: word for word, policy in PULL_POLICIES.items()}
    policy = trains.get("imagePullPolicy")
    if wanted.pull_policy and isinstance(policy, str) and policy in word_of:
        fields.pull_policy = word_of[trains.pop("imagePullPolicy")]
    if wanted.host_network and all(plain(spec.get(name)) == value for name, value in HOST_NETWORK.items()):
        fields.host_network = True
        for name in HOST_NETWORK:
            del spec[name]
    every = [*others, *_listed(spec.get("initContainers"))]
    if wanted.security and _holds(spec, RESTRICTED_POD) and _holds(trains, RESTRICTED_CONTAINER):
        contexts = [
            container.get("securityContext") if isinstance(container, Mapping) else None
            for container in every
        ]
        if all(isinstance(c, Mapping) and {*RESTRICTED_CONTAINER} <= {*c} for c in contexts):
            fields.security = "restricted"
            _without(spec, RESTRICTED_POD)
            _without(trains, RESTRICTED_CONTAINER)


def _holds(holder: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """True if a securityContext holds all of these settings."""
    context = holder.get("securityContext")
    return isinstance(context, Mapping) and all(
        plain(context.get(n)) == value for n, value in settings.items()
    )


def _without(holder: dict[str, Any], settings: Mapping[str, Any]) -> None:
    left = {name: value for name, value in holder["securityContext"].items() if name not in settings}
    del holder["securityContext"]
    if left:
        holder["securityContext"] = left


def _usual_marks(metadata: dict[str, Any], spec: Mapping[str, Any]) -> None:
    """Takes away what members are marked with anyway. What autoscalers are told depends on the tolerations:
    it is left where a template has some.
    """
    others = [item for item in _listed(spec.get("tolerations")) if plain(item) != _GPU_TOLERATION]
    kept = {} if others else KEPT
    for kind, usual in (("labels", MESH_LABELS), ("annotations", {**MESH_ANNOTATIONS, **kept})):
        left = {name: value for name, value in metadata.get(kind, {}).items() if usual.get(name) != value}
        metadata.pop(kind, None)
        metadata |= {kind: left} if left else {}


# Several groups.


def job_fields(groups: Mapping[str, PodFields]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The fields of the job, which all groups share, and those of each group."""
    every = [*groups.values()]
    job: dict[str, Any] = {}
    own: dict[str, dict[str, Any]] = {role: {} for role in groups}
    if _all_equal([fields.image for fields in every]):
        job["image"] = every[0].image
    else:
        for role, fields in groups.items():
            own[role]["image"] = fields.image
    if _all_equal([(fields.command, fields.args) for fields in every]):
        job |= _program_of(every[0])
    else:
        for role, fields in groups.items():
            own[role] |= _program_of(fields)
    shared = _shared_environment([fields.environment for fields in every])
    job["environment"] = shared
    same_resources = _all_equal([fields.resources for fields in every])
    job["resources"] = every[0].resources if same_resources else {}
    job |= {"storage": every[0].storage, "secrets": every[0].secrets}
    if every[0].account is not None:
        job["service_account"] = every[0].account
    if every[0].grace is not None:
        job["spot"] = {"grace": f"{every[0].grace}s"}
    job["image_pull_policy"] = every[0].pull_policy
    job["host_network"] = every[0].host_network or None
    job["security"] = every[0].security
    job["pod"] = _shared([fields.pod for fields in every])
    for role, fields in groups.items():
        own[role]["environment"] = {n: v for n, v in fields.environment.items() if n not in shared}
        own[role]["resources"] = {} if same_resources else fields.resources
        own[role]["pod"] = _difference(fields.pod, job["pod"])
    present = {role: {n: v for n, v in stated.items() if says(n, v)} for role, stated in own.items()}
    return {n: v for n, v in job.items() if says(n, v)}, present


def _program_of(fields: PodFields) -> dict[str, Any]:
    if fields.command is None:
        return {"args": fields.args or []}
    return {"command": fields.command, **({"args": fields.args} if fields.args else {})}


def _shared_environment(every: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The variables that all groups have; all or none where one refers to another, because of the order."""
    if _all_equal(every):
        return dict(every[0])
    if any("$(" in value for environment in every for value in environment.values()):
        return {}
    return {n: v for n, v in every[0].items() if all(environment.get(n) == v for environment in every[1:])}


def _shared(pods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Part that all pods have in common; lists whole or not at all."""
    first, rest = pods[0], pods[1:]
    shared: dict[str, Any] = {}
    for name, value in first.items():
        others = [other.get(name) for other in rest]
        if all(other == value for other in others):
            shared[name] = value
            continue
        within = [item for item in (value, *others) if isinstance(item, Mapping)]
        if len(within) == len(pods) and (inner := _shared(within)):
            shared[name] = inner
    return shared


def _difference(pod: Mapping[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Part of a pod that not all have."""
    left: dict[str, Any] = {}
    for name, value in pod.items():
        if name not in shared:
            left[name] = value
        elif value != shared[name] and isinstance(value, Mapping):
            left[name] = _difference(value, shared[name])
    return left


def note_paths(
    reading: Reading, groups: Mapping[str, PodFields], own: Mapping[str, Mapping[str, Any]]
) -> None:
    """Record the paths of the fields, for problems of the job that is made of them."""
    first = next(iter(groups.values()))
    for role, fields in {"": first, **groups}.items():
        prefix = f"groups.{role}." if role else ""
        for name in ("image", "command", "args", "resources"):
            if not role or name in own.get(role, {}):
                reading.paths[f"{prefix}{name}"] = f"{fields.container_at}.{name}"
        reading.paths[f"{prefix}environment"] = f"{fields.container_at}.env"
        reading.paths[f"{prefix}pod"] = fields.at
    for name in ("storage", "secrets"):
        reading.paths[name] = f"{first.at}.spec.volumes"
    reading.paths["service_account"] = f"{first.at}.spec.serviceAccountName"
