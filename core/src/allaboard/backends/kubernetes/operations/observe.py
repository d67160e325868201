"""Looking at a run of ours: its objects, the reports and the last words of its members, and how it ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from allaboard.backends.checkpoints import keep_flags, with_checkpoints
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS
from allaboard.backends.kubernetes.lifecycle import stop
from allaboard.backends.kubernetes.logs import archive, listening, silence
from allaboard.backends.kubernetes.logs.capture import (
    SECONDS,
    PodCapture,
    capture_pod,
    capture_pods,
)
from allaboard.backends.kubernetes.logs.collector import PEERS, EvidenceCollector, collect
from allaboard.backends.kubernetes.logs.history import AttemptHistory
from allaboard.backends.kubernetes.observe import progress
from allaboard.backends.kubernetes.observe.containers import ContainerRun, PodRole
from allaboard.backends.kubernetes.observe.deadlines import with_stall
from allaboard.backends.kubernetes.observe.lookup import (
    ASKING,
    AttemptObjects,
    check_namespace,
    container_runs_of,
    find_record,
    keeps_pods,
    observation_of,
    parse_records,
    pod_roles,
    pods_that_go,
    read_explanations,
    read_objects,
    reread_pods,
    takes_rank_0,
)
from allaboard.backends.kubernetes.observe.obstacles import is_unschedulable
from allaboard.backends.kubernetes.operations import foreign
from allaboard.backends.kubernetes.operations.workspace import Workspace
from allaboard.backends.kubernetes.session import CachedObservation, FollowSession
from allaboard.backends.kubernetes.stacks import by_file
from allaboard.backends.kubernetes.stacks.asking import NO_ALLABOARD, ask_stacks
from allaboard.backends.kubernetes.state.records import Stored, selector
from allaboard.backends.kubernetes.watch.reflector import PodAlarm
from allaboard.diagnosis import diagnose
from allaboard.diagnosis.ends import doubts_of
from allaboard.diagnosis.stacks import SILENT, StacksSeen, Standing, positions
from allaboard.engines import ENGINES, engine_of_kind
from allaboard.errors import UnknownRun
from allaboard.follow.run_record import RunRecord, last_good
from allaboard.follow.stall import (
    ROUNDS,
    Movement,
    is_late_from_the_start,
    is_overdue,
    stall_before_progress,
    stall_of,
    stall_of_silence,
)
from allaboard.render import labels
from allaboard.runs.layout import Layout
from allaboard.runs.observation import Observation, Stall, State
from allaboard.runs.status import state_of
from allaboard.text.redaction import hide_known
from allaboard.text.untrusted import show

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

HANG_EVERY = 30.0
"""Seconds between two times at which the members of a silent run are asked when they wrote last."""
MOST_RECORDS = 1000
"""Records of a job that are looked through for its last good run."""
LAST_TRIES, LAST_REST = 2, 2.0
"""The times that a busy node is asked again for the last lines of rank 0, and the seconds before each."""

LAST_WORDS, LAST_WORDS_EVERY = 10, 0.2
"""The times that the end of a run is held back for members that are just being deleted, and the seconds of
each.
"""


def find_run(api: Api, workspace: Workspace, run: str) -> Stored:
    """The record of a run by its id, a unique prefix of it, or a job's name. Raises UnknownRun."""
    try:
        return find_record(api, run)
    except UnknownRun:
        check_namespace(api, workspace.namespace)
        raise


def session_of(workspace: Workspace, stored: Stored) -> FollowSession:
    """The session of the run that this record is of."""
    return workspace.sessions.of(stored.record.run, has_ended=stored.record.outcome is not None)


def observe(api: Api, workspace: Workspace, run: str, evidence: bool = False) -> Observation:
    """The run as it is now. The first look that finds a run at its end records that end.

    While the run is followed and nothing of it has changed since the last look, nothing is asked but what no
    row tells: what rank 0 reports, and now and then why the run goes no further.
    """
    session = workspace.sessions.get(run)
    last = None
    if session is not None:
        if evidence:
            session.join_captures(SECONDS)
        last = session.begin_look()
    observation, cached = _observe(api, workspace, run, evidence, last)
    if session is not None:
        session.end_look(cached)
    return observation


