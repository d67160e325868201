"""Bad days, on a real API server: clients that are killed at every request, requests that are lost, doubled
and lied about, servers that go away. Exactly one job, none orphaned, no wrong state, no missed end.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Handle, Plan, Stopped
from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend, KubernetesBackend
from allaboard.backends.kubernetes.client.api import Api
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.state import records
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.checking.job import require_valid
from allaboard.cli import main
from allaboard.engines import ENGINES
from allaboard.errors import BackendUnreachable
from allaboard.follow.loop import FollowPolicy, Observe, Outcome, Wait, follow, run_async
from allaboard.job.training_job import TrainingJob
from allaboard.render import labels
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.running import Follower, run
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job
from allaboard.text.units import rfc3339
from tests.cluster.api import ApiError, Object, until
from tests.cluster.cluster import Cluster
from tests.cluster.proxy import ANYTHING, Asked, Drop, FaultProxy, Hold, Say
from tests.cluster.proxy import Plan as FaultPlan
from tests.cluster.victims import MOMENTS, SITE, End, Victims

ME, YOU = Owner("me"), Owner("you")
DEFERRED = Owner("me", "deferred", "orchestrated")
JOB = ("kubeflow.org/v1", "PyTorchJob")
GROUP = ("scheduling.x-k8s.io/v1alpha1", "PodGroup")
LANES = 4
MOST = 60
OFF = {"training-operator": "off"}
"""Requests of one act; one that makes more goes in circles."""

pytestmark = [pytest.mark.needs("training-operator", "coscheduling"), pytest.mark.timeout(900)]


# --- what was done, said at the end of the tests ------------------------------------------------------------


class Tally:
    """What these tests did to their clients, for the end of the report."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.lines: list[str] = []

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("faults")
        for line in self.lines:
            terminalreporter.write_line(line)
        total = ", ".join(f"{n} {what}" for what, n in sorted(self.done.items()))
        terminalreporter.write_line(f"in all: {total}")


@pytest.fixture(scope="session")
def tally(request: pytest.FixtureRequest) -> Tally:
    found = Tally()
    request.config.pluginmanager.register(found)
    return found


# --- the place ----------------------------------------------------------------------------------------------


@dataclass
class Place:
    """A namespace of a real cluster, looked at without the proxy."""

    cluster: Cluster
    namespace: str
    folder: Path
    engine: str = "pytorchjob"
    facts: ClusterFacts = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text("print('up')\n")
        engine = ENGINES[self.engine]
        self.kind = (engine.API_VERSION, engine.KIND)
        extras = [tuple(kind.rsplit("/", 1)) for kind in engine.EXTRA_KINDS]
        self.parts = [("v1", "ConfigMap"), GROUP, *extras]
        if self.engine == "pytorchjob":  # pods of the others belong to Jobs
            self.parts.append(("v1", "Pod"))
        kinds = frozenset({"/".join(GROUP)})
        self.facts = ClusterFacts(kinds=kinds, operator_gangs=OFF, namespace=self.namespace)
        self._of_thread = threading.local()

    @property
    def backend(self) -> KubernetesBackend:
        """A client that nothing happens to; one for each thread."""
        if not hasattr(self._of_thread, "backend"):
            self._of_thread.backend = self.backend_over(self.cluster.kubeconfig, pause=0.1)
        found: KubernetesBackend = self._of_thread.backend
        return found

    def backend_over(
        self, kubeconfig: Path, *, pause: float = 0.5, patience: Patience | None = None
    ) -> KubernetesBackend:
        api = Access(str(kubeconfig), namespace=self.namespace, environ={}).api(patience)
        rest = lambda seconds: time.sleep(min(seconds, pause))  # noqa: E731
        return KubernetesBackend(api, site=SITE, facts=self.facts, environ={}, pause=rest)

    def plan(self, key: str, **fields: Any) -> Plan:
        """Members, code and a PodGroup; its pods are no scheduler's: they stay as they are made."""
        given = {"image": "lab/train:1", "code": ["train.py"], "pod": {"spec": {"schedulerName": "nobody"}}}
        given |= {"engine": self.engine, "gang": {"scheduler": "coscheduling"}}
        given["framework"] = ENGINES[self.engine].FRAMEWORKS[0]
        job = require_valid(a_job(**given, **fields))
        return Plan(TrainingJob(folder=str(self.folder), **job.as_mapping()), key)

    def leave(self) -> None:
        """This thread is done here."""
        self.backend.api.close()
        self.cluster.api.close()

    # What is there.

    def stored(self, run: str) -> Stored | None:
        body = self.cluster.api.get("v1", "ConfigMap", labels.record_name(run), self.namespace)
        return None if body is None else records.parse(body)

    def of_run(self, kind: tuple[str, str], run: str) -> list[Object]:
        selector = f"{labels.selector(run)},{labels.ATTEMPT}"
        return self.cluster.api.list(*kind, self.namespace, labelSelector=selector)

    def living(self, run: str) -> list[Object]:
        """Jobs that run, or will."""
        return [
            j
            for j in self.of_run(self.kind, run)
            if "deletionTimestamp" not in j["metadata"] and not ended(j)
        ]

    def whole(self, run: str, attempt: int, *, generation: int = 1, uid: str | None = None) -> Object:
        """The one job that lives is the one that is meant, and nothing of ours is without an owner."""
        (job,) = self.living(run)
        stored = self.stored(run)
        assert stored is not None
        record = stored.record
        assert (record.attempt, record.generation) == (attempt, generation)
        assert job["metadata"]["uid"] == record.object_uid
        assert uid in (None, record.object_uid), "what ran was lost, and another made in its place"
        assert labels.label_of(job, labels.ATTEMPT) == str(attempt)
        assert record.stop is None and record.outcome is None
        assert all(self.of_run(kind, run) for kind in (("v1", "ConfigMap"), GROUP)), "its extras are there"
        self.nothing_astray(run)
        return job

    def nothing_astray(self, run: str) -> None:
        """No extra object and no pod without a living owner; what is being collected is given its time."""

        def astray() -> list[str]:
            uids = {j["metadata"]["uid"] for j in self.of_run(self.kind, run)}
            return [
                f"{kind[1]} {thing['metadata']['name']}"
                for kind in self.parts
                for thing in self.of_run(kind, run)
                if not uids & {ref["uid"] for ref in thing["metadata"].get("ownerReferences", ())}
            ]

        with told(lambda: f"astray: {astray()}"):
            until("nothing astray", lambda: not astray(), timeout=60)
        orphans = [o for o in self.backend.orphans() if o.run == run]
        assert orphans == []

    # What is done to it, by others than the client under test.

    def launched(self, plan: Plan, owner: Owner = ME) -> Handle:
        """A run whose pods are there."""
        handle = self.backend.launch(plan, owner)
        until("its pods", lambda: len(self.of_run(("v1", "Pod"), plan.run)) == 2, timeout=60)
        return handle

    def end(self, run: str, condition: str) -> None:
        """The job says that it has Succeeded or Failed, as its operator would write it."""
        now = rfc3339(float(int(time.time())))
        assert now is not None
        said = {"type": condition, "status": "True", "reason": f"PyTorchJob{condition}", "message": "x"}
        times = {"lastTransitionTime": now.replace(".000", ""), "lastUpdateTime": now.replace(".000", "")}

        def write() -> bool:
            (job,) = self.living(run)
            others = [
                c for c in job.get("status", {}).get("conditions", ()) if c["type"] in ("Created", "Running")
            ]
            status = {"conditions": [*others, {**said, **times}], "completionTime": times["lastUpdateTime"]}
            version = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}}
            try:
                self.cluster.api.patch(job, {**version, "status": status}, "status")
            except ApiError as error:
                if error.status != 409:
                    raise
                return False
            return True

        until("its end to be written", write)


