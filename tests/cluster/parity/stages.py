"""Where a case is played: this machine, and the real operator with the process kubelet. Both are driven
through the same `Backend` interface and looked at in the same words; what only one of them can do (a signal
to a process, taking a member away) has one method each.

A run is followed all the time, as clients do it: a look at every wake-up, limits enforced when they pass. So
what a follower remembers counts as seen.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from allaboard.backends.base import Backend, Cursor, LogLine, Plan, Selection
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.processes import kill_run
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.state.records import read_record
from allaboard.backends.local.supervisor.controller import SETTLE
from allaboard.checking.job import require_valid
from allaboard.engines import ENGINES, engine_of_object
from allaboard.errors import BadInput
from allaboard.job.training_job import TrainingJob
from allaboard.runs.observation import MemberSeen, Observation, Owner
from allaboard.runs.status import state_of
from tests.cluster.cluster import Cluster
from tests.cluster.kubelet.handle import ProcessKubelet
from tests.cluster.parity import puppets
from tests.cluster.parity.puppets import Puppeteer

Object = dict[str, Any]
Tale = dict[str, Any]
"""What there is to tell of a run at one moment, path -> value."""

FINAL = ("Succeeded", "Failed")
BY_PODS = ("JobSet", "TrainJob")
"""Kinds that count no members; JobSet counts Jobs, of which a member is one, or all are."""
LOST = "what was here is lost"
"""In a log, for lines that whoever read it knows to be missing."""
WHO = Owner("parity", "detached", "detached")
PATIENCE = 90.0
"""Seconds for what must happen; most of it is other tests on the same processors."""


class Stage(Protocol):
    """A place where cases are played."""

    name: str
    puppeteer: Puppeteer
    quiet: float
    """Seconds without a change after which nothing more is expected to happen."""

    @property
    def backend(self) -> Backend: ...

    def afresh(self) -> Backend:
        """The same runs, for a process that has not seen them."""

    def fields(self) -> Mapping[str, Any]:
        """What a job needs to run here, in fields that mean nothing elsewhere."""

    def signal(self, run: str, member: str, number: int) -> None:
        """A signal to the member's process, from outside."""

    def lose(self, run: str, member: str) -> None:
        """The member is taken away, as by a machine that dies."""

    def is_there(self, run: str) -> bool:
        """Whether the job is still there, not only its record."""

    def is_ending(self, run: str) -> bool:
        """Whether something of it is under way to its end."""

    def housekeep(self) -> None:
        """What the next process of allaboard does for all runs here."""

    def counts(self, run: str, seen: Observation) -> Mapping[str, tuple[int, int, int]]:
        """Role -> members active, succeeded, failed, as whoever runs the job counts them."""

    def is_counted(self, run: str, member: str) -> bool:
        """Whether whoever decides on the whole job knows of this member's end."""

    def leave(self) -> None:
        """This thread is done here."""


def count_members(seen: Observation) -> dict[str, tuple[int, int, int]]:
    """Role -> members active, succeeded, failed."""

    def number(role: str, phase: str) -> int:
        return sum((m.group, m.phase) == (role, phase) for m in seen.members)

    return {
        role: (number(role, "running"), number(role, "succeeded"), number(role, "failed"))
        for role in dict.fromkeys(m.group for m in seen.members)
    }


@dataclass
class LocalStage:
    """This machine."""

    puppeteer: Puppeteer
    backend: LocalBackend
    name: str = "local"
    quiet: float = 2 * SETTLE

    def afresh(self) -> Backend:
        return LocalBackend(self.backend.environ)

    def fields(self) -> Mapping[str, Any]:
        return {"environment": {"PUPPETEER": f"127.0.0.1:{self.puppeteer.port}"}}

    def signal(self, run: str, member: str, number: int) -> None:
        os.kill(self.puppeteer.newest(run, member).pid, number)

    def lose(self, run: str, member: str) -> None:
        self.signal(run, member, 9)

    def is_there(self, run: str) -> bool:
        return any(attempt.state.exists() for attempt in RunFolder(self.backend.runs / run).attempts())

    def is_ending(self, run: str) -> bool:
        return False

    def housekeep(self) -> None:
        self.backend.housekeep()

    def counts(self, run: str, seen: Observation) -> Mapping[str, tuple[int, int, int]]:
        return count_members(seen)

    def is_counted(self, run: str, member: str) -> bool:
        return True

    def leave(self) -> None:
        """It holds nothing."""

    def close(self) -> None:
        """Nothing of a run lives on."""
        for path in self.backend.runs.glob("*"):
            run = RunFolder(path)
            record = read_record(run)
            if record is not None:
                attempt = run.attempt(record.generation, record.attempt)
                ask = {"do": "stop", "by": "test", "reason": "its end", "at": 0.0, "kill": True}
                attempt.write_request("end", ask)
                deadline = time.monotonic() + 30
                while attempt.is_live() and time.monotonic() < deadline:
                    time.sleep(0.02)
                kill_run(record.uid)


