"""Programs that start the processes of a member: torchrun, accelerate launch, deepspeed, mpirun. Which of
them a command runs, what its options say, and how that agrees with the gang.

An option that a job leaves out comes from the gang: torchrun reads PET_* variables, which the operator sets;
to accelerate, and for a c10d rendezvous to torchrun, `filled` gives options that refer to the member's
variables. What an option says and the gang cannot do is an `Objection`. Values in, values out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from allaboard.runs.layout import Group, Layout
from allaboard.text.untrusted import show

TORCHRUN, ACCELERATE, DEEPSPEED, MPIRUN = "torchrun", "accelerate launch", "deepspeed", "mpirun"
SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh"})
_PROGRAMS = {
    "torchrun": TORCHRUN,
    "accelerate-launch": ACCELERATE,
    "deepspeed": DEEPSPEED,
    "ds": DEEPSPEED,
    **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", "horovodrun"), MPIRUN),
}
_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
_WRAPPERS = frozenset(
    {
        "env",
        "exec",
        "nohup",
        "time",
        "timeout",
        "numactl",
        "nice",
        "ionice",
        "taskset",
        "stdbuf",
        "tini",
        "dumb-init",
        "uv",
        "poetry",
        "pipenv",
        "conda",
        "micromamba",
        "pixi",
        "nsys",
        "ncu",
        "py-spy",
        "opentelemetry-instrument",
    }
)
"""Programs that start the program among their arguments."""
_FLAGS = frozenset(
    {
        "standalone",
        "module",
        "m",
        "no_python",
        "run_path",
        "virtual_local_rank",
        "use_env",
        "quiet",
        "q",
        "cpu",
        "multi_gpu",
        "tpu",
        "use_deepspeed",
        "use_fsdp",
        "use_megatron_lm",
        "use_parallelism_config",
        "same_network",
        "debug",
        "enable_cpu_affinity",
        "dynamo_use_fullgraph",
        "dynamo_use_dynamic",
        "dynamo_use_regional_compilation",
        "tpu_cluster",
        "no_tpu_cluster",
        "tpu_use_sudo",
        "no_ssh",
        "no_ssh_check",
        "no_local_rank",
        "force_multi",
        "save_pid",
        "enable_each_rank_log",
        "bind_cores_to_rank",
    }
)
"""Options without a value."""
_KNOWN = (
    "nnodes",
    "nproc_per_node",
    "rdzv_backend",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_conf",
    "standalone",
    "max_restarts",
    "monitor_interval",
    "start_method",
    "role",
    "module",
    "no_python",
    "run_path",
    "log_dir",
    "redirects",
    "tee",
    "node_rank",
    "master_addr",
    "master_port",
    "local_addr",
)
"""Options of torchrun that may be shortened, as argparse allows."""
_HERE = re.compile(r"(localhost|127(\.\d+){3}|\[?::1\]?|0\.0\.0\.0)(:\d*)?")
_OPERATORS = frozenset({"&&", "||", "|", ";", "&", "(", ")", "\n", "then", "do", "else", "{", "}", "!"})


@dataclass(frozen=True, slots=True)
class Launch:
    """A launcher in a command. ``after``: index of the word behind which its options stand; ``options``: name
    with underscores -> (value, index of its word), of flags the value is empty; ``in_shell``: it stands in
    the script of a shell, whose word has that index.
    """

    launcher: str
    after: int
    options: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    in_shell: bool = False

    def value(self, name: str) -> str | None:
        """The value of an option; None where it is absent, or is a variable's."""
        text = self.options.get(name, ("$", 0))[0]
        return None if "$" in text else text

    def number(self, name: str) -> int | None:
        """The value of an option that is a number."""
        text = self.value(name) or ""
        return int(text) if text.isdecimal() and len(text) < 7 else None


@dataclass(frozen=True, slots=True)
class Gang:
    """Gang with which a command has to agree. ``elastic``: members at least and at most; ``processes``: those
    of each member, as the job says them; ``gpus``: of each member; ``is_filled``: `filled` completes the
    options.
    """

    members: int
    elastic: tuple[int, int] | None = None
    processes: str | None = None
    gpus: int = 0
    framework: str = "pytorch"
    is_filled: bool = True

    @property
    def each(self) -> int:
        """Processes of each member, where the job or its GPUs tell; else 0."""
        if self.processes is not None and self.processes.isdecimal():
            return int(self.processes)
        return self.gpus


