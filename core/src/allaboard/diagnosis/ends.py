"""Doubts about a success: evidence that a run which ended with exit code 0 did not do its work.

The state stays the operator's. A doubt is one sentence about one member, with the line that shows it. An end
is doubted for a signal or a disruption before the last step, a step below the total that nothing explains,
a traceback or an error as last words, and a member that failed or waited when the others had ended. Values
in, values out, from the standard library alone: supervisors import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from allaboard.diagnosis.reading import is_secondary
from allaboard.diagnosis.tracebacks import Line, strip_lines
from allaboard.runs.observation import DISRUPTIONS, Doubt, MemberSeen, Observation, PodSeen
from allaboard.text.reportline import PREFIX, decode

MOST_DOUBTS = 4
READ = 128 << 10
"""Characters of the end of a log that are read."""
NEAR_THE_END = 40
"""Lines before the last step in which a script says why it stops early."""
LAST_WORDS = 4
"""Last lines of a log in which an error counts as its last words."""
MOST_FRAMES = 400
"""Lines of a traceback that are read."""
AFTER_A_TRACEBACK = 12
"""Lines after a traceback from which on it is not the last words of its log: something went on."""
AFTER_THE_INTERPRETER = 3
"""Lines that a wrapper writes after an interpreter that ended with a traceback."""
TRACEBACK = "a traceback"
AT_THE_END = 10.0
"""Seconds before the end of a run in which the last words of a member are about that end. The clocks of its
node and of the API server differ.
"""
SETTLES = 0.9
"""Seconds after the end of a run on one machine in which nobody ends its members."""
LONGEST_QUOTE = 200


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps that a log reports. ``at``: the line of the last one; ``first``: of the first one; ``stride``:
    the steps between two reports.
    """

    last: int
    total: int | None
    first: int
    at: int
    stride: int

    @property
    def is_complete(self) -> bool:
        """True if the last report is as near to the total as reports are to each other."""
        return self.total is not None and self.total - self.last <= self.stride

    @property
    def is_short(self) -> bool:
        """True if steps are missing."""
        return self.total is not None and not self.is_complete

    def __str__(self) -> str:
        return f"step {self.last:,}" + (f" of {self.total:,}" if self.total is not None else "")


