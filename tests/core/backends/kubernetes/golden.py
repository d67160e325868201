"""Write the golden YAML anew, and look at the difference before you keep it.

.venv/airflow/bin/python -m tests.core.backends.kubernetes.golden
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from allaboard.checking.job import require_valid
from allaboard.cli.tools.render import to_yaml
from allaboard.engines import ENGINES, engine_of
from allaboard.gangs import GANGS
from allaboard.job.identity import spec_hash, spec_of
from allaboard.job.training_job import TrainingJob
from allaboard.render import labels
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts
from allaboard.render.compatibility import pair_engine_and_gang
from allaboard.render.manifests import Rendered, render
from allaboard.runs.layout import lay_out
from allaboard.testing import a_job
from allaboard.text.names import run_name

FILE = Path(__file__).parent / "golden" / "resnet50-ddp.yaml"
KEY = "render"
WHOLE: dict[str, Any] = {
    "name": "resnet50-ddp",
    "image": "registry.lab/ml/resnet50-train:v3",
    "command": ["torchrun", "train.py", "--epochs=20"],
    "workers": 4,
    "elastic": {"min": 2, "max": 6, "max_restarts": 100, "rendezvous_conf": {"timeout": "900"}},
    "resources": {"cpu": 8, "memory": "32Gi", "gpu": 1, "gpu_type": "NVIDIA-H100-80GB-HBM3"},
    "processes_per_member": 1,
    "gang": {"scheduler": "coscheduling", "priority": "high", "timeout": "10m"},
    "policy": {
        "restart": "exit_code",
        "backoff_limit": 5,
        "deadline": "12h",
        "ttl": "1d",
        "clean_pods": "all",
    },
    "storage": [
        {"mount": "/data", "pvc": "datasets", "read_only": True},
        {"mount": "/scratch", "empty_dir": "memory", "size": "16Gi"},
    ],
    "checkpoints": {"uri": "s3://bucket/resnet50", "every": "10m", "keep": 3},
    "data": {"shards": "s3://bucket/imagenet-shards"},
    "spot": {"tolerate": True, "prefer": True, "grace": "2m"},
    "code": ["train.py", "model/net.py"],
    "environment": {"NCCL_DEBUG": "WARN"},
    "secrets": [{"name": "aws-credentials", "env": True}],
    "pod": {"metadata": {"annotations": {"sidecar.istio.io/inject": "false"}}},
}
CODE = {"train.py": b"import model.net\n\nmodel.net.train()\n", "model/net.py": b"def train():\n    ...\n"}


def made(
    job: TrainingJob | None = None,
    facts: ClusterFacts = ASSUMED,
    code: dict[str, bytes] | None = None,
    attempt: int = 1,
    generation: int = 1,
    **fields: Any,
) -> Rendered:
    """The objects of a job with these fields, under the key ``render``."""
    job = require_valid(job or a_job(**{"image": "lab/train:1", **fields}))
    layout = lay_out(job, engine_of(job), run_name(job.name, KEY), attempt, generation)
    launch = labels.launch_uid(KEY, generation, attempt)
    return render(job, layout, facts, launch=launch, spec_hash=spec_hash(spec_of(job)), code=code)


def whole() -> str:
    """One job with nearly every field, as the API server gets it."""
    return to_yaml(made(TrainingJob(**WHOLE), code=CODE).manifests)


EVERY: dict[str, Any] = {
    **WHOLE,
    "name": "resnet50",
    "metadata": {"labels": {"team": "vision"}, "annotations": {"example.com/owner": "vision"}},
    "image": "registry.lab/ml/train:v3",
    "command": ["python", "train.py"],
    "args": ["--epochs=20"],
    "workers": None,
    "elastic": None,
    "image_pull_policy": "if_not_present",
    "host_network": True,
    "inject": "off",
    "resources": {
        **WHOLE["resources"],
        "mig": "1g.10gb",
        "shared": True,
        "devices": {"rdma/hca_shared_devices_a": 1},
        "device_class": "mig.nvidia.com",
        "device_selector": "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'",
    },
    "processes_per_member": None,
    "gang": {
        **WHOLE["gang"],
        "queue": "research",
        "topology": {"require": "topology.example.com/rack", "prefer": "topology.example.com/block"},
        "require": True,
    },
    "policy": {
        **WHOLE["policy"],
        "suspend": True,
        "attempts": 2,
        "clocks": {
            "admitted": "12h", "scheduled": "1h", "image": "20m", "rendezvous": "10m", "first_step": "30m",
            "training": "10h",
        },
        "hang": {"after": "20m", "then": "restart", "ask": "file"},
        "orphan": {"after": "3h", "then": "finish"},
    },
    "checkpoints": {
        **WHOLE["checkpoints"],
        "best": {"metric": "val_loss", "mode": "min"},
        "hot": {"folder": "/hot", "every": 50},
        "start_from": "s3://bucket/resnet50/before",
    },
    "storage": [
        *WHOLE["storage"],
        {"mount": "/ckpt", "claim": {"size": "500Gi", "storage_class": "cephfs", "access": "many"}},
        {"mount": "/cache", "claim": {"size": "1Ti", "keep": "always"}, "read_only": True},
        {"mount": "/hot", "ephemeral": {"size": "200Gi", "storage_class": "local-ssd"}},
        {"mount": "/ssd", "host_path": "/mnt/ssd"},
        {"mount": "/photos", "volume": {"csi": {"driver": "s3.csi.aws.com"}}},
    ],
    "service_account": "trainer",
    "progress": "off",
    "secrets": [*WHOLE["secrets"], {"name": "wandb", "mount": "/etc/wandb"}],
    "engine_spec": {"runPolicy": {"managedBy": "kubeflow.org/training-operator"}},
    "fit": "strict",
}  # fmt: skip
WORKER: dict[str, Any] = {
    "replicas": 2,
    "resources": {
        **EVERY["resources"],
        "cpu": 4,
        "memory": "16Gi",
        "gpu": 2,
        "shared": False,
        "devices": {"nvidia.com/hostdev": 1},
    },
    "image": "registry.lab/ml/worker:v3",
    "command": ["python", "worker.py"],
    "args": ["--role=worker"],
    "environment": {"NCCL_DEBUG": "INFO"},
    "restart": "on_failure",
    "pod": {"spec": {"hostNetwork": True}},
}
GANG_POLICY = {**EVERY["policy"], "restart": "on_failure", "clean_pods": "running"}
"""Of kinds that restart their gang, and remove what runs at its end."""
KINDS: dict[str, dict[str, Any]] = {
    "pytorchjob": {
        "framework": "pytorch",
        "command": ["torchrun", "train.py"],
        "groups": {"master": 1, "worker": WORKER},
        "elastic": {**WHOLE["elastic"], "rendezvous": "c10d"},
        "processes_per_member": 4,
    },
    "jaxjob": {"framework": "jax", "groups": {"worker": WORKER}},
    "mpijob": {
        "framework": "mpi",
        "command": ["mpirun", "python", "train.py"],
        "groups": {"launcher": 1, "worker": {**WORKER, "command": ["/usr/sbin/sshd"], "args": ["-De"]}},
        "processes_per_member": 4,
        "policy": {**EVERY["policy"], "restart": "on_failure"},
        "engine_spec": {
            "mpiImplementation": "OpenMPI",
            "sshAuthMountPath": "/home/mpiuser/.ssh",
            "launcherCreationPolicy": "AtStartup",
            "runLauncherAsWorker": True,
        },
    },
    "mpijob-v1": {
        "framework": "mpi",
        "command": ["mpirun", "python", "train.py"],
        "groups": {"launcher": 1, "worker": {**WORKER, "command": ["sleep"], "args": ["infinity"]}},
        "processes_per_member": 4,
        "policy": {**EVERY["policy"], "restart": "on_failure"},
        "engine_spec": {"mainContainer": "mpi"},
    },
    "mxjob": {
        "framework": "mxnet",
        "groups": {"scheduler": 1, "server": 1, "worker": WORKER},
        "engine_spec": {"runPolicy": {"schedulingPolicy": {"minAvailable": 4}}},
    },
    "paddlejob": {"framework": "paddle", "groups": {"master": 1, "worker": WORKER}},
    "tfjob": {
        "framework": "tensorflow",
        "groups": {"chief": 1, "worker": WORKER, "ps": 1, "evaluator": 1},
        "engine_spec": {"successPolicy": "AllWorkers", "enableDynamicWorker": True},
    },
    "xgboostjob": {"framework": "xgboost", "groups": {"master": 1, "worker": WORKER}},
    "jobset": {
        "framework": "pytorch",
        "groups": {"master": 1, "worker": WORKER},
        "processes_per_member": 4,
        "policy": GANG_POLICY,
        "engine_spec": {"startupPolicy": {"startupPolicyOrder": "AnyOrder"}},
    },
    "trainjob": {
        "framework": "pytorch",
        "workers": 4,
        "processes_per_member": 4,
        "policy": GANG_POLICY,
        "engine_spec": {"managedBy": "trainer.kubeflow.org/trainjob-controller"},
    },
}
"""A job of each engine that says every field that its kind can (tests/core/engines/test_golden_jobs.py)."""
FILES = {name: FILE.parent / f"{name}.yaml" for name in KINDS}


def job_of(name: str) -> TrainingJob:
    return TrainingJob(**{**EVERY, "engine": name, **KINDS[name]})


def of_engine(name: str) -> str:
    """The job of this engine, commented out, and what the API server gets for it."""
    job = job_of(name)
    words = to_yaml([job.as_mapping()]).splitlines(keepends=True)
    objects = made(job, code=CODE)
    return "".join(f"# {line}" for line in words) + to_yaml([*objects.claims, *objects.manifests])


MPI: dict[str, Any] = {
    "framework": "mpi",
    "command": ["mpirun", "python", "train.py"],
    "groups": {"launcher": 1, "worker": {"replicas": 2, "resources": {"gpu": 8}}},
    "gang": {"scheduler": "none"},
}
MPI_FILES = {name: FILE.parent / f"{name}-mpi.yaml" for name in ("jobset", "trainjob")}


def of_mpi(engine: str) -> str:
    """A small job of MPI of an engine that runs other frameworks, too."""
    common = {"resources": {"cpu": 4, "memory": "8Gi"}, "workers": None, "image": "registry.lab/ml/train:v3"}
    return to_yaml(made(a_job(**{**common, **MPI, "engine": engine})).manifests)


GANG: dict[str, Any] = {"priority": "high", "timeout": "5m"}
GANG_FILES = {name: FILE.parent / "gangs" / f"{name}.yaml" for name in GANGS if name != "none"}


def allowed_pairs(gang: str) -> Iterator[tuple[str, str]]:
    """(engine, how) of the engines that go with this gang scheduler; those whose operator may make its
    objects come twice.
    """
    for name, engine in ENGINES.items():
        if gang in engine.NATIVELY:
            yield name, "natively"
        if pair_engine_and_gang(engine, GANGS[gang]).how != "refused":
            yield name, "marks"


def pair(engine: str, gang: str, how: str = "marks", namespace: str = "default", **fields: Any) -> Rendered:
    """A small job of this engine whose members this gang scheduler starts together."""
    groups: dict[str, Any] = {role: 1 for role in KINDS[engine].get("groups", ())}
    groups = {**groups, "worker": 2} if groups else {}
    own = {"framework": KINDS[engine]["framework"], "engine": engine, "image": "lab/train:1"}
    said = {
        **GANG,
        "scheduler": gang,
        **({"queue": "research"} if "queue" in GANGS[gang].UNDERSTANDS else {}),
    }
    operators = {ENGINES[engine].OPERATOR.id: gang} if how == "natively" else {}
    facts = replace(ASSUMED, namespace=namespace, operator_gangs=operators)
    size = {"workers": None, "groups": groups} if groups else {"workers": 3}
    return made(a_job(**{"resources": {"cpu": 1}, **own, **size, "gang": said, **fields}), facts)


COMPOSITE = replace(
    ASSUMED,
    kinds=frozenset({"kubeflow.org/v1/PyTorchJob", *GANGS["workload"].KINDS, *GANGS["workload"].COMPOSITE}),
)
"""A cluster with gangs of gangs."""


def composite(namespace: str = "default", **fields: Any) -> Rendered:
    """An elastic job with a master, on that cluster."""
    topology = {"require": "topology.example.com/rack"}
    own = {
        "groups": {"master": 1, "worker": 3},
        "elastic": {"min": 3, "max": 6},
        "command": ["torchrun", "train.py"],
        "gang": {**GANG, "scheduler": "workload", "topology": topology},
    }
    return made(
        a_job(**{"image": "lab/train:1", "resources": {"cpu": 1}, "workers": None, **own, **fields}),
        replace(COMPOSITE, namespace=namespace),
    )


def of_gang(gang: str) -> str:
    """What the API server gets for a job of each engine that goes with it."""
    each = [(f"{engine}, {how}", pair(engine, gang, how)) for engine, how in allowed_pairs(gang)]
    if GANGS[gang].COMPOSITE:
        each.append(("pytorchjob, elastic, a gang for each role", composite()))
    return "".join(f"# {what}\n{to_yaml(rendered.manifests)}" for what, rendered in each)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(whole())
    for name, file in FILES.items():
        file.write_text(of_engine(name))
    for name, file in MPI_FILES.items():
        file.write_text(of_mpi(name))
    for name, file in GANG_FILES.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(of_gang(name))