def wait_for_last_words(api: Api, session: FollowSession) -> None:
    """Wait a little for what members write that are just being deleted."""
    for _ in range(LAST_WORDS):
        if not session.live_listening():
            return
        api.pause(LAST_WORDS_EVERY)


def _observe(
    api: Api, workspace: Workspace, run: str, evidence: bool, last: CachedObservation | None
) -> tuple[Observation, CachedObservation | None]:
    while True:
        objects = _attempt_objects(api, workspace, run, last)
        session = session_of(workspace, objects.stored)
        history = session.add_look(objects)
        observation = observation_of(objects, memory=history.memory)
        if not state_of(observation).is_final:
            return _observe_live(api, workspace, session, objects, observation, evidence, last)
        # An end is looked at, not remembered; and so is what was started anew or forgotten in between.
        if last is None:
            ended = _observe_ended(api, workspace, session, objects, observation, evidence)
            if ended is not None:
                return ended, None
        last = None


def _attempt_objects(
    api: Api, workspace: Workspace, run: str, last: CachedObservation | None
) -> AttemptObjects:
    if last is not None:
        return replace(last.objects, now=api.server_time())
    return read_objects(api, find_run(api, workspace, run))


def _observe_live(
    api: Api,
    workspace: Workspace,
    session: FollowSession,
    objects: AttemptObjects,
    observation: Observation,
    evidence: bool,
    last: CachedObservation | None,
) -> tuple[Observation, CachedObservation]:
    """A run that goes on."""
    history = session.history(objects.stored)
    tries = tries_of(objects)
    listen(api, session, history, objects, tries)
    collect_logs(api, history.collector, objects, tries, over=False, asked=evidence)
    notes: tuple[str, ...] = ()
    asked = 0.0
    # Which cluster has a job that runs elsewhere, its own object does not tell.
    asks = state_of(observation) in ASKING or observation.elsewhere
    if evidence or (asks and objects.job is not None):
        if last is not None and not evidence and last.explains(objects.now):
            notes, asked = last.notes, last.asked
        else:
            if last is not None:
                # No row tells that a scheduler has found no place for a pod.
                objects = reread_pods(api, objects)
                session.add_look(objects)
            asked = objects.now
            objects, notes = explain(api, workspace, objects, evidence)
            if objects.workload is not None:
                session.add_look(objects)
    look_for_hang(api, history, objects, observation)
    observation = _with_history(api, workspace, objects, history, notes, evidence)
    return observation, CachedObservation(_without_bulk(objects), notes, asked)


def _without_bulk(objects: AttemptObjects) -> AttemptObjects:
    """The same without what nothing reads and which is the larger half of an object."""

    def shortened(body: Json) -> Json:
        metadata = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
        return {**body, "metadata": metadata}

    job = None if objects.job is None else shortened(objects.job)
    return replace(objects, job=job, pods=tuple(shortened(pod) for pod in objects.pods))


def explain(
    api: Api, workspace: Workspace, objects: AttemptObjects, evidence: bool
) -> tuple[AttemptObjects, tuple[str, ...]]:
    """With what explains a wait; and with the nodes, where a scheduler has found no place."""
    objects, notes = read_explanations(api, objects, everything=evidence)
    if any(is_unschedulable(pod) for pod in objects.living):
        objects = replace(objects, nodes=workspace.nodes(api, objects.now))
    return objects, notes


