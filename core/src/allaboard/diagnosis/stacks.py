"""The rank that holds up the others, by the stacks of all ranks: it has not entered the collective in which
the rest waits. Values in, values out; `allaboard.backends` asks for the stacks.

Read from what CPython's faulthandler writes (3.8 to 3.14), and where torch 2.15 has its collectives
(torch/distributed/distributed_c10d.py, torch/nn/parallel/distributed.py, torch/autograd/graph.py).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from allaboard.diagnosis.finding import Diagnosis, Evidence
from allaboard.diagnosis.recorder import GroupRecord, Kind, Parting, parting_of, records_from_dicts
from allaboard.runs.observation import RANKS_WAIT
from allaboard.text.printable import visible
from allaboard.text.units import show_seconds
from allaboard.text.untrusted import Limits, Unreadable, parse_json

MOST_FRAMES, MOST_LOOKS = 400, 10_000
SILENT = 30.0
"""Seconds without a line after which a run is asked why it does not move."""
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+[^\n]*\(most recent call first\):")
_FRAME = re.compile(
    r'  File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9}) in (?P<function>[^\n]{1,300})'
)
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<frozen |^<string>|/allaboard/inside/")
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_PARALLEL = ("torch/nn/parallel/distributed.py", "torch/distributed/fsdp/")
_BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")
_AGENT = ("torch/distributed/run.py", "torch/distributed/elastic/agent/")
_LOADER = ("torch/utils/data/dataloader.py", "multiprocessing/")
_SPIED = Limits(size=1 << 20, depth=8, values=100_000, digits=20)
MOVES, MOVES_WAITING = 30.0, 8.0
"""Times in a second that a main thread goes to sleep which reads or downloads; and that of a rank whose
collectives are not counted, and which takes part in steps.
"""
COMPUTES = 0.2
"""Share of the time between two looks that a process computes which does not merely wait."""


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def place(self) -> str:
        """``train.py:20``: the file's own name and the line."""
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def is_library(self) -> bool:
        return _LIBRARY.search(self.file) is not None


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """One process of a member at two moments. ``frames``: of its main thread, the innermost first; ``state``:
    the kernel's letter; ``busy``: the share of the time in between that it computed; ``member``: its name;
    ``pending``: the number of the collective that it has entered and that is not done; ``switches``: times in
    a second that its main thread went to sleep, which one that waits for ever does not; ``others``: that of
    the busiest of its other threads, without those that torch has named; ``records``: its collectives, None
    where they are not known, or went on between the two moments; ``ready``: such a thread was ready to run.
    """

    pid: int
    parent: int
    rank: int | None
    member: str
    frames: tuple[Frame, ...]
    state: str
    busy: float
    pending: int | None = None
    switches: float = 0.0
    others: float = 0.0
    records: tuple[GroupRecord, ...] | None = None
    ready: bool = False


@dataclass(frozen=True, slots=True)
class StacksSeen:
    """The stacks of members. ``reason``: why the first silent member has none, as the rest of a sentence;
    None: every member answered.
    """

    looks: tuple[ProcessLook, ...] = ()
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """``silent``: seconds since any member of a run wrote a line, or began; None where that is not known.
    ``stacks``: where its processes are.
    """

    silent: float | None
    stacks: StacksSeen


@dataclass(frozen=True, slots=True)
class RankPosition:
    """The position of a rank. ``operation``: the collective in which it waits for the others, or None: it is
    about something of its own; ``own``: the innermost frame of the script, or the innermost one at all.
    """

    look: ProcessLook
    operation: str | None
    own: Frame

    @property
    def rank(self) -> int:
        return self.look.rank or 0


@dataclass(frozen=True, slots=True)
class HangCause:
    """The conclusion from the stacks. ``summary``: one sentence; ``blame``: the ranks to look at first, none
    where no rank is behind the others; ``lines``: rank -> where it is, in words; ``mismatch``: whether ranks
    wait in different collectives; ``works``: whether each rank that is behind, or a program that it has
    started, computes or reads.
    """

    summary: str
    blame: tuple[int, ...]
    lines: Mapping[int, str]
    mismatch: bool = False
    works: bool = False


def to_dicts(looks: Iterable[ProcessLook]) -> list[dict[str, Any]]:
    """For a snapshot; the inverse of `from_dicts`."""
    return [asdict(look) for look in looks]