_SIGNAL = re.compile(
    r"\b(received|caught|got|handling|trapped|interrupted by|terminated by)\b.{0,40}"
    r"\b(SIG(TERM|INT|HUP|USR1|USR2)|signal:? ?(15|2|1|10|12)\b|"
    r"(termination|preemption|interrupt(ion)?|death) (signal|notice|request))"
    r"|\bSIG(TERM|INT|HUP|USR1)\b.{0,20}\b(received|caught|trapped)"
    r"|\b(preempt(ion|ed)|spot interruption|evict(ion|ed))\b.{0,40}"
    r"\b(received|notice|imminent|stopping|exiting)",
    re.IGNORECASE,
)
_SIGNAL_TO_COME = re.compile(
    r"\b(if|when|once|will|would|until|on|no|not|never|without|install(ed|ing)?|regist(er|ered|ering)|enabled?|"
    r"handlers?|hook)\b",
    re.IGNORECASE,
)
_EXPLAINED = re.compile(
    r"early[ _-]?stop|stop(ped|ping|s)?\b.{0,20}\bearly|"
    r"\b(max(imum)?|allowed|given|wall[ -]?clock)[ _-]?(train(ing)?[ _-]?)?(run[ _-]?)?"
    r"(time|duration|runtime|hours|minutes|seconds|tokens|samples|steps|epochs)\b.{0,60}"
    r"\b(reached|exceeded|hit|elapsed|used|up|over|passed)|"
    r"\b(reached|exceeded|hit|used up|out of)\b.{0,40}"
    r"\b(time|max[ _-]?\w+|budget|target|goal|limit|tokens)\b|"
    r"\btime (limit|budget|is)\b.{0,40}\b(reached|exceeded|up|hit|over|used)|"
    r"\b(did not|does not|no longer) improve|\bno improvement|\bnot improved|\bpatience\b.{0,40}"
    r"\b(exhausted|reached|exceeded|over|ran out|used)|\bran out of patience|\bconverged\b|\bplateau(ed)?\b|"
    r"\b(target|goal|threshold|required|desired)\b.{0,60}\b(reached|met|achieved|hit|passed)|"
    r"signal+ing trainer to stop|should_(training_)?stop|\bbudget\b.{0,40}\b(reached|exhausted|used|spent)|"
    r"\bdata(set)?\b.{0,20}\b(exhausted|ran out|is used up|consumed)|\bpruned\b|\btrial\b.{0,20}\bstopp",
    re.IGNORECASE,
)
_FINISHED = re.compile(
    r"\b(train(ing|ed)?|fit(ting)?|finetun(e|ing)|run|job|optimi[sz]ation|epochs?|pretraining)\b.{0,40}"
    r"\b(complete(d|ly)?|finished|done|succeeded|successful(ly)?|over)\b|"
    r"\b(finished|completed|done)\b.{0,20}\b(train(ing)?|fit(ting)?|all (steps|epochs)|run|job)\b|"
    r"stopped: `?max_(steps|epochs)|train_runtime",
    re.IGNORECASE,
)
_SAVED = re.compile(
    r"\bsaved? (final|best|the)?.{0,20}\bmodel\b|\bmodel (was )?saved\b|"
    r"\bfinal (model|checkpoint|metrics|loss|accuracy|val\w*)\b",
    re.IGNORECASE,
)
_CUT_SHORT = re.compile(
    r"\b(early|interrupt\w*|stopp\w*|abort\w*|preempt\w*|signal|SIG[A-Z]+)\b", re.IGNORECASE
)
_DENIED = re.compile(
    r"\b(not|never|before|without|in)[ -]?(yet )?(complete|finish|success|done)", re.IGNORECASE
)
_STEP = re.compile(
    r"\b((global[_ ]?)?steps?|iter(ation)?s?|it|epochs?|batch(es)?|updates?)\b[\"']?[ \t]*[:=\[(#]?[ \t]*"
    r"(?P<step>\d{1,12})(?:[ \t]*(?:/|of|out of)[ \t]*(?P<total>\d{1,12}))?",
    re.IGNORECASE,
)
_BAR = re.compile(r"\d{1,3}%\|.{0,200}?\|[ \t]*(?P<step>\d{1,12})/(?P<total>\d{1,12})[ \t]*\[")
_TRACEBACK = re.compile(r"(?:^|[\s:|>\]])(?:\w+ )?Traceback \(most recent call last\):?\s*$")
_HARMLESS_TRACEBACK = re.compile(r"^\W*Exception (in thread|ignored in|in callback)\b")
_FRAME = re.compile(r'\s*File "[^"]{1,1000}", line \d{1,9}(?:, in (?P<name>.{1,200}))?$')
_RAISED = re.compile(r"([A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,100}(: .*|:)?$")
_SIGNALLED = range(129, 160)
"""Exit codes of processes that a signal ended."""
_SIGNAL_RAISED = re.compile(r"SIG(TERM|INT|HUP)|KeyboardInterrupt|SystemExit|SignalException|\bsignal\b")
_CHAIN = re.compile(r"(During handling of the above exception|The above exception was the direct cause)")
_OF_A_SHELL = re.compile(
    r"^(/\S+/)?\S{0,60}: line \d{1,9}: .{0,20}\b(Killed|Terminated|Segmentation fault|Aborted|Bus error)\b|"
    r"^(Killed|Terminated|Segmentation fault|Aborted|Bus error)( \(core dumped\))?$|"
    r"^(/\S+/)?\w{0,6}sh: .*(not found|No such file|Permission denied|cannot execute)|"
    r"^(/\S+/)?\S{0,60}: line \d{1,9}: .*(not found|No such file|Permission denied|cannot execute)|"
    r"^(/\S+/)?python[\d.]*: (can't open file|No module named)|^make(\[\d+\])?: \*\*\* "
)
_ERROR = re.compile(
    r"^\W*(ERROR|FATAL|CRITICAL|PANIC|panic|fatal|error)\b(?!s)\s*[:\]|-]|"
    r"^\W*(ERROR|FATAL|CRITICAL)\b|[\[\s|:-](ERROR|FATAL|CRITICAL)[\]:|-]?\s|"
    r"^([A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(Error|Exception)\b(: |$|\()|"
    r"(?i:\b(training|trainer|run|job|main|script|process|worker|experiment|command)\b.{0,40}"
    r"\b(failed|crashed|aborted|died)\b|"
    r"\b(exit(ed|ing)?|return(ed)?|failed)\b.{0,20}\b(code|status)\b:? ?[1-9]|"
    r"\b(uncaught|unhandled) (error|exception)\b|\berror (while|during|in) (train|fit|main|load|sav|eval)\w*|"
    r"\bexception (occurred|raised|caught)?.{0,20}: )",
)
_HARMLESS = re.compile(
    r"\b(0|no|without|zero) (errors?|failures?|failed|exceptions?)\b|\b(warn(ing)?|info|debug|deprecat\w*)\b|"
    r"^\W*W\d{4} |"
    r"\b(ignor(ed|ing)|retry(ing)?|retried|recovered|skipp(ed|ing)|handled|falling back)\b|"
    r"\b\w*error\w*[ =:]+[-+]?\d",
    re.IGNORECASE,
)


