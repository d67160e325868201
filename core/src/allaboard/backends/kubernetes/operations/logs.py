"""Logs of a run that can be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from allaboard.backends.base import Selection
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.logs import archive
from allaboard.backends.kubernetes.logs.cache import AttemptLogs
from allaboard.backends.kubernetes.logs.capture import SECONDS
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.backends.kubernetes.observe.lookup import observation_of, read_objects
from allaboard.backends.kubernetes.operations.observe import (
    container_runs,
    find_run,
    load_archive,
    session_of,
)
from allaboard.backends.kubernetes.operations.workspace import Workspace
from allaboard.backends.kubernetes.session import CachedObservation
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.backends.selection import refuse_strangers
from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.runs.observation import MemberSeen, State
from allaboard.runs.status import state_of

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api


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
    api: Api, workspace: Workspace, run: str, selection: Selection, *, cached: bool = False
) -> ReadableLogs:
    """Every log of the run's attempt that can be read. Raises BadInput for what the run does not have.
    ``cached``: the last look is good enough while it stands.
    """
    session, last = workspace.sessions.get(run), None
    if session is not None:
        session.join_captures(SECONDS)
        last = session.cached if cached else None
    stored = find_run(api, workspace, run) if last is None else last.objects.stored
    record = stored.record
    attempt = selection.attempt or record.attempt
    if attempt > record.attempt:
        raise BadInput(f"run {record.run} has no attempt {attempt}; its newest attempt is {record.attempt}")
    members = Layout.from_dict(stored.layout).members
    refuse_strangers(selection, [MemberSeen(m.group, m.index, m.rank, "unknown") for m in members])
    if attempt < record.attempt:
        return _earlier_logs(api, workspace, stored, attempt)
    return _current_logs(api, workspace, stored, last)


def _current_logs(
    api: Api, workspace: Workspace, stored: Stored, last: CachedObservation | None
) -> ReadableLogs:
    record, layout = stored.record, Layout.from_dict(stored.layout)
    objects = read_objects(api, stored) if last is None else last.objects
    over = state_of(observation_of(objects)).is_final and not objects.living
    history = session_of(workspace, stored).history_with_captures(stored)
    tries, kept = container_runs(layout, objects.pods), history.collector.logs
    if record.outcome is not None and not record.deleted:
        load_archive(api, history, stored, record.attempt)
        known = [*tries, *(kept_try.instance for kept_try in kept.tries())]
        all_ran = record.outcome.state == State.SUCCEEDED and not layout.elastic
        container = ENGINES[layout.engine].CONTAINER
        kept.restore(archive.lost_tries(history.memory, layout, known, container, all_ran=all_ran))
    return ReadableLogs(record.attempt, tries, over, kept)


def _earlier_logs(api: Api, workspace: Workspace, stored: Stored, attempt: int) -> ReadableLogs:
    record = stored.record
    pods = api.list(PODS, labels=labels.selector(record.run, attempt, record.generation))[0]
    history = session_of(workspace, stored).earlier_history(record, attempt)
    load_archive(api, history, stored, attempt)
    tries = container_runs(Layout.from_dict(stored.layout), pods)
    return ReadableLogs(attempt, tries, True, history.collector.logs)
