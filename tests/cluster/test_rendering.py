"""What is rendered, the API server takes: every object of a table of jobs, and the pods that the operator
would make of their templates, by a dry run with strict validation.

The pods are asked about too, because the API server takes job objects whose pods it would refuse.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.resources import Resource
from allaboard.backends.kubernetes.discovery.definitions import NAME as PROBE
from allaboard.backends.kubernetes.discovery.definitions import complete_lacking
from allaboard.backends.kubernetes.discovery.installed import complete_facts
from allaboard.checking.job import require_valid
from allaboard.cli.tools.render import to_yaml
from allaboard.engines import ENGINES, engine_of, engine_of_object, mpi
from allaboard.gangs import GANGS
from allaboard.job.identity import spec_hash, spec_of
from allaboard.job.training_job import TrainingJob
from allaboard.render import labels
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts
from allaboard.render.compatibility import pair_engine_and_gang
from allaboard.render.manifests import CODE_LIMIT, Rendered, render
from allaboard.render.pod_template import sample_pod
from allaboard.running import new_owner, read_job
from allaboard.runs.layout import lay_out
from allaboard.testing import a_job
from allaboard.text.names import run_name
from tests.cluster.api import ApiError, Object, until
from tests.cluster.plane import Cluster, ControlPlane
from tests.core.backends.kubernetes.golden import (
    CODE,
    GANG_FILES,
    KINDS,
    WHOLE,
    allowed_pairs,
    composite,
    job_of,
    pair,
)

MXJOBS = Path(__file__).parents[1] / "core" / "engines" / "mxjobs-1.8.1.yaml"
JOBS: dict[str, dict[str, Any]] = {
    "the smallest": {"workers": 1},
    "a master and workers": {"workers": 4},
    "masterless": {"workers": None, "groups": {"worker": 3}},
    "groups that differ": {
        "workers": None,
        "groups": {
            "master": {"resources": {"cpu": "500m"}, "command": ["sh", "-c", "python $(MAIN)"]},
            "worker": {"replicas": 2, "resources": {"gpu": 8}, "environment": {"MAIN": ""}},
        },
    },
    "groups with all of their own": {
        "workers": None,
        "command": None,
        "args": [],
        "metadata": {"labels": {"team": "vision"}, "annotations": {"example.com/note": "ä"}},
        "policy": {"backoff_limit": "unlimited", "restart": "never"},
        "groups": {
            "master": 1,
            "worker": {
                "image": "lab/worker:1",
                "args": ["--role=worker"],
                "restart": "exit_code",
                "pod": {"metadata": {"labels": {"tier": "b"}}, "spec": {"hostNetwork": True}},
            },
        },
    },
    "tensorflow": {
        "framework": "tensorflow",
        "workers": None,
        "groups": {"chief": 1, "worker": {"replicas": 2, "resources": {"gpu": 1}}, "ps": 2, "evaluator": 1},
        "engine_spec": {"successPolicy": "AllWorkers", "enableDynamicWorker": True},
    },
    "xgboost": {"framework": "xgboost", "workers": 3, "policy": {"restart": "exit_code", "ttl": "1d"}},
    "paddle": {"framework": "paddle", "workers": None, "groups": {"master": 2, "worker": 2}},
    "paddle, elastic as its kind has it": {
        "framework": "paddle",
        "workers": 2,
        "engine_spec": {"elasticPolicy": {"minReplicas": 1, "maxReplicas": 2, "maxRestarts": 3}},
    },
    "mpi": {
        "framework": "mpi",
        "workers": 3,
        "resources": {"gpu": 2},
        "policy": {"restart": "never", "ttl": "1h", "deadline": "12h"},
        "engine_spec": {
            "mpiImplementation": "MPICH",
            "runLauncherAsWorker": True,
            "sshAuthMountPath": "/home/mpiuser/.ssh",
        },
    },
    "mpi, workers first": {
        "framework": "mpi",
        "workers": None,
        "groups": {"launcher": {"resources": {"cpu": 1}}, "worker": {"replicas": 2, "resources": {"gpu": 8}}},
        "gang": {"scheduler": "none"},
        "engine_spec": {"launcherCreationPolicy": "WaitForWorkersReady"},
    },
    "mpi, v1": {
        "framework": "mpi",
        "engine": "mpijob-v1",
        "processes_per_member": 2,
        "engine_spec": {"mainContainer": "mpi", "runPolicy": {"managedBy": "kubeflow.org/training-operator"}},
    },
    "mxnet": {"framework": "mxnet", "workers": 2, "policy": {"ttl": "1d"}},
    "mxnet, tuned": {
        "framework": "mxnet",
        "workers": None,
        "groups": {"tuner": 1, "tunertracker": 1, "tunerserver": 2},
    },
    "jax": {"framework": "jax", "workers": 4, "resources": {"gpu": 1}, "policy": {"deadline": "12h"}},
    "elastic": {"workers": 3, "elastic": {"min": 1, "max": 8}, "command": ["torchrun", "x.py"]},
    "elastic, all said": {
        "workers": 2,
        "elastic": {
            "min": 2,
            "max": 2,
            "max_restarts": 0,
            "rendezvous": "etcd-v2",
            "rendezvous_conf": {"a": "b"},
        },
        "command": ["torchrun", "x.py"],
    },
    "what no other field says": {
        "workers": 2,
        "elastic": {"min": 1, "max": 4, "rendezvous": "etcd-v2"},
        "command": ["torchrun", "x.py"],
        "engine_spec": {
            "elasticPolicy": {
                "rdzvHost": "etcd.lab",
                "rdzvPort": 2379,
                "standalone": False,
                "metrics": [
                    {
                        "type": "Resource",
                        "resource": {
                            "name": "cpu",
                            "target": {"type": "Utilization", "averageUtilization": 80},
                        },
                    }
                ],
            },
            "runPolicy": {
                "managedBy": "kubeflow.org/training-operator",
                "schedulingPolicy": {"minResources": {"cpu": "2", "nvidia.com/gpu": "1"}},
            },
        },
    },
    "nearly every field": WHOLE,
    "coscheduling": {
        "gang": {"scheduler": "coscheduling", "timeout": "1m", "priority": "system-node-critical"}
    },
    "workload": {"gang": {"scheduler": "workload"}},
    "every policy": {
        "policy": {
            "restart": "always",
            "backoff_limit": 0,
            "deadline": "1s",
            "ttl": 0,
            "clean_pods": "none",
            "suspend": True,
        },
        "processes_per_member": "gpu",
    },
    "never restarted": {"policy": {"restart": "never"}, "processes_per_member": 4},
    "a slice of a GPU": {"resources": {"mig": "1g.10gb+me", "memory": "1234567", "cpu": 0.001}},
    "a shared GPU": {"resources": {"gpu": 1, "shared": True, "gpu_type": "cloud/gpu=nvidia-t4"}},
    "storage": {
        "storage": [
            {"mount": "/a", "pvc": "claim", "read_only": True},
            {"mount": "/b", "pvc": "claim"},
            {"mount": "/c/d e", "empty_dir": "memory", "size": "1G"},
            {"mount": "/dev/shm", "empty_dir": "memory"},
        ],
        "secrets": [{"name": "a", "env": True, "mount": "/etc/a"}, {"name": "b.c", "mount": "/etc/b"}],
    },
    "spot": {"spot": {"tolerate": True, "grace": 0.2}},
    "odd texts": {
        "environment": {
            "EMPTY": "",
            "LINES": "a\nb",
            "YES": "yes",
            "A.B-C": "$(HOME) $$(X)",
            "UNI": "käse 🧀",
        },
        "command": ["python", "-c", "print('hi: {}')", "", "--x=1"],
        "data": {"shards": "s3://bucket/$(x)"},
    },
    "the escape hatch": {
        "pod": {
            "metadata": {"labels": {"team": "vision"}, "annotations": {"a/b": "c"}},
            "spec": {
                "hostNetwork": True,
                "imagePullSecrets": [{"name": "registry"}],
                "initContainers": [{"name": "beside", "image": "x", "restartPolicy": "Always"}],
                "containers": [
                    {
                        "name": "pytorch",
                        "securityContext": {"runAsNonRoot": True},
                        "ports": [{"containerPort": 29500, "name": "store"}],
                        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                    }
                ],
            },
        }
    },
    "the longest name": {"name": "x" * 40},
}
FACTS = {
    "as assumed": ASSUMED,
    "with settings of the place": replace(
        ASSUMED, service_account="default", image="lab/other:1", gpu_label="lab/gpu"
    ),
}


def made(fields: dict[str, Any], facts: ClusterFacts, attempt: int = 1, generation: int = 1) -> Rendered:
    job = require_valid(TrainingJob.of(a_job(**{"image": "lab/train:1", "code": list(CODE), **fields})))
    layout = lay_out(job, engine_of(job), run_name(job.name, "k"), attempt, generation)
    launch = labels.launch_uid("k", generation, attempt)
    return render(job, layout, facts, launch=launch, spec_hash=spec_hash(spec_of(job)), code=CODE)


def pods_of(found: Rendered) -> Iterator[Object]:
    engine = engine_of_object(found.job)
    assert engine is not None
    for role, _, template in engine.templates(found.job, found.extras):
        yield sample_pod(found.job, template, role)


PATIENCE = 20.0
"""Seconds in which a webhook must have seen what the API server has."""


@pytest.fixture
def accepted(cluster: Cluster) -> Callable[[Object], Object]:
    """Stores an object for a moment. Trainer's webhook knows a runtime a little after the API server does."""

    def take(obj: Object) -> Object:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return cluster.api.dry_run(obj)
            except ApiError as error:
                if "must be created before the TrainJob" not in str(error) or time.monotonic() > end:
                    raise
            time.sleep(0.1)

    return take


