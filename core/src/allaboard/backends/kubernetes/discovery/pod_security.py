"""The Pod Security Standards, as the API server applies them to pods: what a template would be refused for.
Values in, values out.

Read from Kubernetes 1.36, staging/src/k8s.io/pod-security-admission/policy. A job object is not checked
when it is created; its pods are, one by one, when its operator makes them. So the job is accepted, and no
member ever appears.
"""

from __future__ import annotations

from collections.abc import Iterator

from allaboard.backends.kubernetes.client.values import Json, at, dicts, mapping, scalars, text, texts

LEVELS = ("privileged", "baseline", "restricted")
ENFORCE = "pod-security.kubernetes.io/enforce"
_BASELINE_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_RESTRICTED_VOLUMES = frozenset(
    [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
        "image",
    ]
)
_SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_SECCOMP = ("RuntimeDefault", "Localhost")
_SYSCTLS = frozenset(
    [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_wmem",
    ]
)


def level_of(namespace: Json) -> str:
    """The level that a namespace enforces; ``privileged``, which allows everything, where its labels name
    none. A cluster may have another default, which no request can read.
    """
    level = texts(at(namespace, "metadata", "labels")).get(ENFORCE, "privileged")
    return level if level in LEVELS else "restricted"  # as the API server does


def violations(spec: Json, level: str) -> list[str]:
    """The violations for which a pod of this spec would be refused, each naming the container or volume."""
    if level == "privileged":
        return []
    problems = [*_baseline(spec)]
    if level == "restricted":
        problems += _restricted(spec)
    return list(dict.fromkeys(problems))


def _containers(spec: Json) -> Iterator[tuple[str, Json, Json]]:
    for field in ("initContainers", "containers"):
        for container in dicts(spec.get(field)):
            yield text(container.get("name")), container, mapping(container.get("securityContext"))


def _baseline(spec: Json) -> Iterator[str]:
    pod = mapping(spec.get("securityContext"))
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field}: true"
    for volume in dicts(spec.get("volumes")):
        if "hostPath" in volume:
            yield f"volume {volume['name']}: hostPath"
    for sysctl in dicts(pod.get("sysctls")):
        if sysctl.get("name") not in _SYSCTLS:
            yield f"sysctl {sysctl.get('name')}"
    if at(pod, "seccompProfile", "type") == "Unconfined":
        yield "seccompProfile: Unconfined"
    yield from _selinux("pod", pod)
    for name, container, context in _containers(spec):
        where = f"container {name}"
        if context.get("privileged"):
            yield f"{where}: privileged"
        added = {*scalars(at(context, "capabilities", "add"))} - _BASELINE_CAPABILITIES
        if added:
            yield f"{where}: capabilities.add {', '.join(sorted(added))}"
        if any(port.get("hostPort") for port in dicts(container.get("ports"))):
            yield f"{where}: hostPort"
        if at(context, "seccompProfile", "type") == "Unconfined":
            yield f"{where}: seccompProfile Unconfined"
        if context.get("procMount", "Default") != "Default":
            yield f"{where}: procMount {context['procMount']}"
        yield from _selinux(where, context)


def _selinux(where: str, context: Json) -> Iterator[str]:
    options = mapping(context.get("seLinuxOptions"))
    if options.get("type", "") not in _SELINUX_TYPES or options.get("user") or options.get("role"):
        yield f"{where}: seLinuxOptions"


def _restricted(spec: Json) -> Iterator[str]:
    pod = mapping(spec.get("securityContext"))
    for volume in dicts(spec.get("volumes")):
        for kind in set(volume) - {"name"} - _RESTRICTED_VOLUMES - {"hostPath"}:
            yield f"volume {volume['name']}: {kind}"
    if pod.get("runAsUser") == 0:
        yield "runAsUser: 0"
    for name, _, context in _containers(spec):
        where = f"container {name}"
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{where}: allowPrivilegeEscalation must be false"
        capabilities = mapping(context.get("capabilities"))
        if "ALL" not in scalars(capabilities.get("drop")):
            yield f"{where}: capabilities.drop must hold ALL"
        if {*scalars(capabilities.get("add"))} - {"NET_BIND_SERVICE"}:
            yield f"{where}: capabilities.add may hold NET_BIND_SERVICE alone"
        if not context.get("runAsNonRoot", pod.get("runAsNonRoot")):
            yield f"{where}: runAsNonRoot must be true"
        if context.get("runAsUser") == 0:
            yield f"{where}: runAsUser 0"
        seccomp = mapping(context.get("seccompProfile") or pod.get("seccompProfile"))
        if seccomp.get("type") not in _SECCOMP:
            yield f"{where}: seccompProfile.type must be RuntimeDefault or Localhost"
