"""Which logs of a run can be read."""

from __future__ import annotations

from dataclasses import dataclass

from allaboard.backends.base import Selection
from allaboard.backends.kubernetes.client import effects
from allaboard.backends.kubernetes.client.effects import Operation
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.logs import archive
from allaboard.backends.kubernetes.logs.cache import AttemptLogs
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.backends.kubernetes.observe.lookup import observation_of, read_objects
from allaboard.backends.kubernetes.operations.observe import (
    container_runs,
    find_run,
    load_archive,
    session_of,
    wait_for_captures,
)
from allaboard.backends.kubernetes.operations.workspace import Workspace
from allaboard.backends.kubernetes.session import CachedObservation
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.backends.selection import refuse_strangers
from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.runs.observation import MemberSeen
from allaboard.runs.status import state_of


@dataclass(frozen=True, slots=True)
class ReadableLogs:
    """The logs of an attempt. ``over``: nothing more will be written; ``logs``: what this process has read of
    it, and once it is over what others have.
    """

    attempt: int
    tries: list[ContainerRun]
    over: bool
    logs: AttemptLogs


def readable_logs(
    workspace: Workspace, run: str, selection: Selection, *, cached: bool = False
) -> Operation[ReadableLogs]:
    """Every log of the run's attempt that can be read. Raises BadInput for what the run does not have.
    ``cached``: the last look is good enough while it stands.
    """
    session, last = workspace.sessions.get(run), None
    if session is not None:
        yield from wait_for_captures(session)
        last = session.cached if cached else None
    stored = (yield from find_run(workspace, run)) if last is None else last.objects.stored
    record = stored.record
    attempt = selection.attempt or record.attempt
    if attempt > record.attempt:
        raise BadInput(f"run {record.run} has no attempt {attempt}; its newest attempt is {record.attempt}")
    members = Layout.from_dict(stored.layout).members
    refuse_strangers(selection, [MemberSeen(m.group, m.index, m.rank, "unknown") for m in members])
    if attempt < record.attempt:
        return (yield from _earlier_logs(workspace, stored, attempt))
    return (yield from _current_logs(workspace, stored, last))


def _current_logs(
    workspace: Workspace, stored: Stored, last: CachedObservation | None
) -> Operation[ReadableLogs]:
    record, layout = stored.record, Layout.from_dict(stored.layout)
    objects = (yield from read_objects(stored)) if last is None else last.objects
    over = state_of(observation_of(objects)).is_final and not objects.living
    history = session_of(workspace, stored).history_with_captures(stored)
    tries, kept = container_runs(layout, objects.pods), history.collector.logs
    if record.outcome is not None and not record.deleted:
        yield from load_archive(history, stored, record.attempt)
        known = [*tries, *(one.one for one in kept.tries())]
        kept.restore(archive.lost_tries(history.memory, layout, known, ENGINES[layout.engine].CONTAINER))
    return ReadableLogs(record.attempt, tries, over, kept)


def _earlier_logs(workspace: Workspace, stored: Stored, attempt: int) -> Operation[ReadableLogs]:
    record = stored.record
    pods = yield from effects.list_all(PODS, labels=labels.selector(record.run, attempt, record.generation))
    history = session_of(workspace, stored).earlier_history(record, attempt)
    yield from load_archive(history, stored, attempt)
    tries = container_runs(Layout.from_dict(stored.layout), pods)
    return ReadableLogs(attempt, tries, True, history.collector.logs)