def _observe_ended(
    api: Api,
    workspace: Workspace,
    session: FollowSession,
    objects: AttemptObjects,
    observation: Observation,
    evidence: bool,
) -> Observation | None:
    """A run that has ended. The first look that sees the end records it, and what was read of the logs. None
    when the record means another attempt by now.
    """
    stored, history = objects.stored, session.history(objects.stored)
    is_first = stored.record.outcome is None
    loses_rank_0 = takes_rank_0(stored)
    is_success = state_of(observation) is State.SUCCEEDED
    going = pods_that_go(objects) if is_first and is_success else frozenset()
    notes: tuple[str, ...] = ()
    if is_first:
        session.join_captures(SECONDS)
        wait_for_last_words(api, session)
        session.add_look(objects)
    if is_first or evidence:
        # A success is judged by its logs.
        asked = evidence or loses_rank_0 or (is_first and is_success)
        collect_logs(api, history.collector, objects, tries_of(objects), over=True, asked=asked, going=going)
        if is_first and is_success:
            _collect_last_lines(api, history.collector, objects)
            history.collector.add_last_words()
        if evidence:
            objects, notes = read_explanations(api, objects, everything=True)
            if objects.workload is not None:
                session.add_look(objects)
        if not is_first:
            load_archive(api, history, stored, stored.record.attempt)
        tries = history.collector.logs.tries()
        stays = {pod["metadata"]["uid"] for pod in objects.pods} - going
        is_lost = not stays.issuperset(kept.instance.uid for kept in tries)
        if observation.restarts or not is_success or loses_rank_0 or is_lost:
            archive.save(api, stored, tries, history.memory, observation.finished)
    if is_first and is_success:
        history.doubt(doubts_of(_with_history(api, workspace, objects, history, notes, evidence=True)))
    if is_first:
        now = stop.record_end(api, objects, state_of(observation), history.to_dict())
        if now is None or now.record.uid != stored.record.uid:
            return None
        objects = replace(objects, stored=now)
    ended = _with_history(api, workspace, objects, history, notes, evidence)
    if is_first:
        _keep_flags(workspace, stored, ended)
    return ended


def _keep_flags(workspace: Workspace, stored: Stored, ended: Observation) -> None:
    """Keep the flags of a run beside its checkpoints, if they are in a bucket: members' folders are not
    ours.
    """
    saving = Layout.from_dict(stored.layout).saving
    if saving is not None and "://" in saving.uri:
        sentences = {diagnosis.code: diagnosis.summary for diagnosis in diagnose(ended)}
        keep_flags(saving.uri, ended, sentences, workspace.environ)


def _with_history(
    api: Api,
    workspace: Workspace,
    objects: AttemptObjects,
    history: AttemptHistory,
    notes: tuple[str, ...],
    evidence: bool,
) -> Observation:
    tails = None
    if evidence:
        secrets = objects.stored.record.secret_values
        tails = {name: hide_known(text, secrets) for name, text in history.collector.tails().items()}
    observation = observation_of(
        objects, memory=history.memory, report=history.report, tails=tails, notes=notes
    )
    if evidence:
        observation = replace(observation, looked=objects.now, wrote=history.collector.wrote())
    if history.stall is not None:
        observation = with_stall(observation, history.stall, Layout.from_dict(objects.stored.layout).policy)
    if evidence:
        observation = _with_checkpoints(workspace, objects.stored, observation)
        return _with_metrics(workspace, objects.stored, observation)
    return observation