@pytest.mark.needs("training-operator", "coscheduling")
@pytest.mark.parametrize("facts", FACTS.values(), ids=FACTS.keys())
@pytest.mark.parametrize("fields", JOBS.values(), ids=JOBS.keys())
def test_the_api_server_takes_every_object(
    cluster: Cluster,
    namespace: str,
    accepted: Callable[[Object], Object],
    fields: dict[str, Any],
    facts: ClusterFacts,
) -> None:
    found = made(fields, replace(facts, namespace=namespace))
    assert_taken(cluster, accepted, found)


@pytest.mark.needs("training-operator", "jobset", "trainer", "coscheduling")
@pytest.mark.parametrize("name", KINDS)
def test_the_api_server_takes_a_job_that_says_every_field(
    cluster: Cluster, namespace: str, accepted: Callable[[Object], Object], name: str
) -> None:
    fields = {"workers": None, **job_of(name).as_mapping()}
    account = {"name": fields["service_account"], "namespace": namespace}
    cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    found = made(fields, replace(ASSUMED, namespace=namespace))
    assert_taken(cluster, accepted, found)


@pytest.mark.needs("jobset", "trainer", "coscheduling")
@pytest.mark.parametrize("engine", ["jobset", "trainjob"])
@pytest.mark.parametrize("name", [n for n, job in JOBS.items() if job.get("framework") != "mxnet"])
def test_the_api_server_takes_every_job_as_a_jobset_and_a_trainjob(
    cluster: Cluster,
    namespace: str,
    accepted: Callable[[Object], Object],
    engine: str,
    name: str,
) -> None:
    fields = JOBS[name]
    own: dict[str, Any] = {"engine_spec": None, "engine": engine}  # of another kind, and so is what it says
    if fields.get("framework") == "mpi":  # says it of every kind
        names = mpi.FIELDS - ({"mpiImplementation"} if engine == "trainjob" else frozenset())
        own["engine_spec"] = {n: v for n, v in fields.get("engine_spec", {}).items() if n in names}
    policy = fields.get("policy") or {}
    if policy.get("restart") == "always":
        own["policy"] = {**policy, "restart": "exit_code"}
    if "elastic" in fields:
        own["policy"] = {**policy, "restart": "on_failure"}
    if "groups" in fields:  # which have one rule for all of them
        own["groups"] = {
            role: {n: v for n, v in group.items() if n != "restart"} if isinstance(group, dict) else group
            for role, group in fields["groups"].items()
        }
    job = {name: value for name, value in {**fields, **own}.items() if value is not None}
    if "groups" in job:
        job["workers"] = None
    found = made(job, replace(ASSUMED, namespace=namespace))
    assert_taken(cluster, accepted, found)


