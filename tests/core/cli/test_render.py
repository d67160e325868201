"""``allaboard render``: what would be sent, and nothing else on stdout."""

from __future__ import annotations

import json

import yaml

from allaboard.render import labels
from allaboard.text.names import run_name
from tests.core.cli.terminal import Terminal
from tests.core.cli.test_startup import HEAVY, imported

JOB = """
name: digits
image: lab/train:1
command: [python, train.py, --out=store://digits/out]
workers: 3
code: [train.py]
"""


def a_job_file(ab: Terminal, text: str = JOB) -> str:
    ab.write("train.py", "print('hello')\n")
    return ab.write("job.yaml", text)


STORE = ("--store", "s3://bucket/team")


def test_stdout_is_the_yaml_and_nothing_else(ab: Terminal) -> None:
    said = ab("render", a_job_file(ab), *STORE)
    assert said.code == 0
    config, helper, job = yaml.safe_load_all(said.out)
    run = run_name("digits", "render")
    assert (config["kind"], config["metadata"]["name"]) == ("ConfigMap", f"{run}-code")
    assert (helper["kind"], helper["metadata"]["name"]) == ("ConfigMap", f"{run}-helper")
    assert (job["kind"], job["metadata"]["name"]) == ("PyTorchJob", run)
    assert job["metadata"]["annotations"][labels.LAUNCH] == labels.launch_uid("render", 1, 1)
    container = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"][0]
    assert container["command"][-1] == "--out=s3://bucket/team/digits/out"
    assert config["data"] == {"train.py": "print('hello')\n"}
    assert "no cluster was asked" in said.err


def test_twice_is_the_same_and_a_key_is_another_run(ab: Terminal) -> None:
    file = a_job_file(ab)
    assert ab("render", file, *STORE).out == ab("render", file, *STORE).out
    assert f"name: {run_name('digits', 'nightly')}\n" in ab("render", file, *STORE, "--key", "nightly").out


def test_json_is_one_object_that_kubectl_takes(ab: Terminal) -> None:
    file = a_job_file(ab)
    found = json.loads(ab("render", file, *STORE, "--json").out)
    assert (found["apiVersion"], found["kind"]) == ("v1", "List")
    assert found["items"] == list(yaml.safe_load_all(ab("render", file, *STORE).out))


