# ruff: noqa: E501 -- what others wrote is quoted as it is
"""Failures and waits as snapshots, each with what the doctor must say first: for each cause, and for its look-alikes."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.core.diagnosis.building import (
    FAILED,
    at,
    condition,
    event,
    job,
    node,
    pod,
    podgroup,
    snapshot,
    traceback,
    watchdog,
    workload,
)

Json = dict[str, Any]


class Sample(NamedTuple):
    """``like``: what it is easily mistaken for, and must not be said of it first."""

    name: str
    code: str
    retryable: bool | None
    blame: str
    snapshot: Json
    like: tuple[str, ...] = ()


CASES: list[Sample] = []


def case(code: str, name: str, retryable: bool | None, blame: str, snap: Json, *like: str) -> None:
    CASES.append(Sample(f"{code}: {name}", code, retryable, blame, snap, like))


def refused(message: str, code: int = 403, reason: str = "Forbidden") -> Json:
    return {"submit_error": {"kind": "Status", "code": code, "reason": reason, "message": message}}


CREATED = job("Created")
RUNNING = job("Created", "Running")
LOST_JOB = job("Created", FAILED)


def failed(log: str, *, member: str = "worker-0", exit_code: int = 1, peers: str = "", **more: Any) -> Json:
    """One member failed with this log; the master only lost it."""
    logs = {member: log, **({"master-0": peers} if peers else {})}
    other = pod("master-0", "Failed", exit_code=1, ended=30.1) if peers else pod("master-0")
    return snapshot(LOST_JOB, other, pod(member, "Failed", exit_code=exit_code, ended=30), logs=logs, **more)


PEER = "[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error, NCCL version 2.26.2"

# --- submit and admission ---------------------------------------------------------------------------------------------

case(
    "crd_missing",
    "unknown kind",
    False,
    "API server",
    refused('no matches for kind "TrainJob" in version "trainer.kubeflow.org/v2alpha1"', 404, "NotFound"),
)
case(
    "crd_missing",
    "404",
    False,
    "API server",
    refused("the server could not find the requested resource", 404, "NotFound"),
    "rbac_forbidden",
)
case(
    "operator_not_running",
    "silence",
    False,
    "PyTorchJob/net",
    snapshot(job(), taken="2026-05-20T12:20:00Z"),
    "gang_scheduler_missing",
)
case(
    "webhook_unavailable",
    "no endpoints",
    True,
    "validator.pytorchjob",
    refused(
        'Internal error occurred: failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org": failed to call webhook: Post "https://training-operator.kubeflow.svc:443/validate?timeout=10s": no endpoints available for service "training-operator"',
        500,
        "InternalError",
    ),
    "admission_webhook_denied",
    "job_spec_invalid",
)
case(
    "rbac_forbidden",
    "service account",
    False,
    "system:serviceaccount:ml:default",
    refused(
        'trainjobs.trainer.kubeflow.org is forbidden: User "system:serviceaccount:ml:default" cannot create resource "trainjobs" in API group "trainer.kubeflow.org" in the namespace "ml"'
    ),
)
case(
    "wrong_container_name",
    "webhook",
    False,
    "containers",
    refused(
        'admission webhook "validator.pytorchjob.training-operator.kubeflow.org" denied the request: spec.pytorchReplicaSpecs[Master]: There must have at least one container with name pytorch'
    ),
    "admission_webhook_denied",
    "job_spec_invalid",
)
case(
    "wrong_container_name",
    "not injected",
    False,
    "containers",
    snapshot(
        job("Created", FAILED, container="trainer-main"),
        pod("master-0", "Failed", exit_code=1, container="trainer-main"),
        logs={"master-0": traceback("KeyError: 'WORLD_SIZE'")},
    ),
    "python_exception",
)
case(
    "runtime_ref_not_found",
    "denial",
    False,
    "torch-dist",
    refused(
        'admission webhook "validator.trainjob.trainer.kubeflow.org" denied the request: spec.runtimeRef: Invalid value: {"name":"torch-dist","kind":"ClusterTrainingRuntime"}: ClusterTrainingRuntime.trainer.kubeflow.org "torch-dist" not found: specified clusterTrainingRuntime must be created before the TrainJob is created'
    ),
    "job_spec_invalid",
)
case(
    "job_spec_invalid",
    "denial of its own webhook",
    False,
    "spec",
    refused(
        'admission webhook "validator.pytorchjob.training-operator.kubeflow.org" denied the request: spec.pytorchReplicaSpecs[Master].replicas: Forbidden: must be 1'
    ),
    "admission_webhook_denied",
)
case(
    "job_spec_invalid",
    "schema",
    False,
    "spec",
    refused(
        'PyTorchJob.kubeflow.org "net" is invalid: spec.pytorchReplicaSpecs.Worker.replicas: Invalid value: "string": must be of type integer',
        422,
        "Invalid",
    ),
)
case(
    "pod_security_denied",
    "restricted",
    False,
    "init-pytorch",
    snapshot(
        CREATED,
        events=[
            event(
                "FailedCreatePod",
                'Error creating: pods "net-worker-0" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "init-pytorch" must set securityContext.allowPrivilegeEscalation=false)',
                "job/net",
            )
        ],
    ),
    "rbac_forbidden",
)
case(
    "openshift_scc_denied",
    "runAsUser",
    False,
    "runAsUser",
    snapshot(
        CREATED,
        events=[
            event(
                "FailedCreatePod",
                'pods "net-master-0" is forbidden: unable to validate against any security context constraint: [provider "hostaccess": Forbidden: not usable by user or serviceaccount, provider restricted-v2: .containers[0].runAsUser: Invalid value: 0: must be in the ranges: [1000, 2000]]',
                "job/net",
            )
        ],
    ),
    "rbac_forbidden",
    "pod_security_denied",
)
case(
    "limitrange_denied",
    "memory",
    False,
    "spec",
    snapshot(
        CREATED,
        events=[
            event(
                "FailedCreatePod",
                'pods "net-master-0" is forbidden: maximum memory usage per Container is 64Gi, but limit is 200Gi',
                "job/net",
            )
        ],
    ),
    "resource_quota_exceeded",
)
case(
    "admission_webhook_denied",
    "gatekeeper",
    False,
    "validation.gatekeeper.sh",
    refused(
        'admission webhook "validation.gatekeeper.sh" denied the request: [must-have-owner] you must provide labels: {"owner"}'
    ),
    "rbac_forbidden",
    "job_spec_invalid",
)
case(
    "admission_webhook_denied",
    "kyverno, of pods",
    False,
    "kyverno",
    snapshot(
        CREATED,
        events=[
            event(
                "FailedCreatePod",
                'admission webhook "validate.kyverno.svc-fail" denied the request: resource Pod/ml/net-master-0 was blocked due to disallow-latest-tag',
                "job/net",
            )
        ],
    ),
)
QUOTA = 'pods "net-worker-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu={}, used: requests.nvidia.com/gpu=16, limited: requests.nvidia.com/gpu=16'
case(
    "resource_quota_exceeded",
    "used by others",
    True,
    "gpus",
    snapshot(
        CREATED,
        pod("master-0"),
        pod("worker-0"),
        events=[event("FailedCreatePod", QUOTA.format(8), "job/net")],
    ),
    "gang_partial_scheduling",
    "rbac_forbidden",
)
case(
    "resource_quota_exceeded",
    "more than the whole quota",
    False,
    "gpus",
    snapshot(CREATED, events=[event("FailedCreatePod", QUOTA.format(32), "job/net")]),
)
case(
    "resource_quota_exceeded",
    "must specify",
    False,
    "compute",
    snapshot(
        CREATED,
        events=[
            event(
                "FailedCreatePod",
                'pods "net-master-0" is forbidden: failed quota: compute: must specify limits.cpu for: pytorch',
                "job/net",
            )
        ],
    ),
    "job_spec_invalid",
)
case(
    "pod_reference_missing",
    "service account",
    False,
    "trainer",
    snapshot(
        CREATED,
        events=[
            event(
                "FailedCreatePod",
                'pods "net-master-0" is forbidden: error looking up service account ml/trainer: serviceaccount "trainer" not found',
                "job/net",
            )
        ],
    ),
    "container_config_missing",
)
case(
    "pod_reference_missing",
    "priority",
    False,
    "urgent",
    snapshot(
        CREATED,
        events=[
            event(
                "FailedCreatePod",
                'pods "net-master-0" is forbidden: no PriorityClass with name urgent was found',
                "job/net",
            )
        ],
    ),
)

# --- queueing and scheduling ------------------------------------------------------------------------------------------

SUSPENDED = {"runPolicy": {"suspend": True}}
QUEUED = job(
    "Created",
    "Suspended",
    spec={**job()["spec"], **SUSPENDED},
    labels={"kueue.x-k8s.io/queue-name": "team-a"},
)
PARKED = job("Created", "Suspended", spec={**job()["spec"], **SUSPENDED})
case(
    "job_suspended",
    "by a person",
    False,
    "net",
    snapshot(PARKED),
    "queue_quota_pending",
    "operator_not_running",
)
case(
    "queue_quota_pending",
    "Kueue",
    True,
    "team-a",
    snapshot(
        QUEUED,
        workloads=[
            workload(
                condition(
                    "QuotaReserved",
                    "False",
                    "Pending",
                    "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more needed",
                )
            )
        ],
    ),
    "job_suspended",
    "queue_quota_impossible",
)
case(
    "queue_quota_impossible",
    "Kueue",
    False,
    "team-a",
    snapshot(
        QUEUED,
        workloads=[
            workload(
                condition(
                    "QuotaReserved",
                    "False",
                    "Pending",
                    "couldn't assign flavors to pod set worker: insufficient quota for nvidia.com/gpu in flavor h100, previously considered podsets requests (0) + current podset request (64) > maximum capacity (32)",
                )
            )
        ],
    ),
    "queue_quota_pending",
)
case(
    "queue_quota_impossible",
    "unknown resource",
    False,
    "team-a",
    snapshot(
        QUEUED,
        workloads=[
            workload(
                condition(
                    "QuotaReserved",
                    "False",
                    "Pending",
                    "couldn't assign flavors to pod set main: resource nvidia.com/mig-1g.10gb unavailable in ClusterQueue",
                )
            )
        ],
    ),
    "queue_quota_pending",
)
case(
    "queue_quota_impossible",
    "Volcano",
    False,
    "research",
    snapshot(
        CREATED,
        podgroups=[podgroup(gpus="128")],
        queues=[
            {
                "kind": "Queue",
                "metadata": {"name": "research"},
                "spec": {"capability": {"nvidia.com/gpu": "64"}},
                "status": {"state": "Open"},
            }
        ],
    ),
    "queue_quota_pending",
    "operator_not_running",
)
case(
    "queue_misconfigured",
    "no LocalQueue",
    False,
    "team-a",
    snapshot(
        QUEUED,
        workloads=[
            workload(condition("QuotaReserved", "False", "Inadmissible", "LocalQueue team-a doesn't exist"))
        ],
    ),
    "queue_quota_pending",
)
case(
    "queue_misconfigured",
    "inactive",
    False,
    "team-a",
    snapshot(
        QUEUED,
        workloads=[workload(condition("QuotaReserved", "False", "Pending", "ClusterQueue cq-a is inactive"))],
        queues=[
            {
                "kind": "ClusterQueue",
                "metadata": {"name": "cq-a"},
                "status": {
                    "conditions": [
                        condition(
                            "Active", "False", "FlavorNotFound", "references missing ResourceFlavor(s): h200"
                        )
                    ]
                },
            }
        ],
    ),
    "queue_quota_pending",
)
case(
    "queue_misconfigured",
    "Volcano",
    False,
    "research",
    snapshot(
        CREATED,
        podgroups=[podgroup()],
        queues=[
            {"kind": "Queue", "metadata": {"name": "research"}, "spec": {}, "status": {"state": "Closed"}}
        ],
    ),
    "queue_quota_pending",
)
case(
    "queue_pods_ready_timeout",
    "slow image",
    True,
    "net-worker-1",
    snapshot(
        QUEUED,
        workloads=[
            workload(
                condition("QuotaReserved", "False", "Pending", "Exceeded the PodsReady timeout ml/net"),
                condition("Evicted", "True", "PodsReadyTimeout", "Exceeded the PodsReady timeout ml/net"),
                condition("Requeued", "False", "PodsReadyTimeout"),
            )
        ],
        events=[
            event("Pulling", "Pulling image", "pod/worker-1", type="Normal"),
            event("Killing", "Stopping container pytorch", "pod/worker-1", type="Normal", when=9),
            event("Started", "Started container", "pod/worker-0", type="Normal"),
        ],
    ),
    "job_suspended",
    "preempted_by_priority",
)
FULL = "0/6 nodes are available: 2 node(s) had untolerated taint(s), 4 Insufficient nvidia.com/gpu. preemption: 0/6 nodes are available: 6 No preemption victims found for incoming pod."
case(
    "gang_partial_scheduling",
    "half",
    True,
    "net-worker-1",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0"),
        pod("worker-1", "Pending", unschedulable=FULL),
        logs={
            "master-0": "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 2/3 clients joined."
        },
    ),
    "rendezvous_timeout",
    "insufficient_gpu",
)
GANG = {"spec": {"schedulerName": "volcano"}}
case(
    "gang_unschedulable",
    "Volcano",
    True,
    "net",
    snapshot(
        CREATED,
        *(
            pod(
                n,
                "Pending",
                unschedulable="3/3 tasks in gang unschedulable: pod group is not ready, 3 Pending, 3 minAvailable; Pending: 3 Unschedulable",
                **GANG,
            )
            for n in ("master-0", "worker-0", "worker-1")
        ),
        podgroups=[
            podgroup(
                "Inqueue",
                condition(
                    "Unschedulable",
                    "True",
                    "NotEnoughResources",
                    "3/3 tasks in gang unschedulable: pod group is not ready, 3 Pending, 3 minAvailable",
                ),
            )
        ],
    ),
    "insufficient_gpu",
)
case(
    "gang_unschedulable",
    "too few pods",
    False,
    "net",
    snapshot(
        CREATED,
        pod(
            "worker-0",
            "Pending",
            unschedulable="pre-filter pod net-worker-0 cannot find enough sibling pods, current pods number: 1, minMember of group: 4",
            spec={"schedulerName": "scheduler-plugins-scheduler"},
        ),
        podgroups=[podgroup()],
    ),
)
case(
    "gang_scheduler_missing",
    "volcano is not there",
    False,
    "volcano",
    snapshot(
        CREATED,
        pod("master-0", "Pending", node=None, silent=True, spec={"schedulerName": "volcano"}),
        pod("worker-0", "Pending", node=None, silent=True, spec={"schedulerName": "volcano"}),
    ),
    "insufficient_gpu",
    "operator_not_running",
)
GPU_NODES = [node(f"g{n}") for n in range(4)] + [
    node(f"cp{n}", gpus=None, taints=("node-role.kubernetes.io/control-plane==NoSchedule",)) for n in range(2)
]
case(
    "insufficient_gpu",
    "full",
    True,
    "scheduler",
    snapshot(
        CREATED,
        *(pod(n, "Pending", unschedulable=FULL) for n in ("master-0", "worker-0", "worker-1")),
        nodes=GPU_NODES,
    ),
    "unschedulable_constraints",
    "gang_partial_scheduling",
)
case(
    "insufficient_gpu",
    "never",
    False,
    "scheduler",
    snapshot(
        CREATED,
        *(pod(n, "Pending", unschedulable=FULL, gpus=16) for n in ("master-0", "worker-0", "worker-1")),
        nodes=GPU_NODES,
    ),
    "unschedulable_constraints",
)
case(
    "gpu_not_advertised",
    "no plugin",
    False,
    "node",
    snapshot(
        CREATED,
        pod("master-0", "Pending", unschedulable="0/2 nodes are available: 2 Insufficient nvidia.com/gpu."),
        nodes=[node("g1", gpus=0, labels={"nvidia.com/gpu.present": "true"}), node("g2", gpus=0)],
    ),
    "insufficient_gpu",
)
TAINTED = [node(f"g{n}", taints=("team=vision=NoSchedule",)) for n in range(3)] + [node("c1", gpus=None)]
case(
    "unschedulable_constraints",
    "taint on GPU nodes",
    False,
    "spec",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            unschedulable="0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 node(s) had untolerated taint {team: vision}.",
        ),
        nodes=TAINTED,
    ),
    "insufficient_gpu",
    "gpu_not_advertised",
)
case(
    "unschedulable_constraints",
    "selector",
    False,
    "spec",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            unschedulable="0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector.",
        ),
    ),
    "insufficient_gpu",
)
case(
    "unschedulable_constraints",
    "zone of a volume",
    False,
    "spec",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            unschedulable="0/6 nodes are available: 4 node(s) had volume node affinity conflict, 2 node(s) had untolerated taint(s).",
        ),
    ),
    "pvc_not_bound",
)
case(
    "capacity_scaling_up",
    "autoscaler",
    True,
    "autoscaler",
    snapshot(
        CREATED,
        pod("master-0", "Pending", unschedulable=FULL),
        events=[
            event(
                "TriggeredScaleUp",
                "pod triggered scale-up: [{gpu-pool 2->4 (max: 8)}]",
                "pod/master-0",
                type="Normal",
            )
        ],
    ),
    "insufficient_gpu",
)
case(
    "insufficient_gpu",
    "the autoscaler cannot",
    True,
    "scheduler",
    snapshot(
        CREATED,
        pod("master-0", "Pending", unschedulable=FULL),
        events=[
            event(
                "NotTriggerScaleUp",
                "pod didn't trigger scale-up: 1 max node group size reached",
                "pod/master-0",
                type="Normal",
            )
        ],
    ),
    "capacity_scaling_up",
)

# --- starting the pod -------------------------------------------------------------------------------------------------


def pulling(text: str, reason: str = "ImagePullBackOff", **more: Any) -> Json:
    back = f'Back-off pulling image "{"registry.lab/ml/train:7"}": ErrImagePull: {text}'
    return snapshot(
        CREATED,
        pod("master-0", "Pending", waiting=reason, message=back if reason.endswith("BackOff") else text),
        **more,
    )


case(
    "image_pull_auth",
    "401",
    False,
    "net-master-0",
    pulling(
        'failed to pull and unpack image "registry.lab/ml/train:7": failed to resolve reference: unexpected status from HEAD request to https://registry.lab/v2/ml/train/manifests/7: 401 Unauthorized'
    ),
    "image_not_found",
    "image_pull_network",
)
case(
    "image_pull_auth",
    "Docker Hub",
    False,
    "net-master-0",
    pulling(
        "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed"
    ),
    "image_not_found",
)
case(
    "image_not_found",
    "tag",
    False,
    "net-master-0",
    pulling(
        "rpc error: code = NotFound desc = failed to pull and unpack image: failed to resolve reference: registry.lab/ml/train:7: not found"
    ),
)
case(
    "image_not_found",
    "event alone",
    False,
    "net-master-0",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            waiting="ImagePullBackOff",
            message='Back-off pulling image "registry.lab/ml/train:7"',
        ),
        events=[
            event(
                "Failed", 'Failed to pull image "registry.lab/ml/train:7": manifest unknown', "pod/master-0"
            )
        ],
    ),
    "image_pull_network",
)
case(
    "image_not_found",
    "name",
    False,
    "net-master-0",
    pulling(
        'Failed to apply default image tag "Registry/X:": couldn\'t parse image name: invalid reference format',
        "InvalidImageName",
    ),
)
case(
    "image_pull_rate_limited",
    "429",
    True,
    "net-master-0",
    pulling("429 Too Many Requests - Server message: toomanyrequests: You have reached your pull rate limit"),
    "data_throttled",
    "image_pull_auth",
)
case(
    "image_pull_network",
    "DNS",
    True,
    "net-master-0",
    pulling(
        'failed to do request: Head "https://registry.lab/v2/ml/train/manifests/7": dial tcp: lookup registry.lab on 10.96.0.10:53: no such host'
    ),
    "master_unreachable_dns",
    "image_not_found",
)
INIT_PULL = {
    "name": "init-pytorch",
    "state": {
        "waiting": {
            "reason": "ErrImagePull",
            "message": 'failed to do request: Head "https://registry-1.docker.io/v2/": dial tcp 1.2.3.4:443: i/o timeout',
        }
    },
}
case(
    "image_pull_network",
    "init container",
    True,
    "init-pytorch",
    snapshot(RUNNING, pod("master-0"), pod("worker-0", "Pending", waiting="PodInitializing", init=INIT_PULL)),
    "rendezvous_timeout",
    "master_unreachable_dns",
)
case(
    "exec_format_error",
    "log",
    False,
    "net-master-0",
    snapshot(
        RUNNING,
        pod("master-0", waiting="CrashLoopBackOff", last=255, restarts=4),
        logs={"master-0": "exec /usr/bin/python3: exec format error"},
    ),
    "bad_entrypoint",
    "killed_externally",
)
case(
    "bad_entrypoint",
    "StartError",
    False,
    "net-master-0",
    snapshot(
        RUNNING,
        pod(
            "master-0",
            waiting="RunContainerError",
            message='failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "trian.sh": executable file not found in $PATH',
            restarts=2,
        ),
    ),
    "missing_dependency",
)
case(
    "bad_entrypoint",
    "script",
    False,
    "net-master-0",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=2),
        logs={"master-0": "python: can't open file '/app/tarin.py': [Errno 2] No such file or directory"},
    ),
    "data_not_found",
    "python_exception",
)
case(
    "bad_entrypoint",
    "127 of a shell",
    False,
    "net-master-0",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=127),
        logs={"master-0": "/bin/sh: 1: torchrnu: not found"},
    ),
    "missing_dependency",
)
case(
    "container_config_missing",
    "secret",
    False,
    "s3-keys",
    snapshot(
        CREATED,
        pod(
            "master-0", "Pending", waiting="CreateContainerConfigError", message='secret "s3-keys" not found'
        ),
    ),
    "pod_reference_missing",
    "run_as_nonroot_violation",
)
case(
    "container_config_missing",
    "mount",
    False,
    "train-config",
    snapshot(
        CREATED,
        pod("master-0", "Pending", waiting="ContainerCreating"),
        events=[
            event(
                "FailedMount",
                'MountVolume.SetUp failed for volume "cfg" : configmap "train-config" not found',
                "pod/master-0",
            )
        ],
    ),
    "volume_mount_failed",
)
case(
    "container_config_missing",
    "key",
    False,
    "hub",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            waiting="CreateContainerConfigError",
            message="couldn't find key TOKEN in Secret ml/hub",
        ),
    ),
    "bad_entrypoint",
)
case(
    "run_as_nonroot_violation",
    "root image",
    False,
    "net-master-0",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            waiting="CreateContainerConfigError",
            message='container has runAsNonRoot and image will run as root (pod: "net-master-0_ml(u)", container: pytorch)',
        ),
    ),
    "pod_security_denied",
    "container_config_missing",
)
case(
    "pod_sandbox_failed",
    "no address",
    True,
    "n1",
    snapshot(
        CREATED,
        pod("master-0", "Pending", waiting="ContainerCreating"),
        events=[
            event(
                "FailedCreatePodSandBox",
                'Failed to create pod sandbox: plugin type="aws-cni" failed (add): add cmd: failed to assign an IP address to container',
                "pod/master-0",
                count=9,
            )
        ],
    ),
    "gpu_runtime_broken",
)
case(
    "healthy",
    "a sandbox that was made in the end",
    None,
    "",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0"),
        pod("worker-1"),
        events=[
            event(
                "FailedCreatePodSandBox",
                "Failed to create pod sandbox: network plugin is not ready",
                "pod/master-0",
                when=0.3,
            )
        ],
        logs={"master-0": "step 12 loss 3.1"},
    ),
    "pod_sandbox_failed",
)
case(
    "pvc_not_bound",
    "absent",
    False,
    "data",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            unschedulable='0/6 nodes are available: persistentvolumeclaim "data" not found. preemption: not eligible.',
        ),
    ),
    "unschedulable_constraints",
)
case(
    "pvc_not_bound",
    "no class",
    False,
    "data",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            unschedulable="0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
            spec={"volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]},
        ),
        events=[
            event(
                "FailedBinding",
                "no persistent volumes available for this claim and no storage class is set",
                "pvc/data",
                type="Normal",
            )
        ],
    ),
    "unschedulable_constraints",
)
RWO = 'Multi-Attach error for volume "pvc-77" Volume is already used by pod(s) {}'
case(
    "volume_multi_attach",
    "shared by the job",
    False,
    "pvc-77",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0", "Pending", waiting="ContainerCreating", node="n2"),
        events=[event("FailedAttachVolume", RWO.format("net-master-0"))],
    ),
    "volume_mount_failed",
)
case(
    "volume_multi_attach",
    "left behind",
    True,
    "pvc-77",
    snapshot(
        RUNNING,
        pod("master-0", "Pending", waiting="ContainerCreating", node="n2"),
        events=[
            event(
                "FailedAttachVolume",
                'Multi-Attach error for volume "pvc-77" Volume is already exclusively attached to one node and can\'t be attached to another',
                "pod/master-0",
            )
        ],
    ),
)
case(
    "volume_mount_failed",
    "server silent",
    True,
    "datasets",
    snapshot(
        CREATED,
        pod("master-0", "Pending", waiting="ContainerCreating"),
        events=[
            event(
                "FailedMount",
                'MountVolume.SetUp failed for volume "datasets" : mount failed: exit status 32\nOutput: mount.nfs: Connection timed out',
                "pod/master-0",
            )
        ],
    ),
    "pvc_not_bound",
)
case(
    "volume_mount_failed",
    "refused",
    False,
    "datasets",
    snapshot(
        CREATED,
        pod("master-0", "Pending", waiting="ContainerCreating"),
        events=[
            event(
                "FailedMount",
                'MountVolume.SetUp failed for volume "datasets" : mount failed: exit status 32\nOutput: mount.nfs: access denied by server while mounting nas:/export',
                "pod/master-0",
            )
        ],
    ),
    "data_access_denied",
)
case(
    "gpu_runtime_broken",
    "driver",
    True,
    "n1",
    snapshot(
        RUNNING,
        pod(
            "master-0",
            waiting="RunContainerError",
            message="failed to create containerd task: OCI runtime create failed: nvidia-container-cli: initialization error: nvml error: driver not loaded",
            restarts=3,
        ),
    ),
    "bad_entrypoint",
    "cuda_driver_mismatch",
)
case(
    "gpu_runtime_broken",
    "fabric manager",
    True,
    "n1",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=1),
        logs={
            "master-0": traceback(
                "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
            )
        },
    ),
    "cuda_driver_mismatch",
    "python_exception",
)
case(
    "gpu_runtime_broken",
    "runtime class",
    True,
    "n1",
    snapshot(
        CREATED,
        pod("master-0", "Pending", waiting="ContainerCreating"),
        events=[
            event(
                "FailedCreatePodSandBox",
                'Failed to create pod sandbox: rpc error: no runtime for "nvidia" is configured',
                "pod/master-0",
                count=7,
            )
        ],
    ),
    "pod_sandbox_failed",
)
case(
    "kubelet_admission_rejected",
    "unhealthy device",
    True,
    "n1",
    snapshot(
        LOST_JOB,
        pod("master-0"),
        pod(
            "worker-0",
            "Rejected",
            status={
                "reason": "UnexpectedAdmissionError",
                "message": "Pod was rejected: Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 8, Available: 7, which is unexpected",
                "containerStatuses": [],
            },
        ),
    ),
    "killed_externally",
)
case(
    "kubelet_admission_rejected",
    "out of cpu",
    True,
    "n1",
    snapshot(
        LOST_JOB,
        pod(
            "worker-0",
            "Rejected",
            status={
                "reason": "OutOfcpu",
                "message": "Pod was rejected: Node didn't have enough resource: cpu, requested: 32000",
                "containerStatuses": [],
            },
        ),
    ),
    "insufficient_gpu",
)

# --- infrastructure ---------------------------------------------------------------------------------------------------

case(
    "oom_killed",
    "plain",
    False,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=1, ended=30.2),
        pod("worker-0", "Failed", exit_code=137, reason="OOMKilled"),
        logs={"master-0": PEER, "worker-0": "step 40 loss 2"},
    ),
    "killed_externally",
    "secondary_peer_loss",
)
BANNER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n====\ntrain.py FAILED\n----\nFailures:\n[1]:\n  time : 2026-05-20_12:30:01\n  rank : 3 (local_rank: 3)\n  exitcode : -9 (pid: 77)\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID 77\n----\nRoot Cause (first observed failure):\n[0]:\n  rank : 0 (local_rank: 0)\n  exitcode : 1 (pid: 74)\n"
case(
    "oom_killed",
    "hidden behind torchrun",
    False,
    "net-worker-0",
    failed("[rank0]: RuntimeError: Connection closed by peer [10.0.0.1]:33\n" + BANNER),
    "python_exception",
    "killed_externally",
    "secondary_peer_loss",
)
case(
    "oom_killed",
    "mpirun",
    False,
    "net-worker-1",
    snapshot(
        job("Created", FAILED, kind="MPIJob"),
        pod("launcher-0", "Failed", exit_code=1, container="mpi"),
        pod("worker-0", container="mpi"),
        pod("worker-1", container="mpi"),
        logs={
            "launcher-0": "mpirun noticed that process rank 2 with PID 91 on node net-worker-1 exited on signal 9 (Killed)."
        },
    ),
    "mpi_ssh_unreachable",
)
case(
    "oom_killed",
    "data loader",
    False,
    "net-worker-0",
    failed(traceback("RuntimeError: DataLoader worker (pid 512) is killed by signal: Killed. ")),
    "python_exception",
)
case(
    "drained_by_eviction_api",
    "with a stale OOMKilled",
    True,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod(
            "worker-0",
            "Failed",
            exit_code=143,
            reason="OOMKilled",
            disruption=("EvictionByEvictionAPI", "Eviction API: evicting"),
        ),
    ),
    "oom_killed",
    "killed_externally",
)
case(
    "evicted_node_pressure",
    "memory",
    True,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod("master-0"),
        pod(
            "worker-0",
            "Failed",
            exit_code=137,
            status={
                "reason": "Evicted",
                "message": "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. Container pytorch was using 90Gi, request is 8Gi.",
            },
            disruption=("TerminationByKubelet", "The node was low on resource: memory."),
        ),
    ),
    "oom_killed",
    "spot_or_node_shutdown",
)
case(
    "evicted_ephemeral_storage",
    "emptyDir",
    False,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod(
            "worker-0",
            "Failed",
            exit_code=137,
            status={
                "reason": "Evicted",
                "message": 'Usage of EmptyDir volume "scratch" exceeds the limit "20Gi".',
            },
        ),
    ),
    "evicted_node_pressure",
    "disk_full",
)
case(
    "evicted_ephemeral_storage",
    "limit",
    False,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod(
            "worker-0",
            "Failed",
            status={
                "reason": "Evicted",
                "message": "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi.",
            },
        ),
    ),
    "evicted_node_pressure",
)
case(
    "node_lost",
    "kubelet silent",
    True,
    "net-worker-0",
    snapshot(
        job("Created", "Restarting"),
        pod("master-0", "Failed", exit_code=1, ended=31),
        pod(
            "worker-0",
            deleted=32,
            node="n2",
            disruption=("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
        ),
        nodes=[node(), node("n2", ready="Unknown", taints=("node.kubernetes.io/unreachable==NoExecute",))],
        logs={"master-0": PEER},
    ),
    "killed_externally",
    "nccl_timeout",
    "spot_or_node_shutdown",
)
case(
    "preempted_by_priority",
    "scheduler",
    True,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod(
            "worker-0",
            "Failed",
            exit_code=143,
            disruption=(
                "PreemptionByScheduler",
                "default-scheduler: preempting to accommodate a higher priority pod",
            ),
        ),
    ),
    "killed_externally",
    "drained_by_eviction_api",
)
case(
    "preempted_by_priority",
    "Kueue",
    True,
    "workload",
    snapshot(
        QUEUED,
        workloads=[
            workload(
                condition(
                    "QuotaReserved",
                    "False",
                    "Pending",
                    "Preempted to accommodate a workload (UID: 9) due to prioritization in the ClusterQueue",
                ),
                condition(
                    "Evicted",
                    "True",
                    "Preempted",
                    "Preempted to accommodate a workload (UID: 9) due to prioritization in the ClusterQueue",
                ),
                condition("Preempted", "True", "InClusterQueue", "Preempted to accommodate a workload"),
            )
        ],
    ),
    "job_suspended",
    "queue_quota_pending",
)
case(
    "spot_or_node_shutdown",
    "shutdown",
    True,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=1, ended=31),
        pod(
            "worker-0",
            "Failed",
            exit_code=143,
            status={
                "reason": "Terminated",
                "message": "Pod was terminated in response to imminent node shutdown.",
            },
            disruption=("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown."),
        ),
        logs={"master-0": PEER},
    ),
    "evicted_node_pressure",
    "network_fabric_error",
)
case(
    "spot_or_node_shutdown",
    "taint",
    True,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod(
            "worker-0",
            "Failed",
            exit_code=143,
            node="s1",
            disruption=("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"),
        ),
        nodes=[node("s1", ready="Unknown", taints=("aws-node-termination-handler/spot-itn=x=NoExecute",))],
    ),
    "node_lost",
)
case(
    "drained_by_eviction_api",
    "drain",
    True,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod(
            "worker-0",
            "Failed",
            exit_code=143,
            disruption=("EvictionByEvictionAPI", "Eviction API: evicting"),
        ),
        nodes=[node(cordoned=True)],
    ),
    "killed_externally",
)
case(
    "gpu_hardware_error",
    "ECC",
    True,
    "n1",
    failed(
        traceback("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", rank=3),
        peers=PEER,
        nodes=[node()],
    ),
    "python_exception",
    "network_fabric_error",
)
case(
    "gpu_hardware_error",
    "Xid on its node",
    True,
    "n1",
    failed(
        traceback("RuntimeError: CUDA error: unspecified launch failure"),
        peers=PEER,
        events=[
            event(
                "GpuXid",
                "NVRM: Xid (PCI:0000:3b:00): 79, pid=912, GPU has fallen off the bus.",
                "node/n1",
                when=29.8,
            )
        ],
    ),
    "python_exception",
    "device_side_assert",
)
case(
    "gpu_lost_in_container",
    "reload",
    True,
    "net-master-0",
    snapshot(
        RUNNING,
        pod("master-0"),
        logs={
            "master-0": "step 9000 loss 1.2\nFailed to initialize NVML: Unknown Error\nRuntimeError: No CUDA GPUs are available"
        },
    ),
    "cuda_driver_mismatch",
    "gpu_runtime_broken",
)
case(
    "disk_full",
    "checkpoint",
    False,
    "net-worker-0",
    failed(traceback("OSError: [Errno 28] No space left on device: '/ckpt/step-90/part-0'")),
    "shm_too_small",
    "python_exception",
)
case(
    "disk_full",
    "quota",
    False,
    "net-worker-0",
    failed(
        traceback(
            "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598",
            library="torch/serialization.py",
        )
    ),
    "checkpoint_corrupt",
)
case(
    "killed_externally",
    "137 alone",
    True,
    "net-worker-0",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=1, ended=30.3),
        pod("worker-0", "Failed", exit_code=137),
        logs={"master-0": PEER, "worker-0": "step 8 loss 2"},
    ),
    "oom_killed",
    "secondary_peer_loss",
)
case(
    "python_exception",
    "143s are teardown",
    False,
    "net-worker-1",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=143, ended=30),
        pod("worker-0", "Failed", exit_code=143, ended=30),
        pod("worker-1", "Failed", exit_code=1, ended=30),
        logs={"worker-1": traceback("ValueError: bad shard 7", rank=2)},
    ),
    "killed_externally",
)

# --- communication ----------------------------------------------------------------------------------------------------

REFUSED = "[W0520 12:09:00.000000000 socket.cpp:764] [c10d] The client socket has failed to connect to [net-master-0]:23456 (errno: 111 - Connection refused)."
case(
    "master_unreachable_dns",
    "gai",
    True,
    "net-worker-0",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0", waiting="CrashLoopBackOff", last=1, restarts=3),
        logs={
            "worker-0": "[W520 socket.cpp:752] [c10d] The IPv4 network addresses of (net-master-0, 23456) cannot be retrieved (gai error: -2 - Name or service not known).\ntorch.distributed.DistNetworkError: The client socket has timed out after 300000ms while trying to connect to (net-master-0, 23456)."
        },
    ),
    "master_unreachable_network",
    "rendezvous_timeout",
)
case(
    "master_unreachable_network",
    "policy",
    False,
    "net-worker-0",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0", waiting="CrashLoopBackOff", last=1, restarts=3),
        pod("worker-1", waiting="CrashLoopBackOff", last=1, restarts=3),
        logs={
            "worker-0": "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (net-master-0, 23456).",
            "master-0": "listening on 23456",
        },
    ),
    "rendezvous_timeout",
    "master_unreachable_dns",
)
case(
    "python_exception",
    "the master crashed, workers are refused",
    False,
    "net-master-0",
    snapshot(
        RUNNING,
        pod("master-0", waiting="CrashLoopBackOff", last=1, restarts=5),
        pod("worker-0"),
        logs={"master-0": traceback("KeyError: 'lr'"), "worker-0": REFUSED},
    ),
    "master_unreachable_network",
    "rendezvous_timeout",
)


def last_started_late(error: str, library: str) -> Json:
    """worker-1 starts 18 s after the others, and worker-0 waited for it until ``error``."""
    return snapshot(
        RUNNING,
        pod("master-0", begun=1),
        pod("worker-0", begun=1.2, waiting="CrashLoopBackOff", last=1, restarts=1),
        pod("worker-1", begun=19),
        logs={"worker-0": traceback(error, library=library)},
    )


case(
    "rendezvous_timeout",
    "all run now",
    True,
    "net-worker-1",
    last_started_late(
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch/distributed/elastic/rendezvous/dynamic_rendezvous.py",
    ),
    "python_exception",
    "master_unreachable_network",
)
case(
    "rendezvous_timeout",
    "of the store, before the master says how many came",
    True,
    "net-worker-1",
    last_started_late(
        "torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cpu//0/0",
        "torch/distributed/distributed_c10d.py",
    ),
    "python_exception",
    "unknown",
)
case(
    "image_pull_auth",
    "peers wait in the rendezvous",
    False,
    "net-worker-1",
    snapshot(
        RUNNING,
        pod("master-0", waiting="CrashLoopBackOff", last=1, restarts=1),
        pod("worker-0"),
        pod("worker-1", "Pending", waiting="ImagePullBackOff", message="403 Forbidden"),
        logs={
            "master-0": "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 2/3 clients joined."
        },
    ),
    "rendezvous_timeout",
)
case(
    "world_size_mismatch",
    "clients",
    False,
    "net",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0"),
        pod("worker-1"),
        logs={
            "master-0": "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 3/5 clients joined."
        },
    ),
    "rendezvous_timeout",
)
case(
    "world_size_mismatch",
    "rank",
    False,
    "net-worker-0",
    failed(traceback("ValueError: invalid rank: rank 4 >= world_size 4")),
    "python_exception",
)
BUSY = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, code: -98, name: EADDRINUSE, message: address already in use"
case(
    "port_in_use",
    "two launchers",
    False,
    "net-master-0",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=1),
        pod("worker-0"),
        logs={"master-0": traceback(BUSY, rank=0), "worker-0": REFUSED},
    ),
    "master_unreachable_network",
)
case(
    "port_in_use",
    "host network",
    True,
    "net-master-0",
    snapshot(
        LOST_JOB, pod("master-0", "Failed", exit_code=1, spec={"hostNetwork": True}), logs={"master-0": BUSY}
    ),
)
case(
    "nccl_interface",
    "none",
    False,
    "NCCL_SOCKET_IFNAME",
    failed(
        "net-worker-0:31:31 [0] bootstrap.cc:45 NCCL WARN Bootstrap : no socket interface found\n"
        + traceback(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2005, internal error - please report this issue to the NCCL developers, NCCL version 2.21.5",
            rank=1,
        )
    ),
    "network_fabric_error",
    "python_exception",
)
case(
    "nccl_timeout",
    "all alike",
    True,
    "net",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=134),
        pod("worker-0", "Failed", exit_code=134),
        logs={"master-0": watchdog(0), "worker-0": watchdog(1)},
    ),
    "native_crash",
    "collective_mismatch",
)
case(
    "nccl_init_mismatch",
    "moved tag",
    False,
    "net-worker-1",
    snapshot(
        LOST_JOB,
        *(
            pod(n, "Failed", exit_code=1, digest=d)
            for n, d in (("master-0", "sha256:aa"), ("worker-0", "sha256:aa"), ("worker-1", "sha256:bb"))
        ),
        logs={
            "master-0": "net-master-0:9:9 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 3 - Init COMPLETE\n"
            + watchdog(0, 1),
            "worker-1": "NCCL version 2.20.5+cuda12.4",
        },
    ),
    "nccl_timeout",
)
case(
    "network_fabric_error",
    "InfiniBand",
    True,
    "n1",
    failed(
        "net-worker-0:9:9 [2] transport/net_ib.cc:1861 NCCL WARN NET/IB : Got completion from peer 10.0.0.4<4512> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_2\n"
        + "[rank1]: "
        + PEER[9:],
        peers=PEER,
    ),
    "secondary_peer_loss",
    "nccl_timeout",
)
case(
    "collective_mismatch",
    "detected",
    False,
    "net-worker-0",
    failed(
        traceback(
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE), but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST)",
            rank=1,
        )
    ),
    "python_exception",
)
case(
    "collective_mismatch",
    "watchdogs differ",
    False,
    "code",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=1),
        pod("worker-0", "Failed", exit_code=1),
        pod("worker-1", "Failed", exit_code=1),
        logs={
            "master-0": watchdog(0, 55),
            "worker-0": watchdog(1, 55),
            "worker-1": watchdog(2, 55, "ALLGATHER", 77),
        },
    ),
    "nccl_timeout",
)
case(
    "duplicate_gpu_mapping",
    "ordinal",
    False,
    "net-worker-0",
    failed(traceback("RuntimeError: CUDA error: invalid device ordinal", rank=5)),
    "python_exception",
    "gpu_hardware_error",
)
case(
    "shm_too_small",
    "bus error",
    False,
    "net-worker-0",
    failed(
        traceback(
            "RuntimeError: DataLoader worker (pid 33) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit."
        )
    ),
    "oom_killed",
    "native_crash",
)
case(
    "shm_too_small",
    "NCCL",
    False,
    "net-worker-0",
    failed(
        "misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Xy12 to 9637892 bytes, error: No space left on device (28)\n"
        + traceback(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2005, unhandled system error",
            rank=1,
        )
    ),
    "disk_full",
)
case(
    "partial_restart_hang",
    "made anew",
    True,
    "net-worker-1",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0"),
        pod("worker-1", restarts=1, begun=50, last=137, last_reason="OOMKilled", ended=49),
        logs={
            "master-0": "step 400 loss 1.1",
            "worker-0": "step 400 loss 1.1",
            "worker-1": "waiting for the process group",
        },
    ),
    "healthy",
    "oom_killed",
)
SSH = "ssh: connect to host net-worker-1.net.ml.svc port 22: Connection refused\nORTE was unable to reliably start one or more daemons."
MPI = job("Created", "Running", kind="MPIJob")
case(
    "mpi_ssh_unreachable",
    "sshd not up yet",
    True,
    "net-worker-1",
    snapshot(
        MPI,
        pod("launcher-0", "Failed", exit_code=1, container="mpi"),
        pod("worker-0", container="mpi"),
        pod("worker-1", container="mpi"),
        logs={"launcher-0": SSH},
    ),
    "master_unreachable_network",
    "mpi_ssh_auth",
)
case(
    "mpi_ssh_auth",
    "key",
    False,
    "net-launcher-0",
    snapshot(
        MPI,
        pod("launcher-0", "Failed", exit_code=255, container="mpi"),
        pod("worker-0", container="mpi"),
        logs={
            "launcher-0": "Permission denied (publickey,password).\nORTE was unable to reliably start one or more daemons."
        },
    ),
    "mpi_ssh_unreachable",
    "filesystem_permission_denied",
)
case(
    "mpi_slots_mismatch",
    "np",
    False,
    "net",
    snapshot(
        MPI,
        pod("launcher-0", "Failed", exit_code=1, container="mpi"),
        pod("worker-0", container="mpi"),
        logs={
            "launcher-0": "There are not enough slots available in the system to satisfy the 16 slots\nthat were requested by the application:\n  python"
        },
    ),
)
case(
    "tf_config_error",
    "own TF_CONFIG",
    False,
    "TF_CONFIG",
    snapshot(
        job("Created", FAILED, kind="TFJob"),
        pod("worker-0", "Failed", exit_code=1, container="tensorflow"),
        logs={"worker-0": traceback("ValueError: `task_type` 'worker2' not found in cluster_spec.")},
    ),
    "python_exception",
)

# --- code and data ----------------------------------------------------------------------------------------------------

case(
    "python_exception",
    "speaks",
    False,
    "net-worker-0",
    failed(traceback("ZeroDivisionError: division by zero", rank=1), peers=PEER),
    "secondary_peer_loss",
)
case(
    "python_exception",
    "usage",
    False,
    "net-worker-0",
    failed(
        "usage: train.py [-h] --epochs N\ntrain.py: error: the following arguments are required: --epochs",
        exit_code=2,
    ),
    "bad_entrypoint",
)
case(
    "python_exception",
    "a retried download went before",
    False,
    "net-worker-0",
    failed(
        "WARNING retrying: 503 Slow Down\nstep 4\n"
        + traceback("ValueError: Expected input batch_size (32) to match target batch_size (16).")
    ),
    "data_throttled",
)
case(
    "missing_dependency",
    "module",
    False,
    "net-worker-0",
    failed(traceback("ModuleNotFoundError: No module named 'flash_attn'")),
    "python_exception",
    "bad_entrypoint",
)
case(
    "missing_dependency",
    "library",
    False,
    "net-worker-0",
    failed(traceback("ImportError: libGL.so.1: cannot open shared object file: No such file or directory")),
    "data_not_found",
)
case(
    "native_crash",
    "139",
    False,
    "net-worker-0",
    failed("step 3\nFatal Python error: Segmentation fault\n", exit_code=139, peers=PEER),
    "secondary_peer_loss",
)
case(
    "native_crash",
    "by its code alone",
    False,
    "net-worker-0",
    failed("step 3", exit_code=139),
    "killed_externally",
)
case(
    "cuda_oom",
    "one rank",
    False,
    "net-worker-0",
    failed(
        traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", rank=9),
        peers=watchdog(0),
    ),
    "nccl_timeout",
    "oom_killed",
)
case(
    "cuda_oom",
    "NCCL",
    False,
    "net-worker-0",
    failed(
        "enqueue.cc:61 NCCL WARN Cuda failure 'out of memory'\n"
        + traceback(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2005, unhandled cuda error",
            rank=1,
        )
    ),
    "network_fabric_error",
)
case(
    "cuda_driver_mismatch",
    "old driver",
    False,
    "n1",
    failed(
        traceback(
            "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
        )
    ),
    "gpu_runtime_broken",
)
case(
    "gpu_arch_mismatch",
    "kernel",
    False,
    "net-worker-0",
    failed(traceback("RuntimeError: CUDA error: no kernel image is available for execution on the device")),
    "cuda_driver_mismatch",
)
case(
    "device_side_assert",
    "labels",
    False,
    "net-worker-0",
    failed(
        "/pytorch/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [4,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
        + traceback("RuntimeError: CUDA error: device-side assert triggered", rank=1),
        peers=PEER,
    ),
    "gpu_hardware_error",
)
case(
    "nan_loss",
    "scaler",
    False,
    "net-worker-0",
    failed(
        traceback("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.")
    ),
    "python_exception",
)
case(
    "nan_loss",
    "rows",
    False,
    "net-master-0",
    snapshot(
        RUNNING,
        pod("master-0"),
        logs={"master-0": "step 1 loss 2.1\nstep 2 loss nan\nstep 3 loss nan\nstep 4 loss nan"},
    ),
    "healthy",
)
case(
    "checkpoint_taken_over",
    "on another host",
    False,
    "net-worker-0",
    failed(
        "step 12 loss 0.3\n"
        + traceback(
            "allaboard.errors.TakenOver: checkpoints s3://lab/digits/net-1f: process 4711 on host-b has taken over "
            "this folder at 2026-11-26T18:00:00.250Z and goes on after step 10; process 12 on host-a saves no more, "
            "so that their checkpoints do not mix; let the other one train, or stop it and start this one anew"
        )
    ),
    "checkpoint_corrupt",
    "python_exception",
)
case(
    "checkpoint_corrupt",
    "torn",
    False,
    "net-worker-0",
    failed(
        "resuming from /ckpt/step-40\n"
        + traceback(
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
        )
    ),
    "checkpoint_mismatch",
    "python_exception",
)
case(
    "checkpoint_corrupt",
    "pickle",
    False,
    "net-worker-0",
    failed("loading checkpoint\n" + traceback("EOFError: Ran out of input")),
    "python_exception",
)
case(
    "checkpoint_mismatch",
    "keys",
    False,
    "net-worker-0",
    failed(
        traceback(
            'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "head.weight".'
        )
    ),
    "checkpoint_corrupt",
    "python_exception",
)
case(
    "checkpoint_write_nfs_lock",
    "no locks",
    False,
    "net-worker-0",
    failed("saving\n" + traceback("OSError: [Errno 37] No locks available", library="filelock/_unix.py")),
    "disk_full",
    "filesystem_permission_denied",
)
case(
    "filesystem_permission_denied",
    "cache",
    False,
    "net-worker-0",
    failed(traceback("PermissionError: [Errno 13] Permission denied: '/.cache'")),
    "data_access_denied",
)
case(
    "data_access_denied",
    "S3",
    False,
    "net-worker-0",
    failed(
        traceback(
            "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation: Access Denied",
            library="botocore/client.py",
        )
    ),
    "filesystem_permission_denied",
    "data_not_found",
)
case(
    "data_access_denied",
    "gated",
    False,
    "net-worker-0",
    failed(
        traceback(
            "huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url https://huggingface.co/x"
        )
    ),
    "data_not_found",
)
case(
    "data_not_found",
    "file",
    False,
    "net-worker-0",
    failed(traceback("FileNotFoundError: [Errno 2] No such file or directory: '/data/train-0007.tar'")),
    "python_exception",
    "bad_entrypoint",
)
case(
    "data_not_found",
    "hub",
    False,
    "net-worker-0",
    failed(
        traceback(
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. Repository Not Found for url: https://huggingface.co/x"
        )
    ),
    "data_access_denied",
)
case(
    "data_throttled",
    "SlowDown",
    True,
    "net-worker-0",
    failed(
        traceback(
            "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject operation (reached max retries: 4): Please reduce your request rate."
        )
    ),
    "data_endpoint_unreachable",
)
case(
    "data_throttled",
    "hub",
    True,
    "net-worker-0",
    failed(
        traceback(
            "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/datasets/x"
        )
    ),
    "image_pull_rate_limited",
    "data_access_denied",
)
case(
    "data_endpoint_unreachable",
    "endpoint",
    True,
    "net-worker-0",
    failed(
        traceback(
            'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://minio.lab:9000/data"'
        )
    ),
    "master_unreachable_network",
)
case(
    "data_endpoint_unreachable",
    "name of the store",
    True,
    "net-worker-0",
    failed(
        traceback(
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x (Caused by NameResolutionError(\"Failed to resolve 'huggingface.co' ([Errno -3] Temporary failure in name resolution)\"))"
        )
    ),
    "master_unreachable_dns",
)
case(
    "clock_skew",
    "S3",
    True,
    "n1",
    failed(
        traceback(
            "botocore.exceptions.ClientError: An error occurred (RequestTimeTooSkewed) when calling the PutObject operation: The difference between the request time and the current time is too large."
        )
    ),
    "data_access_denied",
)

# --- lifecycle and speed ----------------------------------------------------------------------------------------------

case(
    "process_not_exiting",
    "done",
    False,
    "net-master-0",
    snapshot(
        RUNNING,
        pod("master-0"),
        logs={"master-0": "step 100 loss 0.1\nTraining complete, model saved to /out"},
    ),
    "healthy",
    "sidecar_blocks_completion",
)
ISTIO = {
    "name": "istio-proxy",
    "state": {"running": {"startedAt": "2026-05-20T12:01:00Z"}},
    "restartCount": 0,
}
case(
    "sidecar_blocks_completion",
    "istio",
    False,
    "istio-proxy",
    snapshot(
        RUNNING,
        pod("master-0", exit_code=0, reason="Completed", sidecar=ISTIO),
        logs={"master-0": "training complete"},
    ),
    "process_not_exiting",
    "master_unreachable_network",
)
BACKOFF = condition(
    "Failed",
    reason="PyTorchJobFailed",
    message="PyTorchJob net is failed because it has reached the specified backoff limit",
    since=40,
)
case(
    "backoff_limit_exceeded", "the pods are gone", False, "net", snapshot(job("Created", BACKOFF)), "unknown"
)
case(
    "python_exception",
    "below the backoff limit",
    False,
    "net-worker-0",
    snapshot(
        job("Created", BACKOFF),
        pod("worker-0", "Failed", exit_code=1),
        logs={"worker-0": traceback("KeyError: 'x'")},
    ),
    "backoff_limit_exceeded",
)
case(
    "deadline_exceeded",
    "killed by it",
    False,
    "net",
    snapshot(
        job(
            "Created",
            condition(
                "Failed",
                reason="PyTorchJobFailed",
                message="PyTorchJob net is failed because it was active longer than specified deadline",
                since=60,
            ),
        ),
        pod("worker-0", "Failed", exit_code=143, ended=60.1),
        logs={"worker-0": "step 40"},
    ),
    "killed_externally",
)
RDMA = {"feature.node.kubernetes.io/rdma.available": "true"}
SLOW = "NCCL INFO NET/IB : No device found.\nNCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\nNCCL INFO Using network Socket\nstep 10 900 tok/s"
case(
    "slow_socket_fallback",
    "RDMA is there",
    False,
    "spec",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0", node="n2"),
        pod("worker-1", node="n3"),
        nodes=[node(labels=RDMA), node("n2", labels=RDMA), node("n3", labels=RDMA)],
        logs={"master-0": SLOW},
    ),
    "healthy",
)
case(
    "healthy",
    "TCP where there is nothing else",
    None,
    "",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0", node="n2"),
        pod("worker-1", node="n3"),
        nodes=[node(), node("n2"), node("n3")],
        logs={"master-0": SLOW.replace("NCCL INFO NET/IB : No device found.\n", "")},
    ),
    "slow_socket_fallback",
)
BLOCK = "topology.lab/block"
case(
    "slow_topology_placement",
    "three blocks",
    True,
    "placement",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0", node="n2"),
        pod("worker-1", node="n3"),
        nodes=[node(labels={BLOCK: "a"}), node("n2", labels={BLOCK: "b"}), node("n3", labels={BLOCK: "c"})],
        logs={"master-0": "step 10 1100 tok/s (expected 2300)"},
    ),
    "healthy",
)
case(
    "slow_topology_placement",
    "another type",
    True,
    "net-worker-1",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0", node="n2"),
        pod("worker-1", node="n3"),
        nodes=[
            node(n, labels={"nvidia.com/gpu.product": p})
            for n, p in (("n1", "H100"), ("n2", "H100"), ("n3", "A100"))
        ],
        logs={"master-0": "step 10"},
    ),
    "healthy",
)
case(
    "healthy",
    "steps after early warnings",
    None,
    "",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0"),
        pod("worker-1"),
        events=[
            event("FailedScheduling", FULL, when=0.1),
            event("FailedMount", 'MountVolume.SetUp failed for volume "x" : timed out', when=0.3),
        ],
        logs={"master-0": "step 5\nstep 6", "worker-0": REFUSED + "\nstep 5\nstep 6"},
    ),
    "insufficient_gpu",
    "master_unreachable_network",
    "volume_mount_failed",
)
case(
    "healthy",
    "succeeded",
    None,
    "",
    snapshot(
        job("Created", "Succeeded"),
        pod("master-0", "Succeeded", exit_code=0, reason="Completed"),
        pod("worker-0", "Succeeded", exit_code=0, reason="Completed"),
        logs={"worker-0": "RuntimeError: Connection reset by peer\n"},
    ),
    "secondary_peer_loss",
)
case(
    "unknown",
    "nothing is left",
    False,
    "",
    snapshot(job("Created", FAILED)),
    "python_exception",
    "backoff_limit_exceeded",
)
case(
    "unknown",
    "only victims",
    False,
    "",
    snapshot(LOST_JOB, pod("master-0", "Failed", exit_code=1), logs={"master-0": PEER}),
    "secondary_peer_loss",
    "python_exception",
    "network_fabric_error",
)

# --- the same causes in other words -----------------------------------------------------------------------------------


def a_trainjob(*conditions: Any, **more: Any) -> Json:
    return job(*conditions, kind="TrainJob", **more)


case(
    "nccl_init_mismatch",
    "hang, no words",
    False,
    "net-worker-1",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0"),
        pod("worker-1", digest="sha256:bb"),
        logs={"master-0": "model loaded\nstep 0"},
    ),
)
case(
    "rendezvous_timeout",
    "jax",
    True,
    "net",
    snapshot(
        job("Created", FAILED, kind="PyTorchJob"),
        pod("master-0", "Failed", exit_code=1),
        pod("worker-0"),
        pod("worker-1"),
        logs={
            "master-0": "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: PjRT_Client_Connect. # of tasks reached: 2/3"
        },
    ),
)
case(
    "clock_skew",
    "pull x509",
    True,
    "n1",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            waiting="ErrImagePull",
            message='failed to do request: Head "https://registry.lab/v2/": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2023-01-01T00:00:00Z is before 2026-01-01T00:00:00Z',
        ),
    ),
)
case(
    "deadline_exceeded",
    "trainjob",
    False,
    "net",
    snapshot(
        a_trainjob(
            condition("Failed", reason="DeadlineExceeded", message="TrainJob exceeded its active deadline")
        )
    ),
)
case(
    "queue_quota_pending",
    "deadline but never ran",
    True,
    "team-a",
    snapshot(
        QUEUED,
        workloads=[
            workload(
                condition(
                    "QuotaReserved",
                    "False",
                    "Pending",
                    "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more needed",
                )
            )
        ],
    ),
)
case(
    "node_lost",
    "terminating forever",
    True,
    "net-worker-0",
    snapshot(
        job("Created", "Restarting"),
        pod("master-0"),
        pod("worker-0", deleted=10, node="n2"),
        nodes=[node(), node("n2", ready="Unknown")],
        events=[event("NodeNotReady", "Node is not ready", when=8)],
    ),
)
case(
    "killed_externally",
    "deleted by somebody",
    True,
    "net-worker-0",
    snapshot(
        job("Created", "Restarting"),
        pod("master-0", "Failed", exit_code=1, ended=31),
        pod("worker-0", "Failed", exit_code=143),
        events=[event("Killing", "Stopping container pytorch", type="Normal", when=29)],
        logs={"master-0": PEER, "worker-0": "Received 15 death signal, shutting down workers\nstep 4"},
    ),
)
case(
    "oom_killed",
    "loader, goes on",
    False,
    "net-worker-0",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0"),
        logs={"worker-0": "RuntimeError: DataLoader worker (pid(s) 512) exited unexpectedly\n"},
        events=[
            event("OOMKilling", "Memory cgroup out of memory: Killed process 512 (pt_data_worker)", "node/n1")
        ],
    ),
)
case(
    "partial_restart_hang",
    "recreated",
    True,
    "net-worker-1",
    snapshot(
        job("Created", "Running"),
        pod("master-0"),
        pod("worker-0"),
        pod("worker-1", made=50, begun=51),
        logs={"master-0": "step 400 loss 1.1", "worker-1": "Init process group, waiting"},
    ),
)
case(
    "checkpoint_write_nfs_lock",
    "silent",
    False,
    "net",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod("worker-0"),
        pvcs=[
            {
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "s"},
                "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "nfs"},
            }
        ],
        logs={
            "master-0": "step 100\nSaving checkpoint to /mnt/ckpt/step-100",
            "worker-0": "step 100\nSaving checkpoint to /mnt/ckpt/step-100",
        },
    ),
)
case(
    "master_unreachable_dns",
    "init stuck",
    True,
    "net-worker-0",
    snapshot(
        RUNNING,
        pod("master-0"),
        pod(
            "worker-0",
            "Pending",
            waiting="PodInitializing",
            init={"name": "init-pytorch", "state": {"running": {}}},
        ),
        logs={
            "worker-0": "nslookup: can't resolve 'net-master-0'\nwaiting for master\nnslookup: can't resolve 'net-master-0'\nwaiting for master"
        },
    ),
)
case(
    "insufficient_gpu",
    "worker init waits for pending master",
    True,
    "scheduler",
    snapshot(
        CREATED,
        pod("master-0", "Pending", unschedulable=FULL),
        pod("worker-0", "Pending", unschedulable=FULL),
    ),
)
case(
    "world_size_mismatch",
    "nnodes arg",
    False,
    "net",
    snapshot(
        job("Created", FAILED, workers=1),
        pod("master-0", "Failed", exit_code=1, spec={"container": {"args": ["--nnodes=4", "train.py"]}}),
        pod("worker-0"),
        logs={"master-0": traceback("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")},
    ),
)
case(
    "data_not_found",
    "initializer",
    False,
    "net",
    snapshot(
        a_trainjob(
            condition(
                "Failed",
                reason="FailedJobs",
                message="jobset failed due to one or more job failures (first failed job: net-dataset-initializer-0)",
            )
        ),
        pod("dataset-initializer-0", "Failed", exit_code=1, container="dataset-initializer"),
        logs={
            "dataset-initializer-0": traceback(
                "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error."
            )
        },
    ),
)
case(
    "python_exception",
    "torchrun record",
    False,
    "net-worker-0",
    failed(
        '[default3]:[rank3]: Traceback (most recent call last):\n[default3]:[rank3]:   File "/app/t.py", line 3, in f\n[default3]:[rank3]:     x\n[default3]:[rank3]: TypeError: bad\n'
        + BANNER.replace("-9", "1").replace("Signal 9 (SIGKILL)", "x"),
        peers=PEER,
    ),
)
case(
    "missing_dependency",
    "undefined symbol",
    False,
    "net-worker-0",
    failed(traceback("ImportError: /opt/x/flash_attn_2_cuda.so: undefined symbol: _ZN3c10")),
)
case(
    "native_crash",
    "torchrun -11",
    False,
    "net-worker-0",
    failed(BANNER.replace("-9", "-11").replace("Signal 9 (SIGKILL)", "Signal 11 (SIGSEGV)"), peers=PEER),
)
case(
    "cuda_oom",
    "tf",
    False,
    "net-worker-0",
    failed(
        "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[512,1024]"
    ),
)
case(
    "gpu_hardware_error",
    "xid in log",
    True,
    "n1",
    failed(
        "NVRM: Xid (PCI:0000:17:00): 79, pid=1, GPU has fallen off the bus.\n"
        + traceback("RuntimeError: CUDA error: unknown error")
    ),
)
case(
    "python_exception",
    "xid 31 illegal access",
    False,
    "net-worker-0",
    failed(
        "NVRM: Xid (PCI:0000:17:00): 31, pid=1, MMU Fault\n"
        + traceback("RuntimeError: CUDA error: an illegal memory access was encountered")
    ),
)
case(
    "disk_full",
    "quota",
    False,
    "net-worker-0",
    failed(traceback("OSError: [Errno 122] Disk quota exceeded: '/home/u/ckpt'")),
)
case(
    "filesystem_permission_denied",
    "mkdir shell",
    False,
    "net-worker-0",
    failed("mkdir: cannot create directory '/.cache': Permission denied\n"),
)
case(
    "tf_config_error",
    "json",
    False,
    "TF_CONFIG",
    snapshot(
        job("Created", FAILED, kind="TFJob"),
        pod(
            "worker-0",
            "Failed",
            exit_code=1,
            container="tensorflow",
            spec={"container": {"env": [{"name": "TF_CONFIG", "value": "{bad"}]}},
        ),
        logs={
            "worker-0": traceback(
                "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"
            )
        },
    ),
)
case("image_pull_auth", "ecr", False, "net-master-0", pulling("no basic auth credentials"))
case(
    "evicted_node_pressure",
    "mpi cond",
    True,
    "worker",
    snapshot(
        job(
            "Created",
            condition("Failed", reason="MPIJobEvicted", message="1/4 workers are evicted"),
            kind="MPIJob",
        ),
        pod(
            "worker-0",
            "Failed",
            container="mpi",
            status={"reason": "Evicted", "message": "The node had condition: [DiskPressure]. "},
        ),
        pod("worker-1", container="mpi"),
    ),
)
case(
    "preempted_by_priority",
    "volcano",
    True,
    "net-worker-0",
    snapshot(
        job("Created", "Restarting"),
        pod("master-0"),
        pod("worker-0", "Failed", exit_code=137),
        events=[event("Evict", "Pod is evicted, because of preempt")],
    ),
)
case(
    "sidecar_blocks_completion",
    "fluentbit",
    False,
    "fluent",
    snapshot(
        RUNNING,
        pod(
            "master-0",
            exit_code=0,
            reason="Completed",
            sidecar={"name": "fluent-bit", "state": {"running": {}}},
        ),
    ),
)
case(
    "bad_entrypoint",
    "126",
    False,
    "net-master-0",
    snapshot(
        LOST_JOB,
        pod("master-0", "Failed", exit_code=126),
        logs={"master-0": "/bin/bash: /app/run.sh: Permission denied"},
    ),
)
case(
    "volume_mount_failed",
    "no such dir",
    False,
    "data",
    snapshot(
        CREATED,
        pod("master-0", "Pending", waiting="ContainerCreating"),
        events=[
            event(
                "FailedMount",
                'MountVolume.SetUp failed for volume "data" : mount failed: exit status 32\nOutput: mount.nfs: mounting nas:/x failed, reason given by server: No such file or directory',
                "pod/master-0",
            )
        ],
    ),
)
case(
    "pvc_not_bound",
    "provisioning",
    False,
    "data",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            unschedulable="0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: x",
        ),
        pvcs=[
            {"kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "status": {"phase": "Pending"}}
        ],
        events=[event("ProvisioningFailed", "failed to provision volume: quota", "pvc/data")],
    ),
)
case(
    "gang_unschedulable",
    "coscheduling",
    True,
    "net",
    snapshot(
        CREATED,
        pod(
            "master-0",
            "Pending",
            unschedulable="0/6 nodes are available: 4 Insufficient nvidia.com/gpu.",
            spec={"schedulerName": "scheduler-plugins-scheduler"},
        ),
        pod(
            "worker-0",
            "Pending",
            unschedulable="PodGroup ml/net gets rejected due to Pod net-worker-1 is unschedulable even after PostFilter",
            spec={"schedulerName": "scheduler-plugins-scheduler"},
        ),
    ),
)
case(
    "nccl_interface",
    "docker0",
    False,
    "NCCL_SOCKET_IFNAME",
    failed(
        "net-worker-0:1:1 [0] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\nnet-worker-0:1:1 [0] socket.cc:500 NCCL WARN Connect to 172.17.0.2<4000> failed : Connection refused\n"
        + traceback("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error")
    ),
)
case(
    "backoff_limit_exceeded",
    "jobset",
    False,
    "net",
    snapshot(
        a_trainjob(
            condition(
                "Failed",
                reason="FailedJobs",
                message="jobset failed due to one or more job failures (first failed job: net-node-0)",
            )
        )
    ),
)
case(
    "mpi_ssh_unreachable",
    "timed out",
    True,
    "net-worker-0",
    snapshot(
        MPI,
        pod("launcher-0", "Failed", exit_code=255, container="mpi"),
        pod("worker-0", container="mpi"),
        logs={"launcher-0": "ssh: connect to host net-worker-0.net port 22: Connection timed out"},
    ),
)
case(
    "job_suspended",
    "jobset",
    False,
    "net",
    snapshot(
        a_trainjob(
            condition("Suspended", message="TrainJob is suspended"),
            spec={"suspend": True, "trainer": {"numNodes": 2}, "runtimeRef": {"name": "t"}},
        )
    ),
)
case(
    "operator_not_running",
    "trainjob managed",
    False,
    "net",
    snapshot(
        a_trainjob(
            spec={"managedBy": "trainer.kubeflow.org/trainjob-controller", "runtimeRef": {"name": "t"}}
        )
    ),
)
case(
    "exec_format_error",
    "in status",
    False,
    "net-master-0",
    snapshot(
        RUNNING,
        pod("master-0", waiting="CrashLoopBackOff", last=1, restarts=4),
        logs={"master-0": "standard_init_linux.go:228: exec user process caused: exec format error"},
    ),
)
case(
    "healthy",
    "running, no logs",
    None,
    "",
    snapshot(RUNNING, pod("master-0"), pod("worker-0"), pod("worker-1")),
)
case("shm_too_small", "135", False, "net-worker-0", failed("step 1", exit_code=135))
case(
    "data_endpoint_unreachable",
    "timeout",
    True,
    "net-worker-0",
    failed(
        traceback(
            "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='s3.lab', port=443): Max retries exceeded with url: / (Caused by ConnectTimeoutError('Connection to s3.lab timed out. (connect timeout=60)'))"
        )
    ),
)
case(
    "nan_loss",
    "user",
    False,
    "net-worker-0",
    failed("step 4 loss nan\n" + traceback("ValueError: Loss is nan, stopping training")),
)
case(
    "checkpoint_mismatch",
    "opt",
    False,
    "net-worker-0",
    failed(
        traceback(
            "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group"
        )
    ),
)
case(
    "network_fabric_error",
    "timeout between live",
    True,
    "n1",
    failed(
        "NCCL WARN Call to recv from 10.0.0.2<1> failed : Connection timed out\n"
        + traceback("torch.distributed.DistBackendError: NCCL error: unhandled system error")
    ),
)


# --- what others wrote who had not seen the rules -----------------------------------------------------------

TRAINJOB = job(kind="TrainJob")
case(
    "webhook_unavailable",
    "of a queue, when the JobSet of a TrainJob makes its Job",
    True,
    "kueue-webhook-service",
    snapshot(
        TRAINJOB,
        events=[
            event(
                "JobCreationFailed",
                'job "net-node-0" creation failed with error: Internal error occurred: failed calling webhook "mjob.kb.io": failed to call webhook: Post "https://kueue-webhook-service.kueue-system.svc:443/mutate-batch-v1-job?timeout=10s": no endpoints available for service "kueue-webhook-service"',
                "jobset/net",
            )
        ],
        taken=at(15),
    ),
    "operator_not_running",
)
case(
    "job_spec_invalid",
    "by the JobSet that it became",
    False,
    "containers[0].resources.limits",
    snapshot(
        TRAINJOB,
        events=[
            event(
                "JobCreationFailed",
                'job "net-node-0" creation failed with error: Job.batch "net-node-0" is invalid: spec.template.spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources',
                "jobset/net",
            )
        ],
        taken=at(15),
    ),
    "operator_not_running",
)
case(
    "rbac_forbidden",
    "of the operator, where owner references take a right",
    False,
    "paddlejob-controller",
    snapshot(
        job("Created", kind="PaddleJob"),
        events=[
            event(
                "FailedCreatePod",
                'Error creating: pods "net-worker-0" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can\'t set finalizers on: , <nil>',
                "job/net",
                kind="PaddleJob",
            )
        ],
        taken=at(10),
    ),
    "unknown",
)
AZ = "0/5 nodes are available: 2 node(s) had volume node affinity conflict, 3 Insufficient nvidia.com/gpu. preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."
case(
    "unschedulable_constraints",
    "the volume lies in another zone than the empty GPUs",
    False,
    "net-worker-0",
    snapshot(
        CREATED,
        pod("worker-0", "Pending", node=None, unschedulable=AZ),
        nodes=[node("g5-0", gpus=1), node("g5-1", gpus=1), *(node(f"m5-{n}", gpus=None) for n in range(3))],
        taken=at(20),
    ),
    "insufficient_gpu",
)
LIBRARY = "/opt/py/bin/python: error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file: No such file or directory"
case(
    "missing_dependency",
    "of the interpreter itself: exit 127",
    False,
    "net-worker-0",
    failed(LIBRARY, exit_code=127),
    "bad_entrypoint",
)
case(
    "master_unreachable_dns",
    "the only one that is started again, while the others wait for it",
    True,
    "net-worker-2",
    snapshot(
        RUNNING,
        pod("master-0", begun=1),
        pod("worker-0", begun=1),
        pod("worker-2", begun=17, last=1, restarts=2),
        logs={
            "worker-2": "[W602 07:27:22.118 socket.cpp:697] [c10d] The IPv6 network addresses of (net-master-0, 23456) cannot be retrieved (gai error: -3 - Temporary failure in name resolution).",
            "master-0": "07:11:01 | INFO | store listening, world size 3",
            "worker-0": "07:10:52 | INFO | joining process group",
        },
    ),
    "partial_restart_hang",
)
case(
    "master_unreachable_dns",
    "as gRPC says it",
    True,
    "net-worker-1",
    snapshot(
        job("Created", "Running", kind="JAXJob"),
        pod("worker-0"),
        pod("worker-1", waiting="CrashLoopBackOff", last=1, restarts=3),
        logs={
            "worker-1": traceback(
                "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: failed to connect to all addresses; last error: UNAVAILABLE: DNS resolution failed for net-worker-0:6666: C-ares status is not ARES_SUCCESS qtype=AAAA name=net-worker-0 is_balancer=0: Domain name not found",
                library="jax/_src/distributed.py",
            )
        },
    ),
    "master_unreachable_network",
)
case(
    "master_unreachable_network",
    "as Rabit says it",
    False,
    "net-worker-0",
    snapshot(
        job("Created", FAILED, kind="XGBoostJob"),
        pod("master-0"),
        pod("worker-0", "Failed", exit_code=255, ended=12),
        logs={
            "worker-0": "resolved net-master-0 -> 10.42.11.7\nretry connect to ip(retry time 4): [net-master-0]\nconnect to (failed): [net-master-0]\nSocket Connect Error:Connection timed out",
            "master-0": "start listen on 0.0.0.0:9991",
        },
    ),
    "unknown",
)
case(
    "healthy",
    "it was started again before, and trains since",
    None,
    "",
    snapshot(
        job("Created", "Running", workers=1),
        pod("master-0"),
        pod("worker-0", last=1, restarts=2, begun=6),
        logs={
            "worker-0": "Epoch: [3]  [ 420/1850]  eta: 0:14:15  lr: 0.000100  loss: 11.2201 (12.0217)  time: 0.5973"
        },
        taken=at(60),
    ),
    "python_exception",
    "partial_restart_hang",
)
case(
    "world_size_mismatch",
    "one process of each member has come, and WORLD_SIZE counts GPUs",
    False,
    "net",
    snapshot(
        job("Created", FAILED, workers=1),
        pod("master-0", "Failed", exit_code=1, ended=30),
        pod("worker-0", "Failed", exit_code=1, ended=30),
        logs={
            "master-0": traceback(
                "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 2/16 clients joined."
            )
        },
    ),
    "rendezvous_timeout",
)
case(
    "nccl_interface",
    "an interface that has no address",
    False,
    "NCCL_SOCKET_IFNAME",
    failed(
        "net-worker-0:88:88 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2\n[rank8]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, internal error - please report this issue to the NCCL developers, NCCL version 2.27.7\nncclInternalError: Internal check failed.\nLast error:\nncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)"
    ),
    "python_exception",
)
case(
    "checkpoint_write_nfs_lock",
    "its server does not answer, and the others' watchdogs bark",
    False,
    "net-master-0",
    snapshot(
        job("Created", FAILED, workers=1),
        pod("master-0"),
        pod("worker-0", "Failed", exit_code=134, ended=40),
        logs={
            "master-0": "it 4000/90000 lm_loss 2.3912\nrank 0: saving checkpoint to /mnt/nfs/lm/iter_0004000 ...",
            "worker-0": f"it 4000/90000 lm_loss 2.3912\n{watchdog(1)}",
        },
        events=[
            event("KernelMessage", "nfs: server nas-02 not responding, still trying", "node/n1", when=35)
        ],
    ),
    "nccl_timeout",
    "native_crash",
)
case(
    "collective_mismatch",
    "gloo's own check of sizes",
    False,
    "net-worker-0",
    failed(
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8192 vs 4096",
        exit_code=134,
    ),
    "native_crash",
)
case(
    "tf_config_error",
    "a task type that the cluster does not have",
    False,
    "TF_CONFIG",
    snapshot(
        job("Created", FAILED, kind="TFJob"),
        pod("worker-0", "Failed", exit_code=1, ended=30),
        logs={
            "worker-0": traceback(
                "ValueError: worker is not a valid task_type in the cluster_spec:\nClusterSpec({'chief': ['net-chief-0:2222']})",
                library="tensorflow_estimator/python/estimator/run_config.py",
            )
        },
    ),
    "python_exception",
)
case(
    "cuda_driver_mismatch",
    "error 803",
    False,
    "net-worker-0",
    failed(
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination"
    ),
    "python_exception",
)
case(
    "nan_loss",
    "as Megatron asserts it",
    False,
    "net-worker-0",
    failed(
        traceback(
            "AssertionError: Rank 20: found NaN in local forward loss calculation. Device: 4, node: net-worker-0"
        )
    ),
    "python_exception",
)
case(
    "checkpoint_mismatch",
    "of another world size, as DeepSpeed says it",
    False,
    "net-worker-0",
    failed(
        traceback(
            "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world size of 32 but the current world size is 16. Automatic adjustment of ZeRO's optimizer state partitioning with a new world size is not currently supported."
        )
    ),
    "python_exception",
    "world_size_mismatch",
)
case(
    "data_access_denied",
    "as Arrow says it",
    False,
    "net-worker-0",
    failed(
        traceback(
            "OSError: When getting information for key 'ltv/part-0.parquet' in bucket 'acme': AWS Error ACCESS_DENIED during HeadObject operation: No response body."
        )
    ),
    "python_exception",
)
case(
    "clock_skew",
    "a token that is not of this hour",
    True,
    "n1",
    failed(
        traceback(
            "google.auth.exceptions.RefreshError: ('invalid_grant: Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe. Check your iat and exp values in the JWT claim.', {})"
        )
    ),
    "python_exception",
    "data_access_denied",
)

MPI = job("Created", FAILED, kind="MPIJob")
MPI["spec"]["slotsPerWorker"] = 8


def launched(log: str) -> Json:
    """What the launcher of an MPIJob printed when it ended."""
    workers = [pod(f"worker-{n}", exit_code=None) for n in range(2)]
    return snapshot(MPI, pod("launcher", "Failed", exit_code=1, ended=30), *workers, logs={"launcher": log})


case(
    "oom_killed",
    "of the worker that mpirun names",
    False,
    "net-worker-1",
    launched(
        "Primary job  terminated normally, but 1 process returned\nmpirun noticed that process rank 13 with PID 0 on node net-worker-1 exited on signal 9 (Killed)."
    ),
    "backoff_limit_exceeded",
    "killed_externally",
)
case(
    "cuda_driver_mismatch",
    "of the worker that has this rank",
    False,
    "net-worker-1",
    launched(
        "[1,9]<stderr>:RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination"
    ),
    "python_exception",
)

case(
    "crd_missing",
    "a page of the API server that is not there",
    False,
    "API server",
    {
        "job": job(kind="TFJob"),
        **refused("(404)\nReason: Not Found\nHTTP response body: 404 page not found", 404, "NotFound"),
    },
    "unknown",
    "operator_not_running",
)
case(
    "job_spec_invalid",
    "a priority beside its class",
    False,
    "net",
    snapshot(
        CREATED,
        events=[
            event(
                "FailedCreatePod",
                'Error creating: pods "net-worker-0" is forbidden: the integer value of priority (0) must not be provided in pod spec; priority admission controller computed 100000 from the given PriorityClass name',
                "job/net",
            )
        ],
    ),
    "pod_reference_missing",
    "unknown",
)
case(
    "queue_quota_pending",
    "over the quota of a queue of KAI",
    True,
    "nlp",
    snapshot(
        CREATED,
        pod(
            "worker-0",
            "Pending",
            node=None,
            unschedulable="Non-preemptible workload is over quota. Workload requested 16 GPUs, but nlp quota is 16 GPUs, while 16 GPUs are already allocated for non-preemptible pods.",
        ),
        taken=at(20),
    ),
    "insufficient_gpu",
    "unknown",
)
case(
    "queue_quota_impossible",
    "above the limit of a queue of KAI",
    False,
    "nlp-dev",
    snapshot(
        CREATED,
        pod(
            "worker-0",
            "Pending",
            node=None,
            unschedulable="nlp-dev quota has reached the allowable limit of GPUs. Limit is 16 GPUs, currently 0 GPUs allocated and workload requested 24 GPUs",
        ),
        taken=at(20),
    ),
    "queue_quota_pending",
)
case(
    "queue_quota_pending",
    "in a queue of YuniKorn",
    True,
    "root.ads",
    snapshot(
        CREATED,
        pod(
            "worker-0",
            "Pending",
            node=None,
            unschedulable="Request '8c9c4ab3' does not fit in queue 'root.ads' (requested map[nvidia.com/gpu:4 pods:1], available map[nvidia.com/gpu:0 pods:96])",
        ),
        taken=at(20),
    ),
    "insufficient_gpu",
    "unknown",
)
case(
    "gang_unschedulable",
    "as KAI says it",
    True,
    "net",
    snapshot(
        CREATED,
        pod(
            "worker-0",
            "Pending",
            node=None,
            unschedulable="Resources were found for 3 pods while 4 are required for gang scheduling. Additional pods cannot be scheduled due to: No nodes with enough resources were found: 6 node(s) didn't have enough resources: GPUs.",
        ),
        taken=at(20),
    ),
    "insufficient_gpu",
    "unknown",
)
case(
    "pvc_not_bound",
    "its volume is gone",
    False,
    "esm-data",
    snapshot(
        CREATED,
        pod(
            "worker-0",
            "Pending",
            node=None,
            unschedulable='0/12 nodes are available: persistentvolumeclaim "esm-data" bound to non-existent persistentvolume "pv-nfs-esm".',
        ),
        taken=at(20),
    ),
    "unschedulable_constraints",
    "unknown",
)
case(
    "master_unreachable_dns",
    "as XGBoost says it",
    True,
    "net-worker-0",
    failed(
        traceback(
            "xgboost.core.XGBoostError: [09:12:52] /workspace/src/collective/socket.cc:31: Failed to get addr info for: net-master-0, error: Temporary failure in name resolution"
        )
    ),
    "python_exception",
)
case(
    "rendezvous_timeout",
    "of an older torch's barrier",
    True,
    "net-worker-0",
    failed(
        traceback(
            "RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)"
        )
    ),
    "python_exception",
)
case(
    "world_size_mismatch",
    "NCCL counts ranks",
    False,
    "net-worker-0",
    failed(
        "b200-0:201:880 [0] bootstrap.cc:351 NCCL WARN Bootstrap Root : mismatch in rank count from procs 16 : 24\n[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error"
    ),
    "python_exception",
    "network_fabric_error",
)
case(
    "collective_mismatch",
    "NCCL's net plugin compares sizes",
    False,
    "net-worker-0",
    failed(
        "ib-21:1307367:1307586 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 peer 10.70.23.6<58683> collective mismatch error, local size 496640 remote size 65536"
    ),
    "network_fabric_error",
)
case(
    "mpi_ssh_unreachable",
    "as Intel MPI says it",
    True,
    "net-worker-1",
    launched(
        "[mpiexec@net-launcher] check_exit_codes (hydra_demux_poll.c:117): unable to run bstrap_proxy on net-worker-1.net.hpc.svc (pid 247, exit code 65280)"
    ),
    "unknown",
    "backoff_limit_exceeded",
)
case(
    "cuda_oom",
    "as Paddle says it",
    False,
    "net-worker-0",
    failed(
        traceback(
            "SystemError: (Fatal) Operator conv2d_grad raises an paddle::memory::allocation::BadAlloc exception.\nThe exception content is\n:ResourceExhaustedError:\n\nOut of memory error on GPU 2. Cannot allocate 1.318359GB memory on GPU 2"
        )
    ),
    "python_exception",
)
case(
    "gpu_arch_mismatch",
    "as ptxas says it",
    False,
    "net-worker-0",
    failed(
        traceback(
            "torch._inductor.exc.InductorError: CalledProcessError: Command ptxas returned non-zero exit status 255.\n`ptxas` stderr:\nptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"
        )
    ),
    "python_exception",
)
case(
    "checkpoint_mismatch",
    "as Orbax says it",
    False,
    "net-worker-0",
    failed(
        traceback(
            "ValueError: User-provided restore item and on-disk value metadata tree structures do not match: Diff:"
        )
    ),
    "python_exception",
)
case(
    "data_not_found",
    "a bucket's key, behind an error of its client",
    False,
    "net-worker-0",
    failed(
        "botocore.exceptions.ClientError: An error occurred (404) when calling the HeadObject operation: Not Found\nThe above exception was the direct cause of the following exception:\nFileNotFoundError: Object s3://mds/index.json not found! Either check the bucket path or the bucket permission."
    ),
    "bad_entrypoint",
    "python_exception",
)
case(
    "clock_skew",
    "as Azure says it",
    True,
    "n1",
    failed(
        "azure.core.exceptions.ClientAuthenticationError: Server failed to authenticate the request.\nErrorCode:AuthenticationFailed\nauthenticationerrordetail:Request date header too old: 'Fri, 27 Mar 2026 09:22:07 GMT'"
    ),
    "data_access_denied",
)
case(
    "unknown",
    "it ended once, and says nothing of it",
    False,
    "net-worker-0",
    failed("Starting run 5f1", exit_code=3),
    "python_exception",
)
