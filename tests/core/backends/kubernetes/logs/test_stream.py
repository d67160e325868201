"""Logs of all members: no line twice, none lost, every loss told once, in the order of time."""

from __future__ import annotations

import json
import random
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allaboard.backends.base import Cursor, Gap, LogLine, Selection
from allaboard.backends.kubernetes.logs import parsing as tape
from allaboard.backends.kubernetes.logs import stream
from allaboard.backends.kubernetes.logs.cache import AttemptLogs
from allaboard.backends.kubernetes.logs.parsing import SECOND
from allaboard.backends.kubernetes.logs.stream import (
    LogSources,
    follow_logs,
    read_logs,
)
from allaboard.backends.kubernetes.observe.containers import container_runs
from allaboard.errors import BackendUnreachable
from allaboard.text.units import from_rfc3339
from tests.core.backends.kubernetes.kubelet import NOON, Body, FakeLogs, Node, until, written

ALL = Selection()


def once(
    node: Node, selection: Selection = ALL, cursor: Cursor | None = None, kept: AttemptLogs | None = None
) -> tuple[list[LogLine], Cursor]:
    """The lines of one call, and its cursor as it comes back out of a file."""
    found = container_runs(node.pods(), node.seats())
    *lines, cursor = read_logs(node.api(), None, found, selection, cursor, kept)
    assert isinstance(cursor, dict)
    again: Cursor = json.loads(json.dumps(cursor))
    assert all(isinstance(line, LogLine) for line in lines)
    return [line for line in lines if isinstance(line, LogLine)], again


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines if line.gap is None]


def gaps(lines: list[LogLine]) -> list[LogLine]:
    return [line for line in lines if line.gap is not None]


# --- one pass


def test_all_members_by_time_with_their_ranks(node: Node) -> None:
    master, worker = node.pod("master-0", 0), node.pod("worker-0", 1)
    for n in range(4):
        (master if n % 2 else worker).writes(f"step {n}")
        node.passes(0.25)
    lines, _ = once(node)
    assert [(line.member, line.rank, line.restart, line.time, line.text) for line in lines] == [
        ("worker-0", 1, 0, NOON / SECOND, "step 0"),
        ("master-0", 0, 0, NOON / SECOND + 0.25, "step 1"),
        ("worker-0", 1, 0, NOON / SECOND + 0.5, "step 2"),
        ("master-0", 0, 0, NOON / SECOND + 0.75, "step 3"),
    ]


