"""The boosts of Workloads on a cluster in memory: what is read, what is written, and what is left alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from allaboard.backends.kubernetes.client.api import Api
from allaboard.backends.kubernetes.client.errors import Forbidden, Invalid
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.resources import LEASES, Resource
from allaboard.backends.kubernetes.discovery.components import KUEUE_WORKLOADS, WORKLOAD_PRIORITIES
from allaboard.backends.kubernetes.discovery.rbac import wanted_accesses
from allaboard.backends.kubernetes.operations import boost as module
from allaboard.backends.kubernetes.operations.boost import Booster, Look, check, lead, seen_of, yield_lead
from allaboard.backends.kubernetes.watch import informer
from allaboard.cli import main
from allaboard.cli.tools import boost as verb
from allaboard.errors import BackendUnreachable, BadInput, SiteError
from allaboard.gangs.kueue import BOOST
from allaboard.runs.boost import LEVELS
from allaboard.testing.cluster import SERVED, FakeApi, FakeCluster, FakeHub, stamp

Json = dict[str, Any]
HOLD = 60.0
HOLDER = "here:1"


@dataclass
class Lab:
    """A cluster with Kueue, and when its runs saved, by their folder."""

    cluster: FakeCluster
    saves: dict[str, list[float]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def booster(self, **given: Any) -> Booster:
        def saves(uri: str) -> list[float]:
            self.asked.append(uri)
            return self.saves.get(uri, [])

        return Booster(hold=HOLD, interval=30.0, stores=["s3://lab"], saves=saves, **given)

    def workload(self, name: str, ours: bool = True, gpus: int = 8, priority: int = 0, **env: str) -> str:
        """An admitted one."""
        labels = {"app.kubernetes.io/managed-by": "allaboard", "allaboard.io/run": name} if ours else {}
        said = {"ALLABOARD_CHECKPOINTS": f"s3://lab/{name}", "ALLABOARD_CHECKPOINT_EVERY": "600s", **env}
        containers = [{"name": "train", "env": [{"name": k, "value": v} for k, v in said.items()]}]
        template = {"metadata": {"labels": labels}, "spec": {"containers": containers}}
        spec = {"priority": priority, "podSets": [{"name": "main", "count": 2, "template": template}]}
        body = {"apiVersion": KUEUE_WORKLOADS.api_version, "kind": "Workload", "metadata": {"name": name}}
        self.cluster.create(KUEUE_WORKLOADS, {**body, "spec": spec}, "default")
        usage = {"cpu": "16", "nvidia.com/gpu": str(gpus)}
        admission = {"podSetAssignments": [{"name": "main", "resourceUsage": usage}]}
        self.put(name, Admitted="True", admission=admission)
        return f"s3://lab/{name}"

    def put(self, name: str, admission: Json | None = None, **conditions: str) -> None:
        """Its conditions, each as of now."""
        now = stamp(self.cluster.now)
        said = [{"type": t, "status": s, "lastTransitionTime": now} for t, s in conditions.items()]
        status = {"conditions": said, **({"admission": admission} if admission else {})}
        self.cluster.patch(KUEUE_WORKLOADS, name, {"status": status}, "default", "status")

    def annotate(self, name: str, value: str, manager: str) -> None:
        fields = {"f:metadata": {"f:annotations": {f"f:{BOOST}": {}}}}
        entry = {
            "manager": manager,
            "operation": "Update",
            "time": stamp(self.cluster.now),
            "fieldsV1": fields,
        }
        change = {"metadata": {"annotations": {BOOST: value}, "managedFields": [entry]}}
        self.cluster.patch(KUEUE_WORKLOADS, name, change, "default")

    def boost(self, name: str) -> str | None:
        body = self.cluster.one(KUEUE_WORKLOADS, name)
        assert body is not None
        value = (body["metadata"].get("annotations") or {}).get(BOOST)
        return None if value is None else str(value)

    def look(self, booster: Booster) -> Look:
        workloads = self.cluster.all(KUEUE_WORKLOADS)
        return booster.look(cast("Api", self.cluster.client()), workloads, self.cluster.now)

    @property
    def patches(self) -> int:
        return sum(verb == "patch" for verb, _, _ in self.cluster.requests)


def _gate(resource: Resource, new: Json) -> None:
    """Kueue's webhook, its gate on."""
    value = (new["metadata"].get("annotations") or {}).get(BOOST, "0")
    if resource == KUEUE_WORKLOADS and not value.lstrip("-").isdigit():
        said = f'denied the request: metadata.annotations[{BOOST}]: Invalid value: "{value}"'
        raise Forbidden(said, status=403, reason="Forbidden")


@pytest.fixture
def lab() -> Lab:
    served = (*SERVED, KUEUE_WORKLOADS, WORKLOAD_PRIORITIES)
    cluster = FakeCluster(served=served, shows=(KUEUE_WORKLOADS,))
    cluster.objections.append(_gate)
    return Lab(cluster)


