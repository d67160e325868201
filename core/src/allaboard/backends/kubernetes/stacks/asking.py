"""Asks the processes of a run where they are: one exec in the container of each member that runs."""

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
from allaboard.diagnosis.stacks import ProcessLook, Told, main_thread, pending_collective
from allaboard.errors import AllaboardError
from allaboard.text.printable import visible
from allaboard.text.untrusted import Limits, parse_json

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

SECONDS = 20.0
"""For all members together; one is asked twice, with a second in between."""
PRINTED = Limits(size=4 << 20, depth=5, values=100_000, digits=20)
"""What is read of the script's output."""
_PIDS = 22
"""Bits of a pid, which counts in its pod alone: members' are made different by what stands above."""
_READS = "import sys; exec(sys.stdin.buffer.read(int(sys.argv[1])).decode())"
NO_ALLABOARD = (
    "none of their processes tells its stacks; a Python does that begins with the helper of members, which "
    "takes a command in the job and no inject: off, or that has allaboard"
)
FORBIDDEN = (
    "their stacks may not be asked for, which takes get and create on pods/exec: "
    "allaboard cluster --rbac stacks -n {} | kubectl apply -f -; where exec is not allowed, "
    "policy.hang.ask: file in the job has members answer in their logs"
)


@cache
def _script() -> bytes:
    return resources.files(__package__).joinpath("script.py").read_bytes()


def command(rounds: int = 0) -> list[str]:
    """What runs in the container. The script comes by stdin: what a command says stands in audit logs.
    ``rounds``: how often it looks, a moment apart; 0: once, as `read` has it.
    """
    often = [str(rounds)] if rounds else []
    return ["python3", "-I", "-S", "-c", _READS, str(len(_script())), *often]


def ask_stacks(api: Api, tries: Sequence[ContainerRun]) -> Told:
    """Where the processes of these containers are. Raises nothing; returns within `SECONDS`."""
    answers: dict[int, Told] = {}

    def ask(number: int, one: ContainerRun) -> None:
        try:
            ended = api.execute(
                one.pod, command(), container=one.container, given=_script(), most=PRINTED.size
            )
        except AllaboardError as error:
            answers[number] = Told(why=_refusal(error, api.namespace))
        else:
            answers[number] = read(ended, number, one)

    run_within(SECONDS, [partial(ask, number, one) for number, one in enumerate(tries)])
    return _together(dict(answers), len(tries))


def look_often(api: Api, tries: Sequence[ContainerRun], rounds: int) -> list[tuple[ProcessLook, ...]]:
    """So many looks at the processes of these containers, a moment apart, if all of them answer. Raises
    nothing; returns within `SECONDS`.
    """
    answers: dict[int, list[tuple[ProcessLook, ...]]] = {}

    def ask(number: int, one: ContainerRun) -> None:
        with suppress(AllaboardError):
            ended = api.execute(
                one.pod, command(rounds), container=one.container, given=_script(), most=PRINTED.size
            )
            answers[number] = read_rounds(ended, number, one)

    run_within(SECONDS, [partial(ask, number, one) for number, one in enumerate(tries)])
    if len(answers) < len(tries):
        return []
    return [tuple(chain(*same)) for same in zip(*answers.values(), strict=False)]


def read_rounds(ended: Executed, number: int, one: ContainerRun) -> list[tuple[ProcessLook, ...]]:
    """What the script printed of many looks; nothing where it is not understood."""
    try:
        rounds = parse_json(ended.out, PRINTED, spelling=False, any_text=True)["rounds"]
        looks = [[look_of(entry, number, one.member) for entry in each] for each in rounds]
    except (ValueError, TypeError, KeyError):
        return []
    return [with_rank(each, one.rank) for each in looks]


def read(ended: Executed, number: int, one: ContainerRun) -> Told:
    """What the script printed, which a container may have made say anything. ``number``: of the member."""
    where = f"container {one.container} of pod {one.pod}"
    if ended.code != 0:
        lines = ended.err.decode("utf-8", "replace").strip().splitlines()
        said = ended.trouble or (lines[-1] if lines else f"exit code {ended.code}")
        if "not found" in said or "no such file" in said.lower():
            return Told(why=f"{where} has no python3, which would ask its processes for their stacks")
        return Told(why=f"{where} did not tell its stacks: {visible(said, most=200)}")
    try:
        looks = parse_json(ended.out, PRINTED, spelling=False, any_text=True)["looks"]
        found = [look_of(entry, number, one.member) for entry in looks]
    except (ValueError, TypeError, KeyError):
        return Told(why=f"{where} did not tell its stacks in words that are understood")
    return Told(with_rank(found, one.rank), None if found else NO_ALLABOARD)


def look_of(entry: Any, number: int, member: str) -> ProcessLook:
    """What the script tells of one process. ``number``: of the member. Raises ValueError for what is none."""
    try:
        rank = entry["rank"]
        return ProcessLook(
            _unique(entry["pid"], number),
            _unique(entry["parent"], number),
            None if rank is None else int(rank),
            member,
            main_thread(str(entry["text"])),
            str(entry["state"])[:1],
            float(entry["busy"]),
            pending_collective(str(entry["collectives"])),
        )
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError("no look at a process") from error


def _unique(pid: Any, number: int) -> int:
    return (number << _PIDS) + (int(pid) & (1 << _PIDS) - 1)


def with_rank(looks: Iterable[ProcessLook], rank: int) -> tuple[ProcessLook, ...]:
    """Where no process knows its rank, as in a JAXJob, it is that of the member."""
    looks = tuple(looks)
    if any(look.rank is not None for look in looks):
        return looks
    return tuple(replace(look, rank=rank) for look in looks)


def _refusal(error: AllaboardError, namespace: str) -> str:
    if isinstance(error, Forbidden):
        return FORBIDDEN.format(namespace)
    return f"their stacks cannot be asked for: {error}"


def _together(answers: dict[int, Told], asked: int) -> Told:
    looks = tuple(look for _, told in sorted(answers.items()) for look in told.looks)
    whys = [told.why for _, told in sorted(answers.items()) if told.why is not None]
    if len(answers) < asked:
        whys.append(f"{asked - len(answers)} of {asked} members did not tell their stacks in time")
    return Told(looks, whys[0] if whys else None)
