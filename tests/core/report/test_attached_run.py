"""What a follower does with signals, played against a backend in memory: each is noted, and obeyed between
two looks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from allaboard.backends.base import Handle, NotYours, Plan, Stopped
from allaboard.checking.job import require_valid
from allaboard.errors import BackendUnreachable, StorageDenied
from allaboard.follow.loop import Outcome
from allaboard.report.attached_run import FollowerLeft, run_to_end
from allaboard.report.commands import HERE
from allaboard.report.exits import NotStarted
from allaboard.runs.observation import Observation, Owner, State
from allaboard.testing import FakeBackend, a_job, seen

RUNNING = [State.RUNNING] * 5


class Watched:
    """A view that remembers, and can send signals while it looks."""

    def __init__(self, *signals: int) -> None:
        self.signals = list(signals)
        self.said: list[str] = []
        self.outcome: Outcome | None = None
        self.closed = False

    def launched(self, handle: Handle) -> None:
        self.said.append(f"attempt {handle.attempt}")

    def seen(self, seen: Observation) -> None:
        if self.signals:
            os.kill(os.getpid(), self.signals.pop(0))

    def say(self, text: str) -> None:
        self.said.append(text)

    def ended(self, outcome: Outcome) -> None:
        self.outcome = outcome

    def close(self) -> None:
        self.closed = True


class Stubborn(FakeBackend):
    """Its runs go on though they were told to stop, until they are killed as often as ``kills`` says."""

    def __init__(self, kills: int = 1) -> None:
        super().__init__(RUNNING)
        self.kills = kills
        self.stops: list[tuple[str, str, bool]] = []

    def stop(
        self, handle: Handle, owner: Owner, by: str, reason: str, *, kill: bool = False
    ) -> Stopped | NotYours:
        self.stops.append((by, reason, kill))
        self.kills -= kill
        return Stopped() if self.kills else super().stop(handle, owner, by, reason, kill=kill)


def followed(backend: FakeBackend, view: Watched, attempts: int = 1) -> int:
    plan = Plan(require_valid(a_job()), "k")
    return run_to_end(backend, plan, lambda: view, HERE, attempts=attempts)


@contextmanager
def handlers_as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
    with handlers_as_before():
        yield
    signal.signal(signal.SIGHUP, before)


def test_a_run_to_its_end_is_handed_over() -> None:
    backend, view = FakeBackend(), Watched()
    assert followed(backend, view) == 0
    assert view.outcome is not None and view.outcome.ok and view.closed
    assert backend.calls[-1][0] == "hand_over"


def test_the_first_signal_stops_and_the_end_is_waited_for() -> None:
    backend, view = FakeBackend(RUNNING), Watched(signal.SIGTERM)
    assert followed(backend, view) == 3
    assert "SIGTERM: stopping" in view.said[1] and view.outcome is not None
    assert view.outcome.seen.stop is not None
    assert not any(call[0] == "hand_over" for call in backend.calls)


def test_the_second_signal_kills() -> None:
    backend, view = Stubborn(), Watched(signal.SIGINT, signal.SIGTERM)
    assert followed(backend, view) == 3
    assert [(reason, kill) for _, reason, kill in backend.stops] == [("Ctrl-C", False), ("SIGTERM", True)]
    assert all("@" in by for by, _, _ in backend.stops)


def test_the_third_leaves() -> None:
    backend, view = Stubborn(kills=2), Watched(*[signal.SIGINT] * 3)
    with pytest.raises(FollowerLeft) as left:
        followed(backend, view)
    assert left.value.code == 3 and "being killed" in str(left.value) and view.closed


def test_hanging_up_makes_it_a_detached_run() -> None:
    backend, view = FakeBackend(RUNNING), Watched(signal.SIGHUP)
    with pytest.raises(FollowerLeft) as left:
        followed(backend, view)
    (record,) = backend.records.values()
    assert left.value.code == 0 and record.owner.kind == "detached" and record.stop is None
    assert "allaboard follow" in view.said[-1] and view.closed


def test_what_belongs_to_somebody_else_is_left_alone() -> None:
    class Taken(FakeBackend):
        def stop(self, *_: object, **__: object) -> NotYours:
            return NotYours("bob@lab:7")

    with pytest.raises(FollowerLeft) as left:
        followed(Taken(RUNNING), Watched(signal.SIGINT))
    assert left.value.code == 5 and "belongs to bob@lab:7" in str(left.value)


class Slow(FakeBackend):
    """Somebody is impatient while it launches."""

    def __init__(self, signals: int, before: bool) -> None:
        super().__init__(RUNNING)
        self.signals, self.before = signals, before

    def launch(self, plan: Plan, owner: Owner) -> Handle:
        if not self.before:
            super().launch(plan, owner)
        for _ in range(self.signals):
            os.kill(os.getpid(), signal.SIGINT)
        return super().launch(plan, owner)


def test_a_signal_while_it_launches_stops_it_once_it_has_started(capfd: pytest.CaptureFixture[str]) -> None:
    view = Watched()
    assert followed(Slow(1, before=True), view) == 3
    assert "as soon as it has started" in capfd.readouterr().err and "stopping" in view.said[1]


@pytest.mark.parametrize("before", [True, False], ids=["nothing was started", "it had started"])
def test_two_signals_while_it_launches_leave_nothing_behind(before: bool) -> None:
    backend = Slow(2, before=before)
    with pytest.raises(FollowerLeft) as left:
        followed(backend, Watched())
    assert left.value.code == 3
    assert [call[0] for call in backend.calls] == ([] if before else ["launch", "stop"])


def test_a_backend_that_stays_silent_is_an_error_and_the_run_is_untouched() -> None:
    class Silent(FakeBackend):
        def observe(self, run: str, evidence: bool = False) -> Observation:
            raise BackendUnreachable("no answer")

    backend, view = Silent(), Watched()
    with pytest.raises(BackendUnreachable):
        followed(backend, view)
    assert view.closed and [call[0] for call in backend.calls if call[0] != "wait"] == ["launch"]


def test_what_a_store_refuses_at_the_start_is_bad_input() -> None:
    class Denied(FakeBackend):
        def launch(self, plan: Plan, owner: Owner) -> Handle:
            raise StorageDenied("s3://bucket: access denied")

    with pytest.raises(NotStarted, match="access denied"):
        followed(Denied(), Watched())


def test_a_lost_attempt_is_followed_by_another_in_the_same_view() -> None:
    backend, view = FakeBackend([State.RUNNING, State.LOST], [State.RUNNING, State.SUCCEEDED]), Watched()
    assert followed(backend, view, attempts=2) == 0
    first, why, second = view.said
    assert (first, second) == ("attempt 1", "attempt 2")
    assert why.startswith("attempt 2 follows: what ran it is gone") and "1 of 2 attempts used" in why


def test_a_signal_after_the_end_changes_nothing() -> None:
    class Late(Watched):
        def ended(self, outcome: Outcome) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            super().ended(outcome)

    backend = FakeBackend([seen(State.SUCCEEDED)])
    assert followed(backend, Late()) == 0
    assert not any(call[0] == "stop" for call in backend.calls)
