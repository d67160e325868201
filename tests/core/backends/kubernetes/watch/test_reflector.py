"""What a feed does next, and whom it wakes. No clock, no server."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.kubernetes.client.errors import Forbidden, Gone, Silent
from allaboard.backends.kubernetes.watch.reflector import (
    AGAIN,
    POLL,
    SILENT,
    Feed,
    List,
    NameFeed,
    ObjectFeed,
    PodAlarm,
    Rest,
    Watch,
    space_wakes,
)
from allaboard.errors import BackendUnreachable


class Someone:
    """A follower that counts."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.woken = 0
        self.alarms: list[PodAlarm] = []

    def alarm(self, alarm: PodAlarm) -> None:
        self.alarms.append(alarm)

    def wake(self) -> None:
        self.woken += 1

    def taken(self) -> int:
        taken, self.woken = self.woken, 0
        return taken


def a_row(name: str, state: str = "Running", **more: Any) -> dict[str, Any]:
    return {"Name": name, "State": state, "Age": "5s", **more}


def an_event(*rows: dict[str, Any], version: str = "101") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": version}, "rows": list(rows)}


def a_feed(*runs: str, rows: Any = ()) -> tuple[Feed, list[Someone]]:
    """One that has listed these rows, with a follower for each run."""
    feed = Feed(lambda: 0.5)
    followers = [Someone(run) for run in runs]
    for follower in followers:
        feed.join(follower)
    assert feed.next_step(0.0) == List()
    feed.add_list(rows, "100")
    return feed, followers


def test_it_lists_then_watches_from_there_and_wakes_nobody_at_first() -> None:
    feed, (one,) = a_feed("digits-1", rows=[a_row("digits-1")])
    assert feed.next_step(0.0) == Watch("100")
    assert one.woken == 0
    assert feed.live


@pytest.mark.parametrize(
    ("name", "wakes"),
    [
        ("digits-1", True),
        ("digits-1-2", True),
        ("digits-1-g2-3", True),
        ("digits-1-worker-12", True),
        ("digits-12", False),
        ("digits", False),
        ("other-1", False),
    ],
)
def test_a_row_is_of_the_run_that_its_name_begins_with(name: str, wakes: bool) -> None:
    feed, (one,) = a_feed("digits-1")
    feed.add_event("ADDED", an_event(a_row(name)))
    assert bool(one.woken) is wakes


def test_only_what_looks_otherwise_wakes() -> None:
    feed, (one, other) = a_feed("a-1", "b-1", rows=[a_row("a-1", "Created"), a_row("b-1", "Created")])
    feed.add_event("MODIFIED", an_event(a_row("a-1", "Created", Age="9m")))
    assert (one.taken(), other.taken()) == (0, 0)
    feed.add_event("MODIFIED", an_event(a_row("a-1", "Running")))
    assert (one.taken(), other.taken()) == (1, 0)
    feed.add_event("MODIFIED", an_event(a_row("a-1", "Running")))
    assert (one.taken(), other.taken()) == (0, 0)
    feed.add_event("DELETED", an_event(a_row("a-1", "Running")))
    assert (one.taken(), other.taken()) == (1, 0)
    feed.add_event("ADDED", an_event(a_row("a-1", "Running")))
    assert (one.taken(), other.taken()) == (1, 0)


def test_the_cells_of_a_pod() -> None:
    def pod(**cells: Any) -> dict[str, Any]:
        return {"Name": "a-1-worker-0", "Ready": "0/1", "Status": "Running", "Restarts": "0", **cells}

    feed, (one,) = a_feed("a-1", rows=[pod()])
    for changed, wakes in [
        ({"Ready": "1/1"}, True),
        ({"Ready": "1/1", "Age": "4m"}, False),
        ({"Ready": "1/1", "Restarts": "1 (3s ago)"}, True),
        ({"Ready": "1/1", "Restarts": "1 (9s ago)"}, False),
        ({"Ready": "0/1", "Status": "Error", "Restarts": "1 (9s ago)"}, True),
    ]:
        feed.add_event("MODIFIED", an_event(pod(**changed)))
        assert bool(one.taken()) is wakes, changed


def test_a_kind_that_prints_nothing_wakes_with_every_event() -> None:
    feed, (one,) = a_feed("a-1", rows=[{"Name": "a-1", "Age": "1s"}])
    for _ in range(3):
        feed.add_event("MODIFIED", an_event({"Name": "a-1", "Age": "1s"}))
    assert one.woken == 3


