"""Fields that the API server does not know: where they stand in the job, and what was probably meant. The
names are those of Kubernetes 1.36 and of the Training Operator 1.9, and of the engine of the job; values
in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from allaboard.backends.kubernetes.client.errors import Cause
from allaboard.engines import Engine
from allaboard.errors import Problem
from allaboard.text.names import nearest

_POD = """activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy
enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers
hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os
overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims
resources restartPolicy runtimeClassName schedulerName schedulingGates schedulingGroup
securityContext serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace
subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes"""
_CONTAINER = """args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports
readinessProbe resizePolicy resources restartPolicy restartPolicyRules securityContext
startupProbe stdin stdinOnce terminationMessagePath terminationMessagePolicy tty
volumeDevices volumeMounts workingDir"""
_VOLUME = """awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir
ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi
name nfs persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd
scaleIO secret storageos vsphereVolume"""
_SECURITY = """allowPrivilegeEscalation appArmorProfile capabilities fsGroup fsGroupChangePolicy
privileged procMount readOnlyRootFilesystem runAsGroup runAsNonRoot runAsUser
seLinuxChangePolicy seLinuxOptions seccompProfile supplementalGroups
supplementalGroupsPolicy sysctls windowsOptions"""
_PROBE = """exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold
tcpSocket terminationGracePeriodSeconds timeoutSeconds"""
_RUN_POLICY = """activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy schedulingPolicy suspend
ttlSecondsAfterFinished"""
KNOWN: Mapping[str, str] = {
    "template": "metadata spec",
    "metadata": "annotations finalizers labels name namespace",
    "spec": _POD,
    "containers": _CONTAINER,
    "initContainers": _CONTAINER,
    "volumes": _VOLUME,
    "securityContext": _SECURITY,
    "livenessProbe": _PROBE,
    "readinessProbe": _PROBE,
    "startupProbe": _PROBE,
    "resources": "claims limits requests",
    "env": "name value valueFrom",
    "valueFrom": "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef",
    "envFrom": "configMapRef prefix secretRef",
    "ports": "containerPort hostIP hostPort name protocol",
    "volumeMounts": "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr",
    "tolerations": "effect key operator tolerationSeconds value",
    "affinity": "nodeAffinity podAffinity podAntiAffinity",
    "nodeAffinity": """preferredDuringSchedulingIgnoredDuringExecution
        requiredDuringSchedulingIgnoredDuringExecution""",
    "topologySpreadConstraints": """labelSelector matchLabelKeys maxSkew minDomains nodeAffinityPolicy
        nodeTaintsPolicy topologyKey whenUnsatisfiable""",
    "emptyDir": "medium sizeLimit",
    "hostPath": "path type",
    "persistentVolumeClaim": "claimName readOnly",
    "secret": "defaultMode items optional secretName",
    "configMap": "defaultMode items name optional",
    "nfs": "path readOnly server",
    "runPolicy": _RUN_POLICY,
    "schedulingPolicy": "minAvailable minResources priorityClass queue scheduleTimeoutSeconds",
    "elasticPolicy": """maxReplicas maxRestarts metrics minReplicas nProcPerNode rdzvBackend rdzvConf
        rdzvHost rdzvId rdzvPort standalone""",
}
"""Field -> the names that stand below it."""

_TEMPLATE = re.compile(r"^spec\.\w+(?:\.\w+|\[\w+\])\.template\.")


def in_the_job(path: str) -> str:
    """The place in the job from which a field of the job object comes: ``pod.spec.x`` or ``engine_spec.x``; a
    field that is written from other fields keeps its own path.
    """
    if _TEMPLATE.match(path):
        return f"pod.{_TEMPLATE.sub('', path)}"
    return f"engine_spec.{path.removeprefix('spec.')}" if path.startswith("spec.") else path


def nearest_field(path: str, engine: Engine) -> str | None:
    """The field that is nearest to the last name of this path in a job of this engine."""
    parts = [re.sub(r"\[[^\]]*\]$", "", part) for part in path.split(".")]
    above = parts[-2] if len(parts) > 1 else ""
    if above == "spec" and len(parts) == 2:
        known = " ".join(engine.FIELDS)
    else:
        known = KNOWN.get(above) or " ".join(KNOWN.values())
    return nearest(parts[-1], sorted({*known.split()}))


def lacks_extra(message: str, extras: Sequence[Mapping[str, Any]]) -> bool:
    """True if a job is refused because an object that it brings is missing. A webhook reads those from a
    cache, which may be a moment behind; in a dry run they are never made.
    """
    named = ((extra["kind"], extra["metadata"]["name"]) for extra in extras)
    return "not found" in message and any(kind in message and name in message for kind, name in named)


def problem_of(cause: Cause, engine: Engine, of_pod: bool = False) -> Problem:
    """A finding of the API server, told of the job. ``of_pod``: it was a pod that was tried."""
    path = f"pod.{cause.field}" if of_pod and cause.field else in_the_job(cause.field)
    if "unknown field" not in cause.message:
        return Problem(path, cause.message)
    near = nearest_field(cause.field, engine)
    if near is not None and cause.field.endswith(f".{near}"):
        advice = "the definition on this cluster is older; leave the field out, or update the operator"
        return Problem(path, f"{cause.message}; {advice}")
    return Problem(path, cause.message, near)