class told:
    """Adds to an error what was seen last."""

    def __init__(self, seen: Callable[[], str]) -> None:
        self.seen = seen

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimeoutError):
            raise AssertionError(f"{error}; {self.seen()}") from error


def ended(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions", ())
    return any(c["type"] in ("Succeeded", "Failed") and c["status"] == "True" for c in conditions)


@pytest.fixture
def place(cluster: Cluster, namespace: str, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return Place(cluster, namespace, tmp_path, getattr(request, "param", "pytorchjob"))


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.kubeconfig, tls=False) as found:
        yield found


# --- clients that are killed at every request ---------------------------------------------------------------


@dataclass
class Lane:
    """Kills one client after the other."""

    place: Place
    proxy: FaultProxy
    victims: Victims
    style: str

    def kill(self, method: str, *arguments: Any, at: int, moment: str) -> End:
        return self.victims.kill(
            method,
            *arguments,
            at=at,
            moment=moment,
            namespace=self.place.namespace,
            facts=self.place.facts,
            style=self.style,
        )


@dataclass
class Killing:
    """Kills a client at each request boundary of an act. Most of the time is spent waiting for the cluster,
    so several lanes are at it, each with runs of its own.
    """

    place: Place
    lanes: list[Lane]
    tally: Tally

    def everywhere(
        self,
        method: str,
        set_up: Callable[[Plan], tuple[Any, ...]],
        then: Callable[[Plan, End, str], None],
        **fields: Any,
    ) -> None:
        """``set_up`` makes what is there before, and gives the arguments; ``then`` is what comes after the
        client has died, and is given the words that say where.
        """
        began = time.monotonic()
        turns = itertools.count(1)
        past: list[int] = [MOST + 1]  # requests that were never made

        def one(lane: Lane, at: int, moment: str) -> bool:
            plan = self.place.plan(f"{method} {at} {moment}", **fields)
            arguments = set_up(plan)
            where = f"{moment} request {at} of {method}"
            end = lane.kill(method, *arguments, at=at, moment=moment)
            try:
                if isinstance(end.result, Exception):
                    raise end.result
                then(plan, end, where)
            except Exception as error:
                error.add_note(f"{'after a client was killed ' * end.killed}{where}, {plan.run}")
                raise
            return end.killed

        def serve(lane: Lane) -> int:
            killed = 0
            while (at := next(turns)) < min(past):
                deaths = [one(lane, at, moment) for moment in MOMENTS]
                killed += sum(deaths)
                if not all(deaths):
                    past.append(at)
            self.place.leave()
            return killed

        with ThreadPoolExecutor(len(self.lanes)) as pool:
            killed = sum(pool.map(serve, self.lanes))
        assert killed, "nobody was killed"
        assert len(past) > 1, f"{method} makes more than {MOST} requests"
        self.note(f"{method} ({self.lanes[0].style})", killed, began)

    def note(self, what: str, killed: int, began: float) -> None:
        self.tally.done["clients killed"] += killed
        self.tally.lines.append(f"{what}: {killed} clients killed, {time.monotonic() - began:.0f} s")


@pytest.fixture
def killing(place: Place, tally: Tally, request: Any) -> Iterator[Killing]:
    style = getattr(request, "param", "blocking")
    with ExitStack() as stack:
        lanes = []
        for _ in range(LANES):
            proxy = stack.enter_context(FaultProxy(place.cluster.kubeconfig, tls=False))
            lanes.append(Lane(place, proxy, stack.enter_context(Victims(proxy)), style))
        yield Killing(place, lanes, tally)


def test_a_first_launch(place: Place, killing: Killing) -> None:
    first_launches(place, killing)


@pytest.mark.parametrize(
    "place",
    [
        pytest.param("trainjob", marks=pytest.mark.needs("jobset", "trainer")),
        pytest.param("jobset", marks=[pytest.mark.needs("jobset"), pytest.mark.thorough]),
        pytest.param("mpijob", marks=[pytest.mark.needs("mpi-operator"), pytest.mark.thorough]),
    ],
    indirect=True,
)
def test_a_first_launch_of_another_engine(place: Place, killing: Killing) -> None:
    first_launches(place, killing)


def first_launches(place: Place, killing: Killing) -> None:
    def then(plan: Plan, end: End, where: str) -> None:
        before = [job["metadata"]["uid"] for job in place.living(plan.run)]
        owner = random.Random(where).choice([ME, YOU])
        handle = place.backend.launch(plan, owner)
        assert handle.attempt == 1 and handle.adopted == bool(before)
        place.whole(plan.run, 1, uid=before[0] if before else None)
        stored = place.stored(plan.run)
        assert stored is not None and stored.record.owner == owner

    killing.everywhere("launch", lambda plan: (plan, ME), then)


@pytest.mark.thorough
def test_a_launch_that_adopts(place: Place, killing: Killing) -> None:
    uids: dict[str, str] = {}

    def running(plan: Plan) -> tuple[Any, ...]:
        place.backend.launch(plan, ME)
        uids[plan.run] = place.living(plan.run)[0]["metadata"]["uid"]
        return plan, YOU

    def then(plan: Plan, end: End, where: str) -> None:
        assert place.backend.launch(plan, YOU).adopted
        place.whole(plan.run, 1, uid=uids[plan.run])

    killing.everywhere("launch", running, then)


@pytest.mark.thorough
def test_a_second_attempt(place: Place, killing: Killing) -> None:
    def failed(plan: Plan) -> tuple[Any, ...]:
        place.launched(plan)
        place.end(plan.run, "Failed")
        return plan, YOU

    def then(plan: Plan, end: End, where: str) -> None:
        before = {job["metadata"]["uid"] for job in place.living(plan.run)}
        handle = place.backend.launch(plan, YOU)
        assert handle.attempt == 2
        job = place.whole(plan.run, 2)
        assert before <= {job["metadata"]["uid"]}
        stored = place.stored(plan.run)
        assert stored is not None
        assert [(e.attempt, e.state) for e in stored.record.history] == [(1, "failed")]

    killing.everywhere("launch", failed, then)


@pytest.mark.thorough
def test_a_launch_that_stops_what_was_left_to_a_triggerer(place: Place, killing: Killing) -> None:
    def deferred(plan: Plan) -> tuple[Any, ...]:
        place.launched(plan, DEFERRED)
        return plan, YOU

    def then(plan: Plan, end: End, where: str) -> None:
        assert place.backend.launch(plan, YOU).attempt == 2
        place.whole(plan.run, 2)
        stored = place.stored(plan.run)
        assert stored is not None
        assert [(e.attempt, e.state) for e in stored.record.history] == [(1, "stopped")]

    killing.everywhere("launch", deferred, then)


@pytest.mark.thorough
def test_a_new_generation(place: Place, killing: Killing) -> None:
    def taken(plan: Plan) -> tuple[Any, ...]:
        handle = place.launched(plan)
        place.end(plan.run, "Succeeded")
        place.backend.observe(plan.run)
        place.backend.hand_over(handle)
        return plan, YOU

    def then(plan: Plan, end: End, where: str) -> None:
        handle = place.backend.launch(plan, YOU)
        assert (handle.generation, handle.attempt, handle.hand_over) == (2, 1, False)
        place.whole(plan.run, 1, generation=2)

    killing.everywhere("launch", taken, then)


@pytest.mark.thorough
def test_a_result_that_is_handed_over(place: Place, killing: Killing) -> None:
    def succeeded(plan: Plan) -> tuple[Any, ...]:
        place.backend.launch(plan, ME)
        place.end(plan.run, "Succeeded")
        return plan, YOU

    def then(plan: Plan, end: End, where: str) -> None:
        handle = place.backend.launch(plan, YOU)
        assert handle.hand_over and handle.attempt == 1 and place.living(plan.run) == []

    killing.everywhere("launch", succeeded, then)


@pytest.mark.thorough
def test_hand_over(place: Place, killing: Killing) -> None:
    def found(plan: Plan) -> tuple[Any, ...]:
        place.backend.launch(plan, ME)
        place.end(plan.run, "Succeeded")
        return (place.backend.launch(plan, YOU),)

    def then(plan: Plan, end: End, where: str) -> None:
        stored = place.stored(plan.run)
        assert stored is not None and stored.record.uid is not None
        handle = place.backend.launch(plan, YOU)
        if not stored.record.handed_over:
            assert handle.hand_over, "a result that nobody has taken is lost"
        else:
            assert handle.generation == 2
            place.whole(plan.run, 1, generation=2)

    killing.everywhere("hand_over", found, then)


@pytest.mark.thorough
def test_adopt(place: Place, killing: Killing) -> None:
    def running(plan: Plan) -> tuple[Any, ...]:
        return place.backend.launch(plan, ME), ME, DEFERRED

    def then(plan: Plan, end: End, where: str) -> None:
        stored = place.stored(plan.run)
        assert stored is not None and stored.record.owner in (ME, DEFERRED)
        handle = Handle(plan.run, 1, 1, stored.record.uid)
        assert place.backend.adopt(handle, stored.record.owner, DEFERRED).adopted
        place.whole(plan.run, 1)

    killing.everywhere("adopt", running, then)


def stopped(place: Place, run: str) -> None:
    """Nothing of it is left but its record, which says so."""
    with told(lambda: f"left: {place.of_run(JOB, run)}"):
        until("its end", lambda: place.of_run(JOB, run) == [], timeout=60)
    assert state_of(place.backend.observe(run)) is State.STOPPED
    place.nothing_astray(run)
    stored = place.stored(run)
    assert stored is not None and stored.record.outcome is not None and stored.record.stop is not None
    assert stored.record.outcome.state == "stopped"


def test_stop(place: Place, killing: Killing) -> None:
    def running(plan: Plan) -> tuple[Any, ...]:
        return place.launched(plan), ME, "me", "because"

    def then(plan: Plan, end: End, where: str) -> None:
        stored = place.stored(plan.run)
        assert stored is not None
        handle = Handle(plan.run, 1, 1, stored.record.uid)
        assert isinstance(place.backend.stop(handle, ME, "me", "because"), Stopped)
        stopped(place, plan.run)
        stored = place.stored(plan.run)
        assert stored is not None and stored.record.stop is not None
        assert (stored.record.stop.by, stored.record.stop.reason) == ("me", "because")
        assert place.backend.launch(plan, YOU).attempt == 2
        place.whole(plan.run, 2)

    killing.everywhere("stop", running, then)


@pytest.mark.parametrize("killing", ["blocking", "async"], indirect=True)
def test_a_stop_for_another_owner(place: Place, killing: Killing) -> None:
    """What a cleared task ends with, in a triggerer and elsewhere."""
    ended = Owner("me/ended", "deferred", "attached")

    def running(plan: Plan) -> tuple[Any, ...]:
        return place.launched(plan), ME, ended, "airflow", "cleared"

    def then(plan: Plan, end: End, where: str) -> None:
        stored = place.stored(plan.run)
        assert stored is not None
        assert (stored.record.owner, stored.record.stop is not None) in ((ME, False), (ended, True))
        place.backend.stop_from(Handle(plan.run, 1, 1, stored.record.uid), ME, ended, "airflow", "cleared")
        stopped(place, plan.run)
        stored = place.stored(plan.run)
        assert stored is not None and stored.record.owner == ended and stored.record.stop is not None
        assert place.backend.launch(plan, YOU).attempt == 2
        place.whole(plan.run, 2)

    killing.everywhere("stop_from", running, then)


@pytest.mark.thorough
def test_a_stop_whose_asker_died_is_carried_out_by_the_next_launch(place: Place, killing: Killing) -> None:
    def running(plan: Plan) -> tuple[Any, ...]:
        return place.launched(plan), ME, "me", "because"

    def then(plan: Plan, end: End, where: str) -> None:
        stored = place.stored(plan.run)
        assert stored is not None
        asked = stored.record.stop is not None
        handle = place.backend.launch(plan, YOU)
        assert (handle.attempt, handle.adopted) == ((2, False) if asked else (1, True))
        place.whole(plan.run, handle.attempt)

    killing.everywhere("stop", running, then)


@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["suspend", "resume"])
def test_suspend_and_resume(place: Place, killing: Killing, verb: str) -> None:
    def running(plan: Plan) -> tuple[Any, ...]:
        place.backend.launch(plan, ME)
        return (plan.run,)

    def then(plan: Plan, end: End, where: str) -> None:
        getattr(place.backend, verb)(plan.run)
        job = place.whole(plan.run, 1)
        assert job["spec"]["runPolicy"]["suspend"] == (verb == "suspend")
        place.backend.resume(plan.run)

    killing.everywhere(verb, running, then, policy={"suspend": verb == "resume"})


