"""What every member's pod is made of, and what of it a job may change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allaboard.checking.job import check, require_valid
from allaboard.engines import engine_of
from allaboard.job.pod_defaults import MESH_LABELS
from allaboard.render.claims import claims_of
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts
from allaboard.render.labels import claim_name
from allaboard.render.pod_template import CODE_FOLDER, merged, pod_template, problems
from allaboard.render.spot import LABELS, TAINTS
from allaboard.runs.layout import lay_out
from allaboard.testing import a_job
from allaboard.text.names import why_not_an_object_name

Json = dict[str, Any]
RUN = "digits-00000000"


def template(
    role: str = "worker", facts: ClusterFacts = ASSUMED, code: dict[str, str] | None = None, **fields: Any
) -> Json:
    """The pod template of one group of a job with these fields."""
    job = require_valid(a_job(**{"image": "lab/train:1", **fields}))
    engine = engine_of(job)
    layout = lay_out(job, engine, RUN)
    group = layout.group(role)
    assert group is not None
    return pod_template(
        job, layout, group, facts, engine, metadata={}, code="digits-code" if code else None, files=code
    )


def container(**fields: Any) -> Json:
    (found,) = template(**fields)["spec"]["containers"]
    return dict(found)


def environment(**fields: Any) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container(**fields)["env"]}


def volumes(**fields: Any) -> dict[str, Json]:
    """mount path -> its volume's source, with ``readOnly`` of the mount."""
    spec = template(**fields)["spec"]
    sources = {v["name"]: {k: s for k, s in v.items() if k != "name"} for v in spec["volumes"]}
    return {
        m["mountPath"]: {**sources[m["name"]], **({"ro": True} if m.get("readOnly") else {})}
        for m in spec["containers"][0]["volumeMounts"]
    }


# Image, command, environment.


def test_the_container_that_trains() -> None:
    found = container(command=["python", "train.py", "--lr=$(LR)"])
    assert (found["name"], found["image"]) == ("pytorch", "lab/train:1")
    assert found["command"] == ["python", "train.py", "--lr=$(LR)"] and "workingDir" not in found
    assert found["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_a_place_may_name_the_image_of_jobs_that_name_none() -> None:
    facts = replace(ASSUMED, image="lab/default:2")
    assert container(facts=facts, image=None)["image"] == "lab/default:2"
    assert container(facts=facts)["image"] == "lab/train:1"


def test_the_environment_is_the_jobs_and_ours_and_nothing_of_the_operators() -> None:
    found = environment(
        workers=None,
        groups={"master": 1, "worker": {"replicas": 2, "environment": {"A": "2"}}},
        environment={"A": "1", "NCCL_DEBUG": "WARN"},
        checkpoints={"uri": "s3://bucket/x", "every": 50},
        spot={"grace": "2m"},
    )
    assert found["A"] == "2" and found["NCCL_DEBUG"] == "WARN"
    assert found["ALLABOARD_CHECKPOINTS"] == "s3://bucket/x/digits-00000000"
    assert found["ALLABOARD_GRACE"] == "120"
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "PYTHONUNBUFFERED"} & set(found)
    assert not any(name.startswith("PET_") for name in found)


def test_a_member_knows_its_name_though_all_share_one_template() -> None:
    names = [v["name"] for v in container()["env"]]
    assert names.index("ALLABOARD_INDEX") < names.index("ALLABOARD_MEMBER")
    found = environment()
    label = "metadata.labels['training.kubeflow.org/replica-index']"
    assert found["ALLABOARD_INDEX"] == {"fieldRef": {"fieldPath": label}}
    assert found["ALLABOARD_MEMBER"] == "worker-$(ALLABOARD_INDEX)"


def test_ours_win_over_the_jobs_and_are_not_expanded() -> None:
    found = environment(environment={"ALLABOARD_RUN": "theirs"}, data={"shards": "s3://b/$(HOME)/x"})
    assert found["ALLABOARD_RUN"] == "digits-00000000" and found["ALLABOARD_DATA"] == "s3://b/$$(HOME)/x"


# Volumes.


