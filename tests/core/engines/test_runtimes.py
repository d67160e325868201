"""TrainJobs that use a runtime of the cluster, and TrainJobs of releases of Trainer before 2.3: what a job
says is written with the fields that there are, or refused with its path; nothing is dropped in silence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allaboard.checking.job import check
from allaboard.engines import ENGINES
from allaboard.engines.trainer_runtimes import patch_of
from allaboard.engines.trainjob import TrainJob
from allaboard.errors import BadInput
from allaboard.render.cluster_facts import ASSUMED, ClusterFacts, facts_from_dict, facts_to_dict
from allaboard.render.compatibility import engine_for
from allaboard.render.manifests import Rendered, render
from allaboard.runs.layout import lay_out
from allaboard.testing import a_job
from tests.core.engines.releases import LACKING

RUNTIME = {"runtimeRef": {"name": "torch-distributed"}}
ADDED = {
    "spec": {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "containers": [
            {"name": "node", "image": "lab/train:2", "env": [{"name": "A", "value": "1"}]},
            {"name": "sidecar", "env": [{"name": "B", "value": "2"}]},
        ],
    }
}


def facts_of(release: str) -> ClusterFacts:
    facts = replace(ASSUMED, lacking={"trainjob": LACKING[release]} if release in LACKING else {})
    assert facts_from_dict(facts_to_dict(facts)) == facts
    return facts


def rendered(release: str, **fields: Any) -> Rendered:
    job = a_job(**{"image": "lab/train:1", "workers": 2, "engine": "trainjob", **fields})
    layout = lay_out(job, ENGINES["trainjob"], "digits-1f0c9a77")
    return render(job, layout, facts_of(release), launch="l", spec_hash="h")


def refused(release: str, **fields: Any) -> dict[str, str]:
    with pytest.raises(BadInput) as error:
        rendered(release, **fields)
    return {problem.path: problem.message for problem in error.value.problems}


def test_a_runtime_of_the_cluster_is_patched_with_what_the_job_says() -> None:
    found = rendered("2.3.0", engine_spec=RUNTIME, pod=ADDED, storage=[{"mount": "/data", "pvc": "claim"}])
    assert [m["kind"] for m in found.manifests] == ["TrainJob"], "no runtime of its own"
    spec = found.job["spec"]
    assert spec["runtimeRef"] == RUNTIME["runtimeRef"]
    assert (spec["trainer"]["image"], spec["trainer"]["numNodes"]) == ("lab/train:2", 2)
    assert {"name": "A", "value": "1"} in spec["trainer"]["env"]
    (patch,) = spec["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = node["template"]["spec"]["template"]
    assert pod["metadata"]["labels"]["allaboard.io/run"] == "digits-1f0c9a77"
    assert pod["spec"]["tolerations"] == ADDED["spec"]["tolerations"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 30
    main, sidecar = pod["spec"]["containers"]
    assert {*main} == {"name", "volumeMounts"} and main["name"] == "node"
    assert sidecar == {"name": "sidecar", "env": [{"name": "B", "value": "2"}]}


def test_a_gang_that_nobody_could_place_is_not_made() -> None:
    """A TrainJob cannot change the scheduler of its runtime's pods."""
    kinds = {"trainer.kubeflow.org/v1alpha1/TrainJob", "scheduling.x-k8s.io/v1alpha1/PodGroup"}
    facts = replace(ASSUMED, kinds=frozenset(kinds))
    job = a_job(image="lab/train:1", workers=2, engine="trainjob", engine_spec=RUNTIME)
    layout = lay_out(job, ENGINES["trainjob"], "digits-1f0c9a77")
    for place in (facts, replace(facts, gang="coscheduling")):
        found = render(job, layout, place, launch="l", spec_hash="h")
        assert [m["kind"] for m in found.manifests] == ["TrainJob"] and found.gang.how == "none"
        assert "pod-group" not in str(found.job)
        assert "its runtime says who starts its members together" in " ".join(found.notes)
    own = a_job(image="lab/train:1", workers=2, engine="trainjob")
    found = render(own, lay_out(own, ENGINES["trainjob"], "d"), facts, launch="l", spec_hash="h")
    assert found.gang.gang == "coscheduling"