def test_a_cursor_goes_on_where_it_stood(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("one", "two")
    lines, cursor = once(node)
    assert texts(lines) == ["one", "two"]
    assert once(node, cursor=cursor)[0] == []
    pod.writes("three")
    assert texts(once(node, cursor=cursor)[0]) == ["three"]


def test_init_containers_come_first_and_are_named(node: Node) -> None:
    pod = node.pod("worker-0", 0, inits=2)
    pod.inits[0].lines.append((node.now, "fetching"))
    pod.inits[1].lines.append((node.now, "waiting for master"))
    node.passes(1)
    pod.starts()
    pod.writes("training")
    lines, cursor = once(node)
    assert [(line.container, line.text) for line in lines] == [
        ("prepare-0", "fetching"),
        ("prepare-1", "waiting for master"),
        ("", "training"),
    ]
    assert once(node, cursor=cursor)[0] == []


def test_sidecars_are_no_members(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("training")
    once(node)
    assert {asked["container"] for asked in node.asked} == {"pytorch"}


def test_the_try_before_is_read_too(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("first try")
    node.passes(1)
    pod.restarts()
    pod.writes("second try")
    lines, cursor = once(node)
    assert [(line.restart, line.text) for line in lines] == [(0, "first try"), (1, "second try")]
    assert once(node, Selection(restart=0))[0][0].text == "first try"
    assert texts(once(node, Selection(restart=1))[0]) == ["second try"]
    assert once(node, cursor=cursor)[0] == []


def test_a_crash_between_two_reads_loses_nothing(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("one")
    lines, cursor = once(node)
    pod.writes("two", "Traceback")
    pod.crashes()
    more, cursor = once(node, cursor=cursor)
    assert texts(lines + more) == ["one", "two", "Traceback"]
    node.passes(10)
    pod.restarts()
    pod.writes("again")
    more, cursor = once(node, cursor=cursor)
    assert [(line.restart, line.text) for line in more] == [(1, "again")]


def test_tries_that_no_node_has_any_more_are_named(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    for n in range(4):
        pod.writes(f"try {n}")
        node.passes(10)
        pod.restarts()
    pod.writes("try 4")
    lines, cursor = once(node)
    assert [line.text for line in lines] == [
        "restarts 0 to 2 are lost: a node keeps two tries",
        "try 3",
        "try 4",
    ]
    assert lines[0].gap == Gap(None, NOON / SECOND + 30) and lines[0].member == "worker-0"
    assert once(node, cursor=cursor)[0] == []


def test_one_restart_too_many_between_two_reads_is_one_gap(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("try 0")
    _, cursor = once(node)
    for n in range(1, 4):
        node.passes(10)
        pod.restarts()
        pod.writes(f"try {n}")
    lines, cursor = once(node, cursor=cursor)
    assert texts(lines) == ["try 2", "try 3"]
    assert [line.text for line in gaps(lines)] == [
        "its log after 2026-11-21T12:00:00.000Z, if any, is lost: a node keeps two tries",
        "restart 1 is lost: a node keeps two tries",
    ]
    assert once(node, cursor=cursor)[0] == []


def test_a_pod_that_vanished_is_one_gap(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("one")
    _, cursor = once(node)
    pod.writes("two")
    pod.goes()
    lines, cursor = once(node, cursor=cursor)
    assert [line.gap for line in lines] == [Gap(NOON / SECOND, None)]
    assert "its pod is gone" in lines[0].text
    assert once(node, cursor=cursor)[0] == []


def test_a_pod_that_was_read_to_its_end_vanishes_without_a_word(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("one")
    pod.ends()
    lines, cursor = once(node)
    pod.goes()
    assert texts(lines) == ["one"] and once(node, cursor=cursor)[0] == []


def test_what_was_read_survives_its_pod(node: Node) -> None:
    kept = AttemptLogs()
    pod = node.pod("worker-0", 0)
    pod.writes("one", "two")
    pod.ends()
    _, cursor = once(node, kept=kept)
    pod.goes()
    assert once(node, cursor=cursor, kept=kept)[0] == []
    lines, cursor = once(node, kept=kept)
    assert texts(lines) == ["one", "two"] and gaps(lines) == []
    assert once(node, cursor=cursor, kept=kept)[0] == []


def test_what_was_not_kept_of_a_gone_pod_is_told(node: Node) -> None:
    kept = AttemptLogs(each=25)
    pod = node.pod("worker-0", 0)
    for n in range(5):
        pod.writes(f"line number {n}")
        node.passes(1)
    once(node, kept=kept)
    pod.goes()
    lines, _ = once(node, kept=kept)
    assert texts(lines) == ["line number 4"]
    assert [line.gap for line in gaps(lines)] == [
        Gap(NOON / SECOND, NOON / SECOND + 4),
        Gap(NOON / SECOND + 4, None),
    ]


def test_what_a_status_told_of_a_gone_pod_is_given_once_and_never_twice(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("one", "two")
    _, cursor = once(node)
    pod.now.words = "two"
    node.passes(2)
    pod.ends(1)
    (failed,) = container_runs(node.pods(), node.seats())
    pod.goes()
    kept = AttemptLogs()
    kept.add_status(failed)
    lines, fresh = once(node, kept=kept)
    assert texts(lines) == ["two"]
    assert [line.gap for line in gaps(lines)] == [Gap(NOON / SECOND, NOON / SECOND + 2)]
    assert once(node, cursor=fresh, kept=kept)[0] == []
    lines, cursor = once(node, cursor=cursor, kept=kept)
    assert texts(lines) == [], "it may be a line that was read"
    assert [line.gap for line in gaps(lines)] == [Gap(NOON / SECOND, None)]
    assert once(node, cursor=cursor, kept=kept)[0] == []


def test_a_rotated_log_is_one_gap(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("one")
    _, cursor = once(node)
    for n in range(5):
        node.passes(1)
        pod.writes(f"line {n}")
    pod.now.rotated = 3
    lines, cursor = once(node, cursor=cursor)
    assert lines == [], "it may be the log of another container: another look must tell"
    lines, cursor = once(node, cursor=cursor)
    assert lines[0].gap == Gap(NOON / SECOND, NOON / SECOND + 3)
    assert lines[0].text == (
        "lines from 2026-11-21T12:00:00.000Z to 2026-11-21T12:00:03.000Z are lost: the node rotated the log"
    )
    assert texts(lines) == ["line 2", "line 3", "line 4"]
    assert once(node, cursor=cursor)[0] == []


def test_a_log_that_the_node_has_lost_is_one_gap(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.ends(1)
    pod.now.removed = True
    lines, cursor = once(node)
    assert len(gaps(lines)) == 1 and "unable to retrieve container logs" in lines[0].text
    assert once(node, cursor=cursor)[0] == []


def test_a_node_that_does_not_answer_hides_its_own_logs_alone(node: Node) -> None:
    master, worker = node.pod("master-0", 0), node.pod("worker-0", 1)
    master.writes("here")
    worker.writes("there")
    node.dead.add("worker-0")
    lines, cursor = once(node)
    assert texts(lines) == ["here"]
    assert [line.text for line in gaps(lines)] == ["its log cannot be read now: its node does not answer"]
    assert once(node, cursor=cursor)[0] == [], "once is enough"
    node.dead.clear()
    assert texts(once(node, cursor=cursor)[0]) == ["there"]


def test_an_api_server_that_does_not_answer_is_an_error(node: Node) -> None:
    node.pod("worker-0", 0)

    def silent(pod: object) -> None:
        raise BackendUnreachable("API server https://x does not answer")

    node.before_log = silent
    with pytest.raises(BackendUnreachable):
        once(node)


def test_a_restart_between_the_look_and_the_request_mixes_no_tries(node: Node) -> None:
    """The log of a container is asked for by its name: the kubelet serves whichever is there by then."""
    pod = node.pod("worker-0", 0)
    pod.writes("first 0")
    node.passes(0.001)
    pod.writes("first 1")

    def crash(_: object) -> None:
        node.before_log = None
        node.passes(0.001)
        pod.restarts()
        pod.writes("second 0")

    node.before_log = crash
    lines, cursor = once(node)
    assert lines == [], "nothing proves whose they are"
    node.passes(0.001)
    pod.writes("second 1")
    more, cursor = once(node, cursor=cursor)
    assert texts(lines + more) == ["first 0", "first 1", "second 0", "second 1"]
    assert gaps(lines + more) == [] and once(node, cursor=cursor)[0] == []


@pytest.mark.parametrize("known", [True, False], ids=["half read", "unread"])
@pytest.mark.parametrize("state", ["running", "ended"])
def test_a_container_that_ended_may_be_the_next_one_by_the_time_it_is_asked(
    node: Node, known: bool, state: str
) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("first 0")
    seen, cursor = once(node) if known else ([], None)
    node.passes(0.3)
    pod.writes("first 1")
    if state == "ended":
        node.passes(0.3)
        pod.ends(1, final=False)

    def again(_: object) -> None:
        node.before_log = None
        node.passes(0.3)
        pod.restarts()
        pod.writes("second 0")

    node.before_log = again
    for n in range(1, 4):
        lines, cursor = once(node, cursor=cursor)
        seen += lines
        node.passes(0.3)
        pod.writes(f"second {n}")
    lines, cursor = once(node, cursor=cursor)
    said = texts(seen + lines)
    assert gaps(seen + lines) == [] and len(said) == len(set(said))
    assert {"first 0", "first 1", "second 0"} <= set(said) and len(said) == 6


def test_selection_by_member_and_by_rank(node: Node) -> None:
    for rank, name in enumerate(("master-0", "worker-0", "worker-1")):
        node.pod(name, rank).writes(f"I am {name}")
    assert texts(once(node, Selection(members=("worker-0",)))[0]) == ["I am worker-0"]
    assert texts(once(node, Selection(ranks=(0, 2)))[0]) == ["I am master-0", "I am worker-1"]
    assert {asked["pod"] for asked in node.asked[1:]} == {"master-0", "worker-1"}


def test_the_last_lines_of_all_members_together(node: Node) -> None:
    master, worker = node.pod("master-0", 0), node.pod("worker-0", 1)
    for n in range(20):
        (master if n % 2 else worker).writes(f"step {n}")
        node.passes(0.1)
    lines, cursor = once(node, Selection(tail=3))
    assert texts(lines) == ["step 17", "step 18", "step 19"]
    worker.writes("step 20")
    assert texts(once(node, Selection(tail=3), cursor)[0]) == ["step 20"]
    assert once(node, Selection(tail=0))[0] == []


def test_the_lines_since_a_moment(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    for n in range(10):
        pod.writes(f"step {n}")
        node.passes(0.5)
    lines, cursor = once(node, Selection(since=NOON / SECOND + 3.25))
    assert texts(lines) == ["step 7", "step 8", "step 9"]
    pod.writes("step 10")
    assert texts(once(node, Selection(since=NOON / SECOND + 3.25), cursor)[0]) == ["step 10"]


@pytest.mark.parametrize(("at_once", "limits"), [(2, {266, None}), (8, {None})], ids=["many", "few"])
def test_a_large_log_passes_in_bounded_requests_or_as_it_comes(
    node: Node, monkeypatch: pytest.MonkeyPatch, at_once: int, limits: set[int | None]
) -> None:
    monkeypatch.setattr(stream, "SIDE_BY_SIDE", at_once)
    monkeypatch.setattr(stream, "SMALLEST", 100)
    monkeypatch.setattr(stream, "LARGEST", 400)
    monkeypatch.setattr(stream, "AT_ONCE", 800)
    pods = [node.pod(f"worker-{n}", n) for n in range(3)]
    written = []
    for n in range(120):
        for pod in pods:
            pod.writes(f"{pod.name} step {n}")
            written.append(f"{pod.name} step {n}")
        node.passes(0.01 if n % 30 else 1.0)  # some seconds hold far more than a request does
    lines, cursor = once(node)
    assert sorted(texts(lines)) == sorted(written)
    assert [line.time for line in lines] == sorted(line.time or 0 for line in lines)
    assert {asked["limit_bytes"] for asked in node.asked} == limits
    if at_once == 8:
        assert len(node.asked) == 3, "each log is asked for once"
    assert once(node, cursor=cursor)[0] == []


@pytest.mark.parametrize("at_once", [1, 8], ids=["many", "few"])
def test_memory_does_not_grow_with_the_log(node: Node, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(stream, "SIDE_BY_SIDE", at_once)
    monkeypatch.setattr(stream, "LARGEST", 32 << 10)
    monkeypatch.setattr(stream, "SMALLEST", 32 << 10)
    for n in range(2):
        node.pod(f"worker-{n}", n).ends()
    body = b"".join(written(NOON + n * SECOND // 100, f"step {n:06d} " + "x" * 60) for n in range(10_000))
    size = len(body) // 10_000

    class Large:
        """Serves a log of 1 MB, 100 lines of equal length a second, without making anything new of it."""

        def log(self, pod: str, namespace: str | None = None, **options: Any) -> Any:
            since = from_rfc3339(options["since"])
            begin = 0 if since is None else (int(since) - NOON // SECOND) * 100 * size
            end = size * 10_000 if options["limit_bytes"] is None else begin + options["limit_bytes"]
            return Body(body[n : min(n + size, end)] for n in range(begin, end, size))

    api: Any = Large()
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_logs(api, None, container_runs(node.pods(), node.seats()), ALL))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 2 * 10_000 + 1
    assert peak < 2e6, f"{peak / 1e6:.1f} MB for two logs of 1 MB, which as lines would be 15"


def test_an_answer_that_is_cut_is_gone_on_with(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SMALLEST", 100)
    monkeypatch.setattr(stream, "LARGEST", 100)
    pod = node.pod("worker-0", 0)
    for n in range(60):
        pod.writes(f"step {n}")
        node.passes(0.3)
    pod.ends()
    node.breaks = 5
    assert texts(once(node)[0]) == [f"step {n}" for n in range(60)]
    assert node.breaks == 0 and len(node.asked) == 6


def test_an_answer_that_is_always_cut_at_one_place_is_not_asked_for_for_ever(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "SMALLEST", 100)
    monkeypatch.setattr(stream, "LARGEST", 100)
    node.pod("worker-0", 0).writes(*(f"step {n}" for n in range(60)))
    node.breaks = 1_000_000
    with pytest.raises(BackendUnreachable):
        once(node)


def test_a_long_line_comes_in_pieces_that_say_so_and_is_one_of_the_last(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tape, "LONGEST", 100)
    pod = node.pod("worker-0", 0)
    pod.writes("before", "x" * 450, "y")
    found, cursor = once(node)
    assert "".join(line.text + ("" if line.more else "\n") for line in found) == f"before\n{'x' * 450}\ny\n"
    assert once(node, cursor=cursor)[0] == []
    found, _ = once(node, Selection(tail=2))
    assert "".join(line.text for line in found) == "x" * 450 + "y"


def test_an_unfinished_line_is_left_until_it_is_whole(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("whole")
    pod.now.tail = "half a li"
    lines, cursor = once(node)
    assert texts(lines) == ["whole"]
    pod.ends()
    assert texts(once(node, cursor=cursor)[0]) == ["half a li"]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_every_line_comes_once_or_its_loss_is_told(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members write, crash, restart, vanish, come back and have their logs rotated while they are read."""
    monkeypatch.setattr(stream, "SMALLEST", 60)
    monkeypatch.setattr(stream, "LARGEST", 60 + seed * 20)
    chance = random.Random(seed)
    node = Node(seed)
    names = [f"worker-{n}" for n in range(3)]
    here = {name: node.pod(name, rank) for rank, name in enumerate(names)}
    cursor: Cursor | None = None
    seen: list[LogLine] = []
    number, calls, met, pods, spared = 0, 0, set[str](), set[str](), dict[str, int]()

    def meddles(pod: Any) -> None:
        """A container may be replaced between the look at its pod and the request for its log. Not in one
        call after the other: nobody could tell these apart.
        """
        nonlocal number
        if chance.random() < 0.04 and pod.now.ended is None and calls > spared.get(pod.uid, 0):
            spared[pod.uid] = calls + 3
            node.passes(chance.choice((0.001, 1.0)))
            pod.restarts()
            pod.writes(f"{pod.name} {number}")
            number += 1

    node.before_log = meddles
    for _ in range(60):
        for name, pod in [*here.items()]:
            for _ in range(chance.randint(0, 4) if pod.now.ended is None else 0):
                pod.writes(f"{name} {number}")
                number += 1
                node.passes(chance.choice((0, 0, 1e-9, 1e-4, 0.2, 1.5)))
            draw = chance.random()
            if calls <= spared.get(pod.uid, 0):
                pass
            elif pod.now.ended is not None or draw < 0.05:
                pod.restarts()
            elif draw < 0.06:
                pod.ends(1, final=False)
            elif draw < 0.07 and not pod.waiting:
                pod.crashes()
                node.passes(1)
                pod.restarts()
            elif draw < 0.08:
                pod.goes()
                node.passes(2)
                here[name] = node.pod(name, pod.rank)
            elif draw < 0.09 and pod.now.id in met:  # nobody can tell what was rotated before the first look
                pod.now.rotated = min(len(pod.now.lines), pod.now.rotated + chance.randint(1, 5))
            node.passes(chance.choice((0, 0.01, 1.0)))
        if chance.random() < 0.6:
            calls += 1
            lines, cursor = once(node, cursor=cursor)
            seen += lines
            met = {id for id, known in cursor["tries"].items() if known[5]}
            pods |= {pod.uid for pod in node.all if pod.here}
    node.before_log = None
    for pod in here.values():
        pod.ends(pod.now.exit_code)
    for _ in range(3):
        lines, cursor = once(node, cursor=cursor)
        seen += lines
    assert once(node, cursor=cursor)[0] == []
    read_ = texts(seen)
    assert len(read_) == len(set(read_)), "a line came twice"
    missing = [
        (pod, at, text)
        for pod in node.all
        if pod.uid in pods  # nobody can tell of one that came and went between two looks
        for one in pod.tries
        for at, text in one.lines
        if text not in set(read_)
    ]
    told = [line for line in seen if line.gap is not None]
    for pod, at, text in missing:
        assert any(
            line.member == pod.name
            and (line.gap.since is None or line.gap.since <= at / SECOND + 1e-6)
            and (line.gap.until is None or at / SECOND <= line.gap.until + 1)
            for line in told
        ), f"{text} is lost and nobody says so"
    for pod in node.all:
        for one in pod.tries:
            written_ = [text for _, text in one.lines]
            assert [t for t in read_ if t in written_] == [t for t in written_ if t in read_], "out of order"


# --- following


class Story:
    """A node whose pods live while somebody follows them: a script in a thread of its own."""

    def __init__(self, node: Node, script: Callable[[Story], None]) -> None:
        self.node, self.over = node, False
        self.heard: list[LogLine] = []
        self.script = script
        self.error: BaseException | None = None

    def look(self) -> LogSources:
        over = self.over
        return LogSources(container_runs(self.node.pods(), self.node.seats()), over)

    def hears(self, text: str) -> None:
        until(lambda: any(line.text == text for line in self.heard))

    def _tell(self) -> None:
        try:
            self.script(self)
        except BaseException as error:
            self.error = error
        for pod in self.node.all:
            if pod.here and pod.now.ended is None:
                pod.ends()
        self.over = True

    def lines(self, items: Iterator[LogLine | Cursor]) -> list[LogLine]:
        thread = threading.Thread(target=self._tell)
        thread.start()
        for item in items:
            if isinstance(item, LogLine):
                self.heard.append(item)
            else:
                self.cursor = item
        thread.join()
        if self.error is not None:
            raise self.error
        return self.heard


def a_life(story: Story) -> None:
    """Two members; one crashes and starts again, one comes late, one goes."""
    node = story.node
    master, worker = node.pod("master-0", 0), node.pod("worker-0", 1)
    for n in range(20):
        master.writes(f"m {n}")
        worker.writes(f"w {n}")
        node.passes(0.01)
    story.hears("w 19")
    worker.writes("Traceback")
    worker.restarts()
    for n in range(20):
        worker.writes(f"again {n}")
        node.passes(0.01)
    late = node.pod("worker-1", 2)
    late.writes("late")
    story.hears("late")
    story.hears("again 19")
    worker.writes("the last of worker-0")
    worker.ends()
    story.hears("the last of worker-0")
    worker.goes()
    master.writes("the end")


A_LIFE = [
    *(f"m {n}" for n in range(20)),
    *(f"w {n}" for n in range(20)),
    "Traceback",
    *(f"again {n}" for n in range(20)),
    "late",
    "the last of worker-0",
    "the end",
]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(stream, "HOLD", 0.05)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("cuts", [0.0, 0.1])
def test_following_a_run_through_its_life(node: Node, cuts: float) -> None:
    story = Story(node, a_life)
    api: Any = FakeLogs(node, cuts)
    lines = story.lines(follow_logs(api, None, story.look, ALL))
    assert sorted(texts(lines)) == sorted(A_LIFE)
    assert gaps(lines) == []
    assert [line.restart for line in lines if line.text.startswith("again")] == [1] * 20


@pytest.mark.usefixtures("quick")
def test_what_came_before_is_merged_exactly_and_then_lines_come_as_they_are_written(node: Node) -> None:
    master, worker = node.pod("master-0", 0), node.pod("worker-0", 1)
    for n in range(50):
        (master if n % 3 else worker).writes(f"step {n}")
        node.passes(0.1)

    def script(story: Story) -> None:
        story.hears("step 49")
        worker.writes("and more")
        story.hears("and more")

    story = Story(node, script)
    lines = story.lines(follow_logs(node.api(), None, story.look, ALL))
    assert texts(lines) == [*(f"step {n}" for n in range(50)), "and more"]


@pytest.mark.usefixtures("quick")
def test_a_follower_that_goes_on_from_a_cursor(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("one", "two")
    _, cursor = once(node)

    def script(story: Story) -> None:
        pod.writes("three")
        story.hears("three")

    story = Story(node, script)
    assert texts(story.lines(follow_logs(node.api(), None, story.look, ALL, cursor))) == ["three"]
    assert once(node, cursor=story.cursor)[0] == []


def test_one_member_alone_is_not_held_back(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HOLD", 1e6)
    pod = node.pod("worker-0", 0)

    def script(story: Story) -> None:
        for text in ("first", "now"):
            pod.writes(text)
            story.hears(text)

    story = Story(node, script)
    story.lines(follow_logs(node.api(), None, story.look, Selection(ranks=(0,))))


@pytest.mark.usefixtures("quick")
def test_who_stops_listening_leaves_no_stream_open(node: Node) -> None:
    pod = node.pod("worker-0", 0)
    pod.writes("one")
    story = Story(node, lambda story: None)
    items = follow_logs(node.api(), None, story.look, ALL)
    assert isinstance(first := next(items), LogLine) and first.text == "one"
    items.close()
    until(lambda: not any(t.name.startswith("log of") for t in threading.enumerate()))