def test_several_may_follow_one_run_and_leave() -> None:
    feed, (one, two) = a_feed("a-1", "a-1")
    feed.add_event("ADDED", an_event(a_row("a-1")))
    assert (one.taken(), two.taken()) == (1, 1)
    feed.leave(one)
    feed.add_event("MODIFIED", an_event(a_row("a-1", "Failed")))
    assert (one.taken(), two.taken()) == (0, 1)
    assert feed.followed
    feed.leave(two)
    feed.leave(two)
    assert not feed.followed


def test_a_watch_that_ends_in_time_is_resumed_where_it_was() -> None:
    feed, _ = a_feed("a-1")
    feed.next_step(0.0)
    feed.add_event("BOOKMARK", an_event({"Name": "", "State": ""}, version="140"))
    feed.mark_ended(None, 50.0)
    assert feed.next_step(50.0) == Watch("140")


def test_a_watch_that_ends_at_once_is_not_opened_at_once() -> None:
    feed, _ = a_feed("a-1")
    feed.next_step(0.0)
    feed.mark_ended(None, 0.01)
    assert isinstance(feed.next_step(0.01), Rest)
    assert feed.next_step(1.0) == Watch("100")


def test_too_old_lists_again_and_wakes_whose_rows_differ() -> None:
    feed, (same, other, left, new) = a_feed(
        "a-1", "b-1", "c-1", "d-1", rows=[a_row("a-1"), a_row("b-1"), a_row("c-1"), a_row("x-1")]
    )
    feed.next_step(0.0)
    feed.mark_ended(Gone("too old"), 1.0)
    assert feed.next_step(1.0) == List()
    feed.add_list([a_row("a-1"), a_row("b-1", "Failed"), a_row("d-1"), a_row("x-1")], "300")
    assert [f.taken() for f in (same, other, left, new)] == [0, 1, 1, 1]
    assert feed.next_step(1.0) == Watch("300")


def test_who_says_too_old_every_time_is_not_asked_without_a_rest() -> None:
    feed, _ = a_feed("a-1")
    rests = []
    for _ in range(12):
        assert isinstance(feed.next_step(0.0), Watch)
        feed.mark_ended(Gone("too old"), 0.0)
        assert feed.live, "the list that follows tells what was missed"
        step = feed.next_step(0.0)
        if isinstance(step, Rest):
            rests.append(step.seconds)
            step = feed.next_step(0.0)
        assert step == List()
        feed.add_list([], "100")
    assert rests == sorted(rests)
    assert len(rests) == 11
    assert rests[-1] > 20


def test_cut_streams_are_taken_up_where_they_were_each_time_later() -> None:
    feed, (one,) = a_feed("a-1")
    feed.next_step(0.0)
    feed.add_event("ADDED", an_event(a_row("a-1"), version="120"))
    feed.mark_ended(BackendUnreachable("cut"), 10.0)
    first = feed.next_step(10.0)
    assert isinstance(first, Rest)
    assert first.seconds < 0.6
    assert feed.live
    rests = []
    for n in range(12):
        assert feed.next_step(10.0) == (Watch("120") if n < SILENT else List())
        feed.mark_ended(BackendUnreachable("refused"), 10.0)
        step = feed.next_step(10.0)
        assert isinstance(step, Rest)
        rests.append(step.seconds)
    assert rests == sorted(rests)
    assert 20 <= rests[-1] <= 30
    assert not feed.live, "who follows must look for himself"
    assert isinstance(feed.trouble, BackendUnreachable)
    feed.next_step(10.0)
    one.taken()
    feed.add_list([a_row("a-1", "Failed")], version="121")
    assert (one.woken, feed.live, feed.trouble) == (1, True, None)


def test_where_watching_is_forbidden_it_lists_now_and_then() -> None:
    feed, (one,) = a_feed("a-1", rows=[a_row("a-1")])
    feed.next_step(0.0)
    feed.mark_ended(Forbidden("cannot watch"), 0.0)
    for now in (0.0, 20.0, 40.0):
        step = feed.next_step(now)
        assert isinstance(step, Rest)
        assert POLL * 0.75 <= step.seconds <= POLL * 1.25
        assert feed.next_step(now) == List()
        feed.add_list([a_row("a-1", f"State of {now}")], "100")
        assert one.taken() == 1
    assert feed.live
    assert feed.next_step(AGAIN + 1) == Watch("100"), "somebody may have allowed it meanwhile"


def test_watches_that_bring_nothing_give_way_to_lists() -> None:
    """As behind a proxy that holds streams back until they end."""
    feed, (one,) = a_feed("a-1", rows=[a_row("a-1")])
    steps, now = [], 0.0
    for _ in range(15):
        step = feed.next_step(now)
        steps.append(type(step))
        if isinstance(step, Watch):
            now += 56.0
            feed.mark_ended(Silent("was silent for 56 s"), now)
        elif isinstance(step, List):
            feed.add_list([a_row("a-1", f"State {len(steps)}")], "100")
    assert steps == [Watch, Rest, List] * 3 + [Rest, List] * 3
    assert one.woken == 6
    assert feed.next_step(now + AGAIN + 1) == Watch("100")