def look_for_hang(api: Api, history: AttemptHistory, objects: AttemptObjects, seen: Observation) -> None:
    """Look for a run that makes no progress although its members run, and note it in the history. Its members
    are asked when they wrote last, once rank 0 is silent for longer than the run may be, and then now and
    then; where all of them are silent, they are asked for their stacks, too.
    """
    layout, collector = Layout.from_dict(objects.stored.layout), history.collector
    policy, movement = layout.policy, _with_report(collector.movement, seen)
    trains = state_of(seen) is State.RUNNING and all(
        m.phase in ("running", "succeeded") for m in seen.members
    )
    if policy.hang_then == "off" or not trains or seen.elsewhere or collector.report is None:
        history.moves()
        return
    asked = silence.to_ask(container_runs(layout, objects.pods))
    begun = max((container_run.begun or 0.0 for container_run in asked), default=0.0)
    if movement.since < begun or not movement.has_begun:
        _look_before_progress(api, history, objects, asked, begun)
        return
    if not is_overdue(policy.hang_after, movement, objects.now):
        history.moves()
        return
    if collector.is_behind or objects.now - history.asked < HANG_EVERY:
        return
    history.asked = objects.now
    last = silence.read_last_times(api, asked, answers=policy.hang_ask == "file")
    newest = max(last.values(), default=objects.now)
    if newest > movement.since:
        movement = collector.movement = movement.moved(newest)
    # Of a member whose node does not answer nobody knows whether it writes.
    all_answered = last.keys() >= {container_run.rank for container_run in asked}
    overdue = bool(last) and all_answered and is_overdue(policy.hang_after, movement, objects.now)
    if overdue and policy.hang_after is None and not history.knows_last_good:
        history.knows_last_good = True
        movement = movement.allowing(_longest_pause_of_last_good(api, objects.stored.record))
        collector.movement = movement
        overdue = is_overdue(None, movement, objects.now)
    if not overdue:
        history.moves()
        return
    answer = _read_stacks(api, history, objects, asked, uses_file=policy.hang_ask == "file")
    if answer is not None:
        history.stall = _stall_of(answer, last, sure=policy.hang_after is not None)


def _look_before_progress(
    api: Api, history: AttemptHistory, objects: AttemptObjects, tries: Sequence[ContainerRun], begun: float
) -> None:
    """Look again and again at a run whose members have written nothing since all of them run, ``begun``."""
    policy, collector = Layout.from_dict(objects.stored.layout).policy, history.collector
    movement = collector.movement.started_again(begun)
    if not is_late_from_the_start(policy.hang_after, movement, objects.now):
        history.moves()
        return
    if history.stall is not None or collector.is_behind or objects.now - history.asked < HANG_EVERY:
        return
    history.asked = objects.now
    asks_by_file = policy.hang_ask == "file"
    newest = max(silence.read_last_times(api, tries, answers=asks_by_file).values(), default=objects.now)
    if newest > begun:
        collector.movement = collector.movement.moved(newest)
        history.moves()
        return
    answers = _read_stacks(api, history, objects, tries, uses_file=asks_by_file)
    if answers is not None and answers.looks:
        history.rounds = (*history.rounds, answers.looks)[-ROUNDS:]
        history.stall = stall_before_progress(history.rounds, begun)


def _read_stacks(
    api: Api,
    history: AttemptHistory,
    objects: AttemptObjects,
    tries: Sequence[ContainerRun],
    *,
    uses_file: bool,
) -> StacksSeen | None:
    """Stacks of these containers; None: they are not asked now, or still have time to answer."""
    if uses_file:
        return _answers_by_file(api, history, objects, tries)
    return ask_stacks(api, tries) if history.take_turn(objects.now) else None


def _answers_by_file(
    api: Api, history: AttemptHistory, objects: AttemptObjects, tries: Sequence[ContainerRun]
) -> StacksSeen | None:
    """The answers of members to a word in a file, over several looks; None: they are not asked now, or still
    have time.
    """
    if not history.word:
        if not history.take_turn(objects.now):
            return None
        try:
            history.word = by_file.ask(api, objects.stored, objects.now)
        except Forbidden:
            return StacksSeen(reason=by_file.FORBIDDEN.format(objects.stored.body["metadata"]["namespace"]))
        history.word_at = objects.now
    answer, all_answered = by_file.answers(api, history.word, tries)
    if not all_answered and objects.now - history.word_at < by_file.WAIT:
        return None
    history.word = ""
    return answer


def _longest_pause_of_last_good(api: Api, own: RunRecord) -> float:
    """The longest time in seconds between two signs of progress of the last run of the same job that
    succeeded; 0 where there is none, or it is not known.
    """
    try:
        bodies = api.list(CONFIGMAPS, labels=selector(own.job), at_most=MOST_RECORDS)[0]
    except Forbidden:
        return 0.0
    stored = {each.record.run: each for each in parse_records(bodies)}
    good = last_good(own, (each.record for each in stored.values()))
    return 0.0 if good is None else progress.from_dict(stored[good.run].report).progress.longest_pause


