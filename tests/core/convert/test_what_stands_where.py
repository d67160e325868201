"""Which field of a job says what a manifest said; what no field says stays in ``pod`` or ``engine_spec``."""

# ruff: noqa: E501  (tables)

from __future__ import annotations

import copy
from typing import Any

import pytest

from allaboard.checking.job import check
from allaboard.engines.reading.values import Conversion
from tests.core.convert.golden import EXAMPLES, file_of
from tests.core.convert.golden import job_of as golden_job_of
from tests.core.convert.manifests import there
from tests.core.convert.test_there_and_back import assert_same

Json = dict[str, Any]


def container(**fields: Any) -> Json:
    return {"name": "pytorch", "image": "lab/train:1", **fields}


def group(replicas: int = 1, *, pod: Json | None = None, **fields: Any) -> Json:
    template = {"spec": {"containers": [container(**fields)], **(pod or {})}}
    return {"replicas": replicas, "template": template}


def a_pytorchjob(spec: Json | None = None, *, elastic: bool = False, **fields: Any) -> Json:
    """With these fields of the container, a master and three workers; ``elastic``: workers alone."""
    specs = (
        {"Worker": group(3, **fields)}
        if elastic
        else {"Master": group(**fields), "Worker": group(3, **fields)}
    )
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "mnist"},
        "spec": {"pytorchReplicaSpecs": specs, **(spec or {})},
    }


def job_of(manifest: Json) -> Json:
    """The job, which says the same."""
    assert_same(manifest)
    return dict(there(manifest).job)


def changes(made: Conversion) -> dict[str, Any]:
    return {change.path: change.after for change in made.changed}


# The elastic policy, whole.


@pytest.mark.parametrize(
    ("policy", "elastic", "engine_spec"),
    [
        ({"minReplicas": 1, "maxReplicas": 4}, {"min": 1, "max": 4}, None),
        ({"minReplicas": 3}, {"min": 3, "max": 3}, None),
        ({"maxRestarts": 7}, {"min": 3, "max": 3, "max_restarts": 7}, None),
        ({"maxReplicas": 3, "rdzvBackend": "etcd"}, {"min": 3, "max": 3, "rendezvous": "etcd"}, None),
        (
            {"maxReplicas": 3, "rdzvConf": [{"key": "timeout", "value": "900"}]},
            {"min": 3, "max": 3, "rendezvous_conf": {"timeout": "900"}},
            None,
        ),
        ({"maxReplicas": 3, "rdzvId": "a"}, {"min": 3, "max": 3}, {"rdzvId": "a"}),
        (
            {"maxReplicas": 3, "rdzvHost": "etcd.lab", "rdzvPort": 2379},
            {"min": 3, "max": 3},
            {"rdzvHost": "etcd.lab", "rdzvPort": 2379},
        ),
        ({"maxReplicas": 3, "standalone": True}, {"min": 3, "max": 3}, {"standalone": True}),
        (
            {"maxReplicas": 3, "metrics": [{"type": "Pods"}]},
            {"min": 3, "max": 3},
            {"metrics": [{"type": "Pods"}]},
        ),
        # A static rendezvous, and fewer members than are needed: elastic for the operator alone.
        ({"maxReplicas": 3, "rdzvBackend": "static"}, None, {"maxReplicas": 3, "rdzvBackend": "static"}),
        ({"minReplicas": 5, "maxReplicas": 8}, None, {"minReplicas": 5, "maxReplicas": 8}),
    ],
)
def test_every_elastic_field_has_its_place(
    policy: Json, elastic: Json | None, engine_spec: Json | None
) -> None:
    job = job_of(a_pytorchjob({"elasticPolicy": policy}, elastic=True, command=["torchrun", "x.py"]))
    assert job.get("elastic") == elastic
    assert (job.get("engine_spec") or {}).get("elasticPolicy") == engine_spec


@pytest.mark.parametrize(
    ("spec", "processes"),
    [
        ({"nprocPerNode": "4"}, 4), ({"nprocPerNode": "cpu"}, "cpu"), ({"nprocPerNode": "gpu"}, "gpu"),
        ({"nprocPerNode": "auto"}, "auto"), ({}, "auto"), ({"nprocPerNode": 8}, 8),
        ({"elasticPolicy": {"minReplicas": 1, "maxReplicas": 4, "nProcPerNode": 2}}, 2),
    ],
)  # fmt: skip
def test_the_processes_of_a_member_are_what_the_operator_takes(spec: Json, processes: str | int) -> None:
    manifest = a_pytorchjob(spec, elastic=True, command=["torchrun", "x.py"])
    assert job_of(manifest)["processes_per_member"] == processes
    with_gpus = a_pytorchjob({}, resources={"limits": {"nvidia.com/gpu": 1}})
    assert "processes_per_member" not in job_of(with_gpus)  # auto, as the operator's


