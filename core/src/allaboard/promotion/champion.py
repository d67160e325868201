"""The champion of a store: an append-only history of small records.

    <store>/promoted/000000000003.json     the highest number is the champion

    {"version": 1, "number": 3, "checkpoint": "s3://bucket/models/digits-1f0c9a77/step-000000000400",
     "step": 400, "metrics": {"accuracy": 0.981}, "nonfinite": [],
     "verdict": {"passed": true, "reason": "...", "checks": [...]}, "run": "digits-1f0c9a77",
     "by": "ann@lab", "at": "2026-11-21T12:00:00.250Z", "reason": "nightly", "previous": 2, "restores": null}

A record is created, never changed: of two promoters that reach for the same number one wins, and the other
judges its candidate again, against the new champion. A rollback is a new record of an old checkpoint
(``restores`` says which), so nothing is ever forgotten. A file among the records that is torn or not ours
is reported and never obeyed; its number is not used again.

Promote a checkpoint that was collected: retention may let go of one in the folder of the run that made it.
"""

from __future__ import annotations

import getpass
import json
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allaboard.checkpoints import checkpoint_at
from allaboard.checkpoints.flags import FLAGS, RunFlags, read_flags
from allaboard.checkpoints.metrics import plain
from allaboard.errors import BadInput, OwnershipConflict, StorageConflict, StorageMissing, StorageUnsupported
from allaboard.job.training_job import TrainingJob
from allaboard.promotion.gate import Check, Gate, Verdict, flag_checks, judge
from allaboard.storage import open_store
from allaboard.storage.base import Store, join, read_small
from allaboard.text.units import rfc3339
from allaboard.text.untrusted import Unreadable, parse_json

FOLDER = "promoted"
VERSION = 1
#: A lost race means a concurrent promotion; so many in a row mean another problem.
TRIES = 100

_KEY = re.compile(FOLDER + r"/(\d{12})\.json")


@dataclass(frozen=True, slots=True)
class Promotion:
    """One record. ``previous`` is the champion that it followed, ``restores`` the record whose
    checkpoint a rollback took.
    """

    number: int
    checkpoint: str
    step: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    nonfinite: tuple[str, ...] = ()
    verdict: Mapping[str, Any] | None = None
    run: str | None = None
    by: str | None = None
    at: str | None = None
    reason: str = ""
    previous: int | None = None
    restores: int | None = None
    version: int = VERSION

    def to_dict(self) -> dict[str, Any]:
        body = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "version"}
        body.update(metrics=dict(self.metrics), nonfinite=list(self.nonfinite))
        return {"version": self.version, **body}


