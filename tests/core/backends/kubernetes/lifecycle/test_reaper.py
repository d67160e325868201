"""The reaper: it ends what nobody comes back for, within its bound, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, LEASES, PODS
from allaboard.backends.kubernetes.lifecycle import reaper, waiting
from allaboard.backends.kubernetes.lifecycle.waiting import GAP, Waiting, count
from allaboard.backends.kubernetes.state import records
from allaboard.errors import AllaboardError, BackendUnreachable, SiteError
from allaboard.render import labels
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from allaboard.testing.cluster import Died, FakeApi, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.test_backend import (
    ME,
    a_plan,
    a_plan_with_code,
    record,
    running,
    state,
)

TASK = Owner("a task", kind="orchestrated")
NEXT = Owner("its next try", kind="orchestrated")
DETACHED = Owner("me", phase="detached", kind="detached")
LEASE = 60.0
"""Seconds for which a Lease holds."""
LOOK = reaper.EVERY
BUSY = ("another reaper looked in the same moment",)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def a_policy(after: str = "2m", then: str = "stop", key: str = "k", **policy: Any) -> Plan:
    return a_plan(key, policy={"orphan": {"after": after, "then": then}, **policy})


def dies(backend: KubernetesBackend) -> None:
    backend.keeper.died()  # type: ignore[attr-defined]


def look(cluster: FakeCluster, holder: str = "a reaper") -> reaper.Look:
    return reaper.look(cast(Any, cluster.client()), holder)


def looks(cluster: FakeCluster, seconds: float) -> list[str]:
    """Looks until this time has passed, or something is done; the runs that were tidied up."""
    end = cluster.now + seconds
    while cluster.now < end:
        pass_time(cluster)
        if done := [t.orphan.run for t in look(cluster).tidied if t.done]:
            return done
    return []


def pass_time(cluster: FakeCluster, seconds: float = LOOK) -> None:
    """Clients that live renew their Leases at the end of it."""
    cluster.now += seconds - 1
    cluster.tick(1)


def away(cluster: FakeCluster, seconds: float) -> None:
    """The API server is away: time passes, and nobody renews anything."""
    cluster.now += seconds


def orphaned(cluster: FakeCluster, plan: Plan, owner: Owner = TASK) -> tuple[KubernetesBackend, str]:
    """A run that trains, and whose client has just been killed."""
    client = cluster.backend()
    run = client.launch(plan, owner).run
    running(cluster, client, run)
    dies(client)
    return client, run


# What it ends, and when.


@pytest.mark.parametrize(
    ("owner", "policy", "after"),
    [(TASK, {}, 3600.0), (ME, {}, 600.0), (TASK, {"after": "90s"}, 90.0), (ME, {"after": "30m"}, 1800.0)],
    ids=["task", "command line", "task says", "command line says"],
)
def test_a_run_is_ended_once_its_client_was_away_for_long_enough(
    cluster: FakeCluster, owner: Owner, policy: dict[str, Any], after: float
) -> None:
    _, run = orphaned(cluster, a_plan(policy={"orphan": policy} if policy else {}), owner)
    died = cluster.now
    assert looks(cluster, after) == []
    assert looks(cluster, LEASE + 3 * LOOK) == [run]
    assert after <= cluster.now - died <= LEASE + after + 2 * LOOK
    cluster.tick(60)
    seen = cluster.backend().observe(run)
    assert state_of(seen) is State.STOPPED and seen.stop is not None and seen.stop.by == "the reaper"
    assert "no longer follows it" in seen.stop.reason
    assert cluster.all(PODS) == []


@pytest.mark.parametrize("owner", [TASK, DETACHED], ids=["followed", "detached"])
def test_a_run_that_lacks_nothing_is_left_alone(cluster: FakeCluster, owner: Owner) -> None:
    client = cluster.backend()
    run = client.launch(a_policy("1m"), owner).run
    assert looks(cluster, 10_000) == []
    assert state(client, run) is State.RUNNING


def test_an_outage_of_the_api_server_gives_each_client_its_whole_patience_again(cluster: FakeCluster) -> None:
    """A client that lives cannot renew meanwhile; one that died could not have been replaced."""
    living = cluster.backend()
    lives = living.launch(a_policy("10m", key="lives"), TASK).run
    _, run = orphaned(cluster, a_policy("10m"))
    assert looks(cluster, LEASE + 500) == []
    away(cluster, 7200)
    back = cluster.now
    told = look(cluster)
    assert told.tidied == () and "2h 00m ago: each client gets its whole patience again" in told.notes[0]
    assert looks(cluster, 575) == []
    assert looks(cluster, 2 * LOOK) == [run]
    assert cluster.now - back <= 600 + 2 * LOOK
    assert state(living, lives) is State.RUNNING


def test_a_reaper_that_did_not_run_counts_nothing(cluster: FakeCluster) -> None:
    _, run = orphaned(cluster, a_policy("10m"))
    cluster.tick(5000)
    assert look(cluster).tidied == ()
    assert looks(cluster, 575) == []
    cluster.tick(GAP + 5)
    assert looks(cluster, 575) == [], "it was away again"
    assert looks(cluster, 2 * LOOK) == [run]


def test_a_reaper_that_starts_anew_goes_on_counting(cluster: FakeCluster) -> None:
    _, run = orphaned(cluster, a_policy("10m"))
    died = cluster.now
    for n in range(1000):
        pass_time(cluster)
        if look(cluster, f"pod {n}").tidied:
            break
    assert state(cluster.backend(), run) in (State.STOPPING, State.STOPPED)
    assert cluster.now - died <= LEASE + 600 + 2 * LOOK


def test_two_reapers_count_time_once(cluster: FakeCluster) -> None:
    _, run = orphaned(cluster, a_policy("10m"))
    died = cluster.now
    while not any(look(cluster, name).tidied for name in ("one", "two")):
        pass_time(cluster)
    assert 600 <= cluster.now - died <= LEASE + 600 + 2 * LOOK
    assert [e["reason"] for e in events(cluster)] == ["Stopped"], run


def events(cluster: FakeCluster) -> list[Any]:
    return [o for (_, plural, _, _), o in cluster.objects.items() if plural == "events"]


def test_two_api_servers_whose_clocks_differ_make_time_pass_no_faster(cluster: FakeCluster) -> None:
    _, run = orphaned(cluster, a_policy("10m"))
    died, behind = cluster.now, 0.0
    while cluster.now - died < 3000:
        pass_time(cluster)
        behind = 25.0 - behind
        api: Any = cluster.client()
        api.server_time = lambda behind=behind: cluster.now - behind
        if reaper.look(api, "a reaper").tidied:
            break
    assert 600 <= cluster.now - died <= LEASE + 600 + 3 * LOOK + 25, run


def test_a_lease_that_an_older_release_removes_changes_nothing(cluster: FakeCluster) -> None:
    _, run = orphaned(cluster, a_policy("2h"))
    died = cluster.now
    assert looks(cluster, 3700) == []
    [gone] = [le for le in cluster.all(LEASES) if le["metadata"]["name"] != waiting.LEASE]
    cluster.delete(LEASES, gone["metadata"]["name"], "default")
    assert looks(cluster, 7200) == [run]
    assert 7200 <= cluster.now - died <= LEASE + 7200 + 2 * LOOK


def test_a_run_that_may_finish_is_let_and_its_end_is_written_down(cluster: FakeCluster) -> None:
    _, run = orphaned(cluster, a_plan(policy={"orphan": {"then": "finish"}}))
    assert looks(cluster, 10_000) == []
    [orphan] = [o for o in cluster.backend().orphans() if o.run == run]
    assert orphan.left is None and orphan.to_dict()["tidied_up_in"] is None
    [tidied] = cluster.backend().tidy_up()
    assert not tidied.done and "it goes on to its end" in tidied.action
    assert record(cluster, run).outcome is None
    cluster.end_members(run)
    assert looks(cluster, 120) == [run]
    assert record(cluster, run).outcome.state == "succeeded"


@pytest.mark.parametrize("owner", [TASK, ME], ids=["task", "command line"])
def test_a_client_killed_at_any_request_of_its_start_leaves_nothing_beyond_the_bound(
    owner: Owner, tmp_path: Path
) -> None:
    """Members that wait for what nobody made hold their GPUs, too."""
    plan = a_plan_with_code(tmp_path, policy={"orphan": {"after": "2m", "then": "stop"}})
    for n in range(1, 9):
        cluster = FakeCluster()
        client = cluster.backend({n: "die-after"})
        with suppress(Died):
            client.launch(plan, owner)
        dies(client)
        looks(cluster, LEASE + 120 + 2 * LOOK)
        cluster.tick(60)
        assert (cluster.all(PODS), cluster.all(PYTORCHJOBS)) == ([], []), n


def test_a_start_that_takes_long_is_left_to_its_client(tmp_path: Path) -> None:
    cluster = FakeCluster()
    plan = a_plan_with_code(tmp_path, policy={"orphan": {"after": "1m"}})
    with suppress(Died):
        cluster.backend({4: "die-after"}).launch(plan, TASK)
    assert looks(cluster, 500) == [], "its Lease is renewed"
    assert looks(cluster, 200) == [plan.run]


def test_a_stop_that_nobody_carried_out_is_carried_out(cluster: FakeCluster) -> None:
    client = cluster.backend()
    handle = client.launch(a_plan(), ME)
    running(cluster, client, handle.run)
    with pytest.raises(Died):
        cluster.backend({5: "die"}).stop(handle, ME, "ann", "a reason")
    assert looks(cluster, 200) == [handle.run]
    cluster.tick(60)
    seen = client.observe(handle.run)
    assert state_of(seen) is State.STOPPED and seen.stop is not None and seen.stop.by == "ann"


def test_what_a_person_changed_by_hand_in_a_record_is_no_patience(cluster: FakeCluster) -> None:
    _, run = orphaned(cluster, a_policy("1m"))
    cluster.tick(LEASE + 1)
    for after in ("soon", None, [], "99d", True, {"x": 1}, "nan"):
        body: Any = cluster.one(CONFIGMAPS, labels.record_name(run))
        written = json.loads(body["data"]["record"])
        written["spec"]["policy"]["orphan"]["after"] = after
        body["data"]["record"] = json.dumps(written)
        cluster.replace(CONFIGMAPS, body, "default")
        [orphan] = cluster.backend().orphans()
        assert orphan.patience == (86_400 if after == "99d" else 3600)


def test_what_is_written_into_its_lease_by_others_is_no_count(cluster: FakeCluster) -> None:
    _, run = orphaned(cluster, a_policy("1h"))
    looks(cluster, 200)
    for text in ("", "{", "[]", '{"x": 3}', f'{{"{run}": ["a", null, 9e9]}}', f'{{"{run}": [1, 2, 3, 4]}}'):
        change = {"metadata": {"annotations": {waiting.COUNTED: text}}}
        cluster.patch(LEASES, waiting.LEASE, change, "default")
        pass_time(cluster)
        assert look(cluster).tidied == ()


def test_while_all_clients_live_a_look_is_three_requests(cluster: FakeCluster) -> None:
    client = cluster.backend()
    for n in range(5):
        client.launch(a_plan(f"k{n}"), TASK)
    cluster.tick(5)
    client.list()
    look(cluster)
    api: Any = cluster.client()
    reaper.look(api, "a reaper")
    assert api.sent == 3


def test_a_list_tells_what_the_reaper_has_counted(cluster: FakeCluster) -> None:
    orphaned(cluster, a_policy("10m"))
    looks(cluster, LEASE + 300)
    away(cluster, 7200)
    [orphan] = cluster.backend().orphans()
    assert orphan.left is not None and orphan.left <= 0, "no reaper is at work: it goes by the clock"
    look(cluster)
    [orphan] = cluster.backend().orphans()
    assert orphan.left == 600
    assert [t.done for t in cluster.backend().tidy_up()] == [False], "a person who tidies up waits, too"


def test_looks_stay_near_each_other_however_many_clients_are_gone(cluster: FakeCluster) -> None:
    client = cluster.backend()
    for n in range(reaper.AT_ONCE + 10):
        client.launch(a_policy("1m", key=f"k{n}"), TASK)
    cluster.tick(3)
    client.list()
    dies(client)
    cluster.now += LEASE
    counts = []
    for _ in range(8):
        pass_time(cluster)
        api: Any = cluster.client()
        counts.append((len(reaper.look(api, "a reaper").tidied), api.sent))
    assert [sent for done, sent in counts if not done][:3] == [3, 3, 3], "waiting takes no look at a run"
    assert [done for done, _ in counts if done][:1] == [reaper.AT_ONCE]
    assert all(record(cluster, r).stop is not None for r in (o.run for o in client.list()))


def test_where_leases_may_not_be_listed_it_says_so(cluster: FakeCluster) -> None:
    api: Any = cluster.client()
    real = api.list

    def may_not(resource: Any, *args: Any, **options: Any) -> Any:
        if resource == LEASES:
            raise Forbidden("no", status=403)
        return real(resource, *args, **options)

    api.list = may_not
    with pytest.raises(SiteError, match="may not list Leases in namespace default; see: allaboard cluster"):
        reaper.look(api, "a reaper")
    assert reaper.is_at_work(api) is None


def test_a_kind_that_it_may_not_read_hides_no_other_run(cluster: FakeCluster) -> None:
    orphaned(cluster, a_policy("1m", key="a"))
    _, second = orphaned(cluster, a_policy("1m", key="b"))
    api: Any = cluster.client()
    real = api.get

    def may_not(resource: Any, name: str, *args: Any, **options: Any) -> Any:
        if resource == PYTORCHJOBS and name != second:
            raise Forbidden("no", status=403)
        return real(resource, name, *args, **options)

    api.get = may_not
    done: list[str] = []
    for _ in range(20):
        pass_time(cluster)
        told = reaper.look(api, "a reaper")
        done += [t.orphan.run for t in told.tidied if t.done]
        if done:
            break
    assert done == [second] and "cannot be looked at" in " ".join(told.notes)


# Races.


class Turned(FakeApi):
    """A client before each of whose requests something else happens."""

    def __init__(self, cluster: FakeCluster, turn: Callable[[str, str], None]) -> None:
        super().__init__(cluster, {}, "default")
        self.turn = turn

    def _ask(self, verb: str, resource: Any, name: str, *rest: Any) -> Any:
        self.turn(verb, resource.plural)
        return super()._ask(verb, resource, name, *rest)


def due(cluster: FakeCluster, plan: Plan) -> str:
    """A run that the next look ends."""
    _, run = orphaned(cluster, plan)
    while looked(cluster)[run].counted < 100:
        pass_time(cluster)
        look(cluster)
    pass_time(cluster)
    return run


def looked(cluster: FakeCluster) -> Any:
    class Known(dict[str, Waiting]):
        def __missing__(self, run: str) -> Waiting:
            return Waiting("", 0.0)

    return Known(waiting.read(cluster.one(LEASES, waiting.LEASE)))


@pytest.mark.parametrize("way", ["adopts", "comes back"])
def test_whoever_takes_a_run_up_between_any_two_requests_keeps_it(way: str) -> None:
    """Before the write that stops it; "comes back" is a client that stood still, and renews its Lease."""
    stopped = kept = 0
    for n in range(1, 20):
        cluster = FakeCluster()
        run = due(cluster, a_policy("2m"))
        if is_taken_up(cluster, run, n, way):
            assert record(cluster, run).stop is None, f"taken up before request {n}"
            kept += 1
        elif record(cluster, run).stop is not None:
            stopped += 1
    assert kept >= 7 and stopped >= 5


def is_taken_up(cluster: FakeCluster, run: str, n: int, way: str) -> bool:
    """Look, while somebody takes up the run before request ``n``, if it is not stopped by then."""
    asked: list[str] = []
    taken = False

    def turn(verb: str, kind: str) -> None:
        nonlocal taken
        asked.append(verb)
        if len(asked) == n and record(cluster, run).stop is None and (way, verb) != ("comes back", "replace"):
            taken = True
            if way == "adopts":
                cluster.backend().launch(a_policy("2m"), NEXT)
            else:
                [lease] = [le for le in cluster.all(LEASES) if le["metadata"]["name"] != waiting.LEASE]
                held = {"spec": {"renewTime": stamp(cluster.now)}}
                cluster.patch(LEASES, lease["metadata"]["name"], held, "default")

    reaper.look(cast(Any, Turned(cluster, turn)), "a reaper")
    return taken


def stamp(now: float) -> str:
    from allaboard.text.units import rfc3339

    text = rfc3339(now)
    assert text is not None
    return text.removesuffix("Z") + "000Z"


@pytest.mark.parametrize("fault", ["die", "die-after", "lost", "unreachable", "unreachable-after"])
def test_killed_at_any_request_it_leaves_nothing_that_the_next_look_does_not_finish(fault: str) -> None:
    for n in range(1, 16):
        cluster = FakeCluster()
        run = due(cluster, a_policy("2m"))
        with suppress(Died, BackendUnreachable):
            reaper.look(cast(Any, cluster.client({n: fault})), "a reaper")
        looks(cluster, 120)
        looks(cluster, 120)
        cluster.tick(60)
        assert state(cluster.backend(), run) is State.STOPPED, (fault, n)
        assert (cluster.all(PODS), cluster.all(PYTORCHJOBS)) == ([], [])


@dataclass
class Training:
    """A run of a random schedule. ``client``: who follows it; ``away``: since when nobody does, None:
    somebody does; ``clean``: since when time counts.
    """

    plan: Plan
    run: str
    after: float
    client: KubernetesBackend
    away: float | None = None
    clean: float = 0.0
    adopted: int = 0


class World:
    """Some runs, their clients and two reapers, with whatever happens to them by a seed."""

    def __init__(self, seed: int) -> None:
        self.random, self.cluster, self.seed = random.Random(seed), FakeCluster(), seed
        self.trainings: list[Training] = []
        for n in range(3):
            after = self.random.choice([60, 90, 150, 300])
            plan, client = a_policy(f"{after}s", key=f"k{n}"), self.cluster.backend()
            run = client.launch(plan, TASK).run
            self.trainings.append(Training(plan, run, float(after), client))
        self.cluster.tick(3)
        self.looked = self.cluster.now
        self.inside = self.decided = False
        self.lost = 0
        """Looks in a row that were killed, or left to another reaper, which may have been."""
        self.adopted = self.killed = self.stopped = 0

    def record(self, training: Training) -> Any:
        return record(self.cluster, training.run)

    def judge(self) -> None:
        """Nothing that is followed has been stopped; what nobody follows has been, within the bound."""
        now = self.cluster.now
        lease = self.cluster.one(LEASES, waiting.LEASE)
        if lease is not None:
            seen = waiting.leases.seen_at(lease)
            if seen > self.looked:
                if seen - self.looked > GAP - 1:
                    self.begin_anew(seen)
                self.looked = seen
        for training in self.trainings:
            is_stopped = self.record(training).stop is not None
            if training.away is None:
                assert not is_stopped, f"seed {self.seed}: a run that is followed was stopped"
            elif not is_stopped and now - self.looked <= GAP:
                late = now - training.clean
                assert late <= training.after + (3 + self.lost) * LOOK, (
                    f"seed {self.seed}: {late} s beyond its client"
                )

    def begin_anew(self, now: float) -> None:
        for training in self.trainings:
            training.clean = max(training.clean, now)

    def client_dies(self, training: Training) -> None:
        if training.away is None:
            dies(training.client)
            training.away = self.cluster.now
            training.clean = self.cluster.now + LEASE

    def adopt(self, training: Training) -> None:
        if training.away is not None and self.record(training).stop is None:
            training.client = self.cluster.backend()
            training.client.launch(training.plan, Owner(f"try {self.random.random()}", kind="orchestrated"))
            training.away = None
            self.adopted += 1

    def come_back(self, training: Training) -> None:
        """The client stood still: nobody but its Lease says that it lives."""
        if training.away is not None and self.record(training).stop is None:
            keeper: Any = training.client.keeper
            self.cluster.keepers.append(keeper)
            keeper.renew()
            training.away = None
            self.adopted += 1

    def turn(self, verb: str, kind: str) -> None:
        """What happens before a request of a reaper."""
        training, chance = self.random.choice(self.trainings), self.random.random()
        # A Lease that is renewed when a reaper has looked at it for the last time comes too late.
        decides = (verb, kind) == ("replace", "configmaps")
        if chance < 0.02:
            self.killed += 1
            raise Died
        if chance < 0.05:
            self.adopt(training)
        elif chance < 0.07 and not decides and not self.decided:
            self.come_back(training)
        elif chance < 0.10 and not self.inside:
            self.inside, self.decided = True, decides
            with suppress(Died, AllaboardError):
                reaper.look(cast(Any, Turned(self.cluster, self.turn)), "another")
            self.inside = self.decided = False

    def step(self) -> None:
        training, chance = self.random.choice(self.trainings), self.random.random()
        if chance < 0.10:
            self.client_dies(training)
        elif chance < 0.13:
            self.adopt(training)
        elif chance < 0.15:
            away(self.cluster, self.random.choice([10, 45, 100, 5000]))
            self.begin_anew(self.cluster.now)
        elif chance < 0.17:
            self.cluster.tick(self.random.choice([30, 90, 400]))  # no reaper runs
        pass_time(self.cluster)
        self.lost += 1
        with suppress(Died, AllaboardError):
            if reaper.look(cast(Any, Turned(self.cluster, self.turn)), "one").notes != BUSY:
                self.lost = 0
        self.inside = self.decided = False
        self.judge()

    def settle(self) -> None:
        """Nothing goes wrong any more."""
        for _ in range(30):
            pass_time(self.cluster)
            look(self.cluster)
            self.judge()
        for training in self.trainings:
            if training.away is not None:
                assert state(self.cluster.backend(), training.run) is State.STOPPED
                self.stopped += 1
            else:
                assert state(self.cluster.backend(), training.run) is State.RUNNING


def worlds(seeds: Iterator[int] | range) -> tuple[int, int, int]:
    adopted = killed = stopped = 0
    for seed in seeds:
        world = World(seed)
        for _ in range(40):
            world.step()
        world.settle()
        adopted, killed = adopted + world.adopted, killed + world.killed
        stopped += world.stopped
    return adopted, killed, stopped


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in range(50, 400, 50))]
)
def test_whatever_happens_no_followed_run_is_stopped_and_none_burns_on(first: int) -> None:
    """Clients and reapers are killed between any two requests, come back, take runs up; the API server goes
    away; two reapers look at once.
    """
    adopted, killed, stopped = worlds(range(first, first + 50))
    assert min(adopted, killed, stopped) > 25


def test_the_count_itself() -> None:
    one = Waiting("m", 100.0, 50.0)
    assert count({}, [("a", "m", 100.0)], 20.0) == {"a": Waiting("m", 100.0)}, "it has just become an orphan"
    assert count({"a": one}, [("a", "m", 100.0)], 20.0)["a"].counted == 70
    assert count({"a": one}, [("a", "m", 40.0)], 20.0)["a"] == Waiting("m", 100.0, 70.0), "its Lease is gone"
    assert count({"a": one}, [("a", "m", 100.0)], GAP + 1)["a"].counted == 0
    assert count({"a": one}, [("a", "m", 100.0)], None)["a"].counted == 0
    assert count({"a": one}, [("a", "m", 100.0)], -15.0)["a"].counted == 35
    assert count({"a": one}, [("a", "other", 100.0)], 20.0)["a"].counted == 0, "another took it up, and died"
    assert count({"a": one}, [("a", "m", 101.0)], 20.0)["a"].counted == 0, "its client was there again"
    assert count({"a": one}, [], 20.0) == {}
    many = [(f"r{n}", "m", 1.0) for n in range(waiting.MOST + 10)]
    kept = count({"r2005": Waiting("m", 1.0, 9.0)}, many, 20.0)
    assert len(kept) == waiting.MOST and kept["r2005"].counted == 29


def test_what_is_counted_fits_into_a_lease() -> None:
    names = {f"{'n' * 40}-{n:08x}": Waiting("0123abcd", 1_790_000_000.123, 86_399.999) for n in range(3000)}
    known = count(names, [(run, w.mark, w.since) for run, w in names.items()], 1.0)
    body = waiting.lease_body("h", 1_790_000_000.0, known, None)
    assert len(body["metadata"]["annotations"][waiting.COUNTED]) < 250 << 10
    assert waiting.read(body) == known


# Whether there is one.


def test_a_launch_says_whether_anybody_would_end_the_run(cluster: FakeCluster) -> None:
    def notes(plan: Plan, owner: Owner) -> list[str]:
        return [*cluster.backend(ask_first=True).launch(plan, owner).notes]

    [note] = notes(a_plan("a"), TASK)
    assert note.startswith("no reaper runs in namespace default; without one nobody ends a run whose last")
    assert note.endswith("allaboard cluster --reaper -n default | kubectl apply -f -")
    assert notes(a_plan("b"), ME) == [] == notes(a_plan("c"), DETACHED)
    assert notes(a_plan("d", policy={"orphan": {"then": "finish"}}), TASK) == []
    look(cluster)
    assert notes(a_plan("e"), TASK) == [] == notes(a_plan("a"), NEXT)
    cluster.tick(LEASE + 1)
    assert len(notes(a_plan("f"), TASK)) == 1, "it does not look any more"


def test_where_that_cannot_be_read_the_launch_says_so(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.preflight.at_launch.is_at_work", lambda api: None)
    [note] = cluster.backend(ask_first=True).launch(a_plan(), TASK).notes
    assert note.startswith("it is not known whether a reaper runs in namespace default")


def test_records_are_never_written_while_their_clients_live(cluster: FakeCluster) -> None:
    client = cluster.backend()
    run = client.launch(a_plan(), TASK).run
    before = records.parse(cast(Any, cluster.one(CONFIGMAPS, labels.record_name(run))))
    looks(cluster, 600)
    after = records.parse(cast(Any, cluster.one(CONFIGMAPS, labels.record_name(run))))
    assert before.body["metadata"]["resourceVersion"] == after.body["metadata"]["resourceVersion"]
