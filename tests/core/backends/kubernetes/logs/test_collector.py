"""The ends of what fails are read before anything takes them away; rank 0's report lines, now and then."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.logs import collector as collector_module
from allaboard.backends.kubernetes.logs.collector import (
    CALLS,
    SHORT,
    TIMES,
    EvidenceCollector,
    _read_on,
    collect,
)
from allaboard.backends.kubernetes.observe.containers import ContainerRun, container_runs
from allaboard.diagnosis.excerpt import HEAD, MIDDLE
from allaboard.text.reportline import encode
from tests.core.backends.kubernetes.kubelet import NOON, SECOND, FakeLogs, Node


def found(node: Node) -> list[ContainerRun]:
    return container_runs(node.pods(), node.seats())


def collects(node: Node, collector: EvidenceCollector, **how: bool) -> list[str]:
    """Look once; which pods were asked."""
    before = len(node.asked)
    collect(node.api(), None, collector, found(node), **how)
    return sorted(asked["pod"] for asked in node.asked[before:])


def a_gang(node: Node, members: int = 6) -> list[Any]:
    pods = [node.pod("master-0" if n == 0 else f"worker-{n - 1}", n) for n in range(members)]
    for pod in pods:
        pod.writes(f"{pod.name} begins")
    return pods


def test_while_all_is_well_nothing_is_read(node: Node, collector: EvidenceCollector) -> None:
    a_gang(node)
    assert collects(node, collector) == [] and collector.tails() == {}


def test_the_first_failure_is_read_at_once_with_rank_0_and_two_peers(
    node: Node, collector: EvidenceCollector
) -> None:
    gang = a_gang(node)
    gang[3].writes("RuntimeError: odd")
    gang[3].ends(1)
    assert collects(node, collector) == ["master-0", "worker-0", "worker-1", "worker-2"]
    assert collector.tails() == {
        "master-0": "master-0 begins",
        "worker-0": "worker-0 begins",
        "worker-1": "worker-1 begins",
        "worker-2": "worker-2 begins\nRuntimeError: odd",
    }
    assert collects(node, collector) == [], "each once"


def test_the_evidence_survives_the_pods(node: Node, collector: EvidenceCollector) -> None:
    gang = a_gang(node)
    gang[1].writes("RuntimeError: odd")
    gang[1].ends(1)
    collects(node, collector)
    for pod in gang:
        pod.goes()
    assert collects(node, collector, asked=True) == []
    assert "RuntimeError: odd" in collector.tails()["worker-0"]


def test_the_try_before_is_read_too(node: Node, collector: EvidenceCollector) -> None:
    gang = a_gang(node, 1)
    gang[0].writes("first error")
    node.passes(1)
    gang[0].restarts()
    gang[0].writes("second error")
    gang[0].ends(1)
    assert collects(node, collector) == ["master-0", "master-0"]
    assert [kept.lines[-1].text for kept in collector.logs.tries()].count("first error") == 1
    assert collector.tails() == {"master-0": "second error"}


def test_a_member_that_was_started_again_shows_why(node: Node, collector: EvidenceCollector) -> None:
    gang = a_gang(node, 2)
    gang[1].writes("CUDA out of memory")
    node.passes(1)
    gang[1].restarts()
    gang[1].writes("again")
    collects(node, collector)
    assert collector.tails()["worker-0"] == "worker-0 begins\nCUDA out of memory\nagain"


def test_an_init_container_that_fails_is_evidence(node: Node, collector: EvidenceCollector) -> None:
    pod = node.pod("worker-0", 1, inits=1)
    pod.inits[0].lines.append((node.now, "waiting for master"))
    pod.inits[0].ended, pod.inits[0].exit_code = node.now, 1
    collects(node, collector)
    assert collector.tails() == {"worker-0": "waiting for master"}


def test_a_member_that_the_cluster_takes_away_is_read_before_it_goes(
    node: Node, collector: EvidenceCollector
) -> None:
    a_gang(node, 2)
    pods = node.pods()
    pods[1]["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    collect(node.api(), None, collector, container_runs(pods, node.seats()))
    assert collector.tails()["worker-0"] == "worker-0 begins"


def test_a_gang_that_fails_at_once_costs_no_more_than_its_bound(
    node: Node, collector: EvidenceCollector
) -> None:
    for n, pod in enumerate(a_gang(node, 80)):
        pod.writes(f"error {n}")
        node.passes(0.1)
        pod.ends(1)
    asked = collects(node, collector)
    assert len(asked) == CALLS
    assert "master-0" in asked and "worker-0" in asked, "the first to fail come first"


@pytest.mark.thorough
def test_of_a_long_log_the_end_is_kept(node: Node, collector: EvidenceCollector) -> None:
    gang = a_gang(node, 1)
    for n in range(2000):
        gang[0].writes(f"line {n} " + "x" * 1000)
    gang[0].ends(1)
    collects(node, collector)
    tail = collector.tails()["master-0"]
    assert len(tail) <= HEAD + MIDDLE + 3 * SHORT + (64 << 10)
    assert tail.splitlines()[-1].startswith("line 1999 ")
    assert [asked["tail"] for asked in node.asked] == [200, None], "its end, and then all of it, in one pass"


def test_a_cause_in_the_middle_of_a_long_log_is_kept(
    node: Node, collector: EvidenceCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "EXCERPTS", 1)
    monkeypatch.setattr(collector_module, "SECONDS", 120.0)  # a busy machine is no subject of this
    gang = a_gang(node, 3)
    for pod in gang[:2]:
        for n in range(800):
            pod.writes(f"step {n} loss 2.{n} " + "x" * 180)
            if n == 450:
                pod.writes("OSError: [Errno 28] No space left on device: '/out/step-40'")
        pod.ends(1)
        node.passes(0.1)
    collects(node, collector)
    whole = [asked["pod"] for asked in node.asked if asked["tail"] is None]
    assert len(whole) == 1, "of a gang the first members tell"
    assert "No space left on device" in collector.tails()[whole[0]]
    assert all(len(text) <= HEAD + MIDDLE + (128 << 10) for text in collector.tails().values())


def test_lines_that_are_too_large_together_are_asked_for_again_in_smaller_number(
    node: Node, collector: EvidenceCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "LARGEST_TAIL", 5000)
    gang = a_gang(node, 1)
    for n in range(100):
        gang[0].writes(f"line {n} " + "x" * 100)
    gang[0].ends(1)
    collects(node, collector)
    assert [asked["tail"] for asked in node.asked] == [200, 20, None]
    assert collector.tails()["master-0"].splitlines()[-1].startswith("line 99 ")


def test_a_node_that_does_not_answer_holds_nobody_up(
    node: Node, collector: EvidenceCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector_module, "SECONDS", 2.0)
    gang = a_gang(node, 3)
    gang[1].ends(1)

    over = threading.Event()

    def stalls(pod: Any) -> None:
        if pod.name == "worker-0":
            over.wait()

    node.before_log = stalls
    collects(node, collector)
    assert set(collector.tails()) == {"master-0", "worker-1"}
    over.set()


def test_where_no_log_can_be_read_the_status_tells(node: Node, collector: EvidenceCollector) -> None:
    gang = a_gang(node, 2)
    gang[1].now.words = "RuntimeError: odd\n"
    gang[1].ends(1)
    node.dead.add("worker-0")
    collects(node, collector)
    assert collector.tails() == {"master-0": "master-0 begins", "worker-0": "RuntimeError: odd"}
    node.dead.clear()
    collects(node, collector, asked=True)
    assert collector.tails()["worker-0"] == "worker-0 begins", "the log itself is better"


def test_an_end_that_could_not_be_read_is_asked_for_again_but_not_for_ever(
    node: Node, collector: EvidenceCollector
) -> None:
    gang = a_gang(node, 2)
    gang[1].ends(1)
    node.dead.add("worker-0")
    assert "worker-0" in collects(node, collector)
    node.dead.clear()
    collects(node, collector)
    assert collector.tails()["worker-0"] == "worker-0 begins"
    assert "worker-0" not in collects(node, collector), "it was read"
    gang[0].ends(1)
    node.dead.add("master-0")
    assert ["master-0" in collects(node, collector) for _ in range(5)] == [True] * TIMES + [False] * (
        5 - TIMES
    )


# --- progress


def reports(node: Node, pod: Any, *steps: int) -> None:
    for step in steps:
        pod.writes(f"step {step} of 100", encode("progress", step=step, total=100, loss=1 / step))
        node.passes(1)


def test_rank_0_is_read_when_its_time_has_come(node: Node) -> None:
    collector = EvidenceCollector(progress_every=60, chance=lambda: 0.5)
    gang = a_gang(node, 2)
    reports(node, gang[0], 1, 2, 3)
    assert collects(node, collector) == ["master-0"]
    assert collector.report is not None
    assert (collector.report.progress.step, collector.report.progress.total) == (3, 100)
    assert collector.report.first == NOON / SECOND
    assert collector.report.progress.heartbeat == NOON / SECOND + 2
    reports(node, gang[0], 4)
    assert collects(node, collector) == [], "not yet"
    assert collector.progress_to_read(found(node), time.monotonic() + 61) is not None


def test_runs_that_start_together_do_not_ask_together(node: Node) -> None:
    a_gang(node, 1)
    due = []
    for chance in (0.0, 1.0):
        collector = EvidenceCollector(progress_every=60, chance=lambda chance=chance: chance)
        one = collector.progress_to_read(found(node), 100.0)
        assert one is not None
        collector.finish(one)
        due.append(
            next(t for t in range(100, 300) if collector.progress_to_read(found(node), float(t)) is not None)
        )
    assert due == [148, 172]


def test_the_last_words_of_rank_0_are_heard(node: Node) -> None:
    collector = EvidenceCollector(progress_every=60)
    gang = a_gang(node, 2)
    collects(node, collector)
    gang[0].writes(encode("result", metrics={"accuracy": 0.9}))
    gang[0].ends()
    assert collects(node, collector) == ["master-0"]
    assert collector.report is not None and collector.report.progress.result == {"accuracy": 0.9}
    assert collects(node, collector) == [] and collects(node, collector, over=True) == []


def test_steps_lost_to_a_restart_are_counted_over_tries(node: Node) -> None:
    collector = EvidenceCollector(progress_every=60)
    gang = a_gang(node, 1)
    reports(node, gang[0], 1, 2, 3, 4)
    collects(node, collector)
    node.passes(1)
    gang[0].restarts()
    gang[0].writes(encode("resumed", step=2, source="x"))
    reports(node, gang[0], 3)
    collects(node, collector)
    collects(node, collector, over=True)
    assert collector.report is not None
    assert (collector.report.progress.step, collector.report.progress.lost_steps) == (3, 2)


def test_a_log_that_is_too_long_for_one_look_is_read_on_at_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.stream.LARGEST", 2000)
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.stream.SMALLEST", 2000)
    collector = EvidenceCollector(progress_every=60)
    gang = a_gang(node, 1)
    reports(node, gang[0], *range(1, 301))
    steps = []
    while (asked := collects(node, collector)) and len(steps) < 50:
        assert len(asked) <= collector_module.READS
        assert collector.report is not None
        steps.append(collector.report.progress.step)
    assert steps == sorted(steps) and len(steps) > 3 and steps[-1] == 300
    assert all(asked["limit_bytes"] == 2000 for asked in node.asked)


@pytest.mark.parametrize("how", [{"over": True}, {"asked": True}])
def test_where_there_may_be_no_next_look_it_is_read_to_its_end(
    node: Node, monkeypatch: pytest.MonkeyPatch, how: dict[str, bool]
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.stream.LARGEST", 2000)
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.stream.SMALLEST", 2000)
    collector = EvidenceCollector(progress_every=60)
    reports(node, a_gang(node, 1)[0], *range(1, 301))
    collect(node.api(), None, collector, found(node), **how)
    assert collector.report is not None and collector.report.progress.step == 300 and not collector.is_behind


def test_but_not_for_ever(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.stream.LARGEST", 2000)
    monkeypatch.setattr("allaboard.backends.kubernetes.logs.stream.SMALLEST", 2000)
    monkeypatch.setattr(collector_module, "SECONDS", 0.0)
    collector = EvidenceCollector(progress_every=60)
    reports(node, a_gang(node, 1)[0], *range(1, 301))
    one = collector.progress_to_read(found(node), 0.0, over=True)
    assert one is not None and collector.is_behind, "it is being read"
    _read_on(node.api(), None, collector, one, whole=True)
    assert len(node.asked) < 20 and collector.is_behind


def test_a_log_that_cannot_be_read_now_is_read_later(node: Node) -> None:
    collector = EvidenceCollector(progress_every=60)
    gang = a_gang(node, 1)
    reports(node, gang[0], 1)
    node.dead.add("master-0")
    collects(node, collector)
    assert collector.is_behind
    node.dead.clear()
    collects(node, collector, over=True)
    assert collector.report is not None and collector.report.progress.step == 1 and not collector.is_behind


def test_turned_off_nothing_is_read(node: Node) -> None:
    collector = EvidenceCollector(progress_every=0)
    reports(node, a_gang(node, 1)[0], 1)
    api: Any = FakeLogs(node)
    collect(api, None, collector, found(node), over=True)
    assert collector.report is None and node.asked == []


# --- what ordinary scripts print


def bar(n: int, total: int) -> str:
    left = (total - n) // 20
    return (
        f"Training: {100 * n // total:3}%|###       | {n}/{total} [00:10<{left // 60:02}:{left % 60:02}, "
        f"20.00it/s, loss={10 / (n + 1):.4f}]"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_ten_minutes_of_a_bar_are_seen_within_a_minute(node: Node, end: str) -> None:
    """20 states a second, as lines or as one line that is redrawn and never ends."""
    collector, total = EvidenceCollector(progress_every=60, chance=lambda: 0.5), 24_000
    gang = a_gang(node, 1)
    calls: list[int] = []
    for minute in range(1, 11):
        for second in range(60):
            states = [bar(20 * (60 * (minute - 1) + second) + n, total) for n in range(20)]
            if end == "\n":
                gang[0].writes(*states)
            else:
                gang[0].now.tail += "".join(f"\r{state}" for state in states)
            node.passes(1)
        due = collector.progress_to_read(found(node), time.monotonic() + 61 * minute)
        assert due is not None
        before, moved = len(node.asked), collector.movement.since
        collector_module._read_on(node.api(), None, collector, due, whole=False)
        calls.append(len(node.asked) - before)
        assert collector.report is not None
        progress = collector.report.progress
        assert progress.step is not None and 1200 * minute - progress.step <= 20 * 60
        assert progress.total == total and progress.metrics["steps_per_second"] == 20.0
        assert collector.movement.since > moved
    assert progress.step is not None and progress.step >= 11_998 and progress.lost_steps == 0
    assert max(calls) <= collector_module.READS
    if end == "\r":
        gang[0].writes(gang[0].now.tail, at=gang[0].now.begun)
        gang[0].now.tail = ""
        gang[0].writes(bar(12_001, total))
        collects(node, collector, over=True)
        assert collector.report is not None
        assert (collector.report.progress.step, collector.report.progress.lost_steps) == (12_001, 0)


def test_each_try_has_a_format_of_its_own(node: Node) -> None:
    collector = EvidenceCollector(progress_every=60)
    gang = a_gang(node, 1)
    gang[0].writes("iter 9: loss 2.5, time 10.00ms", "completed step: 70, seconds: 1.0, loss: 1.0")
    collects(node, collector)
    assert collector.report is not None and collector.report.progress.step == 9
    node.passes(1)
    gang[0].restarts()
    gang[0].writes("completed step: 4, seconds: 1.000, loss: 1.0")
    collects(node, collector, over=True)
    progress = collector.report.progress
    assert (progress.step, progress.format, progress.metrics["loss"]) == (4, "MaxText", 1.0)


def test_a_log_that_is_read_after_the_last_words_of_its_status_loses_no_steps(node: Node) -> None:
    collector = EvidenceCollector(progress_every=60)
    progress, result = encode("progress", step=3, total=3), encode("result", metrics={"accuracy": 0.9})
    pod = node.pod("master-0", 0)
    pod.ends(0)
    (ended,) = [instance for instance in found(node) if not instance.previous]
    collector._note_last_words([replace(ended, message=f"{progress}\n{result}")])
    collector.add_last_words()
    assert collector.report is not None and collector.report.progress.step == 3
    collector._add_lines("try", [(NOON + n, encode("progress", step=n, total=3)) for n in (1, 2, 3)])
    assert (collector.report.progress.step, collector.report.progress.lost_steps) == (3, 0)
    assert collector.report.progress.result == {"accuracy": 0.9}, "the log had none: that of the status stays"