@dataclass(frozen=True, slots=True)
class History:
    """The records, newest first, and what else lies among them."""

    promotions: tuple[Promotion, ...] = ()
    problems: tuple[str, ...] = ()
    #: The highest number that any file there has, whether or not it can be read.
    highest: int = 0

    @property
    def champion(self) -> Promotion | None:
        return self.promotions[0] if self.promotions else None

    def to_dict(self) -> dict[str, Any]:
        champion = self.champion
        return {
            "champion": None if champion is None else champion.to_dict(),
            "promotions": [promotion.to_dict() for promotion in self.promotions],
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of a promotion: ``promotion`` is the new record, None if the gate stayed shut; ``champion`` is
    the one in place now.

    ``lost`` counts the races that were lost to other promoters on the way, ``problems`` names files that were
    not obeyed. ``notes``: sentences about the candidate. ``standing``: it was the champion already, and
    nothing has changed.
    """

    verdict: Verdict
    promotion: Promotion | None
    champion: Promotion | None
    lost: int = 0
    problems: tuple[str, ...] = ()
    standing: bool = False
    notes: tuple[str, ...] = ()

    @property
    def promoted(self) -> bool:
        return self.promotion is not None

    def to_dict(self) -> dict[str, Any]:
        def body(promotion: Promotion | None) -> dict[str, Any] | None:
            return None if promotion is None else promotion.to_dict()

        return {
            "promoted": self.promoted,
            "verdict": self.verdict.to_dict(),
            "promotion": body(self.promotion),
            "champion": body(self.champion),
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def history(store: Store) -> History:
    """All promotions in a store, newest first."""
    return _read_promotions(store, all_of_them=True)


def champion(store: Store) -> Promotion | None:
    """The promotion of the highest number that can be read, None when nothing was promoted yet."""
    return _read_promotions(store, all_of_them=False).champion


def from_champion(
    job: TrainingJob, where: str, environ: Mapping[str, str]
) -> tuple[TrainingJob, tuple[str, ...]]:
    """A job that says ``start_from: champion`` with the uri of the checkpoint that was promoted last in its
    place, and the sentence that says so. ``where``: the store of its promotions, ``store://<job>``.
    """
    saving = job.get("checkpoints") or {}
    promotion = champion(open_store(where, environ=environ))
    start = "none" if promotion is None else promotion.checkpoint
    note = (
        f"starts from scratch: there is no champion in {where} yet"
        if promotion is None
        else f"starts from the champion, {start}"
    )
    return job.with_(checkpoints={**saving, "start_from": start}), (note,)


def promote(
    store: Store,
    checkpoint: str,
    metrics: Mapping[str, Any] | None = None,
    gate: Gate | None = None,
    *,
    now: float,
    run: str | None = None,
    by: str | None = None,
    reason: str = "",
    single_writer: bool = False,
    despite_flags: bool = False,
    handed: RunFlags | None = None,
) -> Decision:
    """Make a checkpoint the champion if it passes the gate. ``metrics``: those of its evaluation; None takes
    its manifest's.

    ``checkpoint`` is the uri of one complete checkpoint. ``single_writer`` asserts that nothing else promotes
    into this store; it is required for servers without conditional writes. A checkpoint whose run ended with
    flags is refused, unless ``despite_flags`` is true; ``handed``: its flags where none are beside it. Where
    nothing is known of the end of its run, a note says so. Raises BadInput when no complete checkpoint is at
    the uri, StorageUnsupported for such a server, StorageError. Nothing is promoted then.
    """
    folder, item = checkpoint_at(checkpoint)
    clean, nonfinite = plain(item.metrics if metrics is None else metrics)
    if metrics is None:
        nonfinite = item.manifest.nonfinite
    draft = Promotion(
        number=0,
        checkpoint=item.uri,
        step=item.step,
        metrics=clean,
        nonfinite=nonfinite,
        run=run or item.manifest.run,
        by=by or _default_author(),
        at=rfc3339(now),
        reason=reason,
    )
    known = read_flags(folder, handed)
    checks = () if known is None else flag_checks(known.serious, despite=despite_flags)
    note = f"nothing is known of how its run ended: no {FLAGS} is beside {item.uri}"
    decision = _create_next(store, draft, gate or Gate(), single_writer, checks)
    return replace(decision, notes=() if known is not None else (note,))


def rollback(
    store: Store,
    to: int | None = None,
    *,
    now: float,
    by: str | None = None,
    reason: str = "",
    single_writer: bool = False,
) -> Decision:
    """Promote an old champion again: number ``to``, or the previous one. No gate applies.

    Raises BadInput when there is no such promotion, or when its checkpoint is gone.
    """
    promotions = history(store)
    target = _target(promotions, to)
    try:
        checkpoint_at(target.checkpoint)
    except BadInput as error:
        others = (
            ", ".join(str(promotion.number) for promotion in promotions.promotions if promotion is not target)
            or "none"
        )
        raise BadInput(
            f"promotion {target.number} cannot be restored: {error}; choose another (there are: {others})",
            code="checkpoint_gone",
        ) from error
    draft = replace(
        target,
        by=by or _default_author(),
        at=rfc3339(now),
        reason=reason or f"rollback to promotion {target.number}",
        restores=target.restores or target.number,
        version=VERSION,
    )
    return _create_next(store, draft, None, single_writer)


def _target(promotions: History, to: int | None) -> Promotion:
    by_number = {promotion.number: promotion for promotion in promotions.promotions}
    known = ", ".join(map(str, by_number)) or "none"
    if to is not None:
        if to not in by_number:
            raise BadInput(f"promotion {to} is not known; there are: {known}")
        return by_number[to]
    present = promotions.champion
    # After a rollback the one before is the one before what was restored, else two rollbacks would go back
    # and forth.
    origin = present and by_number.get(present.restores or present.number, present)
    earlier = origin and origin.previous is not None and by_number.get(origin.previous)
    if not earlier:
        raise BadInput(f"there is no promotion before the present one to roll back to; there are: {known}")
    return earlier


def _create_next(
    store: Store, draft: Promotion, gate: Gate | None, single_writer: bool, checks: tuple[Check, ...] = ()
) -> Decision:
    for lost in range(TRIES):
        seen = _read_promotions(store, all_of_them=False)
        present = seen.champion
        if present and _is_same_checkpoint(present, draft):
            return Decision(_already_champion(present), present, present, lost, seen.problems, standing=True)
        verdict = (
            judge(gate, _with_nan(draft), _with_nan(present) if present else None) if gate else Verdict(True)
        )
        verdict = verdict.with_checks(checks)
        if not verdict.passed:
            return Decision(verdict, None, present, lost, seen.problems)
        record = replace(
            draft,
            number=seen.highest + 1,
            previous=None if present is None else present.number,
            verdict=verdict.to_dict() if gate else draft.verdict,
        )
        try:
            _create_record(store, record, single_writer)
        except StorageConflict:
            continue  # another promotion was faster: read again, and judge against the new champion
        return Decision(verdict, record, record, lost, seen.problems)
    raise OwnershipConflict(
        f"{join(store.uri, FOLDER)}: lost {TRIES} races for the next number; "
        "find the process that promotes all the time, and try again"
    )


def _is_same_checkpoint(present: Promotion, draft: Promotion) -> bool:
    """A promoter that was killed after it had won finds its own record: promoting the champion again
    changes nothing.
    """
    return (present.checkpoint, present.metrics, present.nonfinite) == (
        draft.checkpoint,
        draft.metrics,
        draft.nonfinite,
    )


def _already_champion(present: Promotion) -> Verdict:
    reason = f"it is the champion already (promotion {present.number})"
    return Verdict(True, (Check("champion", "", True, None, None, None, reason),))


def _with_nan(promotion: Promotion) -> dict[str, Any]:
    """The metrics with what was not finite as null under its name, so that the gate can say so."""
    return {**dict.fromkeys(promotion.nonfinite), **promotion.metrics}


def _create_record(store: Store, record: Promotion, single_writer: bool) -> None:
    key = f"{FOLDER}/{record.number:012d}.json"
    data = (json.dumps(record.to_dict(), indent=1, allow_nan=False) + "\n").encode()
    try:
        store.create(key, data)
    except StorageUnsupported as error:
        if not single_writer:
            raise StorageUnsupported(f"{error} (--single-writer)") from error
        if store.stat(key) is not None:
            raise StorageConflict(f"{join(store.uri, key)}: it exists already") from error
        store.write(key, data)


def _read_promotions(store: Store, all_of_them: bool) -> History:
    promotions: list[Promotion] = []
    problems: list[str] = []
    numbers: dict[int, str] = {}
    for entry in store.entries(FOLDER):
        match = _KEY.fullmatch(entry.key)
        if match and int(match.group(1)):
            numbers[int(match.group(1))] = entry.key
        else:
            problems.append(f"{join(store.uri, entry.key)}: not a promotion by its name; it is ignored")
    for number in sorted(numbers, reverse=True):
        try:
            promotions.append(_decode(read_small(store, numbers[number]), number))
        except (ValueError, StorageMissing) as error:
            problems.append(f"{join(store.uri, numbers[number])}: {error}; it is ignored")
            continue
        if not all_of_them:
            break
    return History(tuple(promotions), tuple(problems), max(numbers, default=0))


def _decode(raw: bytes, number: int) -> Promotion:
    """Raises ValueError with a sentence for anything but a promotion record."""
    try:
        body = parse_json(raw, nonfinite=True, spelling=False)
    except Unreadable as error:
        raise ValueError(f"it {error}") from error
    if (
        not isinstance(body, dict)
        or body.get("number") != number
        or not isinstance(body.get("checkpoint"), str)
    ):
        raise ValueError("not a promotion of this number with a checkpoint")
    known = {name: body[name] for name in Promotion.__dataclass_fields__ if name in body}
    return Promotion(**{**known, **dict(_normalize_body(body))})


def _normalize_body(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Foreign values brought into the record's types; what does not fit becomes unknown."""
    kinds = {"step": int, "run": str, "by": str, "at": str, "previous": int, "restores": int, "verdict": dict}
    for name, kind in kinds.items():
        yield name, body[name] if isinstance(body.get(name), kind) else None
    yield "metrics", body["metrics"] if isinstance(body.get("metrics"), dict) else {}
    yield "nonfinite", tuple(map(str, body["nonfinite"])) if isinstance(body.get("nonfinite"), list) else ()
    yield "reason", str(body.get("reason") or "")
    yield "version", body["version"] if isinstance(body.get("version"), int) else VERSION


def _default_author() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
