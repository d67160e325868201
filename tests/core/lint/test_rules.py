"""Each rule finds what it is about, at its path, and leaves the next thing to it alone."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.checking.job import require_valid
from allaboard.engines.kubeflow import KubeflowEngine
from allaboard.lint import RULES, lint_job, lint_object
from allaboard.lint.rule import SEVERITIES
from allaboard.lint.view import JOB as OF_JOB
from allaboard.lint.view import MANIFEST, view_of_object
from allaboard.text.untrusted import find_flaws
from tests.torture.hostile import VALUES

GOOD: dict[str, Any] = yaml.safe_load("""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: digits}
spec:
  runPolicy: {backoffLimit: 3, cleanPodPolicy: Running, ttlSecondsAfterFinished: 86400}
  pytorchReplicaSpecs:
    Master: &group
      replicas: 1
      restartPolicy: OnFailure
      template:
        metadata: {labels: {team: vision}}
        spec:
          tolerations: [{key: nvidia.com/gpu, operator: Exists}]
          volumes: [{name: shm, emptyDir: {medium: Memory}}]
          containers:
          - name: pytorch
            image: lab/train:v3
            command: [torchrun, train.py]
            env: [{name: NCCL_DEBUG, value: WARN}]
            resources:
              requests: {cpu: 4, memory: 32Gi, nvidia.com/gpu: 4}
              limits: {memory: 32Gi, nvidia.com/gpu: 4}
            volumeMounts: [{name: shm, mountPath: /dev/shm}]
    Worker: {<<: *group, replicas: 2}
""")
"""A manifest about which nobody has anything to say."""

MASTER = "spec.pytorchReplicaSpecs.Master"
POD = f"{MASTER}.template.spec"
MAIN = f"{POD}.containers.0"
POLICY = "spec.runPolicy"
GONE = object()

Changes = Mapping[str, Any]


def changed(base: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A copy with the values at these paths; a path that ends in * is that of every group."""
    made = json.loads(json.dumps(base))
    for path, value in changes.items():
        *above, last = path.split(".")
        at = made
        for step in above:
            at = at[int(step)] if isinstance(at, list) else at.setdefault(step, {})
        if value is GONE:
            del at[last]
        elif isinstance(at, list):
            at[int(last) : int(last) + 1] = [value]
        else:
            at[last] = copy.deepcopy(value)
    return made


def of_kind(kind: str, roles: Mapping[str, int], container: str, **more: Any) -> dict[str, Any]:
    """The good manifest as another kind."""
    specs = {
        "TFJob": "tfReplicaSpecs", "XGBoostJob": "xgbReplicaSpecs", "JAXJob": "jaxReplicaSpecs",
    }[kind]  # fmt: skip
    group = GOOD["spec"]["pytorchReplicaSpecs"]["Worker"]
    groups = {role: changed(group, {"replicas": n}) for role, n in roles.items()}
    for one in groups.values():
        one["template"]["spec"]["containers"][0] |= {"name": container, **more}
    spec = {"runPolicy": GOOD["spec"]["runPolicy"], specs: groups}
    return {**GOOD, "kind": kind, "spec": spec}


def shell(script: str, program: str = "bash") -> Changes:
    return {f"{MAIN}.command": [program, "-c", script]}