def test_the_boost_grows_and_goes_with_a_save(lab: Lab) -> None:
    folder, booster = lab.workload("one"), lab.booster()
    assert lab.look(booster).changes == () and lab.boost("one") is None
    lab.cluster.tick(300)
    [change] = lab.look(booster).changes
    assert (change.run, change.before, change.boost) == ("one", 0, 2) and lab.boost("one") == "2"
    assert change.reason == "8 GPUs, 5m 00s since its start"
    lab.saves[folder] = [lab.cluster.now]
    lab.cluster.tick(70)
    assert lab.boost("one") == "2"
    lab.look(booster)
    assert lab.boost("one") == "1"
    lab.saves[folder].append(lab.cluster.now + 60)
    lab.cluster.tick(65)
    lab.look(booster)
    assert lab.boost("one") is None


def test_a_look_at_which_nothing_changes_sends_nothing_and_folders_are_listed_in_time(lab: Lab) -> None:
    lab.workload("one")
    booster = lab.booster()
    lab.look(booster)
    sent, listed = lab.patches, len(lab.asked)
    lab.look(booster)
    assert (lab.patches, len(lab.asked)) == (sent, listed)
    lab.cluster.tick(30)
    lab.look(booster)
    assert len(lab.asked) == listed + 1


def test_who_is_evicted_loses_its_boost_at_once(lab: Lab) -> None:
    """With it, it would preempt others of its class when it comes back."""
    lab.workload("one")
    booster = lab.booster()
    lab.cluster.tick(300)
    lab.look(booster)
    assert lab.boost("one") is not None
    lab.cluster.tick(3)
    lab.put("one", Admitted="True", Evicted="True")
    [change] = lab.look(booster).changes
    assert (change.boost, lab.boost("one")) == (0, None)
    assert lab.look(booster).changes == ()


def test_others_are_not_touched(lab: Lab) -> None:
    lab.workload("theirs", ours=False)
    lab.workload("one")
    lab.annotate("one", "100", "priority-booster")
    booster = lab.booster()
    lab.cluster.tick(300)
    look = lab.look(booster)
    assert look.changes == () and (lab.boost("theirs"), lab.boost("one")) == (None, "100")
    assert look.notes == ("default/one: priority-booster writes its boost, too; nothing is written here",)
    assert lab.look(booster).notes == ()


def test_another_allaboard_that_writes_the_same_is_noticed(lab: Lab) -> None:
    lab.workload("one")
    booster = lab.booster()
    lab.cluster.tick(300)
    lab.look(booster)
    lab.cluster.tick(10)
    lab.annotate("one", "5", "allaboard")
    assert lab.look(booster).notes == (
        "default/one: another allaboard writes its boost, too; nothing is written here",
    )
    assert lab.boost("one") == "5"


def test_a_new_process_goes_on_where_one_that_was_killed_has_stopped(lab: Lab) -> None:
    lab.workload("one")
    lab.cluster.tick(300)
    lab.annotate("one", "2", "allaboard")
    sent = lab.patches
    assert lab.look(lab.booster()).changes == ()
    assert lab.boost("one") == "2"
    assert lab.patches == sent + 1, "the one that asks for the gate"


def test_why_one_gets_no_boost_is_told_once(lab: Lab) -> None:
    lab.workload("silent", ALLABOARD_CHECKPOINT_EVERY="50")
    lab.workload("elsewhere", ALLABOARD_CHECKPOINTS="s3://other/elsewhere")
    lab.workload("upstairs", ALLABOARD_CHECKPOINTS="s3://lab/../other")
    lab.workload("small", gpus=0)
    booster = lab.booster()
    lab.cluster.tick(300)
    look = lab.look(booster)
    assert look.changes == () and look.runs == 4
    none = "it gets no boost: "
    assert [*sorted(look.notes)] == [
        f"default/elsewhere: {none}its checkpoints are below no --store: s3://other/elsewhere",
        f"default/silent: {none}it has reported no save",
        f"default/small: {none}it holds no GPU",
        f"default/upstairs: {none}its checkpoints are below no --store: s3://lab/../other",
    ]
    lab.cluster.tick(31)
    assert lab.look(booster).notes == ()
    assert lab.asked.count("s3://other/elsewhere") == 0


def test_a_boost_stays_below_the_next_class_that_there_is(lab: Lab) -> None:
    kind = {"apiVersion": WORKLOAD_PRIORITIES.api_version, "kind": WORKLOAD_PRIORITIES.kind}
    urgent = {**kind, "metadata": {"name": "urgent"}, "value": 3}
    lab.cluster.create(WORKLOAD_PRIORITIES, urgent, "")
    lab.workload("huge", gpus=4096)
    lab.workload("near", gpus=4096, priority=-1)
    lab.cluster.tick(300)
    lab.look(lab.booster())
    assert lab.boost("huge") == "2" and lab.boost("near") is None