class Objection(NamedTuple):
    """Option that the gang contradicts. ``at``: index of the word; ``rule``: of `allaboard lint`."""

    at: int
    rule: str
    trouble: str
    remedy: str


ALONE, DISAGREES, IDLE = "launcher_alone", "launcher_disagrees", "launcher_idle_gpus"


# Which launcher.


def launch_in(line: Sequence[str]) -> Launch | None:
    """The launcher that a command runs: by itself, behind wrappers like `env` or `uv run`, or in the script
    of a shell. None for another program.
    """
    script = script_of_shell(line)
    if script is None:
        return _launch(line)
    for command in _simple_commands(line[script]):
        if (launch := _launch(command)) is not None:
            options = {name: (value, script) for name, (value, _) in launch.options.items()}
            return Launch(launch.launcher, script, options, in_shell=True)
    return None


def script_of_shell(line: Sequence[str]) -> int | None:
    """The place of the word that a shell runs as its script; None: it is given none by -c."""
    if not line or _name(line[0]) not in SHELLS:
        return None
    for n, word in enumerate(line[1:], 1):
        if not word.startswith(("-", "+")):
            # The value of an option, as of `-o pipefail`.
            if n > 1 and line[n - 1].startswith(("-", "+")) and line[n - 1].endswith("o"):
                continue
            return None
        if word.startswith("-") and not word.startswith("--") and "c" in word:
            # `-euxo pipefail -c`, or `-ceuo pipefail`: what `o` takes comes first.
            after = n + 2 if word.endswith("o") else n + 1
            return after if after < len(line) else None
    return None


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _simple_commands(script: str) -> Iterator[list[str]]:
    """The commands of a script, as far as a shell's quoting can be read."""
    lexer = shlex.shlex(script.replace("\\\n", " ").replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        parts = list(lexer)
    except ValueError:
        return
    command: list[str] = []
    for part in [*parts, ";"]:
        if part in _OPERATORS or set(part) <= set(";&|()"):
            yield command
            command = []
        elif command or not re.match(r"[A-Za-z_]\w*=", part):
            command.append(part)


def _launch(line: Sequence[str]) -> Launch | None:
    """The launcher of a command without a shell."""
    for n, word in enumerate(line):
        name = _name(word)
        if re.fullmatch(r"python[\d.]*", name):
            return _launch_of_module(line, n)
        if name in _PROGRAMS:
            return _read(_PROGRAMS[name], line, n)
        if name == "accelerate":
            return _read(ACCELERATE, line, n + 1) if [*line[n + 1 : n + 2]] == ["launch"] else None
        if (n == 0 and name not in _WRAPPERS) or word.endswith(".py"):
            return None
    return None


def _launch_of_module(line: Sequence[str], n: int) -> Launch | None:
    """The launcher of ``python -m MODULE``."""
    for at in range(n + 1, len(line) - 1):
        if line[at] == "-m":
            launcher = _MODULES.get(line[at + 1])
            return None if launcher is None else _read(launcher, line, at + 1)
        if not line[at].startswith("-"):
            return None
    return None


def _read(launcher: str, line: Sequence[str], after: int) -> Launch:
    """The options of a launcher, up to the script that it starts."""
    options: dict[str, tuple[str, int]] = {}
    n = after + 1
    while n < len(line) and line[n].startswith("-") and line[n] != "--":
        at, (name, equals, value) = n, line[n].lstrip("-").partition("=")
        name = _whole(name.replace("-", "_"), launcher)
        n += 1
        if not equals and name not in _FLAGS and n < len(line) and not line[n].endswith(".py"):
            value, n = line[n], n + 1
        options[name] = (value, at)
    return Launch(launcher, after, options)


def _whole(name: str, launcher: str) -> str:
    """The option that a shortened one means."""
    means = [known for known in _KNOWN if known.startswith(name)] if launcher == TORCHRUN else []
    return means[0] if len(means) == 1 and len(name) > 1 else name


# How it agrees.


def objections(launch: Launch, gang: Gang) -> Iterator[Objection]:
    """Options of a launcher that the gang contradicts."""
    if gang.framework == "mpi":
        return
    if launch.launcher == TORCHRUN:
        yield from _of_torchrun(launch, gang)
    elif launch.launcher == ACCELERATE:
        yield from _of_accelerate(launch, gang)
    elif launch.launcher == DEEPSPEED:
        yield from _of_deepspeed(launch, gang)
    elif gang.members > 1:
        text = f"starts ranks of its own in each of the {gang.members} members"
        yield Objection(launch.after, ALONE, f"mpirun {text}", "say framework: mpi, or start the script")


def _of_torchrun(launch: Launch, gang: Gang) -> Iterator[Objection]:
    least, most = gang.elastic or (gang.members, gang.members)
    nodes = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", launch.value("nnodes") or "")
    if nodes is not None:
        low, high = int(nodes[1]), int(nodes[2] or nodes[1])
        agrees = (low, high) == (least, most) if gang.elastic else low <= least and most <= high
        if not agrees:
            has = f"{least} to {most} members" if gang.elastic else _members(gang)
            text = f"is another number than the job's {has}"
            yield _object(launch, "nnodes", DISAGREES, text, "PET_NNODES says it")
    yield from _of_processes(launch, "nproc_per_node", launch.number("nproc_per_node"), gang)
    if gang.members > 1 and "standalone" in launch.options:
        text = f"has each of the {gang.members} members train alone"
        yield _object(launch, "standalone", ALONE, text, "torchrun finds the others by PET_* variables")
    yield from _of_rank(launch, "node_rank", gang, "PET_NODE_RANK says it")
    for name in ("master_addr", "rdzv_endpoint"):
        yield from _of_address(launch, name, gang, "PET_* variables say where the members meet")


def _of_accelerate(launch: Launch, gang: Gang) -> Iterator[Objection]:
    machines, processes = launch.number("num_machines"), launch.number("num_processes")
    given = "the gang says it" if gang.is_filled and not launch.in_shell else None
    if machines is not None and machines != gang.members:
        text = f"is another number than the job's {_members(gang)}"
        yield _object(launch, "num_machines", DISAGREES, text, given or f"say {gang.members}")
    says_machines = {"num_machines", "config_file"} & {*launch.options}
    if gang.members > 1 and given is None and not says_machines:
        yield Objection(
            launch.after,
            ALONE,
            f"accelerate launch without --num_machines has each of the {gang.members} members train alone",
            "start it without a shell in a job, which fills it in; or give --num_machines "
            f"{gang.members} --machine_rank $RANK --main_process_ip $MASTER_ADDR "
            "--main_process_port $MASTER_PORT and --num_processes of all members together",
        )
    if processes is not None and gang.each and processes != gang.members * gang.each:
        total = gang.members * gang.each
        text = f"counts the processes of all members: {gang.members} times {gang.each} is {total}"
        yield _object(launch, "num_processes", DISAGREES, text, given or f"say {total}")
    elif processes is not None and processes % gang.members:
        text = f"cannot be divided among {_members(gang)}"
        yield _object(launch, "num_processes", DISAGREES, text, given or "say a multiple of it")
    if gang.members == 1:
        return
    starter = launch.value("deepspeed_multinode_launcher")
    if starter not in (None, "standard"):
        text = "starts the other members itself, over SSH"
        yield _object(launch, "deepspeed_multinode_launcher", ALONE, text, given or "say standard")
    yield from _of_rank(launch, "machine_rank", gang, given or "say $(RANK)")
    yield from _of_address(launch, "main_process_ip", gang, given or "say $(MASTER_ADDR)")


def _of_deepspeed(launch: Launch, gang: Gang) -> Iterator[Objection]:
    if gang.members > 1 and "no_ssh" not in launch.options:
        yield Objection(
            launch.after,
            ALONE,
            f"deepspeed starts the ranks of its own member alone, or others over SSH, in each of the "
            f"{gang.members} members",
            "write torchrun in its place; the script and its --deepspeed stay as they are",
        )
    number = launch.number("num_gpus")
    yield from _of_processes(launch, "num_gpus", number, gang)


def _of_processes(launch: Launch, name: str, number: int | None, gang: Gang) -> Iterator[Objection]:
    """A number of processes of each member, beside the one that the job says and the member's GPUs."""
    if number is None:
        return
    if gang.processes is not None and gang.processes.isdecimal():
        if number != int(gang.processes):
            text = f"starts {number} processes per member, and processes_per_member is {gang.processes}"
            yield _object(launch, name, DISAGREES, text, "PET_NPROC_PER_NODE says it")
    elif gang.gpus and number > gang.gpus:
        text = f"starts {number} processes per member, which has {_count(gang.gpus, 'GPU')}"
        yield _object(launch, name, DISAGREES, text, "PET_NPROC_PER_NODE says it")
    elif gang.gpus > number:
        text = f"starts {_count(number, 'process')} per member, which has {_count(gang.gpus, 'GPU')}"
        yield _object(launch, name, IDLE, text, "PET_NPROC_PER_NODE says it")


def _of_rank(launch: Launch, name: str, gang: Gang, who: str) -> Iterator[Objection]:
    number = launch.number(name)
    if number is not None and gang.members > 1:
        text = f"gives all {gang.members} members the same rank"
        yield _object(launch, name, DISAGREES, text, who)


def _of_address(launch: Launch, name: str, gang: Gang, who: str) -> Iterator[Objection]:
    if gang.members > 1 and _HERE.fullmatch(launch.value(name) or ""):
        yield _object(launch, name, ALONE, "is another host in each member's pod", who)


def _object(launch: Launch, name: str, rule: str, trouble: str, who: str) -> Objection:
    """An objection to an option. ``who``: says it where the option is taken out, or what to say."""
    value, at = launch.options[name]
    written = f"--{name} {value}".rstrip()
    remedy = who if who.startswith("say ") else f"take it out: {who}"
    return Objection(at, rule, f"{show(written, 80, quote=False)} {trouble}", remedy)


def _members(gang: Gang) -> str:
    return _count(gang.members, "member")


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


# What the gang fills in.


def filled(layout: Layout, group: Group) -> tuple[list[str], list[str]]:
    """The command and the arguments of a group's members, with the launcher's options that follow from the
    gang.
    """
    line = [*group.command, *group.args]
    launch = launch_in(line)
    options = [] if launch is None else [*_missing(launch, layout, group)]
    if launch is None or not options:
        return [*group.command], [*group.args]
    at = launch.after + 1
    if at <= len(group.command):
        return [*group.command[:at], *options, *group.command[at:]], [*group.args]
    at -= len(group.command)
    return [*group.command], [*group.args[:at], *options, *group.args[at:]]


def _missing(launch: Launch, layout: Layout, group: Group) -> Iterator[str]:
    has_ranks = (
        layout.framework == "pytorch" and layout.elastic is None and layout.group("master") is not None
    )
    if launch.in_shell or layout.total < 2 or not has_ranks:
        return
    if launch.launcher == TORCHRUN:
        if launch.value("rdzv_backend") == "c10d" and "rdzv_endpoint" not in launch.options:
            yield "--rdzv_endpoint=$(MASTER_ADDR):$(MASTER_PORT)"
    elif launch.launcher == ACCELERATE:
        gang = Gang(layout.total, processes=layout.processes_per_member, gpus=group.needs.gpus)
        values = {
            "num_machines": str(layout.total),
            "num_processes": str(layout.total * max(1, gang.each)),
            "machine_rank": "$(RANK)",
            "main_process_ip": "$(MASTER_ADDR)",
            "main_process_port": "$(MASTER_PORT)",
            "deepspeed_multinode_launcher": "standard",
        }
        ways = {"config_file", "multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm"}
        if not ways & {*launch.options}:
            # Else members of one process each would not know of each other. Without GPUs Accelerate counts
            # processes only if it is told --cpu.
            yield "--multi_gpu" if group.needs.gpus else "--cpu"
        yield from (f"--{name}={value}" for name, value in values.items() if name not in launch.options)
