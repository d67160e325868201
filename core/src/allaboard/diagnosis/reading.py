"""Reading of a log for a cause: the end of its process speaks first, an earlier line only where that end says
nothing, and a line that says only that a peer went away never.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from allaboard.diagnosis.case import OUTSIDE, Case, exit_code, exit_evidence, has_run, quote
from allaboard.diagnosis.finding import Evidence, Finding, Level
from allaboard.diagnosis.logs import Hit, LinePattern, Log, line_pattern
from allaboard.diagnosis.tracebacks import RaisedException
from allaboard.runs.observation import PodSeen

SECONDARY = line_pattern(
    r"Connection closed by (remote )?peer|Connection reset by (remote )?peer|Broken pipe|remote process exit|"
    r"there was a network error|ncclRemoteError|Socket recv failed while polling|Connection closed by "
    r"localRank|"
    r"watchdog got stuck|watchdog hang|Some NCCL operations have failed or timed out|taking the entire "
    r"process down|Watchdog caught|"
    r"watchdog thread terminated|store->get\('0'\) got error|got signal: 15|closing signal SIGTERM|"
    r"RendezvousClosedError|"
    r"lost communication with a remote daemon|mpirun noticed that process rank|processes exited with "
    r"non-zero status|"
    r"exited with non-zero status|heartbeat timeout|Shutdown barrier|coordination service.{0,80}UNAVAILABLE|"
    r"failed to connect to all addresses|UnavailableError|HorovodInternalError|has been shut down|"
    r"closed connection|recvValue failed|failed to recv, got 0 bytes|ProcessGroup.{0,80}(reset|closed)|"
    r"NCCL communicator was aborted|"
    r"ncclInternalError|peer .{0,60}(closed|disconnected)|DistNetworkError|Application timeout caused "
    r"pair closure"
)
OPAQUE = re.compile(
    r"(^|\.)(RuntimeError|DistBackendError|DistNetworkError|DistStoreError|DistError|"
    r"HorovodInternalError|UnavailableError|"
    r"ChildFailedError|CalledProcessError|SignalException|InternalError|XlaRuntimeError|"
    r"AcceleratorError|SystemExit|XGBoostError|SystemError|CheckpointException|"
    r"ProcessExitedException|ProcessRaisedException|OSError|Exception|TimeoutError|ClientError|"
    r"S3UploadFailedError)$"
)
"""Types that say little of why: what stands around them is read, too."""
MEETING = line_pattern(
    r"RendezvousTimeoutError|RendezvousConnectionError|DistStoreError|DistNetworkError|clients joined|"
    r"client socket has (timed out|failed)|"
    r"(c10d|TCPStore|rendezvous|init_process_group).{0,200}(timed out|refused|reset|Name or service)|"
    r"Barrier timed out|"
    r"gai error|ConnectionRefusedError"
)
"""Text of an exception that ended a member which never met the others: a symptom, with rules of its own."""
GOES_ON = line_pattern(
    r"\bstep\b[ =:#\[(]*\d+|\bepoch\b[ =:#\[(]*\d+|\biter(ation)?\b[ =:#\[(]*\d+|\d+%\||\bit \d+/\d+"
)
"""A line of a training that goes on."""
NEAR = 6000
"""Characters around the end of a process that belong to its message."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A pod's log. ``ended``: its process ended without success, as far as is known; ``fatal``: what ended
    it, the first that is not about a peer; ``speaks``: whether that says why."""

    pod: PodSeen
    log: Log
    ended: bool
    fatal: RaisedException | None
    speaks: bool


def readings(case: Case) -> list[Reading]:
    """Of every pod that has a log and has not succeeded."""
    if "readings" not in case.memo:
        case.memo["readings"] = [_read(case, pod, log) for pod, log in _telling(case)]
    known: list[Reading] = case.memo["readings"]
    return known


SAME = 6
"""Members whose logs say the same but for numbers, and that are looked at: those that ended first."""


def _telling(case: Case) -> list[tuple[PodSeen, Log]]:
    every = [(pod, log) for pod in case.pods if (log := case.log(pod)) is not None]
    if len(every) <= 4 * SAME:
        return every
    first = sorted(every, key=lambda item: case.went_bad(item[0]) or float("inf"))
    alike: Counter[tuple[int, str, int | None]] = Counter()
    kept = set()
    for pod, log in first:
        kind = (log.shape, pod.phase, exit_code(pod))
        alike[kind] += 1
        if alike[kind] <= SAME:
            kept.add(pod.name)
    return [(pod, log) for pod, log in every if pod.name in kept]


def _read(case: Case, pod: PodSeen, log: Log) -> Reading:
    own = [e for e in log.fatal if not is_secondary(e.text)]
    fatal = own[0] if own else None
    speaks = fatal is not None and OPAQUE.search(fatal.type) is None
    return Reading(pod, log, has_ended(case, pod), fatal, speaks)


def has_ended(case: Case, pod: PodSeen) -> bool:
    if pod.phase == "Succeeded":
        return False
    if exit_code(pod) is not None or pod.phase == "Failed" or pod.deleted is not None:
        return True
    return pod.main is None or (pod.main.now.state in ("", "waiting") and (has_run(pod) or not case.is_local))


_OF_HTTP = re.compile(r"^(requests|httpx|httpcore|urllib3?|aiohttp|botocore|boto3|http)\.")


def is_secondary(text: str) -> bool:
    """True if the text says only that a peer went away; a client of HTTP loses a server, not a member."""
    return SECONDARY.pattern.search(text) is not None and _OF_HTTP.match(text) is None


def author(case: Case, pod: PodSeen, rank: int | None, local: int | None = None) -> str:
    """``worker-0, rank 5``: the rank that a launcher named, else that of the member, if there are others."""
    if rank is not None:
        return f"{pod.name}, rank {rank}"
    if local is not None:
        return f"{pod.name}, local rank {local}"
    own = case.ranks.get(pod.member or "")
    return f"{pod.name}, rank {own}" if own is not None and len(case.seen.members) > 1 else pod.name


def told_of(case: Case, pod: PodSeen, text: str, rank: int | None) -> PodSeen:
    """The member that a line of a log is about: a launcher of MPI writes what its workers say, with their
    ranks or names.
    """
    if "launcher" not in (pod.member or pod.name):
        return pod
    others = [other for other in case.pods if other is not pod]
    named = [other for other in others if re.search(rf"\b{re.escape(other.pod or other.name)}\b", text)]
    if named:
        return max(named, key=lambda other: len(other.pod or other.name))
    slots = next((int(v[:6]) for v in case.spec(r"slotsPerWorker$").values() if v.isdigit()), 1)
    workers = sorted(others, key=lambda other: (len(other.name), other.name))
    if rank is None:
        return pod
    place = rank // max(slots, 1) - ("true" in case.spec(r"runLauncherAsWorker$").values())
    return workers[place] if 0 <= place < len(workers) else pod


def log_evidence(pod: PodSeen, text: str, where: RaisedException | None = None) -> tuple[Evidence, ...]:
    place = (
        (Evidence(f"log/{pod.name}", "traceback", str(where.where)),)
        if where is not None and where.where is not None
        else ()
    )
    return (Evidence(f"log/{pod.name}", "text", quote(text)), *place, *exit_evidence(pod))


def from_logs(
    case: Case,
    code: str,
    pattern: LinePattern,
    summary: str,
    *,
    but: LinePattern | None = None,
    level: Level = Level.CAUSE,
    running: bool = False,
    anywhere: bool = False,
    confidence: float = 0.9,
    retryable: bool | None = None,
    fix: str | None = None,
    blame: Callable[[PodSeen, str], str] | None = None,
    secondary: bool = False,
) -> Iterator[Finding]:
    """A finding for each pod whose log shows a pattern. ``but``: what a line must not say, too;
    ``running``: also while its process goes on; ``anywhere``: also where an exception ended it that says
    something else; ``secondary``: lines that also tell of a lost peer count."""
    for reading in readings(case):
        decisive = _first(reading, pattern, but, running, anywhere, secondary)
        if decisive is None:
            continue
        text, exception, hit = decisive
        rank = exception.rank if exception is not None else hit.rank if hit is not None else None
        local = exception.local if exception is not None else None
        pod = told_of(case, reading.pod, text, rank)
        yield Finding(
            code,
            f"{summary} ({author(case, pod, rank, local)}): {quote(text)}",
            log_evidence(reading.pod, text, exception),
            blame(pod, text) if blame is not None else pod.name,
            _when(case, reading, hit),
            level,
            confidence if exception is not None or reading.ended else confidence - 0.1,
            retryable,
            fix,
            from_object=False,
            who=reading.pod.name,
        )


def _when(case: Case, reading: Reading, hit: Hit | None) -> float | None:
    bad = case.went_bad(reading.pod)
    if hit is not None and hit.time is not None:
        return hit.time if bad is None else min(hit.time, bad) if hit.time > bad - 86400 else bad
    return bad


def _first(
    reading: Reading,
    pattern: LinePattern,
    but: LinePattern | None,
    running: bool,
    anywhere: bool,
    secondary: bool,
) -> tuple[str, RaisedException | None, Hit | None] | None:
    if reading.pod.phase == "Succeeded":
        return None

    def fits(text: str) -> bool:
        return (
            pattern.pattern.search(text) is not None
            and (secondary or not is_secondary(text))
            and (but is None or but.pattern.search(text) is None)
        )

    last = reading.log.fatal
    for exception in last:
        if fits(exception.text):
            hit = next(
                iter(
                    reading.log.hits(
                        LinePattern(
                            re.compile(re.escape(exception.text[:120])), (exception.text[:60].lower(),)
                        ),
                        1,
                    )
                ),
                None,
            )
            return exception.text, exception, hit
    for exception in reading.log.before_fatal:
        if fits(exception.text):
            return exception.text, exception, None
    # A process that hangs after its exception has not ended; one that goes on has dealt with it.
    if not reading.ended and not running and (reading.fatal is None or went_on(reading.log)):
        return None
    hits = [h for h in reading.log.hits(pattern) if fits(h.text)]
    # A frame of C++ has the words of its function, and the line above it those for people.
    hits = [h for h in hits if not _FRAME.match(h.text)] or hits
    if not reading.ended and hits:
        # What it has got over is no trouble.
        goes = reading.log.last(GOES_ON)
        hits = [h for h in hits if goes is None or goes.position < h.position]
    if reading.speaks and not anywhere:
        after = reading.log.body.rfind(reading.fatal.type) if reading.fatal is not None else -1
        hits = [
            h for h in hits if after >= 0 and after - 200 <= h.position <= after + NEAR and h.position > after
        ]
    if not hits:
        return None
    return hits[0].text, None, hits[0]


_OF_SIGNALS = re.compile(
    r"SIG(TERM|INT|HUP)|(^|\.)(SignalException|KeyboardInterrupt|GracefulExit|TerminationSignal)|"
    r"^SystemExit: "
    r"(128|129|130|143|SIG)"
)
_SIGNALLED = line_pattern(
    r"(received|caught|got|handling) .{0,20}\b(SIGTERM|SIGINT|SIGHUP)\b|(SIGTERM|SIGINT|SIGHUP)\b.{0,20}\b"
    r"(received|caught)|received .{0,20}\b(termination|15) (death )?signal|signal:? 15\b"
)


def ended_by_signal(reading: Reading) -> str | None:
    """The line that says so, where what ended a process is how it answers a signal: an exception that a
    handler raised, or any after the signal was reported in a process that ended with 128 and its number."""
    raised = next((e for e in reading.log.fatal if _OF_SIGNALS.search(e.text)), None)
    if raised is not None:
        return raised.text
    if exit_code(reading.pod) not in OUTSIDE or not reading.log.fatal:
        return None
    hit = next(iter(reading.log.hits(_SIGNALLED, 1)), None)
    traceback = reading.log.body.rfind("Traceback (most recent call last)")
    return hit.text if hit is not None and hit.position < traceback else None


_METRIC = re.compile(r"[\w./-]+ ?[=:] ?[-+]?(\d[\d.,e+%-]*|nan|none|null|true|false)\b,?", re.IGNORECASE)
_COMPLAINT = re.compile(
    r"\b(error|errors|failed|failure|fail|fails|fatal|cannot|can't|couldn't|could not|unable|illegal|"
    r"invalid|not found|"
    r"no such|denied|abort(ed|ing)?|giving up|gave up|unexpected|missing|refused|undefined|unrecognized|"
    r"unknown option|"
    r"unsupported|panic(ked)?|exceeded|must (be|have|not)|exception|critical|mismatch|corrupt(ed)?)\b|"
    r"^usage: ",
    re.IGNORECASE,
)
_OF_A_SHELL = re.compile(r"^(/\S+/)?\w{0,6}sh: \S.*: ")
_HARMLESS = re.compile(r"\b(0|no|without|zero) (errors?|failures?|failed)\b|\b(info|debug)\b", re.IGNORECASE)
LAST_WORDS = 3
"""Last lines of a log in which a reason is looked for that no rule knows."""


def last_complaint(log: Log) -> str | None:
    """The last line that complains, among the last that a member wrote: its reason, most likely. Figures of a
    training (``error=0.1``) complain of nothing."""
    for text in reversed(log.last_lines[-LAST_WORDS:]):
        bare = _METRIC.sub("", text)
        if (
            GOES_ON.pattern.search(text)
            or _HARMLESS.search(bare)
            or is_secondary(text)
            or MEETING.pattern.search(text)
        ):
            continue
        if _COMPLAINT.search(bare) or _OF_A_SHELL.match(text):
            return text
    return None


_FRAME = re.compile(r"frame #\d+:|#\d+ +0x[0-9a-f]+|\S+\(\S*\+0x[0-9a-f]+\)|Exception raised from ")


def went_on(log: Log) -> bool:
    """True if the log reports steps after its last traceback."""
    at = log.body.rfind("Traceback (most recent call last)")
    last = log.last(GOES_ON)
    return last is not None and last.position > at >= 0