def test_shared_memory_is_half_of_the_members_memory() -> None:
    assert volumes()["/dev/shm"] == {"emptyDir": {"medium": "Memory"}}
    found = volumes(resources={"memory": "32Gi"})["/dev/shm"]
    assert found == {"emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    own = volumes(
        resources={"memory": "32Gi"}, storage=[{"mount": "/dev/shm", "empty_dir": "memory", "size": "1Gi"}]
    )
    assert own == {"/dev/shm": {"emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}}


def test_storage() -> None:
    found = volumes(
        storage=[
            {"mount": "/data", "pvc": "datasets", "read_only": True},
            {"mount": "/out", "pvc": "results"},
            {"mount": "/scratch", "empty_dir": "memory", "size": "16Gi"},
            {"mount": "/tmp/x", "empty_dir": "disk"},
        ]
    )
    assert found["/data"] == {
        "persistentVolumeClaim": {"claimName": "datasets", "readOnly": True},
        "ro": True,
    }
    assert found["/out"] == {"persistentVolumeClaim": {"claimName": "results"}}
    assert found["/scratch"] == {"emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}
    assert found["/tmp/x"] == {"emptyDir": {}}


def test_every_other_source_of_a_volume() -> None:
    csi = {"csi": {"driver": "s3.csi.aws.com", "readOnly": True}}
    found = volumes(
        storage=[
            {"mount": "/ckpt", "claim": {"size": "10Gi"}},
            {"mount": "/cache/", "claim": {"size": "1Ti", "keep": "always"}},
            {"mount": "/hot", "ephemeral": {"size": "200Gi", "storage_class": "local-ssd"}},
            {"mount": "/ssd", "host_path": "/mnt/ssd"},
            {"mount": "/photos", "volume": csi, "read_only": True},
        ]
    )
    assert found["/ckpt"] == {"persistentVolumeClaim": {"claimName": f"{RUN}-ckpt"}}
    assert found["/cache/"] == {"persistentVolumeClaim": {"claimName": "digits-cache"}}
    spec = found["/hot"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert spec == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local-ssd",
        "resources": {"requests": {"storage": "200Gi"}},
    }
    assert found["/ssd"] == {"hostPath": {"path": "/mnt/ssd"}}
    assert found["/photos"] == {**csi, "ro": True}


@pytest.mark.parametrize(
    ("fields", "claim", "mode"),
    [
        ({"workers": 1}, {}, "ReadWriteOnce"),
        ({"workers": 2}, {}, "ReadWriteMany"),
        ({"workers": 1, "elastic": {"min": 1, "max": 3}}, {}, "ReadWriteMany"),
        ({"workers": 2}, {"access": "once"}, "ReadWriteOnce"),
        ({"workers": 1}, {"access": "once_pod"}, "ReadWriteOncePod"),
    ],
)
def test_how_a_claim_may_be_mounted(fields: dict[str, Any], claim: dict[str, Any], mode: str) -> None:
    job = a_job(storage=[{"mount": "/c", "claim": {"size": 1, **claim}}], **fields)
    (made,) = claims_of(job, lay_out(job, engine_of(job), RUN), "research")
    assert made["spec"] == {"accessModes": [mode], "resources": {"requests": {"storage": "1"}}}
    assert made["metadata"]["namespace"] == "research"


def test_mounts_that_differ_have_claims_of_different_names() -> None:
    mounts = ("/a/b", "/a-b", "/A-b", "/a_b", "/ä", "/" + "x" * 60, "/" + "x" * 61, "/data", "/data/x")
    names = {mount: claim_name("digits-1f0c9a77", mount) for mount in mounts}
    assert len({*names.values()}) == len(mounts)
    assert names["/data"] == "digits-1f0c9a77-data" == claim_name("digits-1f0c9a77", "//data/./")
    assert all(why_not_an_object_name(name, 63) is None for name in names.values())


def test_the_jobs_own_service_account_goes_before_the_places() -> None:
    place = ClusterFacts(service_account="everybody")
    assert template(facts=place)["spec"]["serviceAccountName"] == "everybody"
    spec = template(facts=place, service_account="trainer")["spec"]
    assert spec["serviceAccountName"] == "trainer"


def test_a_claim_that_is_mounted_twice_is_one_volume() -> None:
    storage = [{"mount": "/a", "pvc": "x", "read_only": True}, {"mount": "/b", "pvc": "x"}]
    spec = template(storage=storage)["spec"]
    claims = [v for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert claims == [{"name": "storage-0", "persistentVolumeClaim": {"claimName": "x"}}]
    assert volumes(storage=storage)["/a"]["ro"] and "ro" not in volumes(storage=storage)["/b"]


def test_secrets_are_named_and_never_read() -> None:
    secrets = [{"name": "aws", "env": True}, {"name": "tls", "mount": "/etc/tls"}]
    assert container(secrets=secrets)["envFrom"] == [{"secretRef": {"name": "aws"}}]
    assert volumes(secrets=secrets)["/etc/tls"] == {"secret": {"secretName": "tls"}, "ro": True}


def test_members_start_where_their_code_is_and_it_keeps_its_folders() -> None:
    code = {"train.py": "train.py", "pkg-model.py": "pkg/model.py"}
    assert container(code=code)["workingDir"] == CODE_FOLDER
    items = [{"key": "train.py", "path": "train.py"}, {"key": "pkg-model.py", "path": "pkg/model.py"}]
    assert volumes(code=code)[CODE_FOLDER] == {
        "configMap": {"name": "digits-code", "items": items, "defaultMode": 0o555},
        "ro": True,
    }


# Resources and placement.

RESOURCES = {
    "nothing stated": ({}, None),
    "cpu is asked for and not capped": ({"cpu": 8}, {"requests": {"cpu": "8"}}),
    "part of a core": ({"cpu": "0.5"}, {"requests": {"cpu": "500m"}}),
    "memory is capped": ({"memory": "32Gi"}, {"requests": {"memory": "32Gi"}, "limits": {"memory": "32Gi"}}),
    "odd memory": ({"memory": "1G"}, {"requests": {"memory": "1G"}, "limits": {"memory": "1G"}}),
    "gpus": ({"gpu": 2}, {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}}),
    "a slice of one": (
        {"mig": "1g.10gb"},
        {"requests": {"nvidia.com/mig-1g.10gb": "1"}, "limits": {"nvidia.com/mig-1g.10gb": "1"}},
    ),
    "a slice with media engines": (
        {"mig": "1g.10gb+me", "gpu": 1},
        {"requests": {"nvidia.com/mig-1g.10gb.me": "1"}, "limits": {"nvidia.com/mig-1g.10gb.me": "1"}},
    ),
}


@pytest.mark.parametrize(("needs", "expected"), RESOURCES.values(), ids=RESOURCES.keys())
def test_resources(needs: Json, expected: Json | None) -> None:
    assert container(resources=needs).get("resources") == expected


def test_gpus_that_others_share_are_avoided_unless_they_are_welcome() -> None:
    def avoided(**resources: Any) -> bool:
        return "affinity" in template(resources=resources)["spec"]

    assert avoided(gpu=1) and avoided(mig="1g.10gb") and avoided(gpu=1, shared=False)
    assert not avoided(gpu=1, shared=True) and not avoided(cpu=1)


def test_the_kind_of_gpu_is_a_node_label() -> None:
    def selector(kind: str, facts: ClusterFacts = ASSUMED) -> Json:
        found: Json = template(resources={"gpu": 1, "gpu_type": kind}, facts=facts)["spec"]["nodeSelector"]
        return found

    assert selector("NVIDIA-H100-80GB-HBM3") == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert selector("a100", replace(ASSUMED, gpu_label="lab/gpu")) == {"lab/gpu": "a100"}
    gke = "cloud.google.com/gke-accelerator=nvidia-h100-80gb"
    assert selector(gke) == {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"}


def test_spot_tolerates_the_taints_of_clouds_and_has_its_grace() -> None:
    spec = template(spot={"tolerate": True, "grace": "1m30s"})["spec"]
    assert "cloud.google.com/gke-spot" in [t["key"] for t in spec["tolerations"]]
    assert spec["terminationGracePeriodSeconds"] == 90
    plain = template()["spec"]
    assert "tolerations" not in plain and plain["terminationGracePeriodSeconds"] == 30


def test_spot_is_preferred_by_the_labels_of_its_nodes_and_tolerated_then() -> None:
    spec = template(resources={"gpu": 1}, spot={"prefer": True})["spec"]
    affinity = spec["affinity"]["nodeAffinity"]
    terms = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    rules = [rule for term in terms for rule in term["preference"]["matchExpressions"]]
    assert [(rule["key"], rule["values"]) for rule in rules] == [(key, [value]) for key, value in LABELS]
    assert {rule["operator"] for rule in rules} == {"In"} and {term["weight"] for term in terms} == {100}
    assert affinity["requiredDuringSchedulingIgnoredDuringExecution"], "GPUs of others are avoided as before"
    assert (
        spec["tolerations"] == template(resources={"gpu": 1}, spot={"tolerate": True})["spec"]["tolerations"]
    )


def test_spot_that_is_only_tolerated_is_not_preferred() -> None:
    spec = template(spot={"tolerate": True})["spec"]
    assert "affinity" not in spec
    assert [(t["key"], t["value"]) for t in spec["tolerations"]] == list(TAINTS)
    off = template(spot={"tolerate": False, "prefer": False})["spec"]
    assert "affinity" not in off and "tolerations" not in off


def test_priority_and_service_account() -> None:
    facts = replace(ASSUMED, service_account="trainer")
    spec = template(facts=facts, gang={"priority": "high"})["spec"]
    assert (spec["priorityClassName"], spec["serviceAccountName"]) == ("high", "trainer")


# The escape hatch.


def test_pod_is_merged_last_by_the_rules_of_a_strategic_merge() -> None:
    found = template(
        environment={"A": "1", "B": "1"},
        resources={"gpu": 1},
        pod={
            "metadata": {"labels": {"team": "vision"}},
            "spec": {
                "hostNetwork": True,
                "tolerations": [{"operator": "Exists"}],
                "containers": [
                    {
                        "name": "pytorch",
                        "imagePullPolicy": "Always",
                        "env": [
                            {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                            {"name": "C", "value": "3"},
                        ],
                        "volumeMounts": [{"name": "extra", "mountPath": "/extra"}],
                    },
                    {"name": "sidecar", "image": "lab/side:1"},
                ],
                "volumes": [
                    {"name": "extra", "hostPath": {"path": "/x"}},
                    {"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}},
                ],
            },
        },
    )
    spec = found["spec"]
    trains, beside = spec["containers"]
    env = {v["name"]: v for v in trains["env"]}
    assert found["metadata"]["labels"] == {**MESH_LABELS, "team": "vision"} and spec["hostNetwork"] is True
    assert trains["image"] == "lab/train:1" and trains["imagePullPolicy"] == "Always"
    assert env["A"] == {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    assert env["B"]["value"] == "1" and env["C"]["value"] == "3"
    assert beside["name"] == "sidecar" and [m["mountPath"] for m in trains["volumeMounts"]] == [
        "/dev/shm",
        "/extra",
    ]
    gpu = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert spec["tolerations"] == [gpu, {"operator": "Exists"}]  # ours outlive it
    assert {v["name"]: v for v in spec["volumes"]}["shm"]["emptyDir"] == {
        "medium": "Memory",
        "sizeLimit": "1Gi",
    }


GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
MINE = {"key": "team", "value": "vision", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("name", "ours", "theirs", "both"),
    [
        ("tolerations", [GPU], [MINE], [GPU, MINE]),
        ("tolerations", [GPU], [GPU], [GPU]),
        ("tolerations", [MINE], [{**MINE, "operator": "Equal", "tolerationSeconds": 9}],
         [{**MINE, "operator": "Equal", "tolerationSeconds": 9}]),
        ("tolerations", [GPU, MINE], [{**GPU, "$patch": "delete"}], [MINE]),
        ("tolerations", [GPU], [{"$patch": "replace"}, MINE], [MINE]),
        ("envFrom", [{"secretRef": {"name": "a"}}], [{"configMapRef": {"name": "a"}}],
         [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "a"}}]),
        ("envFrom", [{"secretRef": {"name": "a"}}], [{"secretRef": {"name": "a", "optional": True}}],
         [{"secretRef": {"name": "a", "optional": True}}]),
        ("containers", [{"name": "a", "image": "i"}], [{"name": "b"}, {"name": "a", "tty": True}],
         [{"name": "a", "image": "i", "tty": True}, {"name": "b"}]),
        ("initContainers", [{"name": "a", "image": "i"}], [{"name": "a", "image": "j"}],
         [{"name": "a", "image": "j"}]),
        ("env", [{"name": "A", "value": "1"}], [{"name": "A", "valueFrom": {"x": 1}}],
         [{"name": "A", "valueFrom": {"x": 1}}]),
        ("env", [{"name": "A", "value": "1"}], [{"name": "A"}], [{"name": "A", "value": "1"}]),
        ("env", [{"name": "A", "value": "1"}], [{"name": "A", "$patch": "delete"}], []),
        ("env", [], [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
         [{"name": "A", "value": "2"}]),
        ("volumes", [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
         [{"name": "shm", "emptyDir": {"sizeLimit": "1Gi"}}],
         [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]),
        ("volumes", [{"name": "shm", "emptyDir": {}}], [{"name": "shm", "hostPath": {"path": "/x"}}],
         [{"name": "shm", "hostPath": {"path": "/x"}}]),
        ("volumeMounts", [{"name": "shm", "mountPath": "/dev/shm"}],
         [{"mountPath": "/dev/shm", "name": "mine"}, {"mountPath": "/x", "name": "shm"}],
         [{"mountPath": "/dev/shm", "name": "mine"}, {"mountPath": "/x", "name": "shm"}]),
        ("ports", [{"containerPort": 1}], [{"containerPort": 1, "protocol": "UDP"}],
         [{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]),
        ("ports", [{"containerPort": 1, "name": "a"}], [{"containerPort": 1, "protocol": "TCP"}],
         [{"containerPort": 1, "name": "a", "protocol": "TCP"}]),
        ("imagePullSecrets", [{"name": "a"}], [{"name": "b"}, {"name": "a"}], [{"name": "a"}, {"name": "b"}]),
        ("hostAliases", [{"ip": "1.1.1.1", "hostnames": ["a"]}], [{"ip": "1.1.1.1", "hostnames": ["b"]}],
         [{"ip": "1.1.1.1", "hostnames": ["b"]}]),
        ("topologySpreadConstraints", [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
         [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 2},
          {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
         [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 2},
          {"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]),
        ("args", ["a"], ["b"], ["b"]),
    ],
)  # fmt: skip
def test_lists_with_a_merge_key_merge_and_ours_outlive_what_has_none(
    name: str, ours: list[Json], theirs: list[Json], both: list[Json]
) -> None:
    assert merged({name: ours}, {name: theirs}) == {name: both}


def test_null_removes() -> None:
    base = {"spec": {"tolerations": [GPU], "nodeSelector": {"a": "1", "b": "2"}, "volumes": [{"name": "v"}]}}
    patch = {
        "spec": {
            "tolerations": None,
            "nodeSelector": {"a": None, "c": "3", "d": None},
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": None}}],
            "affinity": {"podAffinity": None},
        }
    }
    assert merged(base, patch) == {
        "spec": {
            "nodeSelector": {"b": "2", "c": "3"},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "affinity": {},
        }
    }


def test_the_toleration_of_gpu_nodes_and_the_job_s_secrets_outlive_pod() -> None:
    pod = {
        "spec": {
            "tolerations": [MINE],
            "containers": [{"name": "pytorch", "envFrom": [{"configMapRef": {"name": "more"}}]}],
        }
    }
    job = {"resources": {"gpu": 1}, "secrets": [{"name": "keys", "env": True}]}
    spec = template(**job, pod=pod)["spec"]
    assert spec["tolerations"] == [GPU, MINE]
    sources = [{"secretRef": {"name": "keys"}}, {"configMapRef": {"name": "more"}}]
    assert spec["containers"][0]["envFrom"] == sources


def test_merging_changes_neither_side() -> None:
    base = {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "1"}]}]}}
    patch = {"spec": {"containers": [{"name": "a", "env": [{"name": "X", "value": "2"}]}]}}
    before = repr((base, patch))
    merged(base, patch)["spec"]["containers"][0]["env"].append("changed")
    assert repr((base, patch)) == before


@pytest.mark.parametrize(
    ("pod", "path", "words"),
    [
        ({"hostNetwork": True}, "pod.hostNetwork", "a pod template has metadata and spec"),
        ({"spec": {"restartPolicy": "Never"}}, "pod.spec.restartPolicy", "say policy: {restart: ...}"),
        ({"spec": {"containers": [{"image": "x"}]}}, "pod.spec.containers[0]", "has no name"),
        ({"spec": {"containers": {"name": "x"}}}, "pod.spec.containers", "expected a list"),
        (
            {"spec": {"containers": [{"name": "pytorch", "env": ["A=1"]}]}},
            "pod.spec.containers[0].env[0]",
            "has no name",
        ),
        (
            {"spec": {"containers": [{"name": "main"}]}},
            "pod.spec.containers[0]",
            "beside the container that trains, 'pytorch'",
        ),
        ({"metadata": {"name": "x"}}, "pod.metadata.name", "the engine sets it"),
        (
            {"metadata": {"labels": {"allaboard.io/run": "x"}}},
            "pod.metadata.labels.allaboard.io/run",
            "finds its pods",
        ),
        ({"metadata": {"annotations": {"a": 1}}}, "pod.metadata.annotations.a", "quote it"),
        ({"spec": []}, "pod.spec", "expected fields"),
        ({"spec": {"containers": None}}, "pod.spec.containers", "cannot be removed"),
        ({"spec": {"tolerations": ["x"]}}, "pod.spec.tolerations[0]", "expected fields, not str"),
        (
            {"spec": {"containers": [{"name": "pytorch", "$patch": "delete"}]}},
            "pod.spec.containers[0].$patch",
            "can only be changed",
        ),
        ({"spec": {"volumes": [{"name": "v", "$patch": "x"}]}}, "pod.spec.volumes[0].$patch", "delete or"),
        ({"spec": {"$retainKeys": ["x"]}}, "pod.spec.$retainKeys", "is not understood"),
    ],
)
def test_what_contradicts_allaboard_is_a_problem(pod: Json, path: str, words: str) -> None:
    found = {p.path: p.message for p in check(a_job(pod=pod))}
    assert words in found.get(path, f"nothing; said {found}")


def test_the_secrets_of_the_place_come_before_the_jobs_own() -> None:
    facts = replace(ASSUMED, secrets=("store", "mine", "store"))
    fields = {"secrets": [{"name": "mine", "env": True}, {"name": "files", "mount": "/keys"}]}
    (found,) = template(facts=facts, **fields)["spec"]["containers"]
    assert found["envFrom"] == [{"secretRef": {"name": name}} for name in ("store", "mine")]
    (bare,) = template(facts=facts)["spec"]["containers"]
    assert [s["secretRef"]["name"] for s in bare["envFrom"]] == ["store", "mine"]
    assert "envFrom" not in template()["spec"]["containers"][0]


# What a cluster cannot make pods of.


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"storage": [{"mount": "/a", "pvc": "My_Claim"}]}, "storage[0].pvc", "is not an object name"),
        ({"secrets": [{"name": "A", "env": True}]}, "secrets[0].name", "is not an object name"),
        (
            {"storage": [{"mount": "/a", "pvc": "x"}], "secrets": [{"name": "b", "mount": "/a/"}]},
            "secrets[0].mount",
            "mounted twice, by storage[0].mount too",
        ),
        ({"storage": [{"mount": "/", "pvc": "x"}]}, "storage[0].mount", "cannot be mounted"),
        ({"resources": {"gpu": 1, "gpu_type": "NVIDIA H100"}}, "resources.gpu_type", "is not a label value"),
        ({"resources": {"mig": "tiny"}}, "resources.mig", "is not a MIG profile"),
    ],
)
def test_what_a_cluster_would_refuse_later_is_said_before(fields: Json, path: str, words: str) -> None:
    found = {p.path: p.message for p in check(a_job(**{"image": "x", **fields}))}
    assert words in found.get(path, f"nothing; said {found}")


def test_a_member_on_a_cluster_has_an_image() -> None:
    job = require_valid(a_job())
    engine = engine_of(job)
    (found,) = problems(job, lay_out(job, engine, "d-0"), ASSUMED, engine)
    assert (found.path, found.severity) == ("image", "error")
    assert "is missing; on a cluster members start from an image" in found.message


def test_a_group_that_is_wrong_is_named() -> None:
    groups = {"master": 1, "worker": {"replicas": 1, "resources": {"gpu_type": "a b", "gpu": 1}}}
    (found,) = check(a_job(image="x", workers=None, groups=groups))
    assert found.path == "groups.worker.resources.gpu_type"


def test_the_image_may_come_from_pod() -> None:
    job = require_valid(a_job(pod={"spec": {"containers": [{"name": "pytorch", "image": "y"}]}}))
    engine = engine_of(job)
    assert list(problems(job, lay_out(job, engine, "d-0"), ASSUMED, engine)) == []


def test_who_mounts_something_else_at_dev_shm_gets_no_memory_of_ours() -> None:
    pod = {
        "spec": {
            "volumes": [{"name": "host", "hostPath": {"path": "/dev/shm"}}],
            "containers": [{"name": "pytorch", "volumeMounts": [{"name": "host", "mountPath": "/dev/shm"}]}],
        }
    }
    assert [v["name"] for v in template(pod=pod)["spec"]["volumes"]] == ["host"]
    assert [v["name"] for v in template()["spec"]["volumes"]] == ["shm"]