def test_a_kueue_that_ignores_boosts_is_found_out_and_nothing_is_written(lab: Lab) -> None:
    lab.cluster.objections.clear()
    lab.workload("one")
    booster = lab.booster()
    lab.cluster.tick(300)
    [note] = lab.look(booster).notes
    assert "--feature-gates=PriorityBoost=true" in note and lab.boost("one") is None
    assert lab.look(booster).notes == () and lab.patches == 1
    lab.cluster.objections.append(_gate)
    lab.cluster.tick(601)
    lab.saves["s3://lab/one"] = [lab.cluster.now - 400]
    lab.look(booster)
    assert lab.boost("one") == "2"


def test_hostile_workloads_end_nothing(lab: Lab) -> None:
    lab.workload("one", ALLABOARD_CHECKPOINT_EVERY="NaNs", ALLABOARD_CHECKPOINTS="s3://lab/\x1b[2J")
    lab.put("one", admission={"podSetAssignments": [{"resourceUsage": {"a/gpu": "much"}}]}, Admitted="True")
    lab.cluster.objections.clear()
    lab.annotate("one", "many", "allaboard")
    lab.cluster.objections.append(_gate)
    lab.cluster.tick(300)
    lab.look(lab.booster())
    bare = {"metadata": {"name": "x", "namespace": "y", "uid": "z"}}
    assert seen_of(bare) is None
    assert seen_of({**bare, "spec": {"podSets": [{"template": None}, {}]}}) is None


def test_a_workload_that_cannot_be_changed_is_told_and_is_in_nobodys_way(lab: Lab) -> None:
    def damaged(resource: Resource, new: Json) -> None:
        if new["metadata"]["name"] == "one" and BOOST in new["metadata"].get("annotations", {}):
            raise Invalid("podSetAssignments must have the same number of podSets", status=422)

    lab.workload("one")
    lab.workload("two")
    lab.cluster.tick(300)
    booster = lab.booster()
    lab.look(booster)
    lab.cluster.objections.append(damaged)
    lab.cluster.tick(400)
    look = lab.look(booster)
    assert [change.run for change in look.changes] == ["two"]
    assert look.notes == (
        "default/one: its boost cannot be changed: podSetAssignments must have the same number of podSets",
    )
    assert lab.look(booster).notes == ()


def test_it_says_what_it_lacks(lab: Lab) -> None:
    api = cast("Api", lab.cluster.client())
    check(api, "", "platform")
    lab.cluster.shows = ()
    with pytest.raises(BadInput, match="it has no Kueue"):
        check(api, "", "platform")
    old = Resource(KUEUE_WORKLOADS.group, "v1beta1", "workloads", "Workload")
    lab.cluster.shows = (old,)
    with pytest.raises(BadInput, match=r"its Kueue is older \(kueue.x-k8s.io/v1beta1/Workload\)"):
        check(api, "", "platform")


def test_one_of_several_leads_until_its_lease_runs_out(lab: Lab) -> None:
    api = cast("Api", lab.cluster.client())
    assert lead(api, HOLDER) is None
    assert lead(api, "there:2") == HOLDER
    lab.cluster.tick(50)
    assert lead(api, HOLDER) is None
    lab.cluster.tick(50)
    assert lead(api, "there:2") == HOLDER
    lab.cluster.tick(61)
    assert lead(api, "there:2") is None
    yield_lead(api, HOLDER)
    assert lead(api, HOLDER) == "there:2"
    yield_lead(api, "there:2")
    assert lead(api, HOLDER) is None


@pytest.mark.parametrize(
    ("uri", "store", "within"),
    [
        ("s3://lab/one", "s3://lab", True),
        ("s3://lab/runs/one", "s3://lab/runs/", True),
        ("s3://lab/runs-of-others/one", "s3://lab/runs", False),
        ("s3://labs/one", "s3://lab", False),
        ("s3://lab/runs/../one", "s3://lab", False),
        ("/data/one", "/data", True),
        ("file:///data/one", "/data", True),
        ("/data/../etc", "/data", False),
        ("/etc/data/one", "data", False),
        ("one", "/", False),
        ("/data/one", "/", True),
        ("/data/one", "s3://data", False),
    ],
)
def test_only_what_the_platform_names_is_listed(uri: str, store: str, within: bool) -> None:
    assert module._is_within(uri, store) is within


# The verb.