# The run policy.


def test_what_the_operator_leaves_open_is_written_out_and_told() -> None:
    made = there(a_pytorchjob())
    assert made.job["policy"] == {"clean_pods": "none", "backoff_limit": "unlimited"}
    assert changes(made)["spec.runPolicy.cleanPodPolicy"] == "none"
    assert changes(made)["spec.runPolicy.backoffLimit"] == "unlimited"


def test_the_run_policy_is_the_jobs_policy() -> None:
    policy = {
        "cleanPodPolicy": "All",
        "backoffLimit": 5,
        "activeDeadlineSeconds": 43200,
        "ttlSecondsAfterFinished": 90,
        "suspend": True,
    }
    job = job_of(a_pytorchjob({"runPolicy": policy}))
    assert job["policy"] == {
        "clean_pods": "all", "backoff_limit": 5, "deadline": "12h", "ttl": "90s", "suspend": True,
    }  # fmt: skip
    own = {"schedulingPolicy": {"minAvailable": 2, "queue": "q"}, "managedBy": "kueue.x-k8s.io/multikueue"}
    job = job_of(a_pytorchjob({"runPolicy": own}))
    assert (job["engine"], job["engine_spec"]) == ("pytorchjob", {"runPolicy": own})


def test_fields_of_older_operators_are_taken_where_they_stood() -> None:
    made = there(a_pytorchjob({"cleanPodPolicy": "None", "backoffLimit": 2, "ttlSecondsAfterFinished": 0}))
    assert made.job["policy"] == {"clean_pods": "none", "backoff_limit": 2, "ttl": "0s"}
    assert "spec.cleanPodPolicy" in changes(made) and not made.lost
    older = {**a_pytorchjob(), "apiVersion": "kubeflow.org/v1beta2"}
    assert changes(there(older))["apiVersion"] == "kubeflow.org/v1"


def test_a_restart_policy_that_differs_is_the_groups() -> None:
    manifest = a_pytorchjob()
    specs = manifest["spec"]["pytorchReplicaSpecs"]
    specs["Master"]["restartPolicy"], specs["Worker"]["restartPolicy"] = "Never", "ExitCode"
    job = job_of(manifest)
    assert job["policy"]["restart"] == "never" and job["groups"]["worker"]["restart"] == "exit_code"
    specs["Master"]["template"]["spec"]["restartPolicy"] = "Always"
    assert changes(there(manifest))["spec.pytorchReplicaSpecs.Master.template.spec.restartPolicy"] is None


# Pods.


def test_one_container_is_said_in_fields() -> None:
    job = job_of(
        a_pytorchjob(
            command=["python", "train.py"],
            args=["--epochs=2"],
            env=[{"name": "NCCL_DEBUG", "value": "INFO"}],
            envFrom=[{"secretRef": {"name": "keys"}}],
            resources={"limits": {"nvidia.com/gpu": 8, "memory": "64Gi", "cpu": 16}, "requests": {"cpu": 8}},
        )
    )
    assert (job["command"], job["args"]) == (["python", "train.py"], ["--epochs=2"])
    assert job["environment"] == {"NCCL_DEBUG": "INFO"} and job["secrets"] == [{"name": "keys", "env": True}]
    assert job["resources"] == {"cpu": 8, "memory": "64Gi", "gpu": 8, "shared": True}
    assert job["pod"]["spec"]["containers"] == [{"name": "pytorch", "resources": {"limits": {"cpu": 16}}}]


@pytest.mark.parametrize(
    ("resource", "profile"),
    [("nvidia.com/mig-1g.10gb.me", "1g.10gb+me"), ("nvidia.com/mig-1g.24gb.gfx", "1g.24gb+gfx"),
     ("nvidia.com/mig-1g.24gb-me", "1g.24gb-me")],
)  # fmt: skip
def test_a_slice_of_a_gpu_is_its_profile(resource: str, profile: str) -> None:
    job = job_of(a_pytorchjob(resources={"limits": {resource: 1}}))
    assert job["resources"] == {"gpu": 1, "mig": profile, "shared": True} and check(job) == []


def test_a_slice_that_no_card_is_known_to_have_stays_in_the_pod() -> None:
    limits = {"nvidia.com/mig-1g.11gb": 1}
    job = job_of(a_pytorchjob(resources={"limits": limits}))
    assert "resources" not in job and check(job) == []
    [container] = job["pod"]["spec"]["containers"]
    assert container["resources"]["limits"] == limits


def test_a_container_that_says_nothing_runs_the_entrypoint_of_its_image() -> None:
    job = job_of(a_pytorchjob())
    assert job["args"] == [] and "command" not in job


def an_ephemeral(**spec: Any) -> dict[str, Any]:
    said = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"volumeClaimTemplate": {"spec": said}}