def test_the_claims_come_first(ab: Terminal) -> None:
    claims = "storage:\n- {mount: /c, claim: {size: 1Gi}}\n- {mount: /d, claim: {size: 1Gi, keep: always}}\n"
    said = ab("render", a_job_file(ab, JOB + claims), *STORE)
    names = [(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(said.out)]
    run = run_name("digits", "render")
    kind = "PersistentVolumeClaim"
    assert names[:2] == [(kind, f"{run}-c"), (kind, "digits-d")] and names[-1] == ("PyTorchJob", run)


def test_a_gang_as_if_the_job_said_it(ab: Terminal) -> None:
    file = a_job_file(ab)
    for gang, kinds in (
        ("coscheduling", ["ConfigMap", "ConfigMap", "PodGroup", "PyTorchJob"]),
        ("none", ["ConfigMap", "ConfigMap", "PyTorchJob"]),
    ):
        said = ab("render", file, *STORE, "--gang", gang, "-n", "research")
        found = list(yaml.safe_load_all(said.out))
        assert [m["kind"] for m in found] == kinds
        assert {m["metadata"]["namespace"] for m in found} == {"research"}
    other = a_job_file(ab, JOB + "gang: {scheduler: coscheduling}\n")
    assert ab("render", file, *STORE, "--gang", "coscheduling").out == ab("render", other, *STORE).out


def test_the_settings_of_the_place(ab: Terminal) -> None:
    file = a_job_file(ab, JOB.replace("image: lab/train:1\n", ""))
    ab.environ |= {"ALLABOARD_IMAGE": "lab/default:2", "ALLABOARD_NAMESPACE": "team"}
    job = list(yaml.safe_load_all(ab("render", file, *STORE).out))[-1]
    assert job["metadata"]["namespace"] == "team"
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["spec"]["containers"][0]["image"] == "lab/default:2"


def test_the_place_says_gang_and_secrets_for_jobs_that_do_not(ab: Terminal) -> None:
    file = a_job_file(ab, JOB + "secrets: [{name: own, env: true}]\n")
    plain = list(yaml.safe_load_all(ab("render", file, *STORE).out))[-1]
    ab.environ |= {
        "ALLABOARD_GANG": "coscheduling",
        "ALLABOARD_ENGINE": "pytorchjob",
        "ALLABOARD_SECRETS": "store-keys, own,",
    }
    *_, group, job = yaml.safe_load_all(ab("render", file, *STORE).out)
    assert (group["kind"], job["metadata"]["annotations"][labels.GANG]) == ("PodGroup", "coscheduling")
    for role in ("Master", "Worker"):
        template = job["spec"]["pytorchReplicaSpecs"][role]["template"]
        secrets = [s["secretRef"]["name"] for s in template["spec"]["containers"][0]["envFrom"]]
        assert secrets == ["store-keys", "own"], "the job's own last: its values stand"
    # What a place says is no part of what its author wrote: the run is the same there.
    assert len({thing["metadata"]["annotations"][labels.SPEC_HASH] for thing in (job, plain)}) == 1
    ab.environ |= {"ALLABOARD_GANG": "volcno", "ALLABOARD_SECRETS": "a_b"}
    said = ab("render", file, *STORE)
    assert (said.code, said.out) == (2, "")
    known = "known: auto, coscheduling, kai, none, volcano, workload or yunikorn"
    assert "ALLABOARD_GANG: 'volcno' is not known; " + known in said.err
    assert "ALLABOARD_SECRETS: 'a_b' is not an object name" in said.err
    assert ab("list").code == 0, "only what is launched there has to do with it"


def test_what_is_wrong_ends_with_2_and_nothing_on_stdout(ab: Terminal) -> None:
    said = ab("render", a_job_file(ab, "name: digits\ncommand: [python, train.py]\n"))
    assert (said.code, said.out) == (2, "")
    assert "image: is missing; on a cluster members start from an image" in said.err
    unknown = ab("render", a_job_file(ab), *STORE, "--gang", "volcno")
    assert unknown.code == 2 and "'volcno' is not known" in unknown.err
    here = ab("render", a_job_file(ab))
    assert here.code == 2 and "no member on a cluster can see" in here.err
    missing = ab("render", a_job_file(ab, JOB.replace("[train.py]", "[other.py]")), *STORE)
    assert missing.code == 2 and "'other.py' is not there" in missing.err
    found = json.loads(ab("render", a_job_file(ab), "--json").out)
    assert found["error"]["problems"][0]["path"] == "command[2]"


def test_an_engine_as_if_the_job_said_it(ab: Terminal) -> None:
    file = a_job_file(ab)
    same = a_job_file(ab, JOB + "engine: pytorchjob\n")
    assert ab("render", file, *STORE, "--engine", "pytorchjob").code == 0
    assert ab("render", file, *STORE, "--engine", "pytorchjob").out == ab("render", same, *STORE).out
    for name, word in (
        ("pytochjob", "engine: 'pytochjob' is not known; known: auto, "),
        ("jaxjob", "engine: 'jaxjob' runs jax, and the framework is 'pytorch'"),
    ):
        said = ab("render", file, *STORE, "--engine", name)
        assert (said.code, said.out) == (2, "") and word in said.err
    assert "(did you mean 'pytorchjob'?)" in ab("render", file, *STORE, "--engine", "pytochjob").err
    assert "(did you mean 'coscheduling'?)" in ab("render", file, *STORE, "--gang", "cosheduling").err


FACTS = {
    "version": 1,
    "kinds": ["kubeflow.org/v1/PyTorchJob", "scheduling.x-k8s.io/v1alpha1/PodGroup"],
    "operator_gangs": {"training-operator": "off"},
    "schedulers": {"coscheduling": "gang-scheduler"},
    "namespace": "research",
}


def facts_file(ab: Terminal, **changes: object) -> str:
    return ab.write("lab.json", json.dumps({**FACTS, **changes}))


def test_the_facts_of_a_file_stand_for_a_cluster(ab: Terminal) -> None:
    options = (a_job_file(ab), *STORE, "--cluster-facts", facts_file(ab))
    said = ab("render", *options)
    assert said.code == 0 and said.out == ab("render", *options).out
    *_, group, job = yaml.safe_load_all(said.out)
    assert (group["kind"], group["metadata"]["namespace"]) == ("PodGroup", "research")
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    assert template["spec"]["schedulerName"] == "gang-scheduler"
    assert "for namespace research of lab.json: gangs by coscheduling" in said.err
    job = list(yaml.safe_load_all(ab("render", *options, "-n", "team").out))[-1]
    assert job["metadata"]["namespace"] == "team"
    alone = facts_file(ab, kinds=["kubeflow.org/v1/PyTorchJob"])
    bare = ab("render", a_job_file(ab), *STORE, "--cluster-facts", alone)
    assert [m["kind"] for m in yaml.safe_load_all(bare.out)] == ["ConfigMap"] * 2 + ["PyTorchJob"]
    options = (a_job_file(ab), *STORE, "--cluster-facts", facts_file(ab))
    refused = ab("render", *options, "--gang", "workload")
    assert refused.code == 2 and "gang.scheduler: pytorchjob with workload: this cluster" in refused.err


def test_a_kind_that_a_cluster_does_not_serve_is_refused(ab: Terminal) -> None:
    options = (a_job_file(ab), *STORE, "--cluster-facts", facts_file(ab))
    refused = ab("render", *options, "--engine", "jobset", "--gang", "workload", "--json")
    problems = {problem["path"]: problem["message"] for problem in refused.json["error"]["problems"]}
    assert refused.code == 2 and problems.keys() == {"engine", "gang.scheduler"}
    assert problems["engine"] == (
        "this cluster does not serve jobset.x-k8s.io/v1alpha2/JobSet; say auto or pytorchjob"
    )
    refused = ab("render", a_job_file(ab), *STORE, "--cluster-facts", facts_file(ab, kinds=[]))
    assert refused.code == 2 and "PyTorchJob; install the Training Operator" in refused.err


def test_facts_that_cannot_be_are_told_at_once(ab: Terminal) -> None:
    file = facts_file(ab, version=2, kinds="all", schdulers={}, namespace=None, secrets=[3])
    said = ab("render", a_job_file(ab), *STORE, "--cluster-facts", file, "--json")
    assert said.code == 2
    problems = {p["path"]: p for p in said.json["error"]["problems"]}
    assert problems.keys() == {"version", "kinds", "schdulers", "namespace", "secrets"}
    assert problems["schdulers"]["suggestion"] == "schedulers"
    for text, word in (
        ("{", "is not JSON"),
        ("[]", "facts of a cluster are a mapping of fields"),
        ("{}", ""),
    ):
        said = ab("render", "job.yaml", *STORE, "--cluster-facts", ab.write("lab.json", text))
        assert said.code == (2 if word else 0) and word in said.err
    there = ab("render", "job.yaml", *STORE, "--cluster-facts", "lab.json", "--context", "lab")
    assert there.code == 2 and "not both" in there.err
    assert "not both" in ab("render", "-", "--cluster-facts", "-").err


def test_all_that_no_cluster_can_do_is_told_at_once(ab: Terminal) -> None:
    text = JOB.replace("image: lab/train:1\n", "").replace("[train.py]", "[other.py]")
    text += "checkpoints: {uri: here/there}\n"
    said = ab(
        "render", a_job_file(ab, text), "--json", "--cluster-facts", facts_file(ab), "--gang", "workload"
    )
    paths = {problem["path"] for problem in said.json["error"]["problems"]}
    assert said.code == 2
    assert paths == {"image", "command[2]", "code[0]", "checkpoints.uri", "gang.scheduler"}


def test_it_starts_at_once(ab: Terminal) -> None:
    """No client and no terminal library: 150 ms are too few for one."""
    found = imported(ab, "render", a_job_file(ab), *STORE)
    heavy = {*HEAVY, "kubernetes", "kubernetes_asyncio", "urllib3", "aiohttp", "ssl"} - {"yaml"}
    assert not found & heavy
    assert not {
        n
        for n in found
        if n.startswith(("allaboard.storage", "allaboard.promotion.champion", "allaboard.follow.loop"))
    }