@pytest.mark.thorough
def test_delete(place: Place, killing: Killing) -> None:
    def running(plan: Plan) -> tuple[Any, ...]:
        place.launched(plan)
        return (plan.run,)

    def then(plan: Plan, end: End, where: str) -> None:
        place.backend.delete(plan.run)
        stopped(place, plan.run)
        assert place.backend.observe(plan.run).deleted
        assert place.backend.launch(plan, YOU).attempt == 2
        place.whole(plan.run, 2)

    killing.everywhere("delete", running, then)


def test_client_after_client_dies(place: Place, killing: Killing) -> None:
    """Whoever comes next dies, too, in the midst of something else."""
    began = time.monotonic()
    with ThreadPoolExecutor(len(killing.lanes)) as pool:
        killed = sum(pool.map(lambda n: deaths(place, killing.lanes[n], n), range(len(killing.lanes))))
    killing.note("one after the other", killed, began)


def deaths(place: Place, lane: Lane, seed: int) -> int:
    """Runs whose clients die six times in a row."""
    chance = random.Random(seed)
    total = 0
    for n in range(4):
        plan = place.plan(f"chain {seed} {n}")
        killed, attempt = 0, 0
        story: list[str] = []
        while killed < 6:
            method = chance.choice(["launch", "launch", "launch", "stop", "delete"])
            arguments: list[Any] = [plan, chance.choice([ME, YOU, DEFERRED])]
            stored = place.stored(plan.run)
            if method != "launch":
                if stored is None:
                    continue
                record = stored.record
                handle = Handle(plan.run, record.attempt, record.generation, record.uid)
                arguments = [plan.run] if method == "delete" else [handle, record.owner, "me", "because"]
            at, moment = chance.randint(1, 14), chance.choice(MOMENTS)
            end = lane.kill(method, *arguments, at=at, moment=moment)
            story.append(f"{method} {moment} {at}: {'killed' if end.killed else end.result}")
            assert not isinstance(end.result, Exception), story
            killed += end.killed
            assert len(place.living(plan.run)) <= 1, story
            stored = place.stored(plan.run)
            now = stored.record.attempt if stored is not None else 0
            assert now in (attempt, attempt + 1), story
            attempt = now
        try:
            place.whole(plan.run, place.backend.launch(plan, Owner("the last")).attempt)
        except Exception as error:
            error.add_note("\n".join(story))
            raise
        total += killed
    place.leave()
    return total


