"""The output of a member, read as its program wrote it: without the marks that launchers put before each
line, and with the exceptions that Python printed. The one place that knows how launchers mark lines.

torch writes ``[rank2]: `` before what an uncaught exception prints, torchrun ``[default2]:`` (or the role's
name) before everything, mpirun ``[1,3]<stderr>:``, srun ``3: ``; timestamps and colours may stand before,
between and after them. What stands before a traceback's first line stands before its others too, whatever
the launcher.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

LONGEST = 4000
"""Characters of a line that are parsed."""

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|\r")
_TIME = (
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d| UTC)?"
    r"|\d\d:\d\d:\d\d(?:[.,]\d+)?"
    r"|[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4}"
)
_MARK = re.compile(
    r"\[rank(?P<rank>\d{1,7})\]: ?"
    r"|\[[A-Za-z_][\w.-]{0,40}?(?P<local>\d{1,7})\]: ?"
    r"|\[\d{1,9},(?P<mpi>\d{1,7})\](?:<\w+>:? ?|: ?)"
    r"|\[(?P<plain>\d{1,7})\]:? "
    rf"|\[(?:{_TIME})\]:? ?|(?:{_TIME})(?=[\s\[:|]|$):? ?(?:[|-] )?"
    r"|(?P<task>\d{1,7}): (?=\s|\S)"
    # What C++ of torch writes, by glog's header: [E1125 15:05:10.969521848 socket.cpp:1028] [c10d]
    r"|\[[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} [\w.]{1,60}:\d{1,6}\] (?:\[c10d\] )?"
)
_MARKS = 6
_HEAD = re.compile(r"(?:^|(?<=[\s:|>\]]))(?:\w+ )?Traceback \(most recent call last\):?\s*$")
_FRAME = re.compile(r'\s*File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<name>.{1,200}))?$')
_GROUP = re.compile(r" *[+|][-+ |]?")
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,200})(?:: (?P<text>.*)|:)?$")
_CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause of the following"
)
_LIBRARY_PATH = re.compile(
    r"^<|[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d[\d.]*[/\\]|[/\\]allaboard[/\\](inside|checkpoints|shards|storage)[/\\]"
)
WRAPPERS = frozenset({"ChildFailedError", "CalledProcessError", "SignalException"})
"""Exceptions of launchers: they say that a process failed, never why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its launcher's marks. ``rank``: the global rank that the launcher named; ``local``:
    the one within its member."""

    text: str
    rank: int | None = None
    local: int | None = None


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    name: str = ""

    @property
    def is_user_code(self) -> bool:
        """True if the frame is code of the job, not of a library."""
        return not _LIBRARY_PATH.search(self.file)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class RaisedException:
    """An exception that ended a process. ``where``: the innermost frame of the job's own code, else the
    innermost of all. ``chained``: another one was raised from it."""

    type: str
    message: str
    where: Frame | None
    rank: int | None = None
    local: int | None = None
    position: int = 0
    chained: bool = False

    @property
    def text(self) -> str:
        """As Python prints it: ``ValueError: no``."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def is_wrapper(self) -> bool:
        return self.type.rpartition(".")[2] in WRAPPERS


def strip_prefixes(line: str) -> Line:
    """A line as its program wrote it."""
    text = _ESCAPES.sub("", line[:LONGEST])
    rank = local = None
    for _ in range(_MARKS):
        match = _MARK.match(text)
        if match is None or not match[0]:
            break
        text = text[match.end() :]
        fields = match.groupdict()
        number = fields["rank"] or fields["mpi"] or fields["plain"] or fields["task"]
        rank = int(number) if number is not None and (rank is None or fields["rank"]) else rank
        local = int(fields["local"]) if fields["local"] is not None else local
    return Line(text.rstrip(), rank, local)


def strip_lines(text: str | Sequence[str]) -> list[Line]:
    """Each line of it; neither of the Unicode separators is the end of one."""
    return [strip_prefixes(line) for line in (text.split("\n") if isinstance(text, str) else text)]


@dataclass(slots=True)
class _Block:
    """A traceback that is being read. ``before``: what stands before each of its lines."""

    position: int
    before: str = ""
    frames: list[Frame] = field(default_factory=list)
    in_frames: bool = False


def find_exceptions(lines: Sequence[Line], *, chains: bool = False) -> list[RaisedException]:
    """Every exception that Python printed, in the order of their tracebacks' ends. Of a chain the one that
    was raised last stands, with ``chains`` the others too; lines of several ranks may be mixed."""
    open_: dict[tuple[int | None, int | None], _Block] = {}
    exceptions: list[RaisedException] = []
    chained: set[tuple[int | None, int | None]] = set()
    for n, line in enumerate(lines):
        who = (line.rank, line.local)
        head = _HEAD.search(line.text)
        if head is not None:
            open_[who] = _Block(n, line.text[: head.start()])
            continue
        block = open_.get(who)
        if _CHAINED.search(line.text):
            chained.add(who)
            continue
        text = _cut_before(line.text, block.before if block is not None else "")
        frame = _FRAME.match(text)
        if frame is not None:
            block = block or open_.setdefault(who, _Block(n))
            block.frames.append(Frame(frame["file"], int(frame["line"]), frame["name"] or ""))
            continue
        if block is None or not block.frames or not text or text[0].isspace():
            continue
        del open_[who]
        match = _RAISED.match(text)
        if match is None:
            continue
        if who in chained:
            chained.discard(who)
            exceptions = _without_last_of(exceptions, who, chains)
        own_frames = [frame for frame in block.frames if frame.is_user_code] or block.frames
        exceptions.append(
            RaisedException(match["type"], match["text"] or "", own_frames[-1], *who, block.position)
        )
    return exceptions


def _cut_before(text: str, before: str) -> str:
    """The line of a traceback without what stood before its first one, and without the bars of a group."""
    if before and text.startswith(before):
        text = text[len(before) :]
    bars = _GROUP.match(text) if text.lstrip().startswith(("|", "+")) else None
    return text[bars.end() :] if bars is not None else text


def _without_last_of(
    exceptions: Sequence[RaisedException], who: tuple[int | None, int | None], chains: bool
) -> list[RaisedException]:
    """The same without the last one of a rank, or with it as one from which another was raised."""
    for n in range(len(exceptions) - 1, -1, -1):
        last = exceptions[n]
        if (last.rank, last.local) == who:
            kept = [replace(last, chained=True)] if chains else []
            return [*exceptions[:n], *kept, *exceptions[n + 1 :]]
    return list(exceptions)


def last_of_each_rank(exceptions: Iterable[RaisedException]) -> list[RaisedException]:
    """The last exception of each rank, but for those that launchers raise; in the order in which they
    ended."""
    last: dict[tuple[int | None, int | None], RaisedException] = {}
    for exception in exceptions:
        if not exception.is_wrapper:
            last.pop((exception.rank, exception.local), None)
            last[(exception.rank, exception.local)] = exception
    return list(last.values())


def uncaught_exceptions(lines: Sequence[Line]) -> Iterator[RaisedException]:
    """The exceptions that ended processes, as `last_of_each_rank` has them."""
    yield from last_of_each_rank(find_exceptions(lines))