def test_idle_watches_that_a_load_balancer_cuts_are_watches_all_the_same() -> None:
    feed, _ = a_feed("a-1", rows=[a_row("a-1")])
    for n in range(50):
        while isinstance(step := feed.next_step(30.0 * n), Rest):
            pass
        assert step == Watch("100")
        feed.mark_opened(30.0 * n)
        feed.mark_ended(BackendUnreachable("cut the connection"), 30.0 * (n + 1))
        assert feed.live


def test_a_server_that_a_client_tried_long_to_reach_was_away() -> None:
    """A client is patient by itself: it was seconds until it gave up, and no watch was open in them."""
    feed, _ = a_feed("a-1", rows=[a_row("a-1")])
    feed.next_step(0.0)
    feed.mark_opened(0.0)
    now = 60.0
    feed.mark_ended(BackendUnreachable("cut the connection"), now)
    assert feed.live, "it may be back in a moment"
    for _ in range(2):
        while isinstance(feed.next_step(now), Rest):
            pass
        now += 11.0
        feed.mark_ended(BackendUnreachable("3 tries in 10 s"), now)
    assert not feed.live


def test_it_hears_while_a_watch_is_open_and_where_lists_take_its_place() -> None:
    feed, _ = a_feed("a-1", rows=[a_row("a-1")])
    assert feed.hears
    feed.next_step(0.0)
    assert not feed.hears, "the watch is asked for"
    feed.mark_opened(1.0)
    assert feed.hears
    feed.mark_ended(None, 300.0)
    assert not feed.hears and feed.live
    feed.next_step(300.0)
    feed.mark_opened(301.0)
    feed.mark_ended(Forbidden("cannot watch"), 302.0)
    assert not feed.hears
    while not isinstance(feed.next_step(303.0), List):
        pass
    feed.add_list([a_row("a-1")], "101")
    assert feed.hears
    assert isinstance(feed.next_step(304.0), Rest)
    assert feed.hears, "the next list tells"


def test_a_watch_that_was_taken_is_trusted() -> None:
    feed, _ = a_feed("a-1")
    for _ in range(2):
        while isinstance(step := feed.next_step(0.0), Rest):
            pass
        assert isinstance(step, Watch)
        feed.mark_ended(BackendUnreachable("refused"), 0.5)
    assert not feed.live
    while isinstance(feed.next_step(0.0), Rest):
        pass
    feed.mark_opened(0.5)
    assert feed.live
    assert feed.trouble is None


def test_a_silent_watch_is_followed_by_a_list() -> None:
    feed, (one,) = a_feed("a-1", rows=[a_row("a-1")])
    feed.next_step(0.0)
    feed.mark_opened(0.0)
    feed.mark_ended(Silent("was silent"), 56.0)
    while isinstance(step := feed.next_step(56.0), Rest):
        pass
    assert step == List()
    feed.add_list([a_row("a-1", "Failed")], "200")
    assert one.woken == 1


def test_after_a_server_was_away_it_is_watched_again_at_once() -> None:
    feed, _ = a_feed("a-1", rows=[a_row("a-1")])
    for _ in range(10):
        while isinstance(feed.next_step(0.0), Rest):
            pass
        feed.mark_ended(BackendUnreachable("refuses connections"), 0.0)
    while isinstance(step := feed.next_step(0.0), Rest):
        pass
    assert step == List()
    feed.add_list([a_row("a-1")], "400")
    assert feed.next_step(0.0) == Watch("400")


def test_where_listing_is_forbidden_nobody_relies_on_it() -> None:
    feed = Feed(lambda: 0.5)
    for _ in range(3):
        while isinstance(feed.next_step(0.0), Rest):
            pass
        feed.mark_ended(Forbidden("cannot list"), 0.0)
    assert not feed.live
    assert isinstance(feed.trouble, Forbidden)


def test_a_run_is_woken_some_times_at_once_then_once_a_second() -> None:
    due, waits = 0.0, []
    for _ in range(7):
        due, wait = space_wakes(due, 100.0)
        waits.append(wait)
    assert waits == [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0]
    assert space_wakes(due, 200.0)[1] == 0.0


