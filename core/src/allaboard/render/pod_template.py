"""The pod template of one group: what every engine's members are made of. Values in, values out; no engine
and no gang scheduler is known here.

What is chosen where Kubernetes leaves a choice:

- Environment: ours, which win over the group's own, and before them, so that a job may write
  $(ALLABOARD_MEMBER). What the job's operator injects is never written: it appends it, and its values win.
- Members start in `CODE_FOLDER` when the job ships code, else where the image says. The code is a ConfigMap,
  so the folder cannot be written to.
- /dev/shm is a memory-backed emptyDir, because the 64 MiB of a container are too few for data loaders. Its
  limit is half of the member's memory, as on any Linux machine; without a stated memory none is written, and
  the kubelet takes half of the node's. What is written there counts towards the member's memory limit.
- memory: request and limit are equal, so that nobody else's growth evicts a training. cpu: a request alone;
  data loaders may use what is idle.
- gpu: requests equal limits (Kubernetes insists), as nvidia.com/gpu, or nvidia.com/mig-<profile> for a slice
  (the names under the device plugin's ``mixed`` strategy). GPUs that are shared by time-slicing or MPS are
  avoided unless the job says ``shared: true``: two ranks on one GPU train at half speed, or hang. The taint
  nvidia.com/gpu, which keeps other work off GPU nodes, is tolerated.
- device_class: a claim of that many devices instead (`allaboard.render.devices`).
- devices: other extended resources, requests equal to limits. Members with one for RDMA may pin memory
  (IPC_LOCK), unless their Pod Security level forbids it.
- gpu_type: a node selector on the site's label (nvidia.com/gpu.product unless the site says another), or on
  the job's own where it writes ``label=value``.
- spot: the taints of capacity that may be taken away are tolerated, and nodes with its labels are preferred
  where the job says so (`allaboard.render.spot`).
- Members are in no service mesh, and autoscalers do not move those that may not be taken away
  (`allaboard.job.pod_defaults`).
- security: the securityContext of the level restricted where the job says it, and where the namespace
  enforces it, which would take no member without it (`allaboard.render.security`).
- ``policy.hang.ask: file``: one key of the run's record, which is there once somebody asks the members for
  their stacks. The kubelet shows it to running pods within a minute or two.
- The helper stands around the command, a ConfigMap mounted at `allaboard.job.helper.FOLDER`, unless the job
  says ``inject: off`` or the image's own entrypoint starts the members.
- The last lines that a failing member wrote become its termination message: they outlive its log.

`pod`, the job's and then the group's, is merged over all of this last, by the rules of a strategic merge
patch, as kubectl has it: fields of mappings one by one; lists of `MERGE_KEYS` item by item, by that key; null
removes a field, an item with ``$patch: delete`` what has its key. All other lists are replaced as a whole.
Where Kubernetes has no key and ours must outlive the patch (`tolerations`, `envFrom`) lists are united.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from allaboard.errors import Problem
from allaboard.job import gpus
from allaboard.job.helper import ARCHIVE, FOLDER
from allaboard.job.pod_defaults import (
    HOST_NETWORK,
    KEPT,
    MESH_ANNOTATIONS,
    MESH_LABELS,
    PULL_POLICIES,
    RESTRICTED_POD,
)
from allaboard.render import devices, helper, labels, security, spot
from allaboard.text.names import (
    ANNOTATIONS_LIMIT,
    why_not_a_label_value,
    why_not_a_qualified_name,
    why_not_an_image,
    why_not_an_object_name,
)
from allaboard.text.untrusted import show

if TYPE_CHECKING:  # `allaboard check` reads `pod` too, and lays nothing out
    from allaboard.job.training_job import TrainingJob
    from allaboard.render.cluster_facts import ClusterFacts
    from allaboard.runs.layout import Group, Layout, Needs

CODE_FOLDER = "/allaboard/code"
SETUP_FOLDER = "/allaboard/setup"
"""Folder into which members fetch their code and install packages; it outlives a container's restart."""
CODE_MODE = 0o555
"""Mode of the files that a job ships: a script or an executable among them may be the command."""
ASKED_FOLDER = "/allaboard/asked"
"""Folder in which members of jobs with ``policy.hang.ask: file`` find questions."""
SHM = "/dev/shm"
GPU = "nvidia.com/gpu"
ELASTIC = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""Of elastic gangs, unless the job says otherwise: agents of torchrun that share their store publish it in
the first round alone, and a member that is made anew waits for it in vain (torch 2.13,
dynamic_rendezvous.py).
"""
MERGE_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "resourceClaims": ("name",),
    "claims": ("name", "request"),
    "schedulingGates": ("name",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
"""List -> the fields by which an item is found; the first is required of each. They are the keys of the
server's merge (listMapKeys): the first alone, which kubectl sends, would make one of a port's TCP and UDP.
"""
UNITED: Mapping[str, tuple[str, ...]] = {
    "tolerations": ("key", "operator", "value", "effect"),
    "envFrom": ("prefix", "secretRef.name", "configMapRef.name"),
}
"""Lists that are united: item by item by all of these, none of which is required."""
_DEFAULTS: Mapping[tuple[str, str], str] = {
    ("ports", "protocol"): "TCP",
    ("tolerations", "operator"): "Equal",
}
_PATCH = "$patch"
_ONE_SOURCE = frozenset({"volumes", "env"})
"""Items that have one source of several: the patch's fields alone are kept, or there would be two."""
_VARIABLE = re.compile(r"[-._A-Za-z][-._A-Za-z0-9]*")
_QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][-+]?\d{1,3})?")