@pytest.fixture
def high(cluster: Cluster) -> Iterator[None]:
    """The priority class that the jobs of pairs name."""
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    cluster.api.create({**body, "value": 10})
    yield
    cluster.api.delete(body["apiVersion"], "PriorityClass", "high")


@pytest.mark.usefixtures("high")
@pytest.mark.parametrize(
    ("gang", "engine", "how"),
    [(gang, *of_it) for gang in GANG_FILES for of_it in allowed_pairs(gang)],
)
def test_every_pair_of_an_engine_and_a_gang_scheduler_is_taken(
    cluster: Cluster,
    namespace: str,
    accepted: Callable[[Object], Object],
    gang: str,
    engine: str,
    how: str,
) -> None:
    """The objects of the golden files, as far as what they need is served; a definition that lacks what the
    gang scheduler needs is known for it, and the pair refused.
    """
    facts = facts_of(cluster, namespace, engine)
    field = GANGS[gang].POD_FIELD
    if field is not None and field in facts.lacking.get(engine, ()):
        assert pair_engine_and_gang(ENGINES[engine], GANGS[gang], facts).how == "refused"
        return
    assert_taken(cluster, accepted, pair(engine, gang, how, namespace))


def facts_of(cluster: Cluster, namespace: str, engine: str) -> ClusterFacts:
    """What a launch of a job of this engine knows of the cluster."""
    with Access(str(cluster.kubeconfig), None, namespace).api() as api:
        facts = complete_facts(api, replace(ASSUMED, namespace=namespace))
        return complete_lacking(api, facts, [ENGINES[engine]])


