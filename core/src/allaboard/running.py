"""Runs a job and follows it: `allaboard.follow.loop` yields effects, and this module carries them out with a
backend.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

from allaboard.backends.actor import user_at_host
from allaboard.backends.base import Backend, Changes, Handle, Plan
from allaboard.checking.job import require_valid
from allaboard.errors import AllaboardError, BackendUnreachable, StorageError
from allaboard.follow.loop import (
    Answer,
    Effect,
    Enforce,
    FollowPolicy,
    Launch,
    Observe,
    Outcome,
    Wait,
    follow,
    run_sync,
)
from allaboard.follow.restart import INTERRUPTIONS
from allaboard.job.identity import fresh_key
from allaboard.job.loader import display_name, folder_of, read_text
from allaboard.job.site import Site, check_backend
from allaboard.job.training_job import TrainingJob
from allaboard.runs.observation import Observation, Owner

ATTEMPTS = 3
"""Default attempts of a job where no orchestrator retries: only failures that may pass (a lost run) are tried
again.
"""

Job = TrainingJob | Mapping[str, Any] | str | os.PathLike[str]
OnSeen = Callable[[Observation], None]


def backend_of(
    backend: Backend | str | None = None,
    *,
    site: Site | None = None,
    kubeconfig: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> Backend:
    """The given backend, or the one of this name; by default that of ``ALLABOARD_BACKEND``, else ``local``.
    The other arguments choose the cluster, user and namespace
    (`allaboard.backends.kubernetes.client.loader`). Nothing is sent yet. Raises BadInput.
    """
    if backend is not None and not isinstance(backend, str):
        return backend
    name = backend or os.environ.get("ALLABOARD_BACKEND") or "local"
    check_backend(name)
    if name == "local":
        from allaboard.backends.local.backend import LocalBackend

        return LocalBackend(site=site)
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.kubernetes.client.loader import Access

    return KubernetesBackend(Access(kubeconfig, context, namespace).api(), site=site, ask_first=True)


def read_job(job: Job, *, lenient: bool = False) -> TrainingJob:
    """A checked job from a TrainingJob, a mapping or the path of a job file (``-``: stdin); the mapping and
    the file may be a manifest of a known kind, in a file with other objects beside it. Raises BadInput with
    every problem.
    """
    from allaboard.convert.manifests import fields_of, given_in

    if isinstance(job, (str, os.PathLike)):
        path = os.fspath(job)
        # Check the fields before making a job: an unknown field is one of all problems.
        written, source = fields_of(*given_in(read_text(path), display_name(path)))
        fields = require_valid(written, lenient=lenient).as_mapping()
        return TrainingJob(folder=folder_of(path), source=source, **fields)
    if isinstance(job, Mapping):
        written, source = fields_of(job)
        return TrainingJob(source=source, **require_valid(written, lenient=lenient).as_mapping())
    return require_valid(TrainingJob.of(job), lenient=lenient)


def new_owner(kind: str = "attached") -> Owner:
    """A new owner with a unique id, for this process."""
    phase = "detached" if kind == "detached" else "worker"
    return Owner(f"{user_at_host()}:{os.getpid()}", phase, kind)


def submit(
    job: Job, *, key: str | None = None, backend: Backend | str | None = None, owner: Owner | None = None
) -> Handle:
    """Start a job and leave it running; no client needs to follow it.

    :param job: as for `run`.
    :param key: identifies the run. Without a key every call trains again; a key that exists is answered as
        core/docs/contract.md, Launch under a key, says.
    :param backend: as for `run`.
    :param owner: who owns the run; by default this process, detached.

    Returns the handle of the attempt. Raises BadInput when the job cannot start, `SpecChanged` when the key
    belongs to a live run of another job, BackendUnreachable when the backend does not answer.
    """
    plan = Plan(read_job(job), key or fresh_key())
    return backend_of(backend).launch(plan, owner or new_owner("detached"))


def run(
    job: Job,
    *,
    key: str | None = None,
    backend: Backend | str | None = None,
    on_seen: OnSeen | None = None,
    on_launch: Callable[[Handle], None] | None = None,
    poll: float | None = None,
) -> Outcome:
    """Start a job, follow it to its end and return how it ended. A failed training is an outcome, not an
    exception.

    :param job: a `TrainingJob`, a mapping of its fields, or the path of a job file (``-`` reads stdin). The
        mapping or the file may also be a manifest of a kind that allaboard knows.
    :param key: identifies the run. The same key adopts a run whose client died, and returns the result of a
        run that succeeded (core/docs/contract.md, Launch under a key). Without a key every call trains
        again.
    :param backend: ``"local"``, ``"kubernetes"``, or a backend. The default is ``ALLABOARD_BACKEND``, else
        ``local``.
    :param on_seen: is called with every observation.
    :param on_launch: is called with the handle of each attempt that this call starts or adopts.
    :param poll: seconds between two observations where no change wakes the follower. The default is the
        backend's.

    Raises BadInput when the job cannot start, `SpecChanged` when the key belongs to a live run of another
    job, BackendUnreachable when the backend stopped answering: the run itself is untouched.
    """
    where = backend_of(backend)
    plan = Plan(read_job(job), key or fresh_key())
    owner = new_owner()
    handle = where.launch(plan, owner)
    if on_launch is not None:
        on_launch(handle)
    attempts = (plan.job.get("policy") or {}).get("attempts", ATTEMPTS)
    policy = follow_policy(where, poll, attempts)
    follower = Follower(where, handle.run, plan=plan, owner=owner, on_seen=on_seen, on_launch=on_launch)
    outcome = follower.follow_to_end(policy)
    if outcome.ok:
        where.hand_over(follower.handle or handle)
    return outcome


def attach(
    run: str,
    *,
    backend: Backend | str | None = None,
    on_seen: OnSeen | None = None,
    poll: float | None = None,
) -> Outcome:
    """Follow an existing run to its end. The call does not own the run, and neither stops nor restarts it.

    :param run: a run's name, a prefix that only one run has, or a job's name for its newest run.
    :param backend: as for `run`.
    :param on_seen: is called with every observation.
    :param poll: as for `run`.

    Raises UnknownRun when no run has the name, BackendUnreachable when the backend stopped answering.
    """
    where = backend_of(backend)
    name = where.observe(run).run
    return Follower(where, name, on_seen=on_seen).follow_to_end(follow_policy(where, poll))


def follow_policy(backend: Backend, poll: float | None = None, attempts: int | None = None) -> FollowPolicy:
    """The follow policy for a run of this backend. ``attempts``: of who owns the run; who only looks launches
    none, whatever ends the run.
    """
    free = 0 if attempts is None else INTERRUPTIONS
    return replace(backend.pace, poll=poll or backend.pace.poll, attempts=attempts or 1, interruptions=free)


def evaluation_job(job: Job, checkpoint: str, *, lenient: bool = False) -> TrainingJob:
    """The job that evaluates one checkpoint: it finds its files (`files_to_evaluate`) in
    ``ALLABOARD_CHECKPOINT`` and says its metrics with `allaboard.inside.result`.
    """
    read = read_job(job, lenient=lenient)
    return read.with_(environment={**read.get("environment", {}), "ALLABOARD_CHECKPOINT": checkpoint})


def files_to_evaluate(uri: str, *, local: bool) -> str:
    """The place of the files of the complete checkpoint at ``uri``, of a run's folder its latest. Those of
    another library lie elsewhere than the manifest that vouches for them. ``local``: the members share the
    folders of this machine; else a place that cannot be read from here, such as a folder of their volumes, is
    handed to them as it is. Raises BadInput when no complete checkpoint is there, StorageError.
    """
    from allaboard.checkpoints import checkpoint_at
    from allaboard.storage import open_store

    try:
        folder = open_store(uri).local_path()
        if not local and folder is not None and not folder.exists():
            return uri
        return checkpoint_at(uri)[1].files
    except StorageError:
        if local:
            raise
        return uri


class Follower:
    """Carries out the effects of `follow` for one run. With ``plan`` and ``owner`` it may launch further
    attempts.
    """

    def __init__(
        self,
        backend: Backend,
        run: str,
        *,
        plan: Plan | None = None,
        owner: Owner | None = None,
        on_seen: OnSeen | None = None,
        on_launch: Callable[[Handle], None] | None = None,
    ) -> None:
        self.backend, self.run, self.plan, self.owner = backend, run, plan, owner
        self.on_seen, self.on_launch = on_seen, on_launch
        self.handle: Handle | None = None
        self._changes: Changes | None = None

    def follow_to_end(self, policy: FollowPolicy) -> Outcome:
        holding: AbstractContextManager[Changes] = self.backend.changes(self.run)
        with holding as self._changes:
            return run_sync(follow(policy), self._answer)

    def _answer(self, ask: Effect) -> Answer:
        match ask:
            case Observe(evidence):
                return self._observe(evidence)
            case Wait(seconds):
                assert self._changes is not None
                self._changes.wait(seconds)
            case Enforce():
                self._enforce()
            case Launch(_, _, interrupted):
                assert self.plan is not None and self.owner is not None
                try:
                    self.handle = self.backend.launch(replace(self.plan, interrupted=interrupted), self.owner)
                except AllaboardError as error:
                    return error
                if self.on_launch is not None:
                    self.on_launch(self.handle)
        return None

    def _enforce(self) -> None:
        if self.owner is None:
            return
        # A refused or failed request is repeated: the limit is still there at the next observation.
        with suppress(AllaboardError):
            self.backend.enforce(self.run, self.owner)

    def _observe(self, evidence: bool) -> Answer:
        try:
            seen = self.backend.observe(self.run, evidence)
        except BackendUnreachable as error:
            return error
        if self.on_seen is not None:
            self.on_seen(seen)
        return seen