def test_memory_that_a_patch_mounts_stays_as_it_is() -> None:
    mounts = [{"name": "theirs", "mountPath": "/dev/shm"}]
    main = {"name": "node", "volumeMounts": mounts}
    pod = {"spec": {"containers": [main], "volumes": [{"name": "theirs", "emptyDir": {}}]}}
    theirs = {**patch_of({"node": pod}), "manager": "example.io/team"}
    storage = [{"mount": "/data", "pvc": "claim"}]
    found = rendered("2.3.0", engine_spec={**RUNTIME, "runtimePatches": [theirs]}, storage=storage)
    said, ours = found.job["spec"]["runtimePatches"]
    assert said == theirs
    (node,) = ours["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    spec = node["template"]["spec"]["template"]["spec"]
    assert [mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]] == ["/data"]
    assert [volume["name"] for volume in spec["volumes"]] == ["storage-0"]


def test_trainer_2_1_is_told_with_its_overrides() -> None:
    found = rendered("2.1.0", engine_spec=RUNTIME, pod=ADDED)
    spec = found.job["spec"]
    assert "runtimePatches" not in spec
    (override,) = spec["podTemplateOverrides"]
    assert override["targetJobs"] == [{"name": "node"}]
    assert override["metadata"]["labels"]["allaboard.io/run"] == "digits-1f0c9a77"
    assert "terminationGracePeriodSeconds" not in override["spec"]
    assert [c["name"] for c in override["spec"]["containers"]] == ["node", "sidecar"]
    said = {**RUNTIME, "podTemplateOverrides": [{"targetJobs": [{"name": "node"}], "spec": {}}]}
    both = rendered("2.1.0", engine_spec=said).job["spec"]["podTemplateOverrides"]
    assert both[0] == said["podTemplateOverrides"][0] and len(both) == 2  # type: ignore[index]


def test_trainer_2_1_is_told_of_both_jobs_of_a_runtime_of_mpi() -> None:
    own = {"runtimeRef": {"name": "deepspeed-distributed"}, "runLauncherAsWorker": True}
    command = ["mpirun", "python", "train.py"]
    found = rendered("2.1.0", framework="mpi", engine_spec=own, image=None, command=command)
    overrides = found.job["spec"]["podTemplateOverrides"]
    assert [override["targetJobs"] for override in overrides] == [[{"name": "launcher"}], [{"name": "node"}]]
    assert {override["metadata"]["labels"]["allaboard.io/run"] for override in overrides} == {
        found.job["metadata"]["name"]
    }


def test_trainer_2_2_knows_no_grace_in_its_patches() -> None:
    found = rendered("2.2.0", engine_spec=RUNTIME, pod={"spec": {"securityContext": {"runAsUser": 7}}})
    assert "runtimePatches" in found.job["spec"]
    assert "terminationGracePeriodSeconds" not in str(found.job)
    assert "'runAsUser': 7" in str(found.job)
    assert {*refused("2.2.0", engine_spec=RUNTIME, spot={"grace": "2m"})} == {"spot.grace"}
    assert "120" in str(rendered("2.3.0", engine_spec=RUNTIME, spot={"grace": "2m"}).job)


def test_trainer_2_0_gives_no_way_to_follow_the_pods_of_a_runtime() -> None:
    found = refused("2.0.1", engine_spec=RUNTIME)
    assert {*found} == {"engine_spec.runtimeRef"}
    assert found["engine_spec.runtimeRef"].endswith("leave it out, or update Trainer")
    assert [m["kind"] for m in rendered("2.0.1").manifests] == ["TrainingRuntime", "TrainJob"]