@pytest.mark.usefixtures("high")
def test_a_gang_of_gangs_is_taken(
    cluster: Cluster, namespace: str, accepted: Callable[[Object], Object]
) -> None:
    assert_taken(cluster, accepted, composite(namespace))


def assert_taken(cluster: Cluster, accepted: Callable[[Object], Object], found: Rendered) -> None:
    """The API server takes every object and every pod; what it stores is what was sent."""
    kinds = {(m["apiVersion"], m["kind"]) for m in found.manifests}
    if missing := [f"{v} {k}" for v, k in kinds if not cluster.api.serves(v, k)]:
        pytest.skip(f"not served here: {', '.join(missing)}")

    def taken(manifest: Object) -> Object | None:
        """None: Trainer's webhook does not know yet what was created a moment ago."""
        try:
            return accepted(manifest)
        except ApiError as error:
            if "must be created before the TrainJob" in str(error):
                return None
            raise

    for manifest in found.manifests:
        assert_within(manifest, until("Trainer to know the runtime", lambda m=manifest: taken(m), 20))
        if manifest["kind"] == "TrainingRuntime":
            cluster.api.create(manifest)  # a TrainJob is refused without it
    for pod in pods_of(found):
        if pod["spec"].get("priorityClassName") not in (None, "system-node-critical"):
            del pod["spec"]["priorityClassName"]  # a class of this name need not be there
        accepted(pod)


def assert_within(sent: Any, stored: Any, at: str = "") -> None:
    """Whatever was sent is in what is stored; the server may add."""
    if isinstance(sent, dict):
        for name, value in sent.items():
            if value not in ("", {}, None):
                assert name in stored, f"{at}.{name} was dropped"
                assert_within(value, stored[name], f"{at}.{name}")
    elif isinstance(sent, list):
        assert len(sent) == len(stored), at
        for n, (one, other) in enumerate(zip(sent, stored, strict=True)):
            assert_within(one, other, f"{at}[{n}]")
    else:
        assert sent == stored, at


def test_mxjobs_are_what_the_last_operator_that_knew_them_takes(
    plane: ControlPlane, namespace: str, accepted: Callable[[Object], Object]
) -> None:
    """Its definition is put where no operator serves one; what pods consist of, other kinds tell."""
    definition = yaml.safe_load(MXJOBS.read_text())
    if not plane.api.serves("kubeflow.org/v1", "MXJob"):
        plane.api.create(definition)
    until("MXJob to be served", lambda: plane.api.serves("kubeflow.org/v1", "MXJob"))
    for name in ("mxnet", "mxnet, tuned"):
        found = made(JOBS[name], replace(ASSUMED, namespace=namespace))
        assert_within(found.job, accepted(found.job))
        found.job["spec"]["jobModes"] = found.job["spec"].pop("jobMode")
        with pytest.raises(ApiError, match="unknown field"):
            accepted(found.job)
    plane.api.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", definition["metadata"]["name"])