def from_dicts(value: Any) -> tuple[ProcessLook, ...]:
    """The processes in a snapshot, which anybody may have written; entries of another shape are left out."""
    looks = []
    for entry in value[:MOST_LOOKS] if isinstance(value, list) else ():
        try:
            frames = tuple(
                Frame(str(f["file"])[:1000], int(f["line"]), str(f["function"])[:300])
                for f in entry["frames"][:MOST_FRAMES]
            )
            rank = None if entry["rank"] is None else int(entry["rank"])
            ids = int(entry["pid"]), int(entry["parent"])
            state, busy = str(entry["state"])[:1], float(entry["busy"])
            pending = None if entry.get("pending") is None else int(entry["pending"])
            records = records_from_dicts(entry.get("records"))
            member = str(entry["member"])[:300]
            switches, others = float(entry.get("switches") or 0.0), float(entry.get("others") or 0.0)
            looks.append(
                ProcessLook(*ids, rank, member, frames, state, busy, pending, switches, others, records)
            )
        except (TypeError, ValueError, KeyError, OverflowError, AttributeError):
            continue
    return tuple(looks)


def main_thread(text: str) -> tuple[Frame, ...]:
    """The frames of the main thread, the innermost first: it is the last of what faulthandler writes."""
    parts = _THREAD.split(text)
    return tuple(
        Frame(frame["file"], int(frame["line"]), frame["function"].strip())
        for frame, _ in zip(_FRAME.finditer(parts[-1]), range(MOST_FRAMES), strict=False)
    )


