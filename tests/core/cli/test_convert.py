"""``allaboard convert``: manifests become jobs, or manifests of another kind; stdout holds YAML alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.client.resources import resource_for
from allaboard.engines import ENGINES
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.operations.test_foreign import theirs
from tests.core.cli.terminal import Terminal
from tests.core.cli.test_on_a_cluster import Desk, desk

__all__ = ["desk"]

MNIST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: mnist
  namespace: research
  ownerReferences: [{apiVersion: v1, kind: Thing, name: owner, uid: "1"}]
spec:
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              image: registry.lab/mnist:1
              command: [python, train.py]
              env:
                - {name: DB_PASSWORD, value: hunter2hunter2}
                - {name: EPOCHS, value: 3}
              envs: [{name: DB_PASSWORD, value: hunter2hunter2}]
    Worker:
      replicas: 3
      template:
        spec:
          containers:
            - name: pytorch
              image: registry.lab/mnist:1
              command: [python, train.py]
              env:
                - {name: DB_PASSWORD, value: hunter2hunter2}
                - {name: EPOCHS, value: 3}
"""
SETTINGS = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata: {a: b}\n"
TFJOB = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: steps}
spec:
  runPolicy: {cleanPodPolicy: Running, backoffLimit: 2, queue: gpu}
  tfReplicaSpecs:
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: tensorflow, image: "lab/tf:1"}]}}
"""


def test_a_manifest_becomes_a_job_that_check_finds_good(ab: Terminal) -> None:
    said = ab("convert", ab.write("mnist.yaml", MNIST.replace("              envs", "              #")))
    assert said.code == 0
    job = yaml.safe_load(said.out)
    assert (job["name"], job["groups"]) == ("mnist", {"master": 1, "worker": 3})
    assert job["environment"] == {"DB_PASSWORD": "hunter2hunter2", "EPOCHS": "3"}
    assert job["policy"] == {"clean_pods": "none", "backoff_limit": "unlimited"}
    assert ab("check", ab.write("job.yaml", said.out)).code == 0
    assert "spec.runPolicy.backoffLimit: nothing -> unlimited" in said.err
    assert "lost: metadata.ownerReferences" in said.err
    assert "give -n research" in said.err


def test_secrets_are_told_on_stdout_alone(ab: Terminal) -> None:
    file = ab.write("mnist.yaml", MNIST)
    said = ab("convert", file)
    assert "hunter2" in said.out and "hunter2" not in said.err
    answer = json.loads(ab("convert", file, "--json").out)
    assert "hunter2" in json.dumps(answer["documents"])
    assert "hunter2" not in json.dumps([answer["changed"], answer["lost"]])


def test_json_says_what_is_changed_and_lost_with_the_place_of_the_document(ab: Terminal) -> None:
    said = ab("convert", ab.write("all.yaml", f"{SETTINGS}---{TFJOB}"), "--json")
    answer = json.loads(said.out)
    assert said.code == 0 and {*answer} == {"documents", "changed", "lost"}
    assert [job["name"] for job in answer["documents"]] == ["steps"]
    (lost,) = answer["lost"]
    assert lost["path"].endswith("all.yaml#2: spec.runPolicy.queue")
    assert (lost["value"], "no such field" in lost["why"]) == ("gpu", True)
    assert {*answer["changed"][0]} == {"path", "from", "to", "why"} if answer["changed"] else True


def test_other_objects_are_passed_over_with_a_word(ab: Terminal) -> None:
    said = ab("convert", ab.write("all.yaml", f"{SETTINGS}---{TFJOB}"))
    assert said.code == 0 and "passed over, ConfigMap is not a job" in said.err
    alone = ab("convert", ab.write("settings.yaml", SETTINGS))
    assert alone.code == 2 and "holds no job" in alone.err and alone.out == ""
    already = ab("convert", ab.write("job.yaml", "name: digits\ncommand: [python]\n"))
    assert already.code == 2 and "a job already" in already.err


def test_a_list_json_and_stdin_are_read(ab: Terminal) -> None:
    items = {"apiVersion": "v1", "kind": "List", "items": [yaml.safe_load(TFJOB), yaml.safe_load(SETTINGS)]}
    assert yaml.safe_load(ab("convert", ab.write("list.json", json.dumps(items))).out)["name"] == "steps"
    assert yaml.safe_load(ab("convert", "-", stdin=TFJOB).out)["name"] == "steps"
    assert yaml.safe_load(ab("convert", "-", stdin=json.dumps(items)).out)["name"] == "steps"


def test_a_folder_is_converted_whole_and_summed_up(ab: Terminal) -> None:
    for folder in ("jobs", "jobs/deep", "jobs/.git"):
        (ab.folder / folder).mkdir()
    ab.write("jobs/a.yaml", TFJOB)
    ab.write("jobs/deep/b.yml", MNIST)
    ab.write("jobs/.git/c.yaml", TFJOB)
    ab.write("jobs/chart.yaml", "apiVersion: v1\nkind: {{ .Values.kind }}\n")
    ab.write("jobs/notes.txt", "not read")
    ab.write("jobs/wrong.yaml", TFJOB.replace("replicas: 2", "replicas: many"))
    said = ab("convert", str(ab.folder / "jobs"))
    assert said.code == 2  # one of them could not be converted
    assert [job["name"] for job in yaml.safe_load_all(said.out)] == ["steps", "mnist"]
    assert "3 manifests: 2 converted, 0 without loss" in said.err
    assert "spec.runPolicy.queue (1)" in said.err
    assert "not a manifest: chart.yaml is not YAML" in said.err and "fill it in first" in said.err
    assert "spec.tfReplicaSpecs.Worker.replicas: expected a whole number, not 'many'" in said.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "is not YAML"),
        (TFJOB.replace("kubeflow.org/v1", "example.com/v1"), "is not read; known: kubeflow.org/v1"),
        (TFJOB.replace("kubeflow.org/v1", "kubeflow.org/v1alpha1"), "give each group its template"),
        (TFJOB.replace("replicas: 2", "replicas: -1"), "outside 0 to"),
        (TFJOB.replace('"lab/tf:1"', "$IMAGE"), "it is a placeholder"),
    ],
)
def test_what_cannot_be_converted_is_told_with_its_path(ab: Terminal, text: str, words: str) -> None:
    file = ab.write("bad.yaml", text)
    said = ab("convert", file)
    assert (said.code, said.out) == (2, "") and words in said.err and "Traceback" not in said.err
    answer = json.loads(ab("convert", file, "--json").out)
    assert [*answer] == ["error"] and words in json.dumps(answer)


def test_to_another_kind(ab: Terminal) -> None:
    said = ab("convert", ab.write("mnist.yaml", MNIST), "--to", "pytorchjob")
    (job,) = yaml.safe_load_all(said.out)
    assert (job["kind"], job["metadata"]) == ("PyTorchJob", {"name": "mnist", "namespace": "research"})
    assert "allaboard" not in said.out.lower().replace("termination", "")
    refused = ab("convert", ab.write("mnist.yaml", MNIST), "--to", "TFJob")
    assert refused.code == 2 and "runs tensorflow" in refused.err
    assert ab("convert", "x.yaml", "--to", "tfjbo").code == 2


def test_a_pytorchjob_becomes_a_trainjob_whose_members_know_their_rank(ab: Terminal) -> None:
    text = MNIST.replace(
        "spec:\n  pytorch", "spec:\n  runPolicy: {ttlSecondsAfterFinished: 60}\n  pytorch", 1
    )
    text = re.sub(r"\n *envs:.*", "", text)  # a typing slip of the master alone
    said = ab("convert", ab.write("mnist.yaml", text), "--to", "trainjob")
    runtime, job = yaml.safe_load_all(said.out)
    assert (runtime["kind"], job["kind"]) == ("TrainingRuntime", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "mnist"
    assert job["spec"]["trainer"]["numNodes"] == 4
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    known: list[str] = []
    for variable in container["env"]:
        referred = re.findall(r"\$\((\w+)\)", str(variable.get("value", "")))
        assert {*referred} <= {*known}, "a variable that is referred to stands before"
        known.append(variable["name"])
    assert "RANK" in known and "ALLABOARD_RUN" not in known
    assert "spec.runPolicy.ttlSecondsAfterFinished: 1m (a TrainJob stays" in " ".join(said.err.split())


def test_the_words_of_the_command_line(ab: Terminal) -> None:
    assert ab("convert").code == 2
    assert ab("convert", "a.yaml", "--from-cluster").code == 2
    assert ab("convert", "a.yaml", "-n", "research").code == 2
    assert "no such file" in ab("convert", "a.yaml").err


def test_a_manifest_may_be_run_as_it_is(ab: Terminal) -> None:
    manifest = yaml.safe_load(TFJOB)
    worker = manifest["spec"]["tfReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["command"] = ["python", "-c", "print('runs')"]
    del manifest["spec"]["runPolicy"]["queue"]
    said = ab("run", ab.write("tfjob.yaml", yaml.safe_dump(manifest)))
    assert said.code == 0 and "runs" in said.out + said.err


# On a cluster.


def test_the_jobs_of_others_on_a_cluster_become_jobs(desk: Desk) -> None:
    desk.cluster.client().create(PYTORCHJOBS, theirs())
    desk.cluster.tick(3)
    assert desk("run", desk.job(), "--detach", "--key", "k")[0] == 0
    code, out, err = desk("convert", "--from-cluster")
    assert code == 0 and "1 manifest: 1 converted, 1 without loss" in err
    (job,) = yaml.safe_load_all(out)
    assert job["name"] == "nightly" and job["groups"] == {"master": 1, "worker": 1}
    assert "status" not in out and "uid" not in out


def test_what_another_job_made_of_itself_is_passed_over(desk: Desk) -> None:
    jobsets = resource_for(ENGINES["jobset"])
    container = {"name": "node", "image": "lab/train:1"}
    job = {"spec": {"backoffLimit": 0, "template": {"spec": {"containers": [container]}}}}
    jobset: dict[str, Any] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "alone"},
        "spec": {"replicatedJobs": [{"name": "workers", "template": job}]},
    }
    owner = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "controller": True}
    desk.cluster.client().create(jobsets, jobset)
    owned = {"name": "part", "ownerReferences": [{**owner, "name": "part", "uid": "1"}]}
    desk.cluster.client().create(jobsets, {**jobset, "metadata": owned})
    code, out, _ = desk("convert", "--from-cluster")
    (found,) = yaml.safe_load_all(out)
    assert code == 0 and found["name"] == "alone" and found["engine"] == "jobset"
