"""Reads the stacks of a run's processes: one exec in the container of each running member."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib import resources
from itertools import chain
from typing import TYPE_CHECKING, Any

from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.protocol import Executed
from allaboard.backends.kubernetes.logs.capture import run_within
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.diagnosis.recorder import pending_collective, read_records
from allaboard.diagnosis.stacks import ProcessLook, StacksSeen, main_thread
from allaboard.errors import AllaboardError
from allaboard.text.printable import visible
from allaboard.text.untrusted import Limits, parse_json

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

SECONDS = 20.0
"""For all members together; each is asked twice, with a second in between."""
PRINTED = Limits(size=4 << 20, depth=5, values=100_000, digits=20)
"""Limits of the script's output."""
_PIDS = 22
"""Bits of a pid, which is unique in its pod alone: the bits above are the member's number."""
_READS = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])).decode())"
NO_ALLABOARD = (
    "none of their processes shows its stacks; a Python does that begins with the helper of members, which "
    "needs a command in the job and no inject: off, or that has allaboard"
)
FORBIDDEN = (
    "their stacks may not be read, which needs get and create on pods/exec: "
    "allaboard cluster --rbac stacks -n {} | kubectl apply -f -; where exec is not allowed, set "
    "policy.hang.ask: file in the job, and members answer in their logs"
)


@cache
def _script() -> bytes:
    return resources.files(__package__).joinpath("script.py").read_bytes()


def command(rounds: int = 0) -> list[str]:
    """The command in the container. The script comes by stdin, because audit logs keep commands.
    ``rounds``: the number of looks, a moment apart; 0: one, as `read` expects it.
    """
    often = [str(rounds)] if rounds else []
    return ["python3", "-I", "-S", "-c", _READS, str(len(_script())), *often]


def ask_stacks(api: Api, tries: Sequence[ContainerRun]) -> StacksSeen:
    """The stacks of the processes of these containers. Raises nothing; returns within `SECONDS`."""
    answers: dict[int, StacksSeen] = {}

    def ask(number: int, instance: ContainerRun) -> None:
        try:
            ended = api.execute(
                instance.pod, command(), container=instance.container, given=_script(), most=PRINTED.size
            )
        except AllaboardError as error:
            answers[number] = StacksSeen(reason=_refusal(error, api.namespace))
        else:
            answers[number] = read(ended, number, instance)

    run_within(SECONDS, [partial(ask, number, instance) for number, instance in enumerate(tries)])
    return _together(dict(answers), len(tries))


def look_often(api: Api, tries: Sequence[ContainerRun], rounds: int) -> list[tuple[ProcessLook, ...]]:
    """``rounds`` looks at the processes of these containers, a moment apart; none unless all of them answer.
    Raises nothing; returns within `SECONDS`.
    """
    answers: dict[int, list[tuple[ProcessLook, ...]]] = {}

    def ask(number: int, instance: ContainerRun) -> None:
        with suppress(AllaboardError):
            ended = api.execute(
                instance.pod,
                command(rounds),
                container=instance.container,
                given=_script(),
                most=PRINTED.size,
            )
            answers[number] = read_rounds(ended, number, instance)

    run_within(SECONDS, [partial(ask, number, instance) for number, instance in enumerate(tries)])
    if len(answers) < len(tries):
        return []
    return [tuple(chain(*same)) for same in zip(*answers.values(), strict=False)]


def read_rounds(ended: Executed, number: int, instance: ContainerRun) -> list[tuple[ProcessLook, ...]]:
    """The looks in the script's output; none where it is malformed."""
    try:
        rounds = parse_json(ended.out, PRINTED, spelling=False, any_text=True)["rounds"]
        looks = [[look_of(entry, number, instance.member) for entry in each] for each in rounds]
    except (ValueError, TypeError, KeyError):
        return []
    return [_with_rank(each, instance.rank) for each in looks]


def read(ended: Executed, number: int, instance: ContainerRun) -> StacksSeen:
    """The script's output, which a hostile container may have written. ``number``: of the member."""
    where = f"container {instance.container} of pod {instance.pod}"
    if ended.code != 0:
        lines = ended.err.decode("utf-8", "replace").strip().splitlines()
        message = ended.trouble or (lines[-1] if lines else f"exit code {ended.code}")
        if "not found" in message or "no such file" in message.lower():
            return StacksSeen(reason=f"{where} has no python3, which reads the stacks of its processes")
        return StacksSeen(reason=f"{where} did not give its stacks: {visible(message, most=200)}")
    try:
        entries = parse_json(ended.out, PRINTED, spelling=False, any_text=True)["looks"]
        looks = [look_of(entry, number, instance.member) for entry in entries]
    except (ValueError, TypeError, KeyError):
        return StacksSeen(reason=f"{where} did not give its stacks: malformed answer")
    return stacks_seen(looks, instance)


def look_of(entry: Any, number: int, member: str) -> ProcessLook:
    """The look at one process, from the script's output. ``number``: of the member. Raises ValueError for a
    malformed one.
    """
    try:
        rank = entry["rank"]
        records = read_records(str(entry["records"])) if entry.get("records") else None
        return ProcessLook(
            _unique(entry["pid"], number),
            _unique(entry["parent"], number),
            None if rank is None else int(rank),
            member,
            main_thread(str(entry["text"])),
            str(entry["state"])[:1],
            float(entry["busy"]),
            pending_collective(read_records(str(entry["collectives"])) if records is None else records),
            float(entry.get("switches", 0.0)),
            float(entry.get("others", 0.0)),
            records,
            bool(entry.get("ready", False)),
        )
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError("malformed look at a process") from error


def _unique(pid: Any, number: int) -> int:
    return (number << _PIDS) + (int(pid) & (1 << _PIDS) - 1)


def stacks_seen(looks: Sequence[ProcessLook], instance: ContainerRun) -> StacksSeen:
    """The answer of a container whose processes were looked at."""
    tells = any(look.frames for look in looks)
    return StacksSeen(_with_rank(looks, instance.rank), None if tells else NO_ALLABOARD)


def _with_rank(looks: Iterable[ProcessLook], rank: int) -> tuple[ProcessLook, ...]:
    """The looks with the rank of the member where no process knows its own, as in a JAXJob."""
    looks = tuple(looks)
    if any(look.rank is not None for look in looks):
        return looks
    return tuple(replace(look, rank=rank) if look.frames or look.state in "TtD" else look for look in looks)


def _refusal(error: AllaboardError, namespace: str) -> str:
    if isinstance(error, Forbidden):
        return FORBIDDEN.format(namespace)
    return f"their stacks cannot be read: {error}"


def _together(answers: dict[int, StacksSeen], asked: int) -> StacksSeen:
    looks = tuple(look for _, answer in sorted(answers.items()) for look in answer.looks)
    reasons = [answer.reason for _, answer in sorted(answers.items()) if answer.reason is not None]
    if len(answers) < asked:
        reasons.append(f"{asked - len(answers)} of {asked} members did not give their stacks in time")
    return StacksSeen(looks, reasons[0] if reasons else None)