@pytest.mark.parametrize(
    ("status", "ails"),
    [
        ("Running", False), ("Pending", False), ("ContainerCreating", False),
        ("Init:0/1", False), ("PodInitializing", False),
        ("Error", True), ("OOMKilled", True), ("CrashLoopBackOff", True), ("Evicted", True),
        ("Init:Error", True), ("Init:CrashLoopBackOff", True), ("ExitCode:3", True), ("Signal:9", True),
    ],
)  # fmt: skip
def test_a_row_that_tells_of_a_failure_raises_the_alarm(status: str, ails: bool) -> None:
    feed, one = Feed(lambda: 0.5), Someone("a-1")
    feed.join(one)
    feed.add_list([{"Name": "a-1-worker-1", "Status": "Init"}], "1")
    feed.add_event("MODIFIED", an_event({"Name": "a-1-worker-1", "Status": status}))
    assert one.alarms == ([PodAlarm("a-1-worker-1", "101", failed=True)] if ails else []) and one.woken == 1
    feed.add_event("MODIFIED", an_event({"Name": "a-1-worker-1", "Status": status}))
    feed.add_event("DELETED", an_event({"Name": "a-1-worker-1", "Status": status}))
    assert len(one.alarms) == int(ails), "once"


@pytest.mark.parametrize("name", ["a-1-worker-0", "a-1-master-0", "a-1-worker-10"])
@pytest.mark.parametrize(("status", "goes"), [("Terminating", True), ("Completed", False)])
def test_a_pod_that_is_done_or_is_being_deleted_raises_the_alarm(name: str, status: str, goes: bool) -> None:
    feed, one = Feed(lambda: 0.5), Someone("a-1")
    feed.join(one)
    feed.add_list([{"Name": name, "Status": "Running"}], "1")
    feed.add_event("MODIFIED", an_event({"Name": name, "Status": status}))
    assert one.alarms == [PodAlarm(name, "101", failed=False, goes=goes)]


# A copy of the objects themselves.


def a_thing(name: str, namespace: str = "a", version: str = "101", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "resourceVersion": version}, **more}


def test_a_feed_of_objects_keeps_a_copy_and_every_change_wakes() -> None:
    feed, someone = ObjectFeed(lambda: 0.5), Someone("")
    feed.join(someone)
    assert feed.next_step(0.0) == List()
    feed.add_list([a_thing("one"), a_thing("one", "b")], "100")
    assert someone.taken() == 1 and feed.next_step(0.0) == Watch("100")
    feed.add_event("ADDED", a_thing("two", version="102"))
    feed.add_event("MODIFIED", a_thing("one", version="103", spec=1))
    feed.add_event("DELETED", a_thing("one", "b", version="104"))
    assert someone.taken() == 3
    feed.add_event("BOOKMARK", {"metadata": {"resourceVersion": "110"}})
    assert someone.taken() == 0
    assert {key: thing.get("spec") for key, thing in feed.objects.items()} == {
        ("a", "one"): 1,
        ("a", "two"): None,
    }
    feed.mark_ended(None, 50.0)
    assert feed.next_step(50.0) == Watch("110")


def test_a_feed_of_objects_that_is_too_old_lists_anew() -> None:
    feed = ObjectFeed(lambda: 0.5)
    feed.join(Someone(""))
    feed.next_step(0.0)
    feed.add_list([a_thing("gone")], "100")
    feed.next_step(0.0)
    feed.mark_ended(Gone("too old", status=410, reason="Expired"), 1.0)
    assert feed.next_step(1.0) == List()
    feed.add_list([a_thing("new")], "200")
    assert [*feed.objects] == [("a", "new")]


def test_a_feed_of_names_wakes_when_one_comes_or_goes_and_for_nothing_else() -> None:
    feed, someone = NameFeed(lambda: 0.5), Someone("")
    feed.join(someone)
    assert feed.next_step(0.0) == List()
    feed.add_list([a_row("zero")], "100")
    assert someone.taken() == 0 and feed.names == {"zero"} and feed.next_step(0.0) == Watch("100")
    feed.add_event("ADDED", an_event(a_row("one"), version="101"))
    assert someone.taken() == 1 and feed.names == {"zero", "one"}
    feed.add_event("MODIFIED", an_event(a_row("one", "Failed"), version="102"))
    feed.add_event("BOOKMARK", an_event(a_row(""), version="103"))
    assert someone.taken() == 0
    feed.add_event("ADDED", an_event(a_row("two"), version="104"))
    feed.add_event("DELETED", an_event(a_row("one"), version="105"))
    assert someone.taken() == 2 and feed.names == {"zero", "two"}
    feed.mark_ended(Gone("too old", status=410, reason="Expired"), 1.0)
    assert feed.next_step(1.0) == List()
    feed.add_list([a_row("two"), a_row("zero")], "200")
    assert someone.taken() == 0
    feed.mark_ended(Gone("too old", status=410, reason="Expired"), 2.0)
    feed.next_step(2.0)
    feed.add_list([a_row("two"), a_row("three")], "300")
    assert someone.taken() == 1 and feed.names == {"two", "three"}