def test_what_no_trainjob_can_say_of_a_runtime_is_refused_with_its_path() -> None:
    pod = {
        "spec": {
            "hostNetwork": True,
            "containers": [
                {"name": "node", "workingDir": "/x", "image": "lab/train:2"},
                {"name": "sidecar", "image": "x", "securityContext": {"privileged": False}},
            ],
            "initContainers": [{"name": "prepare", "command": ["x"]}],
        }
    }
    job = a_job(engine="trainjob", image="x", workers=2, engine_spec=RUNTIME, pod=pod, code=["a.py"])
    assert sorted(p.path for p in check(job) if p.severity == "error") == [
        "code",
        "pod.spec.containers[0].workingDir",
        "pod.spec.containers[1].image",
        "pod.spec.hostNetwork",
        "pod.spec.initContainers[0].command",
    ]
    del pod["spec"]["hostNetwork"], pod["spec"]["initContainers"]
    sidecar = {"name": "sidecar", "securityContext": {"privileged": False}}
    pod["spec"] |= {"containers": [sidecar], "securityContext": {"runAsUser": 7}}
    assert {*refused("2.1.0", engine_spec=RUNTIME, pod=pod)} == {
        "pod.spec.containers[0].securityContext",
        "pod.spec.securityContext",
    }


@pytest.mark.parametrize(
    ("release", "field"), [("2.1.0", "runtimePatches"), ("2.2.0", "podTemplateOverrides")]
)
def test_a_field_of_another_release_is_refused(release: str, field: str) -> None:
    assert {*refused(release, engine_spec={**RUNTIME, field: [{}]})} == {f"engine_spec.{field}"}


def test_a_deadline_that_an_older_trainer_does_not_know() -> None:
    """Where the cluster decides, the job becomes a JobSet, which has one; where the job does, it is
    refused.
    """
    deadline = {"deadline": "1h"}
    assert {*refused("2.1.0", policy=deadline)} == {"policy.deadline"}
    assert rendered("2.2.0", policy=deadline).job["spec"]["activeDeadlineSeconds"] == 3600
    kinds = frozenset({"trainer.kubeflow.org/v1alpha1/TrainJob", "jobset.x-k8s.io/v1alpha2/JobSet"})
    job = a_job(image="x", workers=2, policy=deadline)
    older, newer = (replace(facts_of(release), kinds=kinds) for release in ("2.1.0", "2.2.0"))
    assert (engine_for(job, older).NAME, engine_for(job, newer).NAME) == ("jobset", "trainjob")


@pytest.mark.parametrize("framework", ["jax", "xgboost"])
def test_a_framework_for_which_an_older_trainer_has_no_policy(framework: str) -> None:
    """Its members are replicated jobs of their own, of which Trainer changes nothing."""
    for release, policy in (("2.1.0", {"numNodes": 2}), ("2.2.0", {"numNodes": 2, framework: {}})):
        found = rendered(release, framework=framework)
        assert found.extras[-1]["spec"]["mlPolicy"] == policy
    assert "trainer" not in rendered("2.1.0", framework=framework).job["spec"]


def test_initializers_are_jobs_of_a_runtime_that_the_job_names() -> None:
    said = {"initializer": {"dataset": {"storageUri": "hf://lab/digits"}}}
    job = a_job(engine="trainjob", image="x", workers=2, engine_spec=said)
    assert [(p.path, p.severity) for p in check(job)] == [("engine_spec.initializer", "error")]
    found = rendered("2.3.0", engine_spec={**RUNTIME, **said})
    assert found.job["spec"]["initializer"] == said["initializer"]


def test_an_engine_stays_as_it_is_when_one_for_another_cluster_is_made() -> None:
    engine = TrainJob()
    assert engine.fitted(["runtimePatches"]).lacking == {"runtimePatches"} and not engine.lacking
    assert ENGINES["jobset"].fitted(["x"]) is ENGINES["jobset"]