class Shape(Protocol):
    """Part of an engine that a pod template needs (`allaboard.engines.Engine` has it): the name of the
    container that trains, other names by which a job may mean it, and the label that holds a member's index.
    """

    @property
    def CONTAINER(self) -> str: ...

    @property
    def ALIASES(self) -> frozenset[str]: ...

    def index_label(self, role: str) -> str | None: ...

    def brings_image(self, layout: Layout) -> bool: ...


def pod_template(
    job: TrainingJob,
    layout: Layout,
    group: Group,
    facts: ClusterFacts,
    engine: Shape,
    *,
    metadata: Mapping[str, Any],
    code: str | None = None,
    files: Mapping[str, str] | None = None,
    gang: Mapping[str, Any] | None = None,
    helper_volume: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The template. ``code``: the name of the ConfigMap, ``files``: its key -> path of the file; ``gang``:
    what the gang scheduler marks pods with, a template to merge; ``helper_volume``: of the helper, None:
    members have none.
    """
    volumes, mounts = _volumes(job, layout, group.needs, code, files or {})
    own_fields = fields_of_group(job, group.role)
    from allaboard.engines import mpi
    from allaboard.engines.mpijob import HOSTFILE
    from allaboard.runs.launchers import filled
    from allaboard.runs.setup import prepared_in_pod, reads_bucket

    command, args = filled(layout, group)
    setup = layout.setup
    if setup and layout.framework == mpi.FRAMEWORK:
        if group.role == mpi.WORKER and not command and not args:
            command = [*mpi.SSHD]
        elif group.role == mpi.LAUNCHER:
            setup = {**setup, "hostfile": HOSTFILE}
    if helper_volume is not None and reads_bucket(setup):
        setup = {**setup, "modules": f"{FOLDER}/{ARCHIVE}"}
    if setup and command:
        command, args = prepared_in_pod(setup, SETUP_FOLDER, [*command, *args]), []
    container = {
        "name": engine.CONTAINER,
        "image": own_fields.get("image") or job.get("image") or facts.image,
        **_pull_policy(job),
        **({"command": command} if command else {}),
        **({"args": args} if args else {}),
        **({"workingDir": CODE_FOLDER} if code else {}),
        "env": [*_environment(layout, group, engine), *_code_token(job)],
        **_secret_environment(job, facts),
        **_resources(group.needs),
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if context := security.of_container(job, group.needs, facts):
        container["securityContext"] = context
    spec = {
        "containers": [container],
        "volumes": volumes,
        **devices.of_pod(devices.template_name(layout, group)),
        **_network(job),
        **_placement(job, group.needs, facts),
        "terminationGracePeriodSeconds": math.ceil(layout.grace),
    }
    if account := job.get("service_account") or facts.service_account:
        spec["serviceAccountName"] = account
    restricted = security.is_restricted(job, facts)
    if restricted:
        spec["securityContext"] = RESTRICTED_POD
    own = (job.get("pod") or {}, own_fields.get("pod") or {})
    template: dict[str, Any] = {"metadata": merged(_usual_marks(job, own), metadata), "spec": spec}
    whole = merged(template, gang or {})
    for pod in own:
        whole = merged(whole, _named(pod, engine))
    whole = _without_idle_shm(whole)
    if helper_volume is not None:
        settings = helper.variables(layout, group, is_shared=has_shared_folder(job, layout))
        whole = helper.with_helper(whole, engine.CONTAINER, helper_volume, settings)
    return _with_restricted_others(whole, engine.CONTAINER) if restricted else whole


def _usual_marks(job: TrainingJob, pods: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Labels and annotations that members have unless `pod` says otherwise: they are in no service mesh, and
    those that do not run where they may be taken away are left alone by autoscalers. ``pods``: the job's.
    """
    tolerated = [item for pod in pods for item in _mappings((pod.get("spec") or {}).get("tolerations"))]
    kept = {} if spot.may_be_taken(job.get("spot") or {}) or spot.tolerates(tolerated) else KEPT
    return {"labels": dict(MESH_LABELS), "annotations": {**MESH_ANNOTATIONS, **kept}}


def _with_restricted_others(template: dict[str, Any], trains: str) -> dict[str, Any]:
    """With what the level restricted asks of the containers that `pod` adds."""
    spec = template["spec"]
    inits = {"initContainers": security.with_others(i, trains)} if (i := spec.get("initContainers")) else {}
    containers = security.with_others(spec["containers"], trains)
    return {**template, "spec": {**spec, "containers": containers, **inits}}


def _pull_policy(job: TrainingJob) -> dict[str, str]:
    word = job.get("image_pull_policy")
    return {} if word is None else {"imagePullPolicy": PULL_POLICIES[word]}


def _network(job: TrainingJob) -> dict[str, Any]:
    """Of the node, with names of the cluster all the same."""
    return dict(HOST_NETWORK) if job.get("host_network") else {}


def _named(pod: Mapping[str, Any], engine: Shape) -> Mapping[str, Any]:
    """A job's `pod` with the engine's own name of the container that trains."""
    spec = pod.get("spec") or {}
    if not any(container.get("name") in engine.ALIASES for container in spec.get("containers") or ()):
        return pod
    containers = [
        {**c, "name": engine.CONTAINER} if c.get("name") in engine.ALIASES else c for c in spec["containers"]
    ]
    return {**pod, "spec": {**spec, "containers": containers}}


def _without_idle_shm(template: dict[str, Any]) -> dict[str, Any]:
    """Without our memory for /dev/shm where `pod` mounts something else there."""
    spec = template["spec"]
    containers = [*spec["containers"], *(spec.get("initContainers") or ())]
    mounts = [mount for container in containers for mount in _mappings(container.get("volumeMounts"))]
    if any(mount.get("name") == "shm" for mount in mounts):
        return template
    volumes = [volume for volume in spec.get("volumes") or () if volume.get("name") != "shm"]
    return {**template, "spec": {**spec, "volumes": volumes}}


def fields_of_group(job: TrainingJob, role: str) -> Mapping[str, Any]:
    """Fields of a job for one group alone."""
    group = (job.get("groups") or {}).get(role)
    return group if isinstance(group, Mapping) else {}


def _environment(layout: Layout, group: Group, engine: Shape) -> list[dict[str, Any]]:
    from allaboard.runs.layout import Member, allaboard_environment

    own = allaboard_environment(layout, Member(group.role, 0, 0))
    # One template serves all members of a group: the index comes from the pod's own label, and must stand
    # before the variable that holds it.
    label = engine.index_label(group.role)
    index: dict[str, Any] = {"name": "ALLABOARD_INDEX"}
    if label is None:
        index["value"] = "0"
    else:
        index["valueFrom"] = {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}
    own["ALLABOARD_MEMBER"] = ""
    if layout.policy.hang_ask == "file":
        own["ALLABOARD_ASKED"] = f"{ASKED_FOLDER}/{labels.ASKED}"
    chosen = {**(ELASTIC if layout.elastic is not None else {}), **group.environment}
    stated = [{"name": n, "value": v} for n, v in chosen.items() if n not in own]
    # The kubelet would expand $(NAME); in our own values that is text.
    written = [{"name": n, "value": v.replace("$(", "$$(")} for n, v in own.items()]
    for variable in written:
        if variable["name"] == "ALLABOARD_MEMBER":
            variable["value"] = f"{group.role}-$(ALLABOARD_INDEX)"
    return [index, *written, *stated]


def has_shared_folder(job: TrainingJob, layout: Layout) -> bool:
    """True if all members see the folder from which checkpoints are copied."""
    from allaboard.job.training_job import is_shared

    saving = layout.saving
    return saving is not None and saving.folder is not None and is_shared(job, saving.folder)


def _secret_environment(job: TrainingJob, facts: ClusterFacts) -> dict[str, Any]:
    """The place's secrets first: of a key that is in several, the last one's value stands."""
    own = [s["name"] for s in job.get("secrets", ()) if s.get("env")]
    names = [*(name for name in dict.fromkeys(facts.secrets) if name not in own), *own]
    return {"envFrom": [{"secretRef": {"name": name}} for name in names]} if names else {}


def _code_token(job: TrainingJob) -> list[dict[str, Any]]:
    """The variable with the password of the job's repository, by reference."""
    from allaboard.runs.setup import TOKEN, TOKEN_KEY, secret_of

    if (name := secret_of(job.as_mapping())) is None:
        return []
    return [{"name": TOKEN, "valueFrom": {"secretKeyRef": {"name": name, "key": TOKEN_KEY}}}]


def _resources(needs: Needs) -> dict[str, Any]:
    from allaboard.text import units

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if needs.cpu is not None:
        requests["cpu"] = units.millicores(needs.cpu)
    if needs.memory is not None:
        requests["memory"] = limits["memory"] = units.quantity(needs.memory)
    if needs.gpus and needs.device_class is None:
        resource = gpus.resource_of(needs.mig) if needs.mig else GPU
        requests[resource] = limits[resource] = str(needs.gpus)
    for name, number in needs.devices.items():
        requests[name] = limits[name] = str(number)
    stated: dict[str, Any] = {
        n: values for n, values in (("requests", requests), ("limits", limits)) if values
    }
    if needs.gpus and needs.device_class is not None:
        stated["claims"] = [{"name": devices.CLAIM}]
    return {"resources": stated} if stated else {}


def _volumes(
    job: TrainingJob, layout: Layout, needs: Needs, code: str | None, files: Mapping[str, str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts, in one order: what the job mounts, its secrets, its code, where it is asked,
    /dev/shm.
    """
    volumes: list[dict[str, Any]] = []
    mounts: list[dict[str, Any]] = []

    def mount(volume: str, path: str, read_only: bool = False) -> None:
        mounts.append({"name": volume, "mountPath": path, **({"readOnly": True} if read_only else {})})

    claims = _claims(job)
    for n, storage in enumerate(job.get("storage", ())):
        claim = storage.get("pvc")
        if claim is None:
            volumes.append({"name": f"storage-{n}", **_source(storage, layout)})
            mount(f"storage-{n}", storage["mount"], storage.get("read_only", False))
            continue
        # A claim that is mounted twice is one volume: kubelets mount it once.
        first, writable = claims[claim]
        if first == n:
            source = {"claimName": claim, **({} if writable else {"readOnly": True})}
            volumes.append({"name": f"storage-{n}", "persistentVolumeClaim": source})
        mount(f"storage-{first}", storage["mount"], storage.get("read_only", False))
    for n, secret in enumerate(job.get("secrets", ())):
        if "mount" in secret:
            volumes.append({"name": f"secret-{n}", "secret": {"secretName": secret["name"]}})
            mount(f"secret-{n}", secret["mount"], True)
    if code is not None:
        items = [{"key": key, "path": path} for key, path in files.items()]
        volumes.append(
            {"name": "code", "configMap": {"name": code, "items": items, "defaultMode": CODE_MODE}}
        )
        mount("code", CODE_FOLDER, True)
    if layout.setup:
        volumes.append({"name": "setup", "emptyDir": {}})
        mount("setup", SETUP_FOLDER)
    if layout.policy.hang_ask == "file":
        items = [{"key": labels.ASKED, "path": labels.ASKED}]
        source = {"name": labels.record_name(layout.run), "items": items, "optional": True}
        volumes.append({"name": "asked", "configMap": source})
        mount("asked", ASKED_FOLDER, True)
    if SHM not in [m["mountPath"].rstrip("/") for m in mounts]:
        volumes.append({"name": "shm", "emptyDir": _shm(needs)})
        mount("shm", SHM)
    return volumes, mounts


def _claims(job: TrainingJob) -> dict[str, tuple[int, bool]]:
    """Claim -> (its first place in `storage`, whether any mount of it may be written to)."""
    claims: dict[str, tuple[int, bool]] = {}
    for n, storage in enumerate(job.get("storage", ())):
        if "pvc" in storage:
            first, writable = claims.get(storage["pvc"], (n, False))
            claims[storage["pvc"]] = (first, writable or not storage.get("read_only", False))
    return claims


def _source(storage: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """Source of a volume that no other mount shows."""
    from allaboard.render import claims

    if "claim" in storage:
        name = claims.name_of(storage["claim"], storage["mount"], layout)
        return {"persistentVolumeClaim": {"claimName": name}}
    if "ephemeral" in storage:
        return claims.ephemeral(storage["ephemeral"])
    if "host_path" in storage:
        return {"hostPath": {"path": storage["host_path"]}}
    return dict(storage["volume"]) if "volume" in storage else {"emptyDir": _empty_dir(storage)}


def _empty_dir(storage: Mapping[str, Any]) -> dict[str, Any]:
    from allaboard.text import units

    limit = {"sizeLimit": units.quantity(units.size(storage["size"]))} if "size" in storage else {}
    return {**({"medium": "Memory"} if storage["empty_dir"] == "memory" else {}), **limit}


def _shm(needs: Needs) -> dict[str, Any]:
    from allaboard.text import units

    limit = {} if needs.memory is None else {"sizeLimit": units.quantity(needs.memory // 2)}
    return {"medium": "Memory", **limit}


def _placement(job: TrainingJob, needs: Needs, facts: ClusterFacts) -> dict[str, Any]:
    """Nodes on which members may run, and their priority."""
    placement: dict[str, Any] = {}
    affinity: dict[str, Any] = {}
    if needs.gpu_type is not None:
        label, _, value = needs.gpu_type.rpartition("=")
        placement["nodeSelector"] = {label or facts.gpu_label: value}
    if needs.gpus and needs.device_class is None and not needs.shared:
        shared = ["time-slicing", "mps"]
        rule = {"key": "nvidia.com/gpu.sharing-strategy", "operator": "NotIn", "values": shared}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = terms
    policy = job.get("spot") or {}
    if preferred := spot.preferences(policy):
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    if affinity:
        placement["affinity"] = {"nodeAffinity": affinity}
    has_gpus = needs.gpus or any(name.startswith(f"{GPU}.") for name in needs.devices)
    tolerations = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}] if has_gpus else []
    tolerations += spot.tolerations(policy)
    if tolerations:
        placement["tolerations"] = tolerations
    if priority := (job.get("gang") or {}).get("priority"):
        placement["priorityClassName"] = priority
    return placement


# The escape hatch.


def merged(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """``patch`` over ``base``: a new value; neither is changed."""
    if patch.get(_PATCH) == "replace":
        return {name: _plain(value) for name, value in patch.items() if value is not None and name != _PATCH}
    result = {name: value for name, value in base.items()}
    for name, value in patch.items():
        old = result.get(name)
        if value is None or (isinstance(value, Mapping) and value.get(_PATCH) == "delete"):
            result.pop(name, None)
        elif name == _PATCH:
            continue
        elif isinstance(value, Mapping):
            result[name] = merged(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, list) and (name in MERGE_KEYS or name in UNITED):
            result[name] = _merged_items(name, old if isinstance(old, list) else [], value)
        else:
            result[name] = _plain(value)
    return result


def _merged_items(name: str, old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    items = [] if {_PATCH: "replace"} in new else list(old)
    places = {_identity(name, item): n for n, item in enumerate(items)}
    for item in new:
        if not isinstance(item, Mapping):
            items.append(item)
            continue
        word, who = item.get(_PATCH), _identity(name, item)
        place = places.get(who)
        if word == "delete":
            if place is not None:
                items[place] = None
                del places[who]
        elif item == {_PATCH: "replace"}:
            continue
        elif place is None:
            places[who] = len(items)
            items.append(_plain(item))
        else:
            items[place] = _merged_item(name, items[place], item)
    return [item for item in items if item is not None]


def _merged_item(name: str, old: Mapping[str, Any], item: Mapping[str, Any]) -> dict[str, Any]:
    both = merged(old, item)
    says_a_source = {*item} - {*MERGE_KEYS.get(name, ()), _PATCH}
    return {k: v for k, v in both.items() if k in item} if name in _ONE_SOURCE and says_a_source else both


def _identity(name: str, item: Any) -> tuple[Any, ...]:
    """By what an item of this list is found: what is left out has its default."""
    keys = MERGE_KEYS.get(name) or UNITED[name]
    return tuple(_item_path(item, key) or _DEFAULTS.get((name, key)) for key in keys)


def _item_path(item: Any, path: str) -> Any:
    for key in path.split("."):
        item = item.get(key) if isinstance(item, Mapping) else None
    return item if not isinstance(item, (Mapping, list)) else repr(item)


def _plain(value: Any) -> Any:
    """A value that is new in the merge, without nulls and merge directives."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items() if v is not None and k != _PATCH}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def pod_problems(pod: Any, container: str, aliases: Collection[str] = ()) -> Iterator[Problem]:
    """Problems of a job's `pod`: fields that cannot be merged, or contradict allaboard's own; ``container``:
    the engine's; ``aliases``: other names of it.
    """
    if not isinstance(pod, Mapping):
        return
    for name in pod:
        if name not in ("metadata", "spec"):
            shown = show(name, quote=False)
            yield Problem(f"pod.{shown}", "a pod template has metadata and spec", f"spec.{shown}")
    metadata, spec = pod.get("metadata", {}), pod.get("spec", {})
    for name, part in (("metadata", metadata), ("spec", spec)):
        if not isinstance(part, Mapping):
            yield Problem(f"pod.{name}", f"expected fields, not {type(part).__name__}")
            return
    yield from _metadata_problems(metadata)
    if "restartPolicy" in spec:
        values = "never, on_failure, always or exit_code"
        yield Problem(
            "pod.spec.restartPolicy", f"the engine sets it; say policy: {{restart: ...}} ({values})"
        )
    yield from _item_problems(spec, "pod.spec")
    yield from _word_problems(spec)
    containers = spec.get("containers")
    if "containers" in spec and containers is None:
        yield Problem("pod.spec.containers", f"the container that trains, {container!r}, cannot be removed")
    for n, item in enumerate(containers if isinstance(containers, list) else ()):
        if not isinstance(item, Mapping):
            continue
        at = f"pod.spec.containers[{n}]"
        if item.get("name") in (container, *aliases) and item.get(_PATCH) in ("delete", "replace"):
            yield Problem(f"{at}.{_PATCH}", f"the container that trains, {container!r}, can only be changed")
        yield from _item_problems(item, at)
        if item.get("name") not in (None, container, *aliases):
            yield Problem(
                at,
                f"{_short(item['name'])} runs beside the container that trains, {container!r}, and a member "
                "ends only when both have ended; under initContainers with restartPolicy: Always it ends "
                "with it",
                severity="warning",
            )


def _metadata_problems(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    for name in metadata:
        if name not in ("labels", "annotations"):
            at = f"pod.metadata.{show(name, quote=False)}"
            yield Problem(at, "the engine sets it; give labels and annotations alone")
    for name in ("labels", "annotations"):
        values = metadata.get(name) or {}
        if not isinstance(values, Mapping):
            yield Problem(f"pod.metadata.{name}", f"expected names and values, not {type(values).__name__}")
            continue
        for key, value in values.items():
            at = f"pod.metadata.{name}.{show(key, quote=False)}"
            if str(key).startswith("allaboard.io/"):
                yield Problem(at, "allaboard finds its pods by this; take it out")
            elif reason := why_not_a_qualified_name(key):
                yield Problem(at, reason)
            elif value is None:
                continue  # takes it away
            elif not isinstance(value, str):
                yield Problem(at, f"expected text, not {_short(value)}; quote it")
            elif name == "labels" and (reason := why_not_a_label_value(value)):
                yield Problem(at, reason)
        if (
            name == "annotations"
            and sum(len(f"{k}{v}".encode()) for k, v in values.items()) > ANNOTATIONS_LIMIT
        ):
            yield Problem(f"pod.metadata.{name}", "are more than the 256 KiB that Kubernetes keeps")


def _short(value: Any) -> str:
    return show(repr(value), quote=False)


def _word_problems(spec: Mapping[str, Any]) -> Iterator[Problem]:
    """Names, images and quantities in a pod's spec that the API server refuses: it takes the job object, and
    refuses the pods that are made of it.
    """
    for name in ("priorityClassName", "serviceAccountName", "runtimeClassName"):
        yield from _by_rule(f"pod.spec.{name}", spec.get(name), why_not_an_object_name)
    selector = spec.get("nodeSelector")
    if selector is not None and not isinstance(selector, Mapping):
        yield Problem("pod.spec.nodeSelector", f"expected labels, not {_short(selector)}")
    elif selector:
        for key, value in selector.items():
            at = f"pod.spec.nodeSelector.{show(key, quote=False)}"
            yield from _by_rule(at, key, why_not_a_qualified_name)
            yield from _by_rule(at, value, why_not_a_label_value)
    for where in ("containers", "initContainers"):
        for n, item in enumerate(_mappings(spec.get(where))):
            yield from _container_problems(item, f"pod.spec.{where}[{n}]")
    for n, item in enumerate(_mappings(spec.get("volumes"))):
        at = f"pod.spec.volumes[{n}]"
        yield from _by_rule(f"{at}.name", item.get("name"), why_not_a_volume_name)
        for source, name in _NAMED_SOURCES:
            if isinstance(item.get(source), Mapping):
                yield from _by_rule(f"{at}.{source}.{name}", item[source].get(name), why_not_an_object_name)
        if isinstance(item.get("emptyDir"), Mapping):
            yield from _quantity_problem(f"{at}.emptyDir.sizeLimit", item["emptyDir"].get("sizeLimit"))


_NAMED_SOURCES = (("secret", "secretName"), ("persistentVolumeClaim", "claimName"), ("configMap", "name"))


def _container_problems(container: Mapping[str, Any], at: str) -> Iterator[Problem]:
    yield from _by_rule(f"{at}.name", container.get("name"), why_not_a_volume_name)
    yield from _by_rule(f"{at}.image", container.get("image"), why_not_an_image)
    for n, variable in enumerate(_mappings(container.get("env"))):
        name, value = variable.get("name"), variable.get("value")
        if isinstance(name, str) and not _VARIABLE.fullmatch(name):
            yield Problem(f"{at}.env[{n}].name", f"{show(name)} is not a legal variable name")
        if value is not None and not isinstance(value, str):
            yield Problem(f"{at}.env[{n}].value", f"expected text, not {_short(value)}; quote it")
    resources = container.get("resources")
    if resources is None:
        return
    if not isinstance(resources, Mapping):
        yield Problem(f"{at}.resources", f"expected requests and limits, not {_short(resources)}")
        return
    for kind in ("requests", "limits"):
        amounts = resources.get(kind)
        if amounts is not None and not isinstance(amounts, Mapping):
            yield Problem(f"{at}.resources.{kind}", f"expected resources, not {_short(amounts)}")
        for name, amount in (amounts if isinstance(amounts, Mapping) else {}).items():
            where = f"{at}.resources.{kind}.{show(name, quote=False)}"
            yield from _by_rule(where, name, why_not_a_qualified_name)
            yield from _quantity_problem(where, amount)


def _mappings(items: Any) -> list[Mapping[str, Any]]:
    """The items of a list; items that are no mappings become {} (reported elsewhere)."""
    return [item if isinstance(item, Mapping) else {} for item in items] if isinstance(items, list) else []


def _by_rule(at: str, value: Any, rule: Callable[[str], str | None]) -> Iterator[Problem]:
    if value is None:
        return
    reason = rule(value) if isinstance(value, str) else f"expected text, not {_short(value)}; quote it"
    if reason:
        yield Problem(at, reason)


def why_not_a_volume_name(name: str) -> str | None:
    """None for the name of a volume or a container (a DNS label), else the reason."""
    reason = why_not_an_object_name(name, 63)
    return reason or (f"{show(name)} holds a dot, which this name may not" if "." in name else None)


def _quantity_problem(at: str, value: Any) -> Iterator[Problem]:
    """Of `resource.Quantity`: 2, 0.5, 500m, 32Gi, 1e3."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0):
        return
    if not isinstance(value, str) or len(value) > 40 or not _QUANTITY.fullmatch(value):
        yield Problem(at, f"{_short(value)} is not a quantity of Kubernetes; write 2, 500m, 32Gi or 1e3")


def _item_problems(fields: Mapping[str, Any], at: str) -> Iterator[Problem]:
    """Lists that are merged item by item need items with their key."""
    for name in fields:
        if name.startswith("$") and name != _PATCH:
            yield Problem(f"{at}.{name}", f"is not understood; of a merge's directives {_PATCH} is")
    for name in (*MERGE_KEYS, *UNITED):
        items = fields.get(name)
        if items is None:
            continue
        if not isinstance(items, list):
            yield Problem(f"{at}.{name}", f"expected a list, not {type(items).__name__}")
            continue
        key = MERGE_KEYS[name][0] if name in MERGE_KEYS else None
        for n, item in enumerate(items):
            where = f"{at}.{name}[{n}]"
            if not isinstance(item, Mapping):
                yield Problem(
                    where, f"expected fields, not {type(item).__name__}" if key is None else _unknown_key(key)
                )
            elif item.get(_PATCH, "merge") not in ("merge", "replace", "delete"):
                yield Problem(
                    f"{where}.{_PATCH}", f"{item[_PATCH]!r} is not understood; say delete or replace"
                )
            elif key is not None and item.get(key) is None and item != {_PATCH: "replace"}:
                yield Problem(where, _unknown_key(key))
            elif key is not None and not isinstance(item.get(key, ""), (str, int)):
                yield Problem(f"{where}.{key}", f"expected text, not {_short(item[key])}")


def _unknown_key(key: str) -> str:
    return f"has no {key}; by it the item is found and merged"


def problems(job: TrainingJob, layout: Layout, facts: ClusterFacts, engine: Shape) -> Iterator[Problem]:
    """Problems for which a cluster cannot make pods. The API server takes job objects whose pods it would
    refuse, so that a wrong name would show as a job without members.
    """
    named = job.get("image") or facts.image or _pod_says_the_image(job.get("pod"), engine)
    if not named and not engine.brings_image(layout):
        groups = (fields_of_group(job, group.role) for group in layout.groups)
        if not all(own.get("image") or _pod_says_the_image(own.get("pod"), engine) for own in groups):
            message = "is missing; on a cluster members start from an image, like registry.lab/ml/train:v3"
            yield Problem("image", message)
    yield from _need_problems(job, layout)
    yield from devices.problems(layout, facts)
    if any(security.uses_rdma(group.needs) for group in layout.groups) and not security.may_pin(job, facts):
        message = (
            "RDMA pins memory, and the Pod Security level forbids IPC_LOCK; it works where the nodes' "
            "container runtime does not limit locked memory (ulimit -l unlimited)"
        )
        yield Problem("resources.devices", message, severity="warning")


def _pod_says_the_image(pod: Mapping[str, Any] | None, engine: Shape) -> bool:
    containers = ((pod or {}).get("spec") or {}).get("containers") or ()
    names = {engine.CONTAINER, *engine.ALIASES}
    return any(c.get("name") in names and c.get("image") for c in containers)


def _need_problems(job: TrainingJob, layout: Layout) -> Iterator[Problem]:
    """About the needs of each group, once where the job says them for all."""
    reported: set[str] = set()
    for group in layout.groups:
        own = (job.get("groups") or {}).get(group.role)
        where = (
            f"groups.{group.role}.resources"
            if isinstance(own, Mapping) and "resources" in own
            else "resources"
        )
        at, kind = f"{where}.gpu_type", group.needs.gpu_type
        if kind is not None and not group.needs.gpus and at not in reported:
            reported.add(at)
            yield Problem(at, f"{kind} without a GPU; say gpu: 1", severity="warning")


def sample_pod(manifest: Mapping[str, Any], template: Mapping[str, Any], role: str) -> dict[str, Any]:
    """A pod as the operator would make it of a template, for a dry run: operators take templates that the
    API server would refuse as pods.
    """
    metadata = manifest["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template.get("metadata", {}),
            "name": f"{metadata['name']}-{role}-0",
            "namespace": metadata["namespace"],
        },
        "spec": {**template["spec"], "restartPolicy": "Never"},
    }
