"""What the verbs say and how they end where runs are on a cluster (one in memory) and it goes badly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.errors import ApiError, Forbidden, Invalid, Missing
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS
from allaboard.checking.job import require_valid
from allaboard.cli import main
from allaboard.cli.orphans import watch_orphans
from allaboard.cli.place import Place
from allaboard.errors import BackendUnreachable, SiteError
from allaboard.runs.observation import Owner
from allaboard.testing.cluster import FakeCluster
from allaboard.testing.objects import PYTORCHJOBS

FORBIDDEN = 'configmaps is forbidden: User "ann" cannot get resource "configmaps" in the namespace "default"'


@dataclass
class Desk:
    """The command line, at a cluster in memory. ``on_request`` sees every request and may refuse it."""

    cluster: FakeCluster
    folder: Path
    capsys: pytest.CaptureFixture[str]
    on_request: Callable[[str, str], None] = lambda verb, kind: None
    opened: list[KubernetesBackend] = field(default_factory=list)

    def open(self, *_: object) -> KubernetesBackend:
        backend = self.cluster.backend()
        ask = backend.api._ask  # type: ignore[attr-defined]

        def noted(verb: str, resource: Any, *rest: Any) -> Any:
            self.on_request(verb, resource.plural)
            return ask(verb, resource, *rest)

        backend.api._ask = noted  # type: ignore[attr-defined]
        self.opened.append(backend)
        return backend

    def job(self, **fields: Any) -> str:
        file = self.folder / "job.json"
        file.write_text(json.dumps({"name": "digits", "image": "x", "command": ["train"], **fields}))
        return str(file)

    def __call__(self, *words: str) -> tuple[int, str, str]:
        code = main([*words])
        said = self.capsys.readouterr()
        return code, said.out, said.err


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    found = Desk(FakeCluster(trains_for=30), tmp_path, capsys)
    monkeypatch.setenv("ALLABOARD_BACKEND", "kubernetes")
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Place, "open", found.open)
    return found


def conditions(cluster: FakeCluster) -> list[str]:
    jobs = cluster.all(PYTORCHJOBS)
    return [c["type"] for job in jobs for c in job.get("status", {}).get("conditions", ())]


def once_it_runs(desk: Desk, error: Exception) -> Callable[[str, str], None]:
    """Nothing of a run may be looked at any more from the moment at which its job runs."""

    def refuse(verb: str, kind: str) -> None:
        if "Running" in conditions(desk.cluster) and verb == "get":
            raise error

    return refuse


# --- a run that goes on has not failed


@pytest.mark.parametrize(
    "error",
    [Forbidden(FORBIDDEN, status=403), SiteError("its certificate is not trusted")],
    ids=["403", "CA"],
)
@pytest.mark.parametrize("verb", ["run", "follow"])
def test_whoever_may_not_look_any_more_is_not_told_that_it_failed(
    desk: Desk, verb: str, error: Exception
) -> None:
    desk.cluster.operator.trains_for = None
    if verb == "follow":
        assert desk("run", desk.job(), "--detach", "--key", "k")[0] == 0
        assert conditions(desk.cluster) == []
    desk.on_request = once_it_runs(desk, error)
    words = ["run", desk.job(), "--key", "k"] if verb == "run" else ["follow", "digits"]
    code, _, err = desk(*words)
    assert code == 5 and str(error) in err
    assert "is untouched; go on watching it with: allaboard follow digits-" in err
    desk.on_request = lambda *_: None
    assert json.loads(desk("status", "digits", "--json")[1])["state"] == "running"


def test_in_json_it_is_one_object_with_the_code_of_what_happened(desk: Desk) -> None:
    desk.cluster.operator.trains_for = None
    desk.on_request = once_it_runs(desk, Forbidden(FORBIDDEN, status=403))
    code, out, _ = desk("run", desk.job(), "--json")
    assert code == 5 and json.loads(out)["error"]["code"] == "forbidden"


def test_a_result_that_cannot_be_marked_as_taken_is_a_result(desk: Desk) -> None:
    def no_handing_over(verb: str, kind: str) -> None:
        if verb == "replace" and '"outcome":{' in desk.cluster.all(CONFIGMAPS)[0]["data"]["record"]:
            raise BackendUnreachable("API server is away")

    desk.on_request = no_handing_over
    code, out, err = desk("run", desk.job(), "--json", "--key", "k")
    assert code == 0 and json.loads(out)["state"] == "succeeded"
    assert "could not be recorded: API server is away" in err


# --- before a start


@pytest.mark.parametrize(
    "error",
    [
        Missing("404 page not found", status=404),
        Invalid("HTTP to an HTTPS server", status=400),
        ApiError("418"),
    ],
    ids=["404", "400", "418"],
)
@pytest.mark.parametrize("more", [[], ["--detach"]])
def test_what_refuses_everything_has_started_nothing(desk: Desk, error: Exception, more: list[str]) -> None:
    def refuse(verb: str, kind: str) -> None:
        raise error

    desk.on_request = refuse
    assert desk("run", desk.job(), *more)[0] == 2


@pytest.mark.parametrize("more", [[], ["--detach"]])
def test_a_start_that_got_no_answer_says_how_to_go_on_with_it(desk: Desk, more: list[str]) -> None:
    def away(verb: str, kind: str) -> None:
        if (verb, kind) == ("create", "pytorchjobs"):
            raise BackendUnreachable("its webhook does not answer")

    desk.on_request = away
    code, _, err = desk("run", desk.job(), *more)
    assert code == 5 and "its webhook does not answer\nWhether it was started is not known" in err
    again = err.split(" starts it once: allaboard ")[1].split()
    desk.on_request = lambda *_: None
    assert desk(*again)[0] == 0 and len(desk.cluster.all(PYTORCHJOBS)) == 1


def test_a_missing_right_says_what_would_give_it(desk: Desk) -> None:
    def refuse(verb: str, kind: str) -> None:
        raise Forbidden(FORBIDDEN, status=403)

    desk.on_request = refuse
    code, _, err = desk("status", "digits")
    assert code == 1 and FORBIDDEN in err
    assert "allaboard preflight JOB; a Role that allows it: allaboard cluster --rbac submitter" in err


# --- stopping


@pytest.mark.thorough
def test_stop_does_not_wait_for_ever_for_a_node_that_is_gone(desk: Desk) -> None:
    desk.cluster.operator.trains_for = None
    assert desk("run", desk.job(workers=2), "--detach", "--key", "k")[0] == 0
    desk.cluster.tick(3)
    (lost,) = (n for n in pods(desk.cluster) if n.endswith("worker-0"))
    desk.cluster.operator.stuck.add(lost)
    code, out, err = desk("stop", "digits")
    assert code == 1 and f"{lost} on node node-1" in err and "do not end" in err
    assert "the stop is recorded" in err and "--now" in err
    assert pods(desk.cluster) == [lost]
    seen = json.loads(desk("status", "digits", "--json")[1])
    assert (seen["state"], seen["flags"]) == ("stopping", ["node_lost"])
    assert seen["diagnoses"][0]["code"] == "node_lost" and lost in seen["diagnoses"][0]["summary"]
    assert json.loads(desk("stop", "digits", "--json")[1])["error"]["code"] == "node_lost"
    desk.cluster.operator.stuck.clear()  # a deletion without grace asks no node
    code, out, _ = desk("stop", "digits", "--now")
    assert code == 0 and "was stopped by" in out and pods(desk.cluster) == []


def pods(cluster: FakeCluster) -> list[str]:
    return [p["metadata"]["name"] for p in cluster.all(PODS)]


class EveryJob(dict[str, int]):
    """Every job ends with 1."""

    def __contains__(self, job: object) -> bool:
        return True

    def __missing__(self, job: str) -> int:
        return 1


def test_a_snapshot_of_a_run_is_read_again(desk: Desk) -> None:
    """The doctor says the same of a run and of its snapshot, which has no secrets."""
    desk.cluster.operator.ends = EveryJob()
    fields = {"policy": {"restart": "never"}, "environment": {"API_TOKEN": "hunter2hunter2"}}
    assert desk("run", desk.job(workers=2, **fields), "--key", "k")[0] == 1
    file = desk.folder / "case.json"
    live = json.loads(desk("doctor", "digits", "--json")[1])
    code, said, _ = desk("snapshot", "digits", "-o", str(file))
    assert code == 0 and "case.json" in said
    body = json.loads(file.read_text())
    assert body["job"]["kind"] == "PyTorchJob" and body["pods"] and "hunter2" not in file.read_text()
    again = json.loads(desk("doctor", "--snapshot", str(file), "--json")[1])
    assert live["state"] == again["state"] == "failed"
    assert live["diagnoses"][0]["code"] == again["diagnoses"][0]["code"]
    assert again["diagnoses"][0]["blame"].endswith(live["diagnoses"][0]["blame"])


# Of all namespaces, and wide.


def test_list_shows_the_runs_of_all_namespaces(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.cluster.add_namespace("research")
    monkeypatch.setattr(
        Place, "open", lambda at, *_: desk.cluster.backend(namespace=at.namespace or "default")
    )
    assert desk("run", desk.job(), "--detach", "--key", "a")[0] == 0
    assert desk("run", desk.job(), "--detach", "--key", "b", "-n", "research")[0] == 0
    code, out, _ = desk("list")
    assert code == 0 and out.count("digits-") == 1
    code, out, _ = desk("list", "-A", "--wide")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0 and rows[0][:2] == ["namespace", "run"] and rows[0][-3:] == ["attempt", "key", "why"]
    assert sorted(row[0] for row in rows[1:]) == ["default", "research"]
    told = json.loads(desk("list", "-A", "--json")[1])["runs"]
    assert sorted(run["namespace"] for run in told) == ["default", "research"]
    assert desk("list", "-A", "-n", "research")[0] == 2
    assert desk("list", "-A", "--backend", "local")[0] == 2


def test_checkpoints_on_a_volume_of_members_are_not_said_to_be_none(desk: Desk) -> None:
    job = desk.job(
        storage=[{"mount": "/data", "pvc": "models"}], checkpoints={"uri": "/data/ckpt", "every": 10}
    )
    assert desk("run", job, "--detach", "--key", "a")[0] == 0
    for words in (["list", "digits"], ["list", "digits", "--json"], ["verify", "digits"]):
        code, out, err = desk("checkpoints", *words)
        assert code == 1 and "cannot be seen" in out + err and "no complete checkpoint" not in out + err


def test_a_reaper_goes_on_whatever_the_cluster_does_until_it_is_told_to_end(desk: Desk) -> None:
    client = desk.cluster.backend()
    plan = Plan(
        require_valid(json.loads(Path(desk.job(policy={"orphan": {"after": "1m"}})).read_text())), "k"
    )
    desk.cluster.operator.trains_for = None
    run = client.launch(plan, Owner("a task", kind="orchestrated")).run
    client.keeper.died()  # type: ignore[attr-defined]
    slept: list[float] = []

    def away(verb: str, kind: str) -> None:
        if len(slept) in (2, 3):
            raise BackendUnreachable("the API server is away")

    def pause(seconds: float) -> None:
        slept.append(seconds)
        desk.cluster.tick(seconds)
        if len(slept) == 15:
            raise KeyboardInterrupt

    desk.on_request = away
    assert watch_orphans(Place(backend="kubernetes"), False, pause) == 0
    said = desk.capsys.readouterr()
    acts = [line.partition(":")[0] for line in said.out.splitlines()]
    assert acts == [f"run allaboard-{run}", f"end allaboard-{run}"]
    assert "stopped (a task no longer follows it" in said.out
    assert said.err.count("trying again soon: the API server is away") == 1 and {*slept} == {20.0}


def test_what_a_platform_applies_is_printed_and_no_cluster_is_asked(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLABOARD_IMAGE", "registry.lab/allaboard:7")
    code, out, _ = desk("cluster", "--reaper", "-n", "research", "--json")
    assert code == 0 and desk.opened == []
    kinds = [item["kind"] for item in json.loads(out)["items"]]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding", "Deployment"]
    code, out, _ = desk("cluster", "--reaper", "-n", "research")
    assert code == 0 and "image: registry.lab/allaboard:7\n" in out and "--namespace, research]" in out