# --- bad days -----------------------------------------------------------------------------------------------


@dataclass
class Members:
    """Plays kubelet: pods of ours run as soon as they are made, and end as it is said for their run. A server
    that is away for a while is asked again.
    """

    place: Place
    scripts: dict[str, tuple[str, float]] = field(default_factory=dict)
    """run -> how it ends (well or badly; what is not named, never), after how many seconds of its running."""
    ended: dict[str, float] = field(default_factory=dict)
    """run -> when the first of its members was made to end."""

    def __enter__(self) -> Members:
        self._over = threading.Event()
        self._since: dict[str, float] = {}
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(30)

    def _serve(self) -> None:
        while not self._over.wait(0.1):
            with suppress(ApiError, OSError, http.client.HTTPException):
                self._act()
        self.place.cluster.api.close()

    def _act(self) -> None:
        api = self.place.cluster.api
        pods = api.list("v1", "Pod", self.place.namespace, labelSelector=labels.selector())
        runs: dict[str, list[Object]] = {}
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                runs.setdefault(labels.label_of(pod, labels.RUN) or "", []).append(pod)
        for name in self._since.keys() - runs.keys():
            del self._since[name]  # suspended
        for name, members in runs.items():
            for pod in members:
                if pod.get("status", {}).get("phase", "Pending") == "Pending":
                    api.patch({**POD, **pod}, {"status": a_status(pod)}, "status")
            if len(members) == 2:
                since = self._since.setdefault(name, time.monotonic())
                how, after = self.scripts.get(name, ("never", 0.0))
                if how != "never" and time.monotonic() - since > after:
                    self._end(name, members, how)

    def _end(self, run: str, members: list[Object], how: str) -> None:
        for pod in sorted(members, key=lambda pod: pod["metadata"]["name"]):
            if pod.get("status", {}).get("phase") == "Running":
                code = 0 if how == "well" else 1
                self.place.cluster.api.patch({**POD, **pod}, {"status": a_status(pod, code)}, "status")
                self.ended.setdefault(run, time.monotonic())
            if how == "badly":
                return  # the master