SPOT = {"key": "cloud.google.com/gke-spot", "operator": "Exists"}
SIDECAR = {"name": "proxy", "image": "lab/proxy:1"}
GPU_1 = {"requests": {"nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}
DIGEST = "lab/train@sha256:" + "a" * 64


def a_runtime(**spec: Any) -> dict[str, Any]:
    """The spec of a runtime, of whose JobSet these are fields."""
    pod = {"containers": [{"name": "node", "image": "lab/train:v3", "command": ["torchrun", "t.py"]}]}
    node = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    return {"mlPolicy": {"numNodes": 2}, "template": {"spec": {"replicatedJobs": [node], **spec}}}


MANIFESTS: list[tuple[str, Changes, str, Changes]] = [
    # code, what it finds, at which path, and what it leaves alone
    (
        "shell_drops_words", {f"{MAIN}.command": ["bash", "-c", "python", "train.py"]}, f"{MAIN}.command",
        {f"{MAIN}.command": ["bash", "-c", 'exec python "$@"', "run", "train.py"]},
    ),
    (
        "shell_drops_words",
        {f"{MAIN}.command": ["/bin/sh", "-ec"], f"{MAIN}.args": ["torchrun", "train.py"]},
        f"{MAIN}.args", {f"{MAIN}.command": ["/bin/sh", "-ec"], f"{MAIN}.args": ["torchrun train.py"]},
    ),
    (
        "shell_drops_words", {f"{MAIN}.command": ["bash", "-euo", "pipefail", "-c", "python", "t.py"]},
        f"{MAIN}.command", {f"{MAIN}.command": ["bash", "train.sh", "-c", "config.yaml", "--fast"]},
    ),
    (
        "shell_drops_words", {f"{MAIN}.command": ["sh", "-lc", "python train.py", "--lr", "3"]},
        f"{MAIN}.command", {f"{MAIN}.command": ["sh", "-c", "python train.py", "sh"]},
    ),
    (
        "shell_drops_words", {f"{MAIN}.command": ["dash", "-c", "python", "-m", "net"]}, f"{MAIN}.command",
        {f"{MAIN}.command": ["python", "-c", "print(1)", "x"]},
    ),
    (
        "shell_words_without_shell", {f"{MAIN}.command": ["python", "t.py", "--data=$DATA_DIR"]},
        f"{MAIN}.command", {f"{MAIN}.command": ["python", "t.py", "--data=$(DATA_DIR)"]},
    ),
    (
        "shell_words_without_shell", {f"{MAIN}.args": ["--data", "${DATA_DIR}/a"]}, f"{MAIN}.args",
        {f"{MAIN}.args": ["--data", "$${DATA_DIR}"]},
    ),
    (
        "shell_words_without_shell", {f"{MAIN}.command": ["python", "a.py", "&&", "python", "b.py"]},
        f"{MAIN}.command", {f"{MAIN}.command": ["bash", "-c", "python a.py && python b.py"]},
    ),
    (
        "shell_words_without_shell", {f"{MAIN}.command": ["torchrun", "t.py", ">", "/log"]},
        f"{MAIN}.command", {f"{MAIN}.command": ["python", "-c", "print('$HOME')"]},
    ),
    (
        "shell_words_without_shell", {f"{MAIN}.command": ["torchrun", "--node_rank", "$RANK", "t.py"]},
        f"{MAIN}.command", {f"{MAIN}.command": ["mpirun", "sh", "-c", "echo $RANK"]},
    ),
    (
        "command_in_one_word", {f"{MAIN}.command": ["python train.py"]}, f"{MAIN}.command",
        {f"{MAIN}.command": ["/opt/my tools/train"]},
    ),
    (
        "runtime_with_ttl", {"kind": "TrainingRuntime", "apiVersion": "trainer.kubeflow.org/v1alpha1",
                             "spec": a_runtime(ttlSecondsAfterFinished=60)},
        "spec.template.spec.ttlSecondsAfterFinished",
        {"kind": "TrainingRuntime", "apiVersion": "trainer.kubeflow.org/v1alpha1", "spec": a_runtime()},
    ),
    ("image_unpinned", {f"{MAIN}.image": "lab/train"}, f"{MAIN}.image", {f"{MAIN}.image": "h:5000/train:v1"}),
    ("image_unpinned", {f"{MAIN}.image": "h:5000/train:latest"}, f"{MAIN}.image", {f"{MAIN}.image": DIGEST}),
    (
        "image_kept_stale", {f"{MAIN}.image": "lab/train:latest", f"{MAIN}.imagePullPolicy": "IfNotPresent"},
        f"{MAIN}.imagePullPolicy", {f"{MAIN}.imagePullPolicy": "IfNotPresent"},
    ),
    (
        "image_pulled_always", {f"{MAIN}.image": DIGEST, f"{MAIN}.imagePullPolicy": "Always"},
        f"{MAIN}.imagePullPolicy", {f"{MAIN}.imagePullPolicy": "Always"},
    ),
    (
        "shm_missing", {f"{MAIN}.volumeMounts": []}, f"{MAIN}.volumeMounts",
        {f"{MAIN}.volumeMounts.0.mountPath": "/dev/shm/"},
    ),
    (
        "host_path", {f"{POD}.volumes": [{"name": "d", "hostPath": {"path": "/data"}}]},
        f"{POD}.volumes.0.hostPath",
        {f"{POD}.volumes": [{"name": "d", "hostPath": {"path": "/dev/shm"}}]},
    ),
    (
        "secret_in_plain_text", {f"{MAIN}.env.0": {"name": "AWS_SECRET_ACCESS_KEY", "value": "abc"}},
        f"{MAIN}.env.0",
        {f"{MAIN}.env.0": {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}},
    ),
    ("sidecar_blocks_the_end", {f"{POD}.containers.1": SIDECAR}, f"{POD}.containers.1", {
        f"{POD}.initContainers": [{**SIDECAR, "restartPolicy": "Always"}],
    }),
    (
        "istio_sidecar", {f"{MASTER}.template.metadata.labels": {"sidecar.istio.io/inject": "true"}},
        f"{MASTER}.template.metadata.labels.sidecar.istio.io/inject",
        {f"{MASTER}.template.metadata.labels": {"sidecar.istio.io/inject": "false"}},
    ),
    ("failure_swallowed", shell("set -e; torchrun t.py || true"), f"{MAIN}.command", shell("torchrun t.py")),
    (
        "failure_swallowed", {f"{MAIN}.command": ["sh", "-c"], f"{MAIN}.args": ["torchrun t.py; exit 0"]},
        f"{MAIN}.args", shell("set -e; a || true; torchrun t.py"),
    ),
    ("failure_unnoticed", shell("prepare; torchrun t.py"), f"{MAIN}.command", shell("a && torchrun t.py")),
    ("failure_unnoticed", shell("pip install x\ntorchrun t.py"), f"{MAIN}.command", shell("set -e\na\nb\n")),
    (
        "failure_unnoticed", shell("torchrun train.py 2>&1 | tee log"), f"{MAIN}.command",
        shell("set -o pipefail && torchrun train.py | tee log"),
    ),
    (
        "failure_unnoticed", shell("prepare; torchrun train.py", "/bin/sh"), f"{MAIN}.command",
        {f"{MAIN}.command": ["bash", "-euo", "pipefail", "-c", "prepare; torchrun t.py | tee 'a;b'"]},
    ),
    (
        "variable_overridden", {f"{MAIN}.env.0": {"name": "MASTER_ADDR", "value": "a"}}, f"{MAIN}.env.0",
        {f"{MAIN}.env.0": {"name": "PYTHONUNBUFFERED", "value": "1"}},
    ),
    (
        "resources_missing", {f"{MAIN}.resources": {"limits": {}}}, f"{MAIN}.resources",
        {f"{MAIN}.resources": {"requests": {"cpu": 1}}},
    ),
    (
        "cpu_limit", {f"{MAIN}.resources.limits.cpu": "4"}, f"{MAIN}.resources.limits.cpu",
        {f"{MAIN}.resources.requests.cpu": "4"},
    ),
    (
        "memory_may_be_taken", {f"{MAIN}.resources.requests.memory": "1Gi"}, f"{MAIN}.resources",
        {f"{MAIN}.resources.requests": {"cpu": 1}},
    ),
    (
        "one_gpu_per_member",
        {f"{MAIN}.resources": GPU_1,
         "spec.pytorchReplicaSpecs.Worker.template.spec.containers.0.resources": GPU_1},
        f"{MAIN}.resources",
        {f"{MAIN}.resources": GPU_1},
    ),
    (
        "gpu_taint_not_tolerated", {f"{POD}.tolerations": []}, f"{POD}.tolerations",
        {f"{POD}.tolerations": [{"operator": "Exists"}]},
    ),
    (
        "interface_not_chosen", {f"{POD}.hostNetwork": True}, f"{MAIN}.env",
        {f"{POD}.hostNetwork": True, f"{MAIN}.env.0": {"name": "NCCL_SOCKET_IFNAME", "value": "ib0"}},
    ),
    (
        "interface_not_chosen", {f"{POD}.hostNetwork": True}, f"{MAIN}.env",
        {f"{POD}.hostNetwork": True, f"{MAIN}.command": ["mpirun", "-x", "NCCL_SOCKET_IFNAME=ib0", "train"]},
    ),
    (
        "interface_is_loopback", {f"{MAIN}.env.0": {"name": "GLOO_SOCKET_IFNAME", "value": "lo"}},
        f"{MAIN}.env.0", {f"{MAIN}.env.0": {"name": "NCCL_SOCKET_IFNAME", "value": "^lo,docker0"}},
    ),
    (
        "host_network_without_names", {f"{POD}.hostNetwork": True}, f"{POD}.dnsPolicy",
        {f"{POD}.hostNetwork": True, f"{POD}.dnsPolicy": "ClusterFirstWithHostNet"},
    ),
    ("restart_always", {f"{MASTER}.restartPolicy": "Always"}, f"{MASTER}.restartPolicy", {
        f"{POD}.initContainers": [{**SIDECAR, "restartPolicy": "Always"}],
    }),
    (
        "exit_code_unbounded", {f"{MASTER}.restartPolicy": "ExitCode"}, f"{MASTER}.restartPolicy",
        {f"{MASTER}.restartPolicy": "Never"},
    ),
    (
        "backoff_unlimited", {f"{POLICY}.backoffLimit": GONE}, f"{POLICY}.backoffLimit",
        {f"{POLICY}.backoffLimit": 0},
    ),
    (
        "backoff_unlimited", {f"{POLICY}.backoffLimit": 2**31 - 1}, f"{POLICY}.backoffLimit",
        {f"{POLICY}.backoffLimit": GONE, f"{MASTER}.restartPolicy": "Never",
         "spec.pytorchReplicaSpecs.Worker.restartPolicy": "ExitCode"},
    ),
    (
        "deadline_without_timer", {f"{POLICY}.activeDeadlineSeconds": 3600},
        f"{POLICY}.activeDeadlineSeconds",
        {f"{POLICY}.activeDeadlineSeconds": None},
    ),
    (
        "clean_up_leaves_members", {f"{POLICY}.cleanPodPolicy": GONE}, f"{POLICY}.cleanPodPolicy",
        {f"{POLICY}.cleanPodPolicy": "None", "spec.pytorchReplicaSpecs.Worker": GONE},
    ),
    (
        "clean_up_leaves_members", {f"{POLICY}.cleanPodPolicy": "None"}, f"{POLICY}.cleanPodPolicy",
        {f"{POLICY}.cleanPodPolicy": "All"},
    ),
    (
        "clean_up_unknown", {f"{POLICY}.cleanPodPolicy": "none"}, f"{POLICY}.cleanPodPolicy",
        {f"{POLICY}.cleanPodPolicy": "None"},
    ),
    (
        "clean_up_takes_logs", {f"{POLICY}.cleanPodPolicy": "All"}, f"{POLICY}.cleanPodPolicy",
        {f"{POLICY}.cleanPodPolicy": "None"},
    ),
    (
        "ttl_too_short", {f"{POLICY}.ttlSecondsAfterFinished": 0}, f"{POLICY}.ttlSecondsAfterFinished",
        {f"{POLICY}.ttlSecondsAfterFinished": 60},
    ),
    (
        "queue_misplaced", {f"{POLICY}.queue": "a"}, f"{POLICY}.queue",
        {f"{POLICY}.schedulingPolicy.queue": "a"},
    ),
    (
        "run_policy_misspelt", {f"{POLICY}.backofLimit": 3}, f"{POLICY}.backofLimit",
        {f"{POLICY}.managedBy": "kueue.x-k8s.io/multikueue"},
    ),
    (
        "template_restart_policy", {f"{POD}.restartPolicy": "Never"}, f"{POD}.restartPolicy",
        {f"{POD}.restartPolicy": "OnFailure"},
    ),
    (
        "spot_without_grace", {f"{POD}.tolerations.1": SPOT}, f"{POD}.terminationGracePeriodSeconds",
        {f"{POD}.tolerations.1": SPOT, f"{POD}.terminationGracePeriodSeconds": 25},
    ),
    (
        "spot_without_grace", {f"{POD}.nodeSelector": {"karpenter.sh/capacity-type": "spot"}},
        f"{POD}.terminationGracePeriodSeconds",
        {f"{POD}.nodeSelector": {"karpenter.sh/capacity-type": "on-demand"}},
    ),
    (
        "spot_without_grace", {f"{POD}.nodeSelector": {"eks.amazonaws.com/capacityType": "SPOT"}},
        f"{POD}.terminationGracePeriodSeconds",
        {f"{POD}.nodeSelector": {"eks.amazonaws.com/capacityType": "ON_DEMAND"}},
    ),
    (
        "slices_are_no_gpu", {f"{MAIN}.resources": {"limits": {"nvidia.com/mig-1g.10gb": 2}}},
        f"{MAIN}.resources", {f"{MAIN}.resources": {"limits": {"nvidia.com/gpu": 2}}},
    ),
    (
        "spot_never_restarted", {f"{POD}.tolerations.1": SPOT, f"{MASTER}.restartPolicy": "Never"},
        f"{MASTER}.restartPolicy", {f"{POD}.tolerations.1": SPOT},
    ),
    (
        "no_master", {MASTER: GONE}, "spec.pytorchReplicaSpecs",
        {MASTER: GONE, "spec.pytorchReplicaSpecs.Worker.replicas": 1},
    ),
    (
        "elastic_without_torchrun",
        {"spec.elasticPolicy": {"minReplicas": 1}, f"{MAIN}.command": ["python", "t.py"]}, f"{MAIN}.command",
        {"spec.elasticPolicy": {}, f"{MAIN}.command": ["python", "-m", "torch.distributed.run"]},
    ),
    (
        "elastic_without_torchrun", {"spec.elasticPolicy": {}, **shell("exec python3 train.py")},
        f"{MAIN}.command", {"spec.elasticPolicy": {}, f"{MAIN}.command": ["/opt/start.sh"]},
    ),
    (
        "launcher_alone", {f"{MAIN}.command": ["torchrun", "--standalone", "t.py"]}, f"{MAIN}.command",
        {f"{MAIN}.command": ["torchrun", "t.py", "--standalone"]},
    ),
    (
        "launcher_alone", shell("accelerate launch --num_processes 12 t.py"), f"{MAIN}.command",
        shell("accelerate launch --num_machines 3 --num_processes 12 t.py"),
    ),
    (
        "launcher_disagrees", {f"{MAIN}.args": ["--nnodes=2", "t.py"], f"{MAIN}.command": ["torchrun"]},
        f"{MAIN}.args", {f"{MAIN}.args": ["--nnodes=1:3", "t.py"], f"{MAIN}.command": ["torchrun"]},
    ),
    (
        "launcher_idle_gpus", {f"{MAIN}.command": ["torchrun", "--nproc-per-node", "2", "t.py"]},
        f"{MAIN}.command", {f"{MAIN}.command": ["torchrun", "--nproc-per-node", "gpu", "t.py"]},
    ),
    (
        "rendezvous_conf_empty", {"spec.elasticPolicy": {"rdzvConf": []}}, "spec.elasticPolicy.rdzvConf",
        {"spec.elasticPolicy": {"rdzvConf": [{"key": "a", "value": "b"}]}},
    ),
    (
        "role_unknown", {"spec.pytorchReplicaSpecs.Workers": GOOD["spec"]["pytorchReplicaSpecs"]["Worker"]},
        "spec.pytorchReplicaSpecs.Workers", {},
    ),
    ("master_not_one", {f"{MASTER}.replicas": GONE}, f"{MASTER}.replicas", {
        "spec.pytorchReplicaSpecs.Worker.replicas": GONE,
    }),
    (
        "ends_at_once", {f"{MASTER}.replicas": 0}, f"{MASTER}.replicas",
        {"spec.pytorchReplicaSpecs.Worker.replicas": 0},
    ),
    ("container_misnamed", {f"{MAIN}.name": "train"}, f"{POD}.containers", {f"{POD}.containers.1": SIDECAR}),
    ("name_too_long", {"metadata.name": "x" * 55}, "metadata.name", {"metadata.name": "x" * 54}),
    (
        "privileged", {f"{MAIN}.securityContext": {"privileged": True}},
        f"{MAIN}.securityContext.privileged",
        {f"{MAIN}.securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}},
    ),
    (
        "one_process_for_several_gpus", {f"{MAIN}.command": ["python", "train.py"]}, f"{MAIN}.command",
        {f"{MAIN}.command": ["python", "train.py"], f"{MAIN}.resources": GPU_1},
    ),
]  # fmt: skip

JOBS: list[tuple[str, Changes, str, Changes]] = [
    (
        "backoff_without_checkpoints", {"policy": {"backoff_limit": 5}}, "policy.backoff_limit",
        {"policy": {"backoff_limit": 5}, "checkpoints": {"uri": "s3://a/b"}},
    ),
    (
        "backoff_without_checkpoints", {"elastic": {"min": 1}, "command": ["torchrun", "t.py"]}, "elastic",
        {"policy": {"restart": "never", "backoff_limit": 5}},
    ),
    (
        "spot_without_grace", {"spot": {"tolerate": True}}, "spot.grace",
        {"spot": {"tolerate": True, "grace": 60}},
    ),
    (
        "checkpoints_go_with_the_run",
        {"storage": [{"mount": "/c", "claim": {"size": "1Gi"}}], "checkpoints": {"uri": "/c/a"}},
        "storage[0].claim",
        {
            "storage": [{"mount": "/c", "claim": {"size": "1Gi", "keep": "always"}}],
            "checkpoints": {"uri": "/c/a"},
        },
    ),
    (
        "host_path", {"storage": [{"mount": "/d", "host_path": "/mnt/ssd"}]}, "storage[0].host_path",
        {"storage": [{"mount": "/d", "ephemeral": {"size": "1Gi"}}]},
    ),
    (
        "spot_without_checkpoints", {"spot": {"tolerate": True}}, "checkpoints",
        {"spot": {"tolerate": True}, "checkpoints": {"uri": "s3://a/b"}},
    ),
    (
        "spot_saves_seldom",
        {"spot": {"tolerate": True}, "checkpoints": {"uri": "s3://a/b", "every": "2h"}}, "checkpoints.every",
        {"spot": {"tolerate": True}, "checkpoints": {"uri": "s3://a/b", "every": 5000}},
    ),
    (
        "spot_never_restarted", {"spot": {"tolerate": True}, "policy": {"restart": "never"}},
        "policy.restart", {"spot": {"tolerate": True}},
    ),
    ("restart_always", {"policy": {"restart": "always"}}, "policy.restart", {"policy": {"restart": "never"}}),
    (
        "exit_code_unbounded", {"policy": {"restart": "exit_code"}}, "policy.restart",
        {"policy": {"restart": "exit_code", "deadline": "12h"}},
    ),
    ("clean_up_leaves_members", {"policy": {"clean_pods": "none"}}, "policy.clean_pods", {}),
    ("clean_up_takes_logs", {"policy": {"clean_pods": "all"}}, "policy.clean_pods", {}),
    ("backoff_unlimited", {"policy": {"backoff_limit": 2**31 - 1}}, "policy.backoff_limit", {}),
    ("ttl_too_short", {"policy": {"ttl": "5s"}}, "policy.ttl", {"policy": {"ttl": "1d"}}),
    ("image_unpinned", {"image": "lab/train"}, "image", {"image": "lab/train:1"}),
    ("image_unpinned", {
        "pod": {"spec": {"containers": [{"name": "pytorch", "image": "a:latest"}]}},
    }, "pod.spec.containers[0].image", {}),
    ("failure_swallowed", {"command": ["sh", "-c", "python t.py || true"]}, "command", {
        "command": ["sh", "-c", "python t.py"],
    }),
    (
        "failure_unnoticed",
        {"groups": {"master": 1, "worker": {"command": ["sh", "-c", "a; b"]}}, "workers": GONE},
        "groups.worker.command", {"command": ["sh", "-ec", "a; b"]},
    ),
    (
        "secret_in_plain_text", {"environment": {"DB_PASSWORD": "hunter2"}}, "environment.DB_PASSWORD",
        {"environment": {"MAX_TOKENS": "512", "AUTH_FILE_TOKEN": "/etc/token"}},
    ),
    (
        "interface_is_loopback",
        {"groups": {"master": 1, "worker": {"environment": {"NCCL_SOCKET_IFNAME": "lo"}}}, "workers": GONE},
        "groups.worker.environment.NCCL_SOCKET_IFNAME", {},
    ),
    (
        "interface_is_loopback", {"environment": {"NCCL_SOCKET_IFNAME": "lo"}},
        "environment.NCCL_SOCKET_IFNAME", {"environment": {"NCCL_SOCKET_IFNAME": "eth0"}},
    ),
    (
        "slices_are_no_gpu", {"resources": {"mig": "1g.10gb"}}, "resources",
        {"resources": {"mig": "1g.10gb"}, "workers": 1},
    ),
    (
        "slices_are_no_gpu", {"resources": {"mig": "1g.10gb", "gpu": 2}, "workers": 1}, "resources",
        {"resources": {"gpu": 2}},
    ),
    (
        "spot_without_checkpoints", {"spot": {"prefer": True}}, "checkpoints",
        {"spot": {"prefer": False, "grace": 60}},
    ),
    (
        "spot_without_grace", {"spot": {"prefer": True}}, "spot.grace",
        {"spot": {"prefer": True, "grace": 60}},
    ),
    (
        "one_gpu_per_member", {"resources": {"gpu": 1}}, "resources",
        {"resources": {"gpu": 1}, "gang": {"topology": {"require": "rack"}}},
    ),
    ("one_process_for_several_gpus", {"resources": {"gpu": 4}}, "command", {
        "resources": {"gpu": 4}, "command": ["torchrun", "t.py"],
    }),
    ("output_buffered", {"framework": "tensorflow"}, "command", {
        "framework": "tensorflow", "environment": {"PYTHONUNBUFFERED": "1"},
    }),
    ("output_buffered", {"framework": "tensorflow"}, "command", {
        "framework": "tensorflow", "command": ["python", "-u", "t.py"],
    }),
    ("no_master", {"groups": {"worker": 2}, "workers": GONE}, "groups", {
        "groups": {"master": 1, "worker": 2}, "workers": GONE,
    }),
    (
        "launcher_disagrees",
        {"command": ["torchrun", "--nproc_per_node", "8", "t.py"], "resources": {"gpu": 4}}, "command",
        {"command": ["torchrun", "--nproc_per_node", "4", "t.py"], "resources": {"gpu": 4}},
    ),
    (
        "elastic_without_torchrun", {"elastic": {"min": 1}}, "command",
        {"elastic": {"min": 1}, "command": ["torchrun", "train.py"]},
    ),
    ("sidecar_blocks_the_end", {"pod": {"spec": {"containers": [SIDECAR]}}}, "pod.spec.containers[0]", {
        "pod": {"spec": {"containers": [{"name": "pytorch", "tty": True}]}},
    }),
    (
        "istio_sidecar", {"pod": {"metadata": {"annotations": {"sidecar.istio.io/inject": "true"}}}},
        "pod.metadata.annotations.sidecar.istio.io/inject", {},
    ),
    (
        "host_path", {"pod": {"spec": {"volumes": [{"name": "d", "hostPath": {"path": "/d"}}]}}},
        "pod.spec.volumes[0].hostPath", {"storage": [{"mount": "/d", "pvc": "d"}]},
    ),
    ("interface_not_chosen", {"pod": {"spec": {"hostNetwork": True}}}, "environment", {
        "pod": {"spec": {"hostNetwork": True}}, "environment": {"GLOO_SOCKET_IFNAME": "eth0"},
    }),
    ("host_ports_shared", {"host_network": True, "resources": {"gpu": 1}}, "pod.spec.hostNetwork", {
        "host_network": True, "resources": {"gpu": 8},
    }),
    (
        "host_ports_shared", {"host_network": True}, "pod.spec.hostNetwork",
        {"host_network": True, "pod": {"spec": {"affinity": {"podAntiAffinity": {}}}}},
    ),
    (
        "rdma_without_pinned_memory",
        {"security": "restricted", "resources": {"devices": {"rdma/hca": 1}}}, "resources",
        {"resources": {"devices": {"rdma/hca": 1}}},
    ),
    ("host_network_without_names", {"pod": {"spec": {"hostNetwork": True}}}, "pod.spec.dnsPolicy", {
        "pod": {"spec": {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}},
    }),
    (
        "cpu_limit",
        {"pod": {"spec": {"containers": [{"name": "pytorch", "resources": {"limits": {"cpu": 1}}}]}}},
        "pod.spec.containers[0].resources.limits.cpu", {"resources": {"cpu": 1}},
    ),
]  # fmt: skip
JOB = {"name": "digits", "image": "lab/train:1", "command": ["python", "train.py"], "workers": 3}


def codes(findings: Any) -> dict[tuple[str, str], Any]:
    return {(f.code, f.path): f for f in findings}


def with_brackets(path: str) -> str:
    """``containers.0.image`` as paths are told: ``containers[0].image``."""
    made = ""
    for part in path.split("."):
        made += f"[{part}]" if part.isdecimal() else f".{part}" if made else part
    return made


def of_manifest(changes: Changes) -> dict[tuple[str, str], Any]:
    return codes(lint_object(changed(GOOD, changes)) or ())


def of_job(changes: Changes) -> dict[tuple[str, str], Any]:
    return codes(lint_job(require_valid(changed(JOB, changes))))


def case_name(value: object) -> str:
    return value if isinstance(value, str) else ""


def test_about_a_good_manifest_and_a_good_job_nobody_says_anything() -> None:
    assert lint_object(GOOD) == []
    assert lint_job(require_valid(JOB)) == []


@pytest.mark.parametrize(
    ("code", "bad", "path", "good"), MANIFESTS, ids=lambda v: v if type(v) is str else ""
)
def test_a_manifest(code: str, bad: Changes, path: str, good: Changes) -> None:
    found = of_manifest(bad)
    assert (code, with_brackets(path)) in found
    assert found[code, with_brackets(path)].fix.startswith(with_brackets(path))
    assert code not in {its for its, _ in of_manifest(good)}


@pytest.mark.parametrize(("code", "bad", "path", "good"), JOBS, ids=case_name)
def test_a_job(code: str, bad: Changes, path: str, good: Changes) -> None:
    assert (code, path) in of_job(bad)
    assert code not in {its for its, _ in of_job(good)}


def test_every_rule_is_tested_where_it_is_asked() -> None:
    manifests, jobs = {case[0] for case in MANIFESTS}, {case[0] for case in JOBS}
    assert {rule.code for rule in RULES.values() if rule.reads == (MANIFEST,)} <= manifests
    assert {rule.code for rule in RULES.values() if rule.reads == (OF_JOB,)} <= jobs
    assert RULES.keys() == manifests | jobs


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_rule_says_why_what_to_do_and_where_it_comes_from(rule: Any) -> None:
    assert rule.severity in SEVERITIES and rule.source and rule.reason.endswith(".")
    for text in (rule.summary, rule.fix, rule.job_fix):
        assert text and not text.endswith("."), "a part of a sentence"


# Other kinds.


@pytest.mark.parametrize("kind", ["TrainingRuntime", "ClusterTrainingRuntime"])
def test_the_runtime_of_trainjobs_is_read_where_its_pods_are(kind: str) -> None:
    """What each TrainJob says itself, as its resources, a runtime may leave out."""
    container = {"name": "node", "image": "lab/train", "command": ["python", "t.py"]}
    job = {"spec": {"template": {"spec": {"containers": [container]}}}}
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": kind,
        "metadata": {"name": "torch"},
        "spec": {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}},
    }
    at = "spec.template.spec.replicatedJobs[0].template.spec.template.spec.containers[0]"
    found = codes(lint_object(runtime) or ())
    assert {("image_unpinned", f"{at}.image"), ("shm_missing", f"{at}.volumeMounts")} <= {*found}
    assert not [code for code, _ in found if code == "resources_missing"]
    assert lint_object({**runtime, "apiVersion": "example.org/v1"}) is None


def test_what_only_one_operator_does_is_said_of_its_kind() -> None:
    tensorflow = of_kind("TFJob", {"Chief": 1, "Worker": 2}, "tensorflow", command=["python", "t.py"])
    at = "spec.tfReplicaSpecs.Chief.template.spec.containers[0].command"
    assert ("output_buffered", at) in codes(lint_object(tensorflow) or ())
    trees = of_kind("XGBoostJob", {"Master": 1, "Worker": 2}, "xgboost", command=["python", "t.py"])
    assert not lint_object(trees), (
        "its operator sets PYTHONUNBUFFERED, and its processes use no GPU by torchrun"
    )
    no_master = of_kind("JAXJob", {"Worker": 2}, "jax", command=["python", "t.py"])
    assert not lint_object(no_master)
    misspelt = of_kind("TFJob", {"Chief": 1, "Workr": 2}, "tensorflow", command=["python", "-u", "t.py"])
    found = codes(lint_object(misspelt) or ())
    assert found["role_unknown", "spec.tfReplicaSpecs.Workr"].summary.endswith("did you mean Worker?")


def test_workers_that_wait_for_a_launcher_are_left_to_it() -> None:
    worker = changed(GOOD, shell("mkdir -p /run/sshd; /usr/sbin/sshd -D"))
    assert "failure_unnoticed" in {code for code, _ in codes(lint_object(worker) or ())}
    worker["spec"]["pytorchReplicaSpecs"]["Launcher"] = GOOD["spec"]["pytorchReplicaSpecs"]["Master"]
    assert "failure_unnoticed" not in {code for code, _ in codes(lint_object(worker) or ())}


class OtherJob(KubeflowEngine):
    """A kind of another operator, whose pods stand deeper."""

    KIND = "JobSet"
    API_VERSION = "jobset.x-k8s.io/v1alpha2"
    FRAMEWORKS = ("pytorch",)
    ROLES: Mapping[str, int | None] = {"node": None}
    CONTAINER = "node"
    SPECS = "replicatedJobs"
    INJECTED = frozenset({"PYTHONUNBUFFERED"})


def test_the_pods_of_any_kind_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherJob()
    monkeypatch.setattr("allaboard.lint.view.engine_of_object", lambda obj: other)
    pod = changed(GOOD["spec"]["pytorchReplicaSpecs"]["Worker"]["template"], {})
    pod["spec"]["containers"][0] |= {"name": "node", "image": "lab/train", "resources": GPU_1}
    job = {"template": {"spec": {"parallelism": 4, "template": pod}}, "name": "node", "replicas": 2}
    view = view_of_object({"spec": {"replicatedJobs": [job]}})
    assert view is not None
    assert [(group.role, group.count, group.at) for group in view.groups] == [
        ("node", 8, "spec.replicatedJobs[0]")
    ]
    at = "spec.replicatedJobs[0].template.spec.template.spec.containers[0]"
    found = codes(lint_object({"spec": {"replicatedJobs": [job]}}) or ())
    assert found.keys() == {("image_unpinned", f"{at}.image"), ("one_gpu_per_member", f"{at}.resources")}
    patches = {"runtimePatches": [{"spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}]}
    assert lint_object({"spec": patches}) == [], "what is changed of a template is none"


def test_a_kind_that_is_no_engines_is_not_judged() -> None:
    assert lint_object({"apiVersion": "batch/v1", "kind": "Job", "spec": {}}) is None


def test_findings_come_by_their_gravity_and_hide_secrets() -> None:
    found = lint_object(
        changed(
            GOOD,
            {
                f"{MAIN}.command": ["bash", "-c", "curl -u me:hunter22 https://me:hunter22@lab/x || true"],
                f"{MAIN}.env.0": {"name": "API_TOKEN", "value": "hunter22"},
                f"{MAIN}.image": "lab/\x1b[31mtrain",
            },
        )
    )
    assert found is not None
    order = [SEVERITIES.index(f.severity) for f in found]
    assert order == sorted(order) and order[0] == 0
    said = json.dumps([f.to_dict() for f in found], ensure_ascii=False)
    assert "me:hunter22@" not in said and '"hunter22"' not in said and "\x1b" not in said


@pytest.mark.parametrize("rounds", [300, pytest.param(3000, marks=pytest.mark.thorough)])
def test_whatever_a_manifest_holds_nothing_is_raised(rounds: int) -> None:
    rng = random.Random(7)
    bases = [GOOD, of_kind("TFJob", {"Chief": 1, "Worker": 2}, "tensorflow")]
    for number in range(rounds):
        made = copy.deepcopy(bases[number % 2])
        for _ in range(rng.choice((1, 1, 2, 4))):
            at, key = rng.choice([*_places(made)])
            value = rng.choice(VALUES)()
            at[key] = value if next(find_flaws(value), None) is None else None
        findings = lint_object(made)
        for finding in findings or ():
            assert all(c.isprintable() for c in finding.path)


def _places(value: Any) -> Any:
    keys = list(value) if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


# The project's own.

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("file", sorted(ROOT.glob("dags_examples/**/*.yaml")), ids=lambda file: file.name)
def test_the_examples_lint_clean(file: Path) -> None:
    assert lint_job(require_valid(yaml.safe_load(file.read_text()))) == []