def doubts_of(seen: Observation) -> tuple[Doubt, ...]:
    """Doubts about the success of a run, by the ends of its members' logs (`Observation.tails`). Empty if
    nothing contradicts it, and if nobody has read a log.
    """
    if not any(seen.tails.values()):
        return ()
    judged = _judged(seen)
    doubts: list[Doubt] = []
    for name, text in judged.items():
        doubts += _doubts_of_member(seen, name, text)
    doubts += _doubts_of_others(seen, judged)
    return tuple(doubts[:MOST_DOUBTS])


def _judged(seen: Observation) -> dict[str, str]:
    """The logs of the members that ended with 0 before the run did. What a member writes that is ended with
    the run says nothing of it.
    """
    ended = {m.name for m in seen.members if _has_succeeded(m, seen.finished)}
    known = {m.name for m in seen.members}
    return {
        name: text
        for name, text in seen.tails.items()
        if text and (name in ended if name in known and ended else name not in known or not ended)
    }


def _has_succeeded(member: MemberSeen, finished: float | None) -> bool:
    return (member.phase == "succeeded" or member.exit_code == 0) and (
        member.ended is None or finished is None or member.ended <= finished
    )


def _doubts_of_member(seen: Observation, name: str, text: str) -> Iterator[Doubt]:
    lines = _lines_of(text)
    rank = next((m.rank for m in seen.members if m.name == name), 0)
    steps = _steps_of(lines, seen if rank == 0 else None)
    marks = _Marks.of(lines, steps)
    at = f" at {steps}" if steps is not None else ""
    if (signal := marks.signal) is not None and not _is_done_in_spite(steps, marks):
        text = f"{name} exited with 0 after a signal{at}"
        yield Doubt(text, name, _quote(lines[signal]), retryable=True)
        return
    taken = _disruption(seen, name)
    if taken is not None and not (steps is not None and steps.is_complete) and marks.finished is None:
        yield Doubt(f"{name} exited with 0 while it was taken away ({taken}){at}", name, retryable=True)
        return
    failure = _last_words(lines, steps, marks)
    # A member that is done may lose its peers, which are done, too.
    if failure is not None and not is_secondary(failure[1]):
        short = f", {at.strip()}" if steps is not None and steps.is_short else ""
        yield Doubt(f"{name} exited with 0, and its last words are {failure[0]}{short}", name, failure[1])
        return
    if steps is not None and steps.is_short and marks.explained is None:
        yield Doubt(f"{name} exited with 0{at}, and does not say why it stopped there", name)


@dataclass(frozen=True, slots=True)
class _Marks:
    """Lines of a log, by their numbers. ``signal``: the last that reports a signal; ``explained``: that says
    why the script stops before its last step; ``finished``: that says that the training is done; ``saved``:
    that says so, or that its model is saved.
    """

    signal: int | None = None
    explained: int | None = None
    finished: int | None = None
    saved: int | None = None

    @classmethod
    def of(cls, lines: Sequence[Line], steps: _Steps | None) -> _Marks:
        begun, near = (
            (steps.first, max(steps.first, steps.at - NEAR_THE_END)) if steps is not None else (0, 0)
        )
        marks: dict[str, int] = {}
        for n, line in enumerate(lines):
            text = line.text[:1000]
            if PREFIX in text or n < begun:
                continue
            if (match := _SIGNAL.search(text)) and not _SIGNAL_TO_COME.search(text[: match.end()]):
                marks["signal"] = n
            if n >= near and _EXPLAINED.search(text):
                marks["explained"] = n
            if _DENIED.search(text):
                continue
            if _FINISHED.search(text) and not _CUT_SHORT.search(text):
                marks["finished"] = marks["saved"] = n
            if _SAVED.search(text):
                marks["saved"] = n
        return cls(**marks)