@dataclass
class ClusterStage:
    """The real operator. ``where``: what of `pod` sends members to the nodes of ``kubelet``."""

    puppeteer: Puppeteer
    cluster: Cluster
    kubelet: ProcessKubelet
    namespace: str
    where: Object
    name: str = "cluster"
    quiet: float = 4.0

    def __post_init__(self) -> None:
        self.host = str(self.kubelet.facts()["host"])
        access = Access(str(self.cluster.kubeconfig), namespace=self.namespace, environ={})
        self.client = access.api()
        self.backend = self.afresh()

    def afresh(self) -> KubernetesBackend:
        return KubernetesBackend(self.client, environ={"ALLABOARD_HOME": "/nowhere"})

    def fields(self) -> Mapping[str, Any]:
        return {
            "image": "python:3",
            "code": [puppets.SCRIPT],
            "environment": {"PUPPETEER": f"{self.host}:{self.puppeteer.port}"},
            "gang": {"scheduler": "none"},
            "pod": {"spec": self.where},
        }

    def signal(self, run: str, member: str, number: int) -> None:
        pod = self._pod(run, member)
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
        self.kubelet.kill_container(self.namespace, name, container, signal=number)

    def lose(self, run: str, member: str) -> None:
        self.cluster.api.delete("v1", "Pod", self._pod(run, member)["metadata"]["name"], self.namespace)

    def is_there(self, run: str) -> bool:
        return self._job(run) is not None

    def is_ending(self, run: str) -> bool:
        return any("deletionTimestamp" in each["metadata"] for each in self._pods(run))

    def housekeep(self) -> None:
        """The operator needs nobody for that."""

    def counts(self, run: str, seen: Observation) -> Mapping[str, tuple[int, int, int]]:
        job = self._job(run) or {}
        if job.get("kind") in BY_PODS:
            return count_members(seen)
        status = job.get("status") or {}
        said = {role.lower(): one for role, one in (status.get("replicaStatuses") or {}).items()}
        # What is zero is left out, and at first everything is.
        empty: dict[str, dict[str, int]] = {m.group: {} for m in seen.members}
        return {
            role: (one.get("active", 0), one.get("succeeded", 0), one.get("failed", 0))
            for role, one in {**empty, **said}.items()
        }

    def is_counted(self, run: str, member: str) -> bool:
        """JobSet reads Jobs, which say that they are complete a while after their pods; when it is done it
        deletes those that do not say it yet. A Job of several members says nothing of one of them.
        """
        api = self.cluster.api
        owners = self._pod(run, member)["metadata"].get("ownerReferences") or ()
        jobs = [api.get("batch/v1", "Job", o["name"], self.namespace) for o in owners if o["kind"] == "Job"]
        return all(
            job["spec"].get("completions", 1) > 1
            or any(c["type"] == "Complete" for c in job.get("status", {}).get("conditions") or ())
            for job in jobs
            if job is not None
        )

    def leave(self) -> None:
        self.cluster.api.close()

    def _job(self, run: str) -> Object | None:
        kinds = [(engine.API_VERSION, engine.KIND) for engine in ENGINES.values()]
        kinds = [kind for kind in kinds if self.cluster.api.serves(*kind)]
        jobs = (self.cluster.api.get(*kind, run, self.namespace) for kind in kinds)
        # A TrainJob owns a JobSet of its name.
        return next((job for job in jobs if job and not job["metadata"].get("ownerReferences")), None)

    def _pod(self, run: str, member: str) -> Object:
        """The pod of a member, whose name may be drawn by lot."""
        engine = engine_of_object(self._job(run) or {})
        assert engine is not None
        found = [pod for pod in self._pods(run) if engine.member_of(pod) == member]
        return max(found, key=lambda pod: pod["metadata"]["creationTimestamp"])

    def _pods(self, run: str) -> list[Object]:
        selector = f"allaboard.io/run={run}"
        return self.cluster.api.list("v1", "Pod", self.namespace, labelSelector=selector)