def test_volumes_that_one_path_shows_whole_are_storage() -> None:
    pod = {
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "datasets"}},
            {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
            {"name": "ssh", "secret": {"secretName": "keys"}},
            {"name": "logs", "hostPath": {"path": "/var/log", "type": "Directory"}},
            {"name": "ssd", "hostPath": {"path": "/mnt/ssd"}},
            {"name": "hot", "ephemeral": an_ephemeral(storageClassName="local-ssd")},
            {"name": "kept", "ephemeral": an_ephemeral(accessModes=["ReadWriteMany"])},
            {"name": "sets", "nfs": {"server": "nas", "path": "/sets"}},
            {"name": "photos", "csi": {"driver": "s3.csi.aws.com", "volumeAttributes": {"bucketName": "b"}}},
            {"name": "settings", "configMap": {"name": "settings"}},
        ]
    }
    mounts = [
        {"name": "data", "mountPath": "/data"},
        {"name": "dshm", "mountPath": "/dev/shm"},
        {"name": "ssh", "mountPath": "/etc/ssh", "readOnly": True},
        *(
            {"name": name, "mountPath": f"/{name}"}
            for name in ("logs", "ssd", "hot", "kept", "sets", "photos", "settings")
        ),
    ]
    specs = {"Worker": group(3, pod=pod, volumeMounts=mounts)}
    job = job_of(a_pytorchjob({"pytorchReplicaSpecs": specs}))
    assert job["storage"] == [
        {"mount": "/data", "pvc": "datasets"},
        {"mount": "/dev/shm", "empty_dir": "memory", "size": "8Gi"},
        {"mount": "/ssd", "host_path": "/mnt/ssd"},
        {"mount": "/hot", "ephemeral": {"size": "1Gi", "storage_class": "local-ssd"}},
        {"mount": "/sets", "volume": {"nfs": {"server": "nas", "path": "/sets"}}},
        {
            "mount": "/photos",
            "volume": {"csi": {"driver": "s3.csi.aws.com", "volumeAttributes": {"bucketName": "b"}}},
        },
    ]
    assert job["secrets"] == [{"name": "keys", "mount": "/etc/ssh"}]
    left = [volume["name"] for volume in job["pod"]["spec"]["volumes"]]
    assert left == ["logs", "kept", "settings"], "what no field says exactly"


def test_variables_from_elsewhere_stay_in_the_pod_with_those_that_refer_to_them() -> None:
    address = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    uses = {"name": "URL", "value": "http://$(IP)"}
    job = job_of(
        a_pytorchjob(env=[{"name": "A", "value": "1"}, address, uses, {"name": "B", "value": "$(A)"}])
    )
    assert job["environment"] == {"A": "1", "B": "$(A)"}
    assert job["pod"]["spec"]["containers"][0]["env"] == [address, uses]