POD = {"apiVersion": "v1", "kind": "Pod"}


def a_status(pod: Object, code: int | None = None) -> Object:
    """Of a pod whose member runs, or has ended with this code."""
    now = (rfc3339(float(int(time.time()))) or "").replace(".000", "")
    started = pod.get("status", {}).get("startTime", now)
    name = pod["metadata"]["name"]
    state = (
        {"running": {"startedAt": started}}
        if code is None
        else {"terminated": {"exitCode": code, "startedAt": started, "finishedAt": now, "reason": "Ended"}}
    )
    phase = {None: "Running", 0: "Succeeded"}.get(code, "Failed")
    container = {
        "name": "pytorch",
        "image": "x",
        "imageID": "x",
        "containerID": f"test://{name}",
        "ready": code is None,
        "restartCount": 0,
        "state": state,
    }
    return {"phase": phase, "startTime": started, "containerStatuses": [container]}


@dataclass
class Followed:
    """A run that somebody follows, and what he came to see."""

    plan: Plan
    how: str
    states: list[State] = field(default_factory=list)
    outcome: Outcome | None = None
    over: float = 0.0

    @property
    def expected(self) -> State:
        return {"badly": State.FAILED, "stopped": State.STOPPED}.get(self.how, State.SUCCEEDED)

    def saw(self, seen: Observation) -> None:
        state = state_of(seen)
        if not self.states or self.states[-1] is not state:
            self.states.append(state)

    def ended(self, outcome: Outcome) -> None:
        self.outcome, self.over = outcome, time.monotonic()

    def check(self) -> None:
        """Its end was seen, and nothing that was not."""
        assert self.outcome is not None, f"its end was missed: {self.plan.run}, {self.states}"
        assert self.outcome.state is self.expected, (self.outcome.message, self.states)
        unseen = {State.LOST, State.RESTARTING, State.UNKNOWN, State.TIMED_OUT, State.STOPPED, State.FAILED}
        assert not set(self.states[:-1]) & (unseen | {State.SUCCEEDED}), self.states