@dataclass
class Performance:
    """One case on one stage, followed by a thread of its own."""

    stage: Stage
    run: str
    march: list[str] = field(default_factory=list)
    told: dict[str, list[str]] = field(default_factory=dict)
    trouble: BaseException | None = None
    _seen: Observation | None = None
    _over: bool = False
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def backend(self) -> Backend:
        return self.stage.backend

    @property
    def puppeteer(self) -> Puppeteer:
        return self.stage.puppeteer

    @property
    def seen(self) -> Observation:
        assert self._seen is not None
        return self._seen

    def until(self, what: str, wanted: Callable[[Observation], bool], seconds: float = PATIENCE) -> None:
        """Until a look shows this."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._seen is None or not wanted(self._seen):
                if self.trouble is not None:
                    raise self.trouble
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"waited {seconds:g} s for {what}; it was {self._seen}")

    def settle(self) -> Tale:
        """What is to be told once nothing changes any more."""
        tale: Tale = {}
        since = time.monotonic()
        deadline = since + PATIENCE
        while time.monotonic() < deadline:
            ending, now = self.stage.is_ending(self.run), self._tell()
            if ending or now != tale:
                tale, since = now, time.monotonic()
            elif time.monotonic() - since >= self.stage.quiet:
                return tale
            time.sleep(0.2)
        raise TimeoutError(f"it does not come to rest: {tale}")

    def _tell(self) -> Tale:
        seen = self.backend.observe(self.run)
        self._note(seen)
        there = self.stage.is_there(self.run)
        tries, living = self.puppeteer.tries(self.run), self.puppeteer.living(self.run)
        left = self._left()
        tale: Tale = {
            "state": state_of(seen).value,
            "reason": next(
                (c.reason for c in seen.conditions if c.type in FINAL and c.status == "True"), None
            ),
            "march": tuple(self.march),
            "restarts": seen.restarts,
            "job": "there" if there else "gone",
        }
        tale |= {f"condition {c.type}": c.status for c in seen.conditions}
        for member in seen.members:
            name = member.name
            tale |= {
                f"{name} phase": member.phase,
                f"{name} exit code": _exit_code(member),
                f"{name} restarts": member.restarts,
                f"{name} processes started": tries.get(name, 0),
                f"{name} lives": name in living,
                f"{name} log, as it was followed": _in_order(self.told.get(name, [])),
                f"{name} log, as it is left": tuple(left.get(name, ())),
            }
        for role, (active, succeeded, failed) in self.stage.counts(self.run, seen).items():
            tale |= {f"{role}s active": active, f"{role}s succeeded": succeeded, f"{role}s failed": failed}
        return tale

    def _left(self) -> dict[str, list[str]]:
        """Member -> what of its logs anybody can read now."""
        try:
            return _by_member(self.stage.afresh().logs(self.run, Selection()))
        except BadInput:
            return {}

    # The follower.

    @contextmanager
    def followed(self) -> Iterator[Performance]:
        looks = threading.Thread(target=self._follow, daemon=True)
        # Of a job whose members live on it ends with them.
        reads = threading.Thread(target=self._read, daemon=True)
        for thread in (looks, reads):
            thread.start()
        try:
            yield self
        finally:
            self._over = True
            looks.join()
        if self.trouble is not None:
            raise self.trouble

    def _read(self) -> None:
        """As `allaboard logs -f` does."""
        try:
            for line in self.stage.afresh().logs(self.run, Selection(), follow=True):
                if isinstance(line, LogLine) and not line.container:
                    text = line.text if line.gap is None else LOST
                    self.told.setdefault(line.member, []).append(text)
        except BaseException as error:
            self._fails(error)

    def _follow(self) -> None:
        try:
            with self.backend.changes(self.run) as changes:
                while not self._over:
                    seen = self.backend.observe(self.run)
                    self._note(seen)
                    if seen.limit is not None and seen.limit.left <= 0:
                        self.backend.enforce(self.run, WHO)
                    changes.wait(0.5)
        except BaseException as error:
            self._fails(error)

    def _fails(self, error: BaseException) -> None:
        with self._changed:
            self.trouble = self.trouble or error
            self._changed.notify_all()

    def _note(self, seen: Observation) -> None:
        with self._changed:
            self._seen = seen
            for condition in seen.conditions:
                word = condition.type + ("" if condition.status == "True" else f"={condition.status}")
                if word not in self.march:
                    self.march.append(word)
            self._changed.notify_all()


def _exit_code(member: MemberSeen) -> int | None:
    """How it ended. Of a member that was taken away it is chance whether its last word was seen before it was
    gone.
    """
    return None if member.phase == "deleted" else member.exit_code


def _in_order(told: list[str]) -> str:
    """Whether each try was told once, after those before it. How much of those that are over at once can be
    read in time is chance; what must have been read the plays wait for.
    """
    tries = [text for text in told if text.startswith("try ")]
    known = sorted(set(tries), key=lambda text: int(text.removeprefix("try ")))
    return "every line once, and in order" if tries == known else str(told)


def _by_member(items: Iterable[LogLine | Cursor]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in items:
        if isinstance(each, LogLine) and not each.container and each.gap is None:
            found.setdefault(each.member, []).append(each.text)
    return found


def launch(stage: Stage, name: str, fields: Mapping[str, Any]) -> Performance:
    """Starts a job of puppets there. Raises BadInput when that place refuses it."""
    here = stage.fields()
    given = {"name": "play", "command": puppets.COMMAND, "spot": {"grace": 1}, **here, **fields}
    job = require_valid(TrainingJob(folder=str(puppets.FOLDER), **given))
    plan = Plan(job, f"{stage.name} {name}")
    return Performance(stage, stage.backend.launch(plan, WHO).run)