@pytest.mark.needs("training-operator")
def test_later_attempts_and_generations_have_names_that_fit(
    namespace: str, accepted: Callable[[Object], Object]
) -> None:
    found = made({"name": "x" * 40, "workers": 200}, replace(ASSUMED, namespace=namespace), 123, 45)
    for manifest in found.manifests:
        accepted(manifest)
    service = f"{found.job['metadata']['name']}-worker-198"
    assert len(service) <= 63
    accepted(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": service, "namespace": namespace},
            "spec": {"clusterIP": "None", "ports": [{"port": 23456}]},
        }
    )


@pytest.mark.needs("training-operator")
def test_an_operator_that_makes_the_gang_itself_takes_what_it_is_told(
    namespace: str, accepted: Callable[[Object], Object]
) -> None:
    facts = replace(ASSUMED, namespace=namespace, operator_gangs={"training-operator": "coscheduling"})
    found = made({"gang": {"timeout": "5m", "priority": "high"}}, facts)
    assert "schedulingPolicy" in found.job["spec"]["runPolicy"]
    for manifest in found.manifests:
        assert_within(manifest, accepted(manifest))


@pytest.mark.parametrize("content", [b"x", b"\xff"], ids=["text", "binary"])
def test_as_much_code_as_is_allowed_fits(
    namespace: str, accepted: Callable[[Object], Object], content: bytes
) -> None:
    job = require_valid(a_job(image="x", code=["large"]))
    layout = lay_out(job, engine_of(job), run_name(job.name, "k"))
    code = {"large": content * CODE_LIMIT}
    found = render(
        job, layout, replace(ASSUMED, namespace=namespace), launch="u", spec_hash="v1:x", code=code
    )
    accepted(found.extras[0])


@pytest.mark.needs("training-operator")
def test_strictness_is_real(namespace: str, accepted: Callable[[Object], Object]) -> None:
    """So that the tests above say something: a misspelt field is refused."""
    found = made({}, replace(ASSUMED, namespace=namespace))
    found.job["spec"]["runPolicy"]["backofLimit"] = 3
    with pytest.raises(ApiError, match="unknown field"):
        accepted(found.job)


@pytest.mark.needs("training-operator", "coscheduling")
def test_what_is_printed_is_what_a_launch_sends(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The command line prints, the backend launches, and both are the same to the byte, but for the order and
    the owner of what members mount: it is sent after the job, which owns it.
    """
    for path, content in CODE.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(content)
    file = tmp_path / "job.yaml"
    policy = {"suspend": True}
    file.write_text(yaml.safe_dump({**WHOLE, "gang": {"timeout": "5m"}, "pod": {}, "policy": policy}))
    where = ["--kubeconfig", str(cluster.kubeconfig), "-n", namespace]
    words = [sys.executable, "-m", "allaboard", "render", str(file), "--key", "k", *where]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    with Access(str(cluster.kubeconfig), None, namespace).api() as api:
        sent: list[Object] = []
        create = api.create

        def noted(resource: Resource, body: Object, *given: Any, **options: Any) -> Object:
            sent.append(json.loads(json.dumps(body)))
            return create(resource, body, *given, **options)

        api.create = noted  # type: ignore[method-assign,assignment]
        backend = KubernetesBackend(api)
        backend.launch(Plan(read_job(file), "k"), new_owner("detached"))
    beside = ("SelfSubjectAccessReview", "Lease")  # what a launch asks and keeps for itself
    meant = [b for b in sent if b["kind"] not in beside and b["metadata"].get("name") != PROBE]
    own = [b for b in meant if "record" not in b.get("data", {})]
    assert [m["kind"] for m in own] == ["PodGroup", "PyTorchJob", "ConfigMap", "ConfigMap"]
    for mounted in own[2:]:
        [owner] = mounted["metadata"].pop("ownerReferences")
        assert (owner["kind"], owner["name"]) == ("PyTorchJob", own[1]["metadata"]["name"])
    own.sort(key=lambda body: body["kind"] != "ConfigMap")
    assert to_yaml(own) == printed