def spied_stack(printed: bytes | str, pid: int) -> str:
    """The main thread of what ``py-spy dump --json`` prints (py-spy 0.4), as faulthandler would write it; ""
    where there is none. What a program of another user's choice prints is not trusted.
    """
    try:
        threads = parse_json(printed, _SPIED, spelling=False, unique=False, any_text=True)
        [frames] = [thread["frames"] for thread in threads if thread["os_thread_id"] == pid]
        lines = [f'  File "{f["filename"]}", line {int(f["line"])} in {f["name"]}' for f in frames]
    except (Unreadable, TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return ""
    return "\n".join(["Thread 0x0 (most recent call first):", *lines]) if lines else ""


def positions(looks: Iterable[ProcessLook]) -> list[RankPosition]:
    """The position of each rank, by rank: of the process that trains; torchrun's agents and the workers of
    data loaders, which have a rank in their environment too, are left out. A process that is stopped, or in
    the kernel, tells no stacks: it is taken where nobody else of its rank tells any.
    """
    looks = tuple(looks)
    known = [look for look in looks if look.frames and look.rank is not None]
    ranks = {look.pid: look.rank for look in known if not _is_agent(look)}
    trains = {
        look.rank: look
        for look in reversed(known)
        if look.pid in ranks and ranks.get(look.parent, -1) != look.rank
    }
    for look in looks:
        if not look.frames and look.rank is not None and look.state in "TtD":
            trains.setdefault(look.rank, look)
    return _with_recorder(
        [_position(look) for _, look in sorted(trains.items(), key=lambda item: item[0] or 0)]
    )


def parting(ranks: Sequence[RankPosition]) -> Parting | None:
    """The collective at which these ranks part, by torch's flight recorder; None where it is not known of all
    of them.
    """
    records = {each.rank: each.look.records for each in ranks}
    known = {rank: groups for rank, groups in records.items() if groups is not None}
    return parting_of(known) if 1 < len(known) == len(records) else None


def _with_recorder(ranks: list[RankPosition]) -> list[RankPosition]:
    """The ranks, of which those wait that have entered a collective and went on to wait for it elsewhere, as
    over NCCL in ``loss.item()``.
    """
    parts = parting(ranks)
    if parts is None:
        return ranks
    return [
        replace(each, operation=_awaited(each.look))
        if each.operation is None and (each.rank not in parts.blame or parts.kind is not Kind.BEHIND)
        else each
        for each in ranks
    ]


def _awaited(look: ProcessLook) -> str | None:
    """The collective that a rank has entered and that is not done; None: there is none."""
    return next((name for each in look.records or () if (name := each.waits_in) is not None), None)


def cause_of_hang(looks: Sequence[ProcessLook]) -> HangCause | None:
    """The ranks that hold up the others. None: too little is known, as without stacks of two ranks."""
    ranks = positions(looks)
    if not ranks:
        return None
    lines = {each.rank: where_it_is(each, looks) for each in ranks}
    waiting = [each for each in ranks if each.operation is not None]
    behind = [each for each in ranks if each.operation is None]
    if behind and waiting:
        cause = _held_up(behind, waiting, lines)
        return replace(cause, works=all(_works(each, waiting, looks) for each in behind))
    if not waiting:
        here = "; ".join(f"{_ranks([r])} {place}" for r, place in list(lines.items())[:4])
        return HangCause(f"no rank waits for another: {here}", (), lines)
    spots = Counter((each.operation, each.own.place) for each in waiting)
    parts = parting(ranks)
    if parts is not None and parts.kind is Kind.MISMATCH:
        return _disagree(parts, _mismatch(waiting, spots, lines) if len(spots) > 1 else None, lines)
    # Ranks over NCCL wait for one collective at different lines.
    if len(spots) > 1 and (parts is None or parts.kind is not Kind.STUCK):
        return _mismatch(waiting, spots, lines)
    first = waiting[0].rank
    if parts is not None and parts.kind is Kind.GPU_BEHIND:
        return _gpu_behind(parts, lines)
    who = f"all {len(waiting)} ranks that answered" if len(waiting) > 1 else f"rank {first}"
    where = _plural(lines[first]) if len(waiting) > 1 else lines[first]
    return HangCause(f"{who} {where}: look at the network, and for a rank that is gone", (), lines)


def hang_over(rounds: Sequence[Sequence[ProcessLook]]) -> HangCause | None:
    """The hang that several looks at the same processes show: ranks wait for one another, and those for which
    they wait do not move. None: no rank waits, or something moves.
    """
    causes = [cause_of_hang(looks) for looks in rounds]
    last = causes[-1] if causes else None
    if last is None or not (last.blame or last.mismatch):
        return None
    same = all(c is not None and (c.blame, c.mismatch) == (last.blame, last.mismatch) for c in causes)
    marks = [_marks(looks) for looks in rounds]
    if not same or None in marks or any(mark != marks[0] for mark in marks):
        return None
    # On a busy machine one that polls is seen ready to run now and then; one that computes always is.
    ready = [
        {
            each.pid
            for each in _movers(positions(looks), looks)
            if (each.ready or each.state == "R") and not _awaited(each)
        }
        for looks in rounds
    ]
    return None if set.intersection(*ready) else last


def _works(behind: RankPosition, waiting: Sequence[RankPosition], looks: Sequence[ProcessLook]) -> bool:
    """True if a rank for which others wait moves, or what it has started does."""
    # What polls in those that wait polls in the rank for which they wait, too.
    polled = max(each.look.others for each in waiting)
    return any(
        each.state not in "Tt"
        and (each.busy >= COMPUTES or each.switches > MOVES or each.others > MOVES + 2 * polled)
        for each in _begun_by(behind.look, looks)
    )


def _marks(looks: Sequence[ProcessLook]) -> tuple[object, ...] | None:
    """The places of the ranks, and their collectives; equal in a later look if none of them has moved.
    None: one of them moves in this look, or what one of them has started and may wait for.
    """
    ranks = positions(looks)
    waiting = {each.look.pid: each.look for each in ranks if each.operation is not None}
    # What polls in those that wait polls in the rank for which they wait, too.
    polled = max((look.others for look in waiting.values()), default=0.0)
    movers = _movers(ranks, looks)
    for each in movers:
        if _awaited(each) is not None:
            continue  # over NCCL it waits by asking its GPU again and again
        is_counted = each.pid not in waiting or each.pending is not None
        moves = each.switches > (MOVES if is_counted else MOVES_WAITING)
        also = each.pid not in waiting and each.others > MOVES + 2 * polled
        if moves or also or each.busy >= COMPUTES or each.state == "D":
            return None
    seen = {each.pid: each for each in (*movers, *(place.look for place in ranks))}
    return tuple(
        (each.pid, each.records if _awaited(each) is not None else (each.frames, each.pending))
        for each in seen.values()
        if each.rank is not None
    )


def _movers(ranks: Iterable[RankPosition], looks: Sequence[ProcessLook]) -> list[ProcessLook]:
    """The processes that tell whether a run moves: its ranks, and what those have started that wait for no
    other. The store of a rendezvous looks for its members a hundred times in a second: who waits there tells
    nothing.
    """
    movers = []
    for place in ranks:
        if place.operation is None:
            movers += _begun_by(place.look, looks)
        elif place.operation != "init_process_group":
            movers.append(place.look)
    return movers


def _begun_by(look: ProcessLook, looks: Sequence[ProcessLook]) -> list[ProcessLook]:
    """A process and all below it."""
    processes, parents = [look], {look.pid}
    for _ in looks:
        below = [each for each in looks if each.parent in parents and each.pid not in parents]
        if not below:
            break
        processes += below
        parents |= {each.pid for each in below}
    return processes


def diagnose_stacks(
    looks: Sequence[ProcessLook], silent: float, *, restarted: bool = False, usual: float = 0.0
) -> Diagnosis | None:
    """The reason why a run does not move. ``silent``: seconds since any member wrote a line; ``restarted``:
    whether one of them was started again; ``usual``: the longest silence after which the run went on by
    itself. None: no rank holds up another, or its members wrote lately, when a moment's stacks say nothing.
    """
    cause_found = cause_of_hang(looks)
    if cause_found is None or silent < SILENT:
        return None
    meet = restarted and all(each.operation == "init_process_group" for each in positions(looks))
    if not (cause_found.blame or cause_found.mismatch or meet):
        return None
    code = "collective_mismatch" if cause_found.mismatch else "rank_stalled"
    if code == "rank_stalled" and (cause_found.works or silent <= usual):
        code = RANKS_WAIT
    if meet:
        # Who starts again alone may meet the store of a master that is about to end, and wait for ever.
        code, cause_found = "partial_restart_hang", replace(cause_found, summary=_never_meet(cause_found))
    from allaboard.diagnosis.causes import all_rules  # not for who only reads stacks: a supervisor

    cause = all_rules()[code].cause
    first = list(dict.fromkeys((*cause_found.blame, *cause_found.lines)))[:4]
    return Diagnosis(
        code,
        f"{cause_found.summary}; no member has written for {show_seconds(silent)}",
        tuple(Evidence(f"rank {rank}", "stack", cause_found.lines[rank]) for rank in first),
        f"rank {cause_found.blame[0]}" if cause_found.blame else None,
        cause.retryable,
        cause.fix,
        0.8 if cause_found.blame else 0.7,
    )


def _never_meet(cause: HangCause) -> str:
    each = _plural(next(iter(cause.lines.values())))
    return f"members were started again one by one and do not meet: all {len(cause.lines)} {each}"


def _held_up(
    behind: Sequence[RankPosition], waiting: Sequence[RankPosition], lines: Mapping[int, str]
) -> HangCause:
    operation = str(Counter(each.operation for each in waiting).most_common(1)[0][0])
    numbers = {each.look.pending for each in waiting if each.look.pending is not None}
    if len(numbers) == 1:
        kind = "collective number" if " " in operation or operation == "backward" else "number"
        operation += f"{',' if kind != 'number' else ''} {kind} {numbers.pop()}"
    first = behind[0]
    if len(behind) == 1:
        who, place = f"rank {first.rank} has not entered {operation}", f"it {lines[first.rank]}"
    else:
        who = f"{_ranks([each.rank for each in behind])} have not entered {operation}"
        place = f"rank {first.rank} {lines[first.rank]}"
    waiters = _ranks([each.rank for each in waiting])
    verb = "waits" if len(waiting) == 1 else "wait"
    pronoun = "it" if len(behind) == 1 else "them"
    at = f" at {waiting[0].own.place}" if len({each.own.place for each in waiting}) == 1 else ""
    summary = f"{who}: {place}; {waiters} {verb} for {pronoun}{at}"
    return HangCause(summary, tuple(each.rank for each in behind), lines)


def _mismatch(
    waiting: Sequence[RankPosition], spots: Counter[tuple[str | None, str]], lines: Mapping[int, str]
) -> HangCause:
    most = spots.most_common(1)[0][0]
    odd = [each for each in waiting if (each.operation, each.own.place) != most]
    sides = []
    for spot in spots:
        here = [each for each in waiting if (each.operation, each.own.place) == spot]
        place = lines[here[0].rank]
        sides.append(f"{_ranks([e.rank for e in here])} {place if len(here) == 1 else _plural(place)}")
    blame = tuple(each.rank for each in odd) if len(odd) * 2 < len(waiting) else ()
    return HangCause(f"ranks wait in different places: {'; '.join(sides)}", blame, lines, mismatch=True)


def _disagree(parts: Parting, places: HangCause | None, lines: Mapping[int, str]) -> HangCause:
    """The cause where ranks call different collectives, or with tensors of different sizes."""
    calls: dict[str, list[int]] = {}
    for rank, call in sorted(parts.calls.items()):
        of = f" of {visible(call.given, most=80)}" if call.given else ""
        calls.setdefault(f"{visible(call.operation, most=60)}{of}", []).append(rank)
    sides = " and ".join(f"{call} on {_ranks(ranks)}" for call, ranks in calls.items())
    text = f"collective number {parts.number} is {sides}"
    if places is not None:
        return replace(places, summary=f"{places.summary}; {text}", blame=parts.blame or places.blame)
    return HangCause(f"ranks do not agree: {text}", parts.blame, lines, mismatch=True)


def _gpu_behind(parts: Parting, lines: Mapping[int, str]) -> HangCause:
    who, others = _ranks(parts.blame), _ranks(parts.inside)
    name = f"{visible(parts.operation, most=60)} number {parts.number}"
    its = "its GPU has" if len(parts.blame) == 1 else "their GPUs have"
    summary = f"{who} enqueued {name}, but {its} not begun it: {lines[parts.blame[0]]}; {others} wait in it"
    return HangCause(summary, parts.blame, lines)


def _position(look: ProcessLook) -> RankPosition:
    if not look.frames:
        return RankPosition(look, None, Frame("", 0, ""))
    own = next((frame for frame in look.frames if not frame.is_library), look.frames[0])
    inner = look.frames[: look.frames.index(own)] if own in look.frames else ()
    return RankPosition(look, None if look.busy >= COMPUTES else _operation(inner), own)


def _operation(inner: Sequence[Frame]) -> str | None:
    """The collective that these frames, which the script has called, are in; None: none."""
    called = [frame for frame in inner if _COLLECTIVES in frame.file and frame.function != "wrapper"]
    if called:
        return called[-1].function
    if any(_BACKWARD[0] in frame.file and frame.function == _BACKWARD[1] for frame in inner):
        return "backward"
    if any(part in frame.file for frame in inner for part in _PARALLEL):
        return "the exchange of parameters"
    return None


def where_it_is(position: RankPosition, looks: Sequence[ProcessLook]) -> str:
    """In words, the rest of a sentence that begins with the rank."""
    own, look = position.own, position.look
    if not look.frames:
        disk = "waits for a disk or a network file system, and cannot be asked where"
        return disk if look.state == "D" else "is stopped by a signal (SIGCONT lets it go on)"
    at = f"{own.place} `{visible(own.function, most=60)}`"
    if position.operation is not None:
        return f"waits in {position.operation} at {at}"
    if (worker := _busy_worker(position, looks)) is not None:
        return f"waits at {at} for a worker of its data loader, which {_does(worker)} {_worker_place(worker)}"
    return f"{_does(look)} {at}"


def _busy_worker(position: RankPosition, looks: Sequence[ProcessLook]) -> ProcessLook | None:
    """The process for which a rank waits: a worker of its data loader that is in the script's own code."""
    inner = position.look.frames[: position.look.frames.index(position.own)]
    if not any(part in frame.file for frame in inner for part in _LOADER):
        return None
    mine = (look for look in looks if look.parent == position.look.pid and look.frames)
    return next((look for look in mine if any(not frame.is_library for frame in look.frames[:20])), None)


def _worker_place(look: ProcessLook) -> str:
    """The position of a helper of a rank, in its script."""
    own = next((frame for frame in look.frames if not frame.is_library), look.frames[0])
    return f"{own.place} `{visible(own.function, most=60)}`"


def _does(look: ProcessLook) -> str:
    if look.busy >= COMPUTES or look.state == "R":
        return "computes at"
    if look.state == "D":
        return "waits for a disk or a network file system at"
    return "is stopped at" if look.state in "Tt" else "waits at"


def _is_agent(look: ProcessLook) -> bool:
    return any(part in frame.file for frame in look.frames for part in _AGENT)


def _plural(clause: str) -> str:
    verb, _, rest = clause.partition(" ")
    return f"{'are' if verb == 'is' else verb.removesuffix('s')} {rest}"


def _ranks(ranks: Sequence[int]) -> str:
    """``rank 2``, ``ranks 0, 1, 3``, ``ranks 0, 1, 2, 3 and 12 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(map(str, ranks[:4])) if len(ranks) > 5 else ", ".join(map(str, ranks))
    return f"ranks {named}{f' and {len(ranks) - 4} more' if len(ranks) > 5 else ''}"