def follow_blocking(backend: KubernetesBackend, one: Followed) -> None:
    one.ended(run(one.plan.job, key=one.plan.key, backend=backend, on_seen=one.saw))


GIVEN: dict[str, Any] = {"site": SITE, "environ": {}}


async def follow_async(api: Api, facts: ClusterFacts, one: Followed) -> None:
    """What a trigger does with what a worker has launched."""
    backend = AsyncKubernetesBackend(api, facts=facts, **GIVEN)
    await asyncio.to_thread(KubernetesBackend(backend.api, facts=facts, **GIVEN).launch, one.plan, ME)
    async with backend.changes(one.plan.run) as changes:

        async def answer(ask: Any) -> Any:
            if isinstance(ask, Wait):
                await changes.wait(ask.seconds)
            elif isinstance(ask, Observe):
                try:
                    seen = await backend.observe(one.plan.run, ask.evidence)
                except BackendUnreachable as error:
                    return error
                one.saw(seen)
                return seen
            return None

        one.ended(await run_async(follow(replace(backend.pace, attempts=1)), answer))


class Followers:
    """Each follows his run to its end, in a thread or in a loop."""

    def __init__(self, place: Place, kubeconfig: Path) -> None:
        self.place, self.kubeconfig = place, kubeconfig
        self.pool = ThreadPoolExecutor(32)
        self.futures: list[Any] = []

    def begin(self, blocking: list[Followed], in_loop: list[Followed]) -> None:
        for one in blocking:
            backend = self.place.backend_over(self.kubeconfig)
            self.futures.append(self.pool.submit(follow_blocking, backend, one))
        if in_loop:
            self.futures.append(self.pool.submit(asyncio.run, self._loop(in_loop)))

    async def _loop(self, runs: list[Followed]) -> None:
        access = Access(str(self.kubeconfig), namespace=self.place.namespace, environ={})
        with access.api() as api:
            async with asyncio.TaskGroup() as group:
                for one in runs:
                    group.create_task(follow_async(api, self.place.facts, one))

    def join(self, seconds: float) -> None:
        """Raises what one of them met, and TimeoutError."""
        deadline = time.monotonic() + seconds
        for future in self.futures:
            future.result(max(0.0, deadline - time.monotonic()))
        self.pool.shutdown()


