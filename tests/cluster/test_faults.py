"""Bad days, on a real API server: clients that are killed at every request, requests that are lost, doubled
and lied about, servers that go away. Exactly one job, none orphaned, no wrong state, no missed end.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from allaboard import marks
from allaboard.backends.base import Handle, Plan, Stopped
from allaboard.backends.kubernetes import records
from allaboard.backends.kubernetes.access import Access
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.records import Stored
from allaboard.backends.kubernetes.wire import Patience
from allaboard.checking import checked
from allaboard.facts import ClusterFacts
from allaboard.job import TrainingJob
from allaboard.observation import Owner, State
from allaboard.status import state_of
from allaboard.testing import a_job
from allaboard.units import rfc3339
from tests.cluster.api import ApiError, Object, until
from tests.cluster.cluster import Cluster
from tests.cluster.proxy import FaultProxy
from tests.cluster.victims import MOMENTS, SITE, End, Victims

ME, YOU = Owner("me"), Owner("you")
DEFERRED = Owner("me", "deferred", "orchestrated")
JOB = ("kubeflow.org/v1", "PyTorchJob")
GROUP = ("scheduling.x-k8s.io/v1alpha1", "PodGroup")
LANES = 4
MOST = 60
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
    facts: ClusterFacts = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / "train.py").write_text("print('up')\n")
        kinds = frozenset({"/".join(GROUP)})
        self.facts = ClusterFacts(kinds=kinds, operator_gang="off", namespace=self.namespace)
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
        """Two members, code and a PodGroup; its pods are no scheduler's: they stay as they are made."""
        given = {"image": "lab/train:1", "code": ["train.py"], "pod": {"spec": {"schedulerName": "nobody"}}}
        job = checked(a_job(**given, **fields))
        return Plan(TrainingJob(folder=str(self.folder), **job.as_mapping()), key)

    # What is there.

    def stored(self, run: str) -> Stored | None:
        body = self.cluster.api.get("v1", "ConfigMap", marks.record_name(run), self.namespace)
        return None if body is None else records.parse(body)

    def of_run(self, kind: tuple[str, str], run: str) -> list[Object]:
        labels = f"{marks.selector(run)},{marks.ATTEMPT}"
        return self.cluster.api.list(*kind, self.namespace, labelSelector=labels)

    def living(self, run: str) -> list[Object]:
        """Jobs that run, or will."""
        return [j for j in self.of_run(JOB, run) if "deletionTimestamp" not in j["metadata"] and not ended(j)]

    def whole(self, run: str, attempt: int, *, generation: int = 1, uid: str | None = None) -> Object:
        """The one job that lives is the one that is meant, and nothing of ours is without an owner."""
        (job,) = self.living(run)
        stored = self.stored(run)
        assert stored is not None
        record = stored.record
        assert (record.attempt, record.generation) == (attempt, generation)
        assert job["metadata"]["uid"] == record.object_uid
        assert uid in (None, record.object_uid), "what ran was lost, and another made in its place"
        assert marks.label_of(job, marks.ATTEMPT) == str(attempt)
        assert record.stop is None and record.outcome is None
        self.nothing_astray(run)
        return job

    def nothing_astray(self, run: str) -> None:
        """No extra object and no pod without a living owner; what is being collected is given its time."""

        def astray() -> list[str]:
            uids = {j["metadata"]["uid"] for j in self.of_run(JOB, run)}
            return [
                f"{kind[1]} {thing['metadata']['name']}"
                for kind in (("v1", "ConfigMap"), GROUP, ("v1", "Pod"))
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
def place(cluster: Cluster, namespace: str, tmp_path: Path) -> Place:
    return Place(cluster, namespace, tmp_path)


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


BOTH = pytest.mark.parametrize("killing", ["blocking", "async"], indirect=True)
"""What is sent is the same talk in both; who sends it is not."""


@BOTH
def test_a_first_launch(place: Place, killing: Killing) -> None:
    def then(plan: Plan, end: End, where: str) -> None:
        before = [job["metadata"]["uid"] for job in place.living(plan.run)]
        owner = random.Random(where).choice([ME, YOU])
        handle = place.backend.launch(plan, owner)
        assert handle.attempt == 1 and handle.adopted == bool(before)
        place.whole(plan.run, 1, uid=before[0] if before else None)
        stored = place.stored(plan.run)
        assert stored is not None and stored.record.owner == owner

    killing.everywhere("launch", lambda plan: (plan, ME), then)


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


@BOTH
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


def test_a_result_that_is_handed_over(place: Place, killing: Killing) -> None:
    def succeeded(plan: Plan) -> tuple[Any, ...]:
        place.backend.launch(plan, ME)
        place.end(plan.run, "Succeeded")
        return plan, YOU

    def then(plan: Plan, end: End, where: str) -> None:
        handle = place.backend.launch(plan, YOU)
        assert handle.hand_over and handle.attempt == 1 and place.living(plan.run) == []

    killing.everywhere("launch", succeeded, then)


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


@BOTH
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
            lane.style = chance.choice(["blocking", "async"])
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
    return total
