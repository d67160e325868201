"""Jobs of framework mpi of which no MPIJob is made: what JobSet and TrainJob write so that mpirun on the
launcher reaches the workers by SSH.

Read from the MPI Operator 0.7.0, pkg/controller/mpi_job_controller.go (newWorker, setupSSHOnPod): an image
that runs as an MPIJob runs here.

- The launcher decides; a worker that fails for good fails the job, too. The launcher is made when its workers
  are ready; that of a gang, whose members start together, is not, and where its mpirun is too early it fails
  and is restarted, as often as ``backoff_limit`` says.
- Workers run sshd; the key pair is that of one attempt. Members are restarted one by one by their node.
- Settings have the MPIJob's names in ``engine_spec``: a job says the same whatever kind it becomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.engines.mpijob import CONFIG
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.runs.layout import Layout

Json = Mapping[str, Any]
FRAMEWORK = "mpi"
LAUNCHER, WORKER = "launcher", "worker"
FIELDS = frozenset({"mpiImplementation", "runLauncherAsWorker", "sshAuthMountPath"})
"""Of ``engine_spec``, as an MPIJob has them."""
SSHD = ("/usr/sbin/sshd", "-De")
HOME = "/root/.ssh"
KEY_PAIR = "allaboard.io/ssh-key-pair"
"""The type of a Secret that a launch fills with a key pair of its own: no text that is rendered has one."""
PRIVATE, PUBLIC = "ssh-privatekey", "ssh-publickey"
"""The keys of the Secret, as both operators call them."""
_FILES = {"id_rsa": PRIVATE, "id_rsa.pub": PUBLIC, "authorized_keys": PUBLIC}
_PRRTE = {
    "OMPI_MCA_orte_default_hostfile": "PRTE_MCA_prte_default_hostfile",
    "OMPI_MCA_orte_keep_fqdn_hostnames": "PRTE_MCA_prte_keep_fqdn_hostnames",
    "OMPI_MCA_plm_rsh_args": "PRTE_MCA_plm_ssh_args",
}
"""Variables of Open MPI 4 -> of the runtime of Open MPI 5, which reads no others."""


def objections(job: Json, usual: Iterable[Problem], kind: str) -> Iterator[Problem]:
    """Problems of fields that have no meaning here, in a job of any framework. ``usual``: the objections of
    the engine of its framework's own operator, of which some are not those of this kind.
    """
    own, framework = job.get("engine_spec") or {}, job.get("framework", "pytorch")
    if framework != FRAMEWORK:
        yield from usual
        for name in sorted(FIELDS & {*own}):
            message = (
                f"{kind} has no such field, and the framework {framework!r} no such setting; take it out"
            )
            yield Problem(f"engine_spec.{name}", message)
        return
    yield from (p for p in usual if p.path not in ("policy.ttl", "engine_spec.launcherCreationPolicy"))
    if "launcherCreationPolicy" in own:
        message = f"the launcher of a {kind} waits for its workers, unless they are a gang; take it out"
        yield Problem("engine_spec.launcherCreationPolicy", message)


def only_open_mpi(job: Json, kind: str) -> Iterator[Problem]:
    """Trainer prepares members for no other implementation."""
    name = (job.get("engine_spec") or {}).get("mpiImplementation", "OpenMPI")
    if job.get("framework") == FRAMEWORK and name != "OpenMPI":
        message = f"{kind} knows OpenMPI alone; say engine: jobset or mpijob"
        yield Problem("engine_spec.mpiImplementation", message)


def secret_name(job: str) -> str:
    """The Secret of the key pair by which members reach each other; Trainer calls it so, too."""
    return f"{job}-mpi-ssh-auth"


def is_key_pair(obj: Json) -> bool:
    """True if this object is a Secret that a launch fills."""
    return obj.get("kind") == "Secret" and obj.get("type") == KEY_PAIR


def hostfile_name(job: str) -> str:
    """The ConfigMap of the hostfile."""
    return f"{job}-mpi-hostfile"


def brought(job: str, namespace: str, hostfile: str) -> tuple[dict[str, Any], ...]:
    """The hostfile, and the Secret without its keys."""

    def metadata(name: str) -> dict[str, Any]:
        return {"name": name, "namespace": namespace}

    text = {"hostfile": hostfile}
    return (
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(hostfile_name(job)), "data": text},
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata(secret_name(job)), "type": KEY_PAIR},
    )


def for_prrte(variables: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The variables, and those of Open MPI 5 beside those of Open MPI 4, unless the job says them itself."""
    also = {_PRRTE[name]: value for name, value in variables.items() if name in _PRRTE}
    return {**variables, **{name: value for name, value in also.items() if name not in own}}


def with_ssh(layout: Layout, role: str, template: Json, container: str) -> dict[str, Any]:
    """The pod template of a member that reaches others, or is reached, by SSH. ``container``: its name."""
    path = str(layout.engine_spec.get("sshAuthMountPath") or HOME)
    source: dict[str, Any] = {
        "secretName": secret_name(layout.name),
        "items": [{"key": key, "path": file} for file, key in _FILES.items()],
    }
    if path == HOME:  # ssh refuses a key of its own user that others may read
        source["defaultMode"] = 0o600
    changed = _with_volume(template, container, {"name": "ssh-auth", "secret": source}, path)
    return _with_sshd(changed, container) if role == WORKER else changed


def with_hostfile(layout: Layout, template: Json, container: str) -> dict[str, Any]:
    """The pod template of a launcher that finds its hostfile."""
    items = [{"key": "hostfile", "path": "hostfile", "mode": 0o444}]
    source = {"name": hostfile_name(layout.name), "items": items}
    return _with_volume(template, container, {"name": "mpi-hostfile", "configMap": source}, CONFIG)


def _with_volume(template: Json, container: str, volume: Json, path: str) -> dict[str, Any]:
    mount = {"name": volume["name"], "mountPath": path}
    spec = template["spec"]
    containers = [
        {**c, "volumeMounts": [*(c.get("volumeMounts") or ()), mount]} if c["name"] == container else c
        for c in spec["containers"]
    ]
    volumes = [*(spec.get("volumes") or ()), volume]
    return {**template, "spec": {**spec, "containers": containers, "volumes": volumes}}


def _with_sshd(template: Json, container: str) -> dict[str, Any]:
    """With sshd where a worker has no command of its own."""
    containers = [
        {**c, "command": [*SSHD]} if c["name"] == container and not (c.get("command") or c.get("args")) else c
        for c in template["spec"]["containers"]
    ]
    return {**template, "spec": {**template["spec"], "containers": containers}}


def launcher_last(jobs: list[dict[str, Any]], waits: bool) -> list[dict[str, Any]]:
    """The replicated jobs of a JobSet, the launcher behind its workers, for which it may wait: a job depends
    on one that stands before it (jobset_webhook.go).
    """
    workers = [job for job in jobs if job["name"] != LAUNCHER]
    ready = [{"name": job["name"], "status": "Ready"} for job in workers] if waits else []
    return [
        *workers,
        *({**job, **({"dependsOn": ready} if ready else {})} for job in jobs if job["name"] == LAUNCHER),
    ]