class Untruths:
    """Rules for what a server says truthfully at times: each by chance, and never twice in a row to the same
    request.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()

    def sometimes(self, what: str, rate: float, verbs: tuple[str, ...]) -> Callable[[Asked], bool]:
        def fits(asked: Asked) -> bool:
            with self._lock:
                if asked.verb not in verbs or self._chance.random() >= rate:
                    return False
                now, what_of = time.monotonic(), f"{what} {asked.verb} {asked.path}"
                if now - self._last.get(what_of, 0.0) < 3.0:
                    return False
                self._last[what_of] = now
                return True

        return fits


ANY = ("get", "list", "watch", "create", "update", "patch", "delete")


def a_bad_day(proxy: FaultProxy, seed: int) -> None:
    """A fifth of all requests meet something."""
    faults = [(weight, fault) for weight, fault in ANYTHING if fault != Say(401)]
    proxy.plan = FaultPlan(seed, 0.2, faults)
    untruths = Untruths(seed)
    proxy.on(Say(401), when=untruths.sometimes("401", 0.05, ANY))
    # That an object was changed meanwhile is told truthfully often enough.
    proxy.on(Say(409), when=untruths.sometimes("409", 0.3, ("update", "patch")))
    proxy.on(Say(409, done=True), when=untruths.sometimes("409", 0.3, ("update", "patch")))
    proxy.on(Say(410), when=untruths.sometimes("410", 0.2, ("watch",)))
    if seed % 4 == 3:
        # Watches that fall silent: whoever waits finds out by himself, some half a minute later.
        proxy.on(Hold(), when=untruths.sometimes("silence", 0.3, ("watch",)))


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(1, 8))])
def test_a_bad_day(place: Place, proxy: FaultProxy, tally: Tally, seed: int) -> None:
    chance = random.Random(seed)
    hows = ["well", "badly", "stopped", "suspended"]
    runs = [
        Followed(place.plan(f"{seed} {n}", policy={"restart": "never", "attempts": 1}), hows[n % 4])
        for n in range(12)
    ]
    a_bad_day(proxy, seed)
    began = time.monotonic()
    with Members(place) as members:
        for one in runs:
            if one.how in ("well", "badly"):
                members.scripts[one.plan.run] = (one.how, chance.uniform(2.0, 5.0))
        followers = Followers(place, proxy.kubeconfig)
        followers.begin(runs[:6], runs[6:])
        other = place.backend_over(proxy.kubeconfig)
        for one in runs:
            if one.how in ("stopped", "suspended"):
                wait = chance.uniform(1.0, 4.0)
                followers.futures.append(followers.pool.submit(interfere, members, other, one, wait))
        followers.join(180)
    proxy.forget()
    for one in runs:
        one.check()
        stored = place.stored(one.plan.run)
        assert stored is not None and stored.record.outcome is not None
        assert (stored.record.attempt, stored.record.generation) == (1, 1)
        assert stored.record.outcome.state == one.expected.value
        jobs = place.of_run(JOB, one.plan.run)
        assert [job["metadata"]["uid"] for job in jobs] in ([], [stored.record.object_uid])
        place.nothing_astray(one.plan.run)
    late = max(one.over - members.ended[one.plan.run] for one in runs if one.plan.run in members.ended)
    assert late < 60
    faults = proxy.counts.faults.total()
    tally.done.update({"faults": faults, "requests on bad days": proxy.counts.total})
    tally.lines.append(
        f"bad day {seed}: {len(runs)} runs followed through {proxy.counts.total} requests, {faults} faults "
        f"({', '.join(f'{n} {what}' for what, n in proxy.counts.faults.most_common())}), "
        f"{time.monotonic() - began:.0f} s; an end was seen after {late:.1f} s at the latest"
    )


def interfere(members: Members, backend: KubernetesBackend, one: Followed, after: float) -> None:
    """Somebody stops the run, or suspends and resumes it, on the same bad day."""
    place, run = members.place, one.plan.run
    try:
        until("its job", lambda: place.living(run), timeout=90)
        time.sleep(after)
        if one.how == "stopped":
            stored = place.stored(run)
            assert stored is not None
            handle = Handle(run, 1, 1, stored.record.uid)
            assert isinstance(backend.stop(handle, stored.record.owner, "somebody", "because"), Stopped)
        else:
            backend.suspend(run)
            time.sleep(after)
            backend.resume(run)
            members.scripts[run] = ("well", 1.0)
    finally:
        place.leave()


# --- servers that go away -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_operator_and_api_server_restart_and_etcd_forgets(
    new_plane_in: Callable[..., Any], tmp_path: Path, tally: Tally
) -> None:
    """Several who wait, blocking and in a loop, with no more rights than a submitter has, while everything
    below them is killed and comes back: each sees the end of his run, whenever that was.
    """
    began = time.monotonic()
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    with ExitStack() as stack:
        plane = stack.enter_context(new_plane_in(tmp_path / "plane", "training-operator", "coscheduling"))
        place = Place(plane, plane.make_namespace("faults"), jobs)
        proxy = stack.enter_context(
            FaultProxy(place.cluster.kubeconfig_for_role(place.namespace, "submitter"), tls=False)
        )
        members = stack.enter_context(Members(place))
        policy = {"restart": "never", "attempts": 1}
        runs = [Followed(place.plan(f"{n}", policy=policy), ["well", "badly"][n % 2]) for n in range(16)]
        followers = Followers(place, proxy.kubeconfig)
        followers.begin(runs[:8], runs[8:])
        with told(lambda: str([one.states for one in runs])):
            until("all to run", lambda: all(one.states[-1:] == [State.RUNNING] for one in runs), timeout=120)

        def end(*some: Followed) -> None:
            for one in some:
                members.scripts[one.plan.run] = (one.how, 0.0)

        def seen(*some: Followed) -> None:
            with told(lambda: str([(one.plan.run, one.states) for one in some])):
                until("their ends", lambda: all(one.outcome for one in some), timeout=120)

        # Of each: both ends, blocking and in the loop.
        first, second, third, fourth = (
            [one for n, one in enumerate(runs) if n // 2 % 4 == part] for part in range(4)
        )
        # The operator is away while members end: it tells when it is back.
        plane.halt("training-operator", signal.SIGKILL)
        end(*first)
        until("members to end", lambda: all(one.plan.run in members.ended for one in first))
        plane.launch("training-operator")
        seen(*first)
        # The API server is killed, and members end the moment that it is back.
        plane.halt("kube-apiserver", signal.SIGKILL)
        end(*second)
        time.sleep(1)
        plane.launch("kube-apiserver")
        seen(*second)
        # The watches are down, and what happened meanwhile is forgotten before they are back.
        with proxy.during(Drop(), verb="watch"):
            proxy.cut_all()
            end(*third)
            until("jobs to end", lambda: all(ended(place.of_run(JOB, one.plan.run)[0]) for one in third))
            plane.compact_etcd()
            plane.restart("kube-apiserver")
        seen(*third)
        # All of it at once.
        plane.halt("training-operator", signal.SIGKILL)
        plane.restart("kube-apiserver", number=signal.SIGKILL)
        end(*fourth)
        plane.restart("etcd", number=signal.SIGKILL)
        plane.launch("training-operator")
        seen(*fourth)
        followers.join(60)
        for one in runs:
            one.check()
    tally.done["servers killed or restarted"] += 6
    seconds = time.monotonic() - began
    tally.lines.append(f"servers that go away: {len(runs)} runs followed, 6 restarts, {seconds:.0f} s")


@pytest.mark.thorough
def test_who_is_away_for_too_long_is_unreachable_and_the_run_goes_on(
    place: Place, tally: Tally, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Patience is measured in seconds here; in earnest it is minutes."""
    short = Patience(budget=1.0)
    one = Followed(place.plan("away"), "well")
    with FaultProxy(place.cluster.kubeconfig, tls=False) as proxy, Members(place) as members:
        backend = place.backend_over(proxy.kubeconfig, patience=short)
        backend.launch(one.plan, Owner("somebody", "detached", "detached"))
        until("it to run", lambda: state_of(place.backend.observe(one.plan.run)) is State.RUNNING, timeout=60)
        before = place.whole(one.plan.run, 1)["metadata"]

        def attached(policy: FollowPolicy) -> Outcome:
            follower = Follower(backend, one.plan.run, on_seen=one.saw)
            return follower.follow_to_end(policy)

        # Too long: whoever follows gives up, and says so; the run is not touched.
        with proxy.during(Drop()):
            proxy.cut_all()
            with pytest.raises(BackendUnreachable, match=r"cut the connection \(.*\) \(\d+ tries in"):
                backend.observe(one.plan.run)
        with ThreadPoolExecutor(1) as pool:
            given_up = pool.submit(attached, FollowPolicy(poll=0.2, unreachable=3))
            until("it to be followed", lambda: one.states[-1:] == [State.RUNNING])
            with proxy.during(Drop()):
                proxy.cut_all()
                with pytest.raises(BackendUnreachable):
                    given_up.result(60)
        monkeypatch.setattr("allaboard.backends.kubernetes.client.api.Patience", lambda: short)
        monkeypatch.setattr(KubernetesBackend, "pace", FollowPolicy(poll=0.2, unreachable=2))
        options = ["--kubeconfig", str(proxy.kubeconfig), "-n", place.namespace]
        with proxy.during(Drop()):
            for verb in ("status", "follow", "stop"):
                assert main([verb, one.plan.run, "--backend", "kubernetes", *options, "--json"]) == 5, verb
                said = json.loads(capsys.readouterr().out.splitlines()[-1])
                assert said["error"]["code"] == "backend_unreachable"
        after = place.whole(one.plan.run, 1)["metadata"]
        assert (after["uid"], after["generation"]) == (before["uid"], before["generation"])
        # Longer than the patience of one look, and shorter than that of who follows: he goes on.
        one.states.clear()
        with ThreadPoolExecutor(1) as pool:
            patient = pool.submit(attached, FollowPolicy(poll=0.2, unreachable=60))
            until("it to be followed", lambda: one.states[-1:] == [State.RUNNING])
            with proxy.during(Drop()) as rule:
                proxy.cut_all()
                members.scripts[one.plan.run] = ("well", 0.0)
                until("its end", lambda: ended(place.of_run(JOB, one.plan.run)[0]), timeout=60)
                time.sleep(2 * short.budget)
                assert not patient.done()
            one.ended(patient.result(60))
        one.check()
        tally.done["faults"] += rule.met
    stored = place.stored(one.plan.run)
    assert stored is not None and stored.record.attempt == 1