def _stall_of(answer: StacksSeen, last: Mapping[int, float], *, sure: bool) -> Stall | None:
    """By the stacks; by silence alone where there are none."""
    if not positions(answer.looks):
        return stall_of_silence(last, answer.reason or NO_ALLABOARD)
    stall = stall_of(answer.looks, max(last.values()), sure=sure)
    if stall is None or answer.reason is None:
        return stall
    return replace(stall, text=f"{stall.text}; {answer.reason}")


def look_standing(api: Api, workspace: Workspace, run: str, at_least: float = 0.0) -> Standing:
    """The stacks of the processes of a run, unless a member has written in the last ``at_least`` seconds."""
    objects = read_objects(api, find_run(api, workspace, run))
    layout = Layout.from_dict(objects.stored.layout)
    tries = silence.to_ask(container_runs(layout, objects.pods))
    by_word = layout.policy.hang_ask == "file"
    last = silence.read_last_times(api, tries, answers=by_word)
    silent = max(0.0, objects.now - max(last.values())) if last else None
    # A file is not worth its wait where nothing stands.
    if silent is None or silent < max(at_least, SILENT if by_word else 0.0):
        return Standing(silent, StacksSeen())
    if by_word:
        return Standing(silent, by_file.ask_and_wait(api, objects.stored, tries, workspace.namespace))
    return Standing(silent, ask_stacks(api, tries))


def tries_to_ask(api: Api, workspace: Workspace, run: str) -> list[ContainerRun]:
    """The containers of a run in which something may be run; none where it asks by a file."""
    objects = read_objects(api, find_run(api, workspace, run))
    layout = Layout.from_dict(objects.stored.layout)
    return [] if layout.policy.hang_ask == "file" else silence.to_ask(container_runs(layout, objects.pods))


def _with_report(movement: Movement, seen: Observation) -> Movement:
    """A step may be reported otherwise than in the log: by the status of a TrainJob."""
    heartbeat = seen.progress.heartbeat
    return movement if heartbeat is None or heartbeat <= movement.since else movement.moved(heartbeat)


def _with_checkpoints(workspace: Workspace, stored: Stored, observation: Observation) -> Observation:
    """The checkpoints that are really there, if they are in a bucket: members' folders are not ours."""
    saving = Layout.from_dict(stored.layout).saving
    if saving is None or "://" not in saving.uri:
        return observation
    progress = with_checkpoints(observation.progress, saving, workspace.environ)
    return replace(observation, progress=progress)


def _with_metrics(workspace: Workspace, stored: Stored, observation: Observation) -> Observation:
    """The metrics of files, if they are in a bucket: members' folders are not ours."""
    place = Layout.from_dict(stored.layout).metrics
    if place is None:
        return observation
    if "://" in place:
        from allaboard.backends.metric_files.reading import with_metrics

        return with_metrics(observation, place, stored.record.generation_began, workspace.environ)
    note = (
        f"metrics.from is {show(place, quote=False)}, a folder of the members, which nobody else sees; "
        "have the script write to a bucket, and name that: s3://bucket/prefix"
    )
    return replace(observation, notes=(*observation.notes, note))


def load_archive(api: Api, history: AttemptHistory, stored: Stored, attempt: int) -> None:
    """Add what other processes have read of the logs of an attempt that is over."""
    if not history.is_shared:
        history.is_shared = True
        tries = archive.load(api, stored, attempt, stored.record.generation)
        history.collector.logs.restore(tries)


def container_runs(layout: Layout, pods: Sequence[Json]) -> list[ContainerRun]:
    """Every try of these pods whose log a node may still have."""
    return container_runs_of(ENGINES[layout.engine], layout.members, pods)


def tries_of(objects: AttemptObjects) -> list[ContainerRun]:
    """Tries of the containers of an attempt's pods."""
    return container_runs(Layout.from_dict(objects.stored.layout), objects.pods) if objects.pods else []