def _is_done_in_spite(steps: _Steps | None, marks: _Marks) -> bool:
    """True if the work was done in spite of a signal: all steps, or, if no total is known, a line after the
    last step that says so.
    """
    if steps is not None and steps.total is not None:
        return steps.is_complete
    return marks.finished is not None and (steps is None or marks.finished >= steps.at)


def _steps_of(lines: Sequence[Line], seen: Observation | None) -> _Steps | None:
    """The steps that a log reports: those of report lines, else those that are printed. ``seen``: of the
    member whose reports are the run's.
    """
    counts = [(n, *count) for n, line in enumerate(lines) if (count := _reported(line.text)) is not None]
    is_reported = bool(counts)
    counts = counts or [(n, *count) for n, line in enumerate(lines) if (count := _printed(line.text))]
    progress = seen.progress if seen is not None else None
    own = progress is not None and progress.step is not None
    if not counts:
        if progress is None or progress.step is None:
            return None
        return _Steps(progress.step, progress.total, 0, max(0, len(lines) - 1), 1)
    with_total = [count for count in counts[-NEAR_THE_END:] if count[2] is not None]
    _, last, total = with_total[-1] if with_total else counts[-1]
    if is_reported and own and progress is not None and progress.step is not None:
        last, total = progress.step, progress.total
    values = [step for _, step, _ in counts]
    gaps = [after - before for before, after in pairwise(values) if after > before]
    return _Steps(last, total, counts[0][0], counts[-1][0], max(gaps[-3:], default=1))


def _reported(text: str) -> tuple[int, int | None] | None:
    report = decode(text) if PREFIX in text else None
    if report is None or report.kind != "progress":
        return None
    step, total = report.fields.get("step"), report.fields.get("total")
    return (step, total if isinstance(total, int) else None) if isinstance(step, int) else None


def _printed(text: str) -> tuple[int, int | None] | None:
    """The step and the total of a line. Of several counts in one line, one that is complete says that the
    others are parts of it.
    """
    counts = [
        (int(match["step"]), int(match["total"]) if match["total"] else None)
        for match in (*_BAR.finditer(text), *_STEP.finditer(text))
    ]
    with_total = [(step, total) for step, total in counts if total is not None and step <= total]
    if with_total:
        return max(with_total, key=lambda count: count[0] / max(count[1], 1))
    return counts[-1] if counts else None


def _disruption(seen: Observation, name: str) -> str | None:
    """The word for who took a member away before it ended; None: nobody did."""
    member = next((m for m in seen.members if m.name == name), None)
    if member is not None and member.end_reason in DISRUPTIONS:
        return member.end_reason
    pod = _pod_of(seen, name)
    if pod is None:
        return None
    condition = pod.condition("DisruptionTarget")
    if condition is not None and condition.status == "True":
        return condition.reason or "DisruptionTarget"
    ended = pod.main.now.ended if pod.main is not None else None
    for event in seen.objects.events if seen.objects is not None else ():
        of_pod = event.kind == "Pod" and event.name == (pod.pod or pod.name)
        if of_pod and event.reason in _TAKEN_AWAY and not (event.time and ended and event.time > ended):
            return event.reason
    return None


_TAKEN_AWAY = frozenset({"Evicted", "Preempted", "Preempting", "TaintManagerEviction", "NodeShutdown"})


def _pod_of(seen: Observation, name: str) -> PodSeen | None:
    pods = seen.objects.pods if seen.objects is not None else ()
    return next((pod for pod in pods if name in (pod.member, pod.name)), None)


def _last_words(lines: Sequence[Line], steps: _Steps | None, marks: _Marks) -> tuple[str, str] | None:
    """(a traceback or an error, its line) with which a log ends."""
    written = [n for n, line in enumerate(lines) if line.text.strip() and PREFIX not in line.text]
    is_complete = steps is not None and steps.is_complete
    begun = steps.at if steps is not None else -1
    done = marks.saved if marks.saved is not None else -1
    blocks = _tracebacks(lines)
    last = next((block for block in reversed(blocks) if not block.is_harmless), _Traceback(-1, -1, "", True))
    end, after = last.end, sum(n > last.end for n in written)
    # An interpreter that ends prints its frames from the module on; then its wrapper may call the run done.
    is_uncaught = last.outer == "<module>" and not is_complete and after <= AFTER_THE_INTERPRETER
    went_on = end < begun or after > AFTER_A_TRACEBACK or (done > end and not is_uncaught)
    if end >= 0 and not went_on and not (is_complete and after):
        return TRACEBACK, _quote(lines[end])
    for n in reversed(written[-(1 if is_complete else LAST_WORDS) :]):
        text = lines[n].text.strip()[:1000]
        if n < begun or n <= done:
            break
        if any(block.begin <= n <= block.end for block in blocks):
            continue
        if _OF_A_SHELL.search(text) or (_ERROR.search(text) and not _HARMLESS.search(text)):
            return "an error", _quote(lines[n])
    return None


