"""The end of a log is kept under the try that wrote it, or under none."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from allaboard.backends.kubernetes.logs.capture import PodCapture, capture_pod, writer_of
from allaboard.backends.kubernetes.logs.collector import EvidenceCollector, collect
from allaboard.backends.kubernetes.logs.parsing import Stamped
from allaboard.backends.kubernetes.observe.containers import ContainerRun, container_runs
from allaboard.text.units import rfc3339
from tests.core.backends.kubernetes.kubelet import NOON, SECOND, Node, Pod

Capture = Callable[..., PodCapture]


@pytest.fixture
def captures(node: Node) -> Capture:
    """A pod by its name. ``failed``: its row has said so."""

    def one(name: str, *, failed: bool = True) -> PodCapture:
        return capture_pod(node.api(), None, name, "pytorch", version="" if failed else None)

    return one


@pytest.fixture
def collects(node: Node, collector: EvidenceCollector) -> Callable[[list[ContainerRun]], None]:
    return partial(collect, node.api(), None, collector)


def a_worker(node: Node, *lines: str) -> Pod:
    pod = node.pod("worker-0", 1)
    pod.writes(*(lines or ("begins",)))
    return pod


def kept(collector: EvidenceCollector) -> list[tuple[int, list[str], bool]]:
    """Of each try: its number, its lines, and whether they are all there is."""
    return [(k.instance.restart, [line.text for line in k.lines], k.whole) for k in collector.logs.tries()]


def meanwhile(node: Node, *moments: Callable[[Pod], Any]) -> None:
    """What happens just before each log is given."""
    waiting = [*moments]

    def happens(pod: Pod) -> None:
        if waiting:
            waiting.pop(0)(pod)

    node.before_log = happens


def starts_again(seconds: float = 0.0) -> Callable[[Pod], Any]:
    def does(pod: Pod) -> None:
        pod.node.passes(seconds)
        pod.restarts()
        pod.writes("begins again")

    return does


def test_a_pod_that_has_failed_for_good(node: Node, collector: EvidenceCollector, captures: Capture) -> None:
    worker = a_worker(node, "begins", "RuntimeError: odd")
    worker.ends(1)
    found = captures("worker-0")
    worker.goes()
    collector.add_capture(found, node.seats()["worker-0"])
    assert collector.tails() == {"worker-0": "begins\nRuntimeError: odd"}
    assert found.latest is not None and found.latest["status"]["phase"] == "Failed"
    [one] = collector.logs.tries()
    assert one.instance.code == 1 and one.whole


def test_what_is_still_written_is_not_the_whole_of_it(
    node: Node, collector: EvidenceCollector, captures: Capture
) -> None:
    worker = a_worker(node)
    collector.add_capture(captures("worker-0", failed=False), node.seats()["worker-0"])
    worker.writes("RuntimeError: odd")
    worker.ends(1)
    collect(node.api(), None, collector, container_runs(node.pods(), node.seats()))
    assert kept(collector) == [(0, ["begins", "RuntimeError: odd"], True)]


def test_one_that_ends_while_it_is_read_is_read_again(
    node: Node, collector: EvidenceCollector, captures: Capture
) -> None:
    worker = a_worker(node)

    def ends(pod: Pod) -> None:
        pod.ends(1)

    meanwhile(node, ends)
    collector.add_capture(captures("worker-0", failed=False), node.seats()["worker-0"])
    assert kept(collector) == [(0, ["begins"], False)]
    worker.writes("its last word")
    collect(node.api(), None, collector, container_runs(node.pods(), node.seats()))
    assert kept(collector) == [(0, ["begins", "its last word"], True)]


@pytest.mark.parametrize("pause", [0.0, 0.2, 1.0, 3.0])
def test_one_that_was_started_again_before_its_log_was_read(
    node: Node, collector: EvidenceCollector, captures: Capture, pause: float
) -> None:
    """However soon: nothing of the second try is told of the first, and the first is read by and by."""
    worker = a_worker(node)
    node.passes(pause)
    worker.ends(1, final=False)
    meanwhile(node, starts_again(pause))
    collector.add_capture(captures("worker-0"), node.seats()["worker-0"])
    assert all(lines == ["begins again"] for restart, lines, _ in kept(collector) if restart == 1)
    assert all(lines == ["begins"] for restart, lines, _ in kept(collector) if restart == 0)
    collect(node.api(), None, collector, container_runs(node.pods(), node.seats()))
    assert sorted(kept(collector)) == [(0, ["begins"], True), (1, ["begins again"], False)]


def test_one_that_is_started_again_after_its_log_was_read(
    node: Node, collector: EvidenceCollector, captures: Capture
) -> None:
    """Its times tell whose the log is, though another runs by the time that the pod is looked at."""
    worker = a_worker(node)
    node.passes(3)
    worker.ends(1, final=False)
    found = captures("worker-0")
    node.passes(1)
    worker.restarts()
    collector.add_capture(found._replace(objects=(*found.objects, worker.object())), node.seats()["worker-0"])
    assert kept(collector) == [(0, ["begins"], True)]


def test_a_pod_that_goes_before_it_can_be_looked_at_again_proves_little(
    node: Node, collector: EvidenceCollector, captures: Capture
) -> None:
    worker = a_worker(node)
    worker.ends(1, final=False)
    first = worker.object()
    restarts = starts_again()
    restarts(worker)
    data = captures("worker-0").data
    collector.add_capture(PodCapture("worker-0", (first,), data, over=True), node.seats()["worker-0"])
    assert kept(collector) == []


def test_unless_its_times_prove_it(node: Node, collector: EvidenceCollector, captures: Capture) -> None:
    worker = a_worker(node)
    node.passes(2)
    worker.ends(1, final=False)
    found = captures("worker-0")
    alone = PodCapture("worker-0", found.objects[:1], found.data, over=True)
    collector.add_capture(alone, node.seats()["worker-0"])
    assert kept(collector) == [(0, ["begins"], True)]


def test_a_log_that_could_not_be_captured_can_still_be_read(node: Node, collector: EvidenceCollector) -> None:
    worker = a_worker(node)
    worker.ends(1)
    refused = b"unable to retrieve container logs for containerd://1"
    for data in (None, refused):
        collector.add_capture(
            PodCapture("worker-0", (worker.object(),), data, True, True), node.seats()["worker-0"]
        )
    collect(node.api(), None, collector, container_runs(node.pods(), node.seats()))
    assert kept(collector) == [(0, ["begins"], True)]


def test_a_log_whose_pod_was_gone_before_it_was_seen_is_evidence_too(
    node: Node, collector: EvidenceCollector, captures: Capture
) -> None:
    worker = a_worker(node)
    worker.ends(1)
    data = captures("worker-0").data
    collector.add_capture(PodCapture("worker-0", (), data, over=True), node.seats()["worker-0"])
    assert collector.tails() == {"worker-0": "begins"}
    collector.add_capture(PodCapture("worker-0"), node.seats()["worker-0"])


def another(pod: Pod, begun: float) -> dict[str, Any]:
    """The pod that has its name by now."""
    found = pod.object()
    found["metadata"]["uid"] = "another"
    for status in found["status"]["containerStatuses"][:1]:
        status |= {"containerID": "another", "state": {"running": {"startedAt": rfc3339(begun)}}}
    return found


def test_the_log_of_a_pod_that_took_its_place_is_not_its_own(
    node: Node, collector: EvidenceCollector
) -> None:
    worker = a_worker(node)
    worker.now.words = "RuntimeError: odd"
    worker.ends(1)
    later = b"2026-11-21T12:00:03.5Z much later\n"
    collector.add_capture(
        PodCapture("worker-0", (worker.object(),), later, True, True), node.seats()["worker-0"]
    )
    assert collector.tails() == {"worker-0": "RuntimeError: odd"}


def test_the_log_of_a_pod_whose_place_was_taken_is_not_of_its_successor(
    node: Node, collector: EvidenceCollector, captures: Capture
) -> None:
    worker = a_worker(node)
    data = captures("worker-0").data
    successor = another(worker, NOON / SECOND + 30)
    collector.add_capture(PodCapture("worker-0", (successor,), data, True, True), node.seats()["worker-0"])
    [one] = collector.logs.tries()
    assert [line.text for line in one.lines] == ["begins"] and one.instance.uid == ""


def test_within_one_second_it_may_be_of_either(
    node: Node, collector: EvidenceCollector, captures: Capture
) -> None:
    worker = a_worker(node)
    data = captures("worker-0").data
    worker.ends(1)
    both = (worker.object(), another(worker, NOON / SECOND))
    found = PodCapture("worker-0", both, data, True, True)
    collector.add_capture(found, node.seats()["worker-0"])
    assert kept(collector) == []
    assert found.latest is not None and found.latest["metadata"]["uid"] == worker.uid


def test_a_pod_that_is_gone_is_no_trouble(node: Node, captures: Capture) -> None:
    a_worker(node).goes()
    assert captures("worker-0") == PodCapture("worker-0", over=True)
    assert captures("worker-0", failed=False) == PodCapture("worker-0")


def test_what_was_captured_is_not_kept_twice(
    node: Node, collector: EvidenceCollector, captures: Capture
) -> None:
    a_worker(node).ends(1)
    collect(node.api(), None, collector, container_runs(node.pods(), node.seats()))
    collector.add_capture(captures("worker-0"), node.seats()["worker-0"])
    assert kept(collector) == [(0, ["begins"], True)]


# --- who asks for a try that was looked at


def test_a_try_that_was_replaced_since_it_was_looked_at_is_read_at_the_next_look(
    node: Node, collector: EvidenceCollector, collects: Callable[[list[ContainerRun]], None]
) -> None:
    worker = a_worker(node)
    worker.ends(1, final=False)
    meanwhile(node, starts_again())
    collects(container_runs(node.pods(), node.seats()))
    assert kept(collector) == []
    collects(container_runs(node.pods(), node.seats()))
    assert sorted(kept(collector)) == [(0, ["begins"], True), (1, ["begins again"], False)]


def test_so_is_the_try_before(
    node: Node, collector: EvidenceCollector, collects: Callable[[list[ContainerRun]], None]
) -> None:
    worker = a_worker(node)
    starts_again()(worker)

    def once_more(pod: Pod) -> None:
        pod.restarts()
        pod.writes("a third time")

    meanwhile(node, once_more)
    collects(container_runs(node.pods(), node.seats()))
    collects(container_runs(node.pods(), node.seats()))
    told = {restart: lines for restart, lines, _ in kept(collector)}
    assert told.get(0, ["begins"]) == ["begins"], "no node has it any more"
    assert (told[1], told[2]) == (["begins again"], ["a third time"])


def test_where_its_times_prove_it_the_pod_is_not_looked_at_again(
    node: Node, collector: EvidenceCollector
) -> None:
    worker = a_worker(node)
    node.passes(2)
    worker.ends(1, final=False)
    found = container_runs(node.pods(), node.seats())
    api = node.api()
    looked: list[str] = []
    api.get = lambda resource, name, namespace=None: looked.append(name)
    collect(api, None, collector, found)
    assert kept(collector) == [(0, ["begins"], True)] and looked == []


# --- the rule


def one(begun: float, finished: float | None, number: int = 0) -> ContainerRun:
    ended = finished is not None
    return ContainerRun(
        f"c{number}", "p", "u", "c", False, "w", 0, number, False, not ended, False, begun, finished,
        1 if ended else None,
    )  # fmt: skip


def test_of_all_lives_of_a_container_no_line_is_given_to_another() -> None:
    """Lives of any length, read at any time and looked at before, after, or both. The first restart comes at
    once, others after ten seconds and more.
    """
    chance = random.Random(7)
    right = 0
    for _ in range(3000):
        end, lives = 0.0, []
        for number in range(chance.randint(1, 4)):
            begun = end + (chance.choice((0.0, 0.1, 1.0)) if number < 2 else 10.0) * (1 + chance.random())
            end = begun + chance.choice((0.05, 1.0, 30.0)) * chance.random()
            lives.append((begun, end, number))
        begun, end, number = chance.choice(lives)
        asked = begun + (end - begun) * chance.random()
        lines = [Stamped(int((begun + (asked - begun) * chance.random()) * SECOND), "words")]
        before = _seen(lives, asked - 5 * chance.random())
        after = _seen(lives, asked + 5 * chance.random())
        for known, settled in ((before, False), (after, True), ({**before, **after}, True)):
            found = writer_of(lines, [*known.values()], settled=settled)
            assert found is None or found.restart == number
            right += found is not None
    assert right > 3000


def _seen(lives: list[tuple[float, float, int]], when: float) -> dict[str, ContainerRun]:
    """What a look shows: the last two, in whole seconds."""
    begun = [life for life in lives if life[0] <= when][-2:]
    found = [one(int(b), int(e) if e <= when else None, n) for b, e, n in begun]
    return {one.id: one for one in found}