def collect_logs(
    api: Api,
    collector: EvidenceCollector,
    objects: AttemptObjects,
    tries: Sequence[ContainerRun],
    *,
    over: bool,
    asked: bool,
    going: Collection[str] = (),
) -> None:
    """Read what must be read of the logs now: ends of what failed or goes, and what rank 0 reports.
    ``tries``: those of the pods; ``going``: uids of pods that are taken away.
    """
    if not objects.pods and not over:
        return
    tries = [
        replace(container_run, leaving=True) if container_run.uid in going else container_run
        for container_run in tries
    ]
    collect(api, None, collector, tries, over=over, asked=asked)


def listen(
    api: Api,
    session: FollowSession,
    history: AttemptHistory,
    objects: AttemptObjects,
    tries: Sequence[ContainerRun],
) -> None:
    """Listen to the members whose pods the operator will delete at the end, while somebody follows the
    run.
    """
    if not objects.pods or not session.is_followed or keeps_pods(objects.stored):
        return
    fresh = session.to_listen(tries, rank_0=takes_rank_0(objects.stored))
    logs = history.collector.logs
    session.add_listening(fresh, lambda container_run, held: listening.start(api, container_run, logs, held))


def _collect_last_lines(api: Api, collector: EvidenceCollector, objects: AttemptObjects) -> None:
    """Read the last lines of rank 0, which hold its results: a node that is busy is asked for them again."""
    for _ in range(LAST_TRIES):
        if not collector.is_behind:
            return
        api.pause(LAST_REST)
        collect_logs(api, collector, objects, tries_of(objects), over=True, asked=False)


def observe_job(
    api: Api, workspace: Workspace, kind: str, name: str, evidence: bool = False, uid: str | None = None
) -> Observation:
    """A job that another tool made, as it is now (`foreign`)."""
    engine = engine_of_kind(kind)
    try:
        return foreign.observe(api, engine, name, evidence=evidence, uid=uid)
    except UnknownRun:
        check_namespace(api, workspace.namespace)
        raise


def _roles(api: Api, stored: Stored, layout: Layout, first: PodCapture) -> dict[str, PodRole]:
    """The member of each pod of an attempt, by the name of the pod. Names that end by lot are asked for; of a
    pod that is gone by then its capture tells.
    """
    engine = ENGINES[layout.engine]
    if not engine.RANDOM_NAMES:
        return {
            engine.pod_name(layout.name, m.name): PodRole(m.name, m.rank, engine.CONTAINER)
            for m in layout.members
        }
    selector = labels.selector(layout.run, layout.attempt, layout.generation)
    pods = api.list(PODS, labels=selector)[0]
    return pod_roles(engine, layout.members, [*([first.latest] if first.latest else ()), *pods])


def capture(api: Api, workspace: Workspace, session: FollowSession, alarm: PodAlarm) -> None:
    """A pod of this run fails or goes: its log is read before anything else is asked; where it has failed,
    then those of rank 0 and of two peers. The next look makes something of them.
    """
    pod, failed_at = alarm.pod, alarm.version if alarm.failed else None
    goes_from = "" if alarm.failed else alarm.version
    first = capture_pod(api, None, pod, version=failed_at, goes_from=goes_from)
    stored = find_run(api, workspace, session.run)
    uid, layout = stored.record.uid, Layout.from_dict(stored.layout)
    container, roles = ENGINES[layout.engine].CONTAINER, _roles(api, stored, layout, first)
    if pod not in roles:
        return
    is_first = not session.has_captures(uid)
    session.add_captures(uid, [first], roles)
    if failed_at is None:
        return
    wanted: list[tuple[str, str, str | None]]
    wanted = [(pod, container, failed_at)] if first.data is None else []
    if is_first:
        beside = sorted((name for name in roles if name != pod), key=lambda name: roles[name].rank)
        wanted += [(name, container, None) for name in beside[: PEERS + 1]]
    others = capture_pods(api, None, wanted)
    session.add_captures(uid, others, roles)