@pytest.mark.parametrize(
    "pod",
    [
        {"initContainers": [{"name": "fetch", "image": "lab/fetch:1", "command": ["fetch"]}]},
        {"hostNetwork": True},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
        {"affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}},
        {"securityContext": {"runAsUser": 1000}, "schedulerName": "volcano"},
        {"imagePullSecrets": [{"name": "pull"}], "priorityClassName": "high", "runtimeClassName": "nvidia"},
    ],
)  # fmt: skip
def test_what_no_field_says_of_a_pod_stays_in_pod(pod: Json) -> None:
    specs = {"Master": group(pod=pod), "Worker": group(2, pod=pod)}
    assert job_of(a_pytorchjob({"pytorchReplicaSpecs": specs}))["pod"] == {"spec": pod}


def test_the_service_account_of_all_is_a_field_and_of_some_is_not() -> None:
    trainer = {"serviceAccountName": "trainer"}
    specs = {"Master": group(pod=trainer), "Worker": group(2, pod=trainer)}
    job = job_of(a_pytorchjob({"pytorchReplicaSpecs": specs}))
    assert job["service_account"] == "trainer" and "pod" not in job
    specs = {"Master": group(pod=trainer), "Worker": group(2)}
    job = job_of(a_pytorchjob({"pytorchReplicaSpecs": specs}))
    assert "service_account" not in job
    assert job["groups"]["master"]["pod"]["spec"]["serviceAccountName"] == "trainer"


def test_sidecars_stay_beside_the_container_that_trains() -> None:
    manifest = a_pytorchjob()
    proxy = {"name": "proxy", "image": "lab/proxy:1"}
    for one in manifest["spec"]["pytorchReplicaSpecs"].values():
        one["template"]["spec"]["containers"].insert(0, copy.deepcopy(proxy))
        one["template"]["metadata"] = {"annotations": {"sidecar.istio.io/inject": "false"}}
    job = job_of(manifest)
    assert job["pod"]["spec"]["containers"] == [proxy]
    assert job["pod"]["metadata"] == {"annotations": {"sidecar.istio.io/inject": "false"}}


def test_groups_that_differ_say_so_and_share_the_rest() -> None:
    specs = {
        "Master": group(image="lab/a:1", command=["a"], env=[{"name": "A", "value": "1"}], pod={"hostIPC": True}),
        "Worker": group(2, image="lab/b:1", args=["b"], env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                        resources={"limits": {"nvidia.com/gpu": 1}}, pod={"hostIPC": True, "hostPID": True}),
    }  # fmt: skip
    job = job_of(a_pytorchjob({"pytorchReplicaSpecs": specs}))
    assert job["environment"] == {"A": "1"} and job["pod"] == {"spec": {"hostIPC": True}}
    assert job["groups"] == {
        "master": {"replicas": 1, "image": "lab/a:1", "command": ["a"]},
        "worker": {
            "replicas": 2,
            "image": "lab/b:1",
            "args": ["b"],
            "environment": {"B": "2"},
            "resources": {"gpu": 1, "shared": True},
            "pod": {"spec": {"hostPID": True}},
        },
    }


def test_labels_and_annotations_of_the_object_are_metadata() -> None:
    manifest = a_pytorchjob()
    manifest["metadata"] |= {
        "labels": {"kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "x"},
        "uid": "1", "resourceVersion": "2", "managedFields": [{}], "creationTimestamp": None,
    }  # fmt: skip
    manifest["status"] = {"conditions": []}
    made = there(manifest)
    assert made.job["metadata"] == {
        "labels": {"kueue.x-k8s.io/queue-name": "q"},
        "annotations": {"note": "x"},
    }
    assert not made.lost


def test_names_that_a_job_cannot_have_become_the_nearest_and_that_is_told() -> None:
    for name, key, job in (
        ("a" * 50, "name", "a" * 40),
        ("train.v2", "name", "train-v2"),
        ("x-", "generateName", "x"),
    ):
        manifest = a_pytorchjob()
        manifest["metadata"] = {key: name}
        made = there(manifest)
        assert made.job["name"] == job and changes(made)[f"metadata.{key}"] == job


def test_what_stands_twice_under_one_key_is_said_once() -> None:
    aliases = [{"ip": "10.0.0.1", "hostnames": ["a"]}, {"ip": "10.0.0.1", "hostnames": ["b", "a"]}]
    ports = [{"containerPort": 80, "name": "one"}, {"containerPort": 80, "name": "two"}]
    made = there(
        a_pytorchjob({"pytorchReplicaSpecs": {"Worker": group(pod={"hostAliases": aliases}, ports=ports)}})
    )
    spec = made.job["pod"]["spec"]
    assert spec["hostAliases"] == [{"ip": "10.0.0.1", "hostnames": ["a", "b"]}]
    assert spec["containers"][0]["ports"] == ports[:1]
    assert [loss.path.rpartition(".")[2] for loss in made.lost] == ["ports[1]"]


# What is lost, and what is wrong.


def test_what_nobody_understands_is_lost_with_its_path() -> None:
    manifest = a_pytorchjob({"runPolicy": {"backofLimit": 3}, "backend": "nccl"})
    specs = manifest["spec"]["pytorchReplicaSpecs"]
    specs["Worker"]["replicaType"] = "WORKER"
    specs["Evaluator"] = group()
    specs["Master"]["template"]["kind"] = "Pod"
    manifest["metadata"]["finalizers"] = ["x/y"]
    at = "spec.pytorchReplicaSpecs"
    assert {loss.path for loss in there(manifest).lost} == {
        "spec.runPolicy.backofLimit", "spec.backend", f"{at}.Worker.replicaType", f"{at}.Evaluator",
        f"{at}.Master.template.kind", "metadata.finalizers",
    }  # fmt: skip


def test_a_group_of_nobody_is_lost() -> None:
    specs = {"Master": group(), "Worker": group(0)}
    (loss,) = there(a_pytorchjob({"pytorchReplicaSpecs": specs})).lost
    assert loss.path == "spec.pytorchReplicaSpecs.Worker"


def test_a_container_of_another_name_trains_if_it_is_alone() -> None:
    made = there(a_pytorchjob(elastic=True, name="main"))
    at = "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].name"
    assert changes(made)[at] == "pytorch"
    assert not [p for p in check(made.job) if p.severity == "error"]


def test_values_that_only_want_quotes_are_taken_and_told() -> None:
    made = there(a_pytorchjob(args=["--epochs", 2], env=[{"name": "A", "value": True}]))
    assert made.job["args"] == ["--epochs", "2"] and made.job["environment"] == {"A": "true"}
    assert any(path.endswith("args[1]") for path in changes(made))


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_job_of_an_example_is_as_people_last_looked_at_it(example: str) -> None:
    assert file_of(EXAMPLES[example]).read_text() == golden_job_of(example)