@dataclass(frozen=True, slots=True)
class _Traceback:
    """``begin``, ``end``: its first line, and that of the exception which was raised last in its chain;
    ``outer``: the function of its outermost frame; ``is_harmless``: it ended a thread or an object, not the
    script.
    """

    begin: int
    end: int
    outer: str
    is_harmless: bool


def _tracebacks(lines: Sequence[Line]) -> list[_Traceback]:
    """The tracebacks of a log, in their order."""
    blocks: list[_Traceback] = []
    chained, n = False, 0
    while n < len(lines):
        text = lines[n].text
        if not _TRACEBACK.search(text):
            chained = chained or _CHAIN.search(text) is not None
            n += 1
            continue
        outer, end = _read_traceback(lines, n, text[: text.rfind("Traceback")])
        if end is not None:
            before = next((line.text for line in reversed(lines[max(0, n - 2) : n]) if line.text), "")
            harmless = _HARMLESS_TRACEBACK.search(before) is not None
            if chained and blocks:
                first = blocks.pop()
                blocks.append(_Traceback(first.begin, end, first.outer, first.is_harmless))
            else:
                blocks.append(_Traceback(n, end, outer, harmless))
        chained = False
        n = (end if end is not None else n) + 1
    return blocks


def _read_traceback(lines: Sequence[Line], begin: int, mark: str) -> tuple[str, int | None]:
    """(function of the outermost frame, line of the exception) of a traceback. ``mark``: it stands before
    each of its lines.
    """
    outer = ""
    for n in range(begin + 1, min(len(lines), begin + MOST_FRAMES)):
        text = lines[n].text.removeprefix(mark)
        frame = _FRAME.match(text)
        if frame is not None:
            outer = outer or (frame["name"] or "").strip()
        elif _TRACEBACK.search(text):
            break
        elif outer and text.strip() and not text[0].isspace() and _RAISED.match(text):
            return outer, n
    return outer, None


def _doubts_of_others(seen: Observation, judged: Mapping[str, str]) -> Iterator[Doubt]:
    """Doubts by members that failed by themselves. Those that are ended with the run fail, too, without a
    traceback of their own.
    """
    least = None if seen.finished is None else seen.finished + (SETTLES if seen.objects is None else 0.0)
    for member in seen.members:
        code, name = member.exit_code, member.name
        if code == 0 or name in judged or member.phase not in ("failed", "deleted", "running"):
            continue
        lines = _lines_of(seen.tails.get(name, ""))
        ending = _last_words(lines, None, _Marks.of(lines, None))
        quote = ending[1] if ending is not None and not _SIGNAL_RAISED.search(ending[1]) else ""
        in_time = least is None or member.ended is None or member.ended <= least
        if code is None:
            # Its pod goes with the run, before anybody sees how it ended.
            last = seen.wrote.get(name)
            at_the_end = last is not None and seen.finished is not None and last >= seen.finished - AT_THE_END
            if at_the_end and quote and ending is not None and ending[0] == TRACEBACK:
                yield Doubt(f"{name} had failed when it was ended with the run", name, quote)
        elif code in _SIGNALLED and quote:
            yield Doubt(f"{name} had failed when it was ended with the run", name, quote)
        elif code not in _SIGNALLED and (in_time or quote):
            yield Doubt(f"{name} failed with exit code {code}", name, quote)


def waits(rank: int, where: str, member: str) -> Doubt:
    """The doubt about a run that ended while a rank waited. ``where``: the rest of a sentence that
    begins with the rank.
    """
    return Doubt(f"rank {rank} still {where} when the run ended", member)


def known_doubts(seen: Observation) -> tuple[Doubt, ...]:
    """The doubts that were written down at the end of a run, else those that its logs raise now."""
    return seen.doubts or doubts_of(seen)


def _lines_of(text: str) -> list[Line]:
    return strip_lines(text[-READ:].replace("\r\n", "\n").replace("\r", "\n"))


def _quote(line: Line) -> str:
    text = " ".join(line.text.split())
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 3]}..."