@pytest.fixture
def at_the_lab(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(Access, "api", lambda *_: lab.cluster.client())
    monkeypatch.setattr(informer, "hub_of", lambda api: FakeHub(lab.cluster))
    monkeypatch.delenv("ALLABOARD_STORE", raising=False)
    yield lab


def a_saved_run(lab: Lab, store: Path, age: float) -> None:
    lab.workload("one", ALLABOARD_CHECKPOINTS=str(store / "one"))
    lab.cluster.tick(600)
    folder = store / "one" / "step-000000000010"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    os.utime(folder / "manifest.json", (lab.cluster.now - age, lab.cluster.now - age))


def test_the_verb_looks_once_and_clears(
    at_the_lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_saved_run(at_the_lab, tmp_path, 200)
    store = ("--store", str(tmp_path))
    assert main(["boost", *store, "--once", "--dry-run", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert [c["boost"] for c in dry["changes"]] == [2] and at_the_lab.boost("one") is None
    assert main(["boost", *store, "--once"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("default/one: boost 0 -> 2 (") and "8 GPUs, 3m 20s since its last save" in said
    assert at_the_lab.boost("one") == "2"
    at_the_lab.annotate("one", "2", "allaboard")
    assert main(["boost", "--clear"]) == 0
    assert at_the_lab.boost("one") is None and "boost 2 -> 0" in capsys.readouterr().out
    assert at_the_lab.cluster.one(LEASES, "allaboard-boost") is None


def test_where_another_writes_one_look_is_refused(
    at_the_lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lead(cast("Api", at_the_lab.cluster.client()), "there:2")
    a_saved_run(at_the_lab, tmp_path, 200)
    lead(cast("Api", at_the_lab.cluster.client()), "there:2")
    assert main(["boost", "--store", str(tmp_path), "--once"]) == 1
    assert "there:2 writes the boosts here; end it first" in capsys.readouterr().err
    assert at_the_lab.boost("one") is None


def test_its_role_allows_what_it_does_and_nothing_else(at_the_lab: Lab, tmp_path: Path) -> None:
    a_saved_run(at_the_lab, tmp_path, 200)
    at_the_lab.cluster.requests.clear()
    lead(cast("Api", at_the_lab.cluster.client()), "one that was killed")
    at_the_lab.cluster.tick(100)
    for words in (["--once", "--store", str(tmp_path)], ["--clear"]):
        assert main(["boost", *words]) == 0
    done = {
        f"{'update' if verb == 'replace' else verb} {kind}"
        for verb, kind, _ in at_the_lab.cluster.requests
        if not verb.startswith("raw") and not kind.startswith("selfsubject")
    }
    assert done | {"watch workloads.kueue.x-k8s.io"} == {*map(str, wanted_accesses("boost"))}


def test_the_verb_keeps_them_through_troubles_and_takes_them_away_when_it_ends(
    at_the_lab: Lab, tmp_path: Path
) -> None:
    a_saved_run(at_the_lab, tmp_path, 200)
    client = at_the_lab.cluster.client()
    said: list[Any] = []
    keeper = verb.Keeper(
        cast("Api", client),
        cast("Any", FakeHub(at_the_lab.cluster)),
        "default",
        verb.booster([str(tmp_path)], 30.0, True),
        said.append,
        pause=at_the_lab.cluster.tick,
    )
    ask, seen = client._ask, []

    def troubled(kind: str, resource: Resource, *rest: Any) -> Any:
        seen.append(at_the_lab.boost("one"))
        if len(seen) in (4, 5):
            raise BackendUnreachable("the API server is not there")
        if len(seen) == 40:
            raise verb._Ended
        return ask(kind, resource, *rest)

    client._ask = troubled  # type: ignore[method-assign]
    with pytest.raises(verb._Ended):
        keeper.keep()
    assert "2" in seen and at_the_lab.boost("one") is None
    assert "trying again soon: the API server is not there" in said


def test_the_verb_says_what_is_missing(at_the_lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["boost"]) == 2 and "no --store" in capsys.readouterr().err
    assert main(["boost", "--store", "s3://x", "--all-namespaces", "-n", "a"]) == 2
    assert "give one of them" in capsys.readouterr().err
    assert main(["boost", "--store", "s3://x", "--interval", "0s"]) == 2


def test_what_an_account_lacks_is_named(at_the_lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    create = FakeApi.create

    def refusing(self: FakeApi, resource: Resource, body: Json, *rest: Any, **more: Any) -> Json:
        answer = create(self, resource, body, *rest, **more)
        if body["kind"] == "SelfSubjectAccessReview":
            asked = body["spec"]["resourceAttributes"]
            answer["status"]["allowed"] = asked["verb"] != "patch"
        return answer

    monkeypatch.setattr(FakeApi, "create", refusing)
    with pytest.raises(SiteError, match=r"lacks: patch workloads\.kueue\.x-k8s\.io; a Role") as lacks:
        check(cast("Api", at_the_lab.cluster.client()), "", "platform")
    assert LEVELS and "allaboard cluster --rbac boost" in str(lacks.value)
