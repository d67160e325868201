"""Rules about commands that are not what their authors think: who reads which word."""

from __future__ import annotations

import re
from collections.abc import Iterator

from allaboard.lint.rule import Hit, rule
from allaboard.lint.view import JOB, MANIFEST, Container, Group, View, items, mapping, texts
from allaboard.runs.launchers import (
    ALONE,
    DISAGREES,
    IDLE,
    SHELLS,
    Gang,
    launch_in,
    objections,
    script_of_shell,
)
from allaboard.text.untrusted import show

_CODE = frozenset({"-c", "-e", "--eval", "-m"})
"""Options of interpreters whose next word is a program of its own."""
_POSITIONAL = re.compile(r"\$(?:[0-9@*#]|\{[#!]?[0-9@*])|\bgetopts?\b|\bshift\b")
_VARIABLE = re.compile(r"(?<![\\$])\$(?:\{[A-Za-z_]\w*\}|[A-Za-z_]\w*)")
_OPERATORS = frozenset({"&&", "||", "|", ";", ">", ">>", "<", "2>&1", "&"})
_PROGRAMS = frozenset(
    {
        "python",
        "python3",
        "torchrun",
        "accelerate",
        "deepspeed",
        "mpirun",
        "bash",
        "sh",
        "uv",
        "poetry",
        "conda",
    }
)


def _name(word: str) -> str:
    return word.rpartition("/")[2]


def _field(container: Container, n: int) -> str:
    """The field that holds a word of the line."""
    return "command" if n < len(texts(container.fields.get("command"))) else "args"


def _lines(view: View) -> Iterator[tuple[Group, Container, tuple[str, ...]]]:
    return ((group, container, container.line) for group, container in view.containers if container.line)


@rule(
    "shell_drops_words",
    "error",
    "the shell runs one word, and drops the rest",
    "`sh -c` takes the next word as its whole script; further words are $0, $1 and so on, which this script "
    "does "
    "not read. `bash -c python train.py` starts Python without a script, which reads an empty stdin and "
    "succeeds.",
    "write the script as one word, or leave the shell out",
)
def shell_drops_words(view: View) -> Iterator[Hit]:
    """POSIX, sh: -c command_string [command_name [argument...]]."""
    for group, container, line in _lines(view):
        at = script_of_shell(line)
        if at is None or at + 1 >= len(line) or _POSITIONAL.search(line[at]):
            continue
        # A first word that is a name only ($0) is a habit, not a loss.
        if len(line) == at + 2 and _name(line[at + 1]) in (*SHELLS, "_", "--", ""):
            continue
        yield Hit(
            view.container(group, container, _field(container, at + 1)), show(" ".join(line[at + 1 :]), 80)
        )


@rule(
    "shell_words_without_shell",
    "error",
    "words that only a shell understands reach the program as they are",
    "A container's command is started without a shell: nobody replaces $NAME, and `&&`, `|` and `>` are "
    "arguments.",
    "write $(NAME), which Kubernetes replaces by the container's variable, or start a shell: [sh, -c, ...]",
)
def shell_words_without_shell(view: View) -> Iterator[Hit]:
    """Kubernetes, Define a Command and Arguments for a Container: $(VAR); "Run a command in a shell"."""
    for group, container, line in _lines(view):
        if any(_name(word) in SHELLS for word in line) or _name(line[0]) in ("env", "make", "awk", "perl"):
            continue
        for n, word in enumerate(line):
            code = n > 0 and line[n - 1] in _CODE
            if not code and (word in _OPERATORS or _VARIABLE.search(word)) and "\n" not in word:
                yield Hit(view.container(group, container, _field(container, n)), show(word, 80))
                break


@rule(
    "command_in_one_word",
    "error",
    "the whole command is one word, which no program is called",
    "Each word of a command is an item of its own; a program with spaces in its name is looked for, and is "
    "not "
    "there.",
    "give each word an item of its own",
)
def command_in_one_word(view: View) -> Iterator[Hit]:
    """Kubernetes, Container v1 core: "Entrypoint array. Not executed within a shell"."""
    for group, container, line in _lines(view):
        first, _, rest = line[0].strip().partition(" ")
        if rest.strip() and _name(first) in _PROGRAMS:
            yield Hit(view.container(group, container, _field(container, 0)), show(line[0], 80))


@rule(
    "runtime_with_ttl",
    "warning",
    "the JobSet of this runtime removes itself while its TrainJob is there",
    "Trainer 2.0 to 2.2 make the JobSet of a finished TrainJob again when its ttlSecondsAfterFinished has "
    "removed it: "
    "the job trains anew, without end. Later versions refuse or pass over the field.",
    "remove it here; a TrainJob is deleted by whoever made it",
    reads=(MANIFEST,),
)
def runtime_with_ttl(view: View) -> Iterator[Hit]:
    """kubeflow/trainer issues 3737 and 3779."""
    inner = mapping(mapping(view.spec.get("template")).get("spec"))
    if view.is_runtime and inner.get("ttlSecondsAfterFinished") is not None:
        yield Hit("spec.template.spec.ttlSecondsAfterFinished")
    for n, entry in enumerate(items(inner.get("replicatedJobs")) if view.is_runtime else ()):
        job = mapping(mapping(mapping(entry).get("template")).get("spec"))
        if job.get("ttlSecondsAfterFinished") is not None:
            yield Hit(f"spec.template.spec.replicatedJobs[{n}].template.spec.ttlSecondsAfterFinished")


def _objections(view: View, rule: str) -> Iterator[Hit]:
    """Places at which the launcher of a container that trains does not agree with its gang."""
    frameworks = view.engine.FRAMEWORKS
    framework = str(view.fields.get("framework") or ("mpi" if frameworks == ("mpi",) else "pytorch"))
    if "pytorch" not in frameworks and "mpi" not in frameworks:
        return
    elastic = mapping(view.spec.get("elasticPolicy"))
    least, most = elastic.get("minReplicas"), elastic.get("maxReplicas")
    members = sum(group.count for group in view.groups if not group.helps)
    processes = view.fields.get("processes_per_member")
    if view.origin == MANIFEST:
        processes = view.spec.get("nprocPerNode")
    for group, trainer in view.trainers:
        launch = launch_in(trainer.line) if trainer.line else None
        if launch is None or members < 1:
            continue
        gang = Gang(
            members=members,
            elastic=(least, most) if isinstance(least, int) and isinstance(most, int) else None,
            processes=None if processes is None else str(processes),
            gpus=trainer.gpus,
            framework=framework,
            is_filled=view.origin == JOB,
        )
        for objection in objections(launch, gang):
            if objection.rule == rule:
                path = view.container(group, trainer, _field(trainer, objection.at))
                yield Hit(path, f"{objection.trouble}; {objection.remedy}")


@rule(
    ALONE,
    "error",
    "the launcher has each member train alone",
    "A launcher that is told of one machine starts a world of its own in each member: every member trains "
    "the whole model on all the data, and each of them saves.",
    "let the gang say where its members meet",
)
def launcher_alone(view: View) -> Iterator[Hit]:
    """Torchrun: --standalone; accelerate launch: --num_machines is 1 unless it is given; deepspeed reads a
    hostfile, and so does mpirun, which only an MPI Operator makes.
    """
    yield from _objections(view, ALONE)


@rule(
    DISAGREES,
    "error",
    "the launcher is told another gang than the job's",
    "Ranks that are never started are waited for until a timeout, and ranks that share a GPU fail in NCCL.",
    "take the option out, or say the job's own number",
)
def launcher_disagrees(view: View) -> Iterator[Hit]:
    """PyTorch, torch.distributed.run: an option wins over its PET_ variable; accelerate launch:
    --num_processes counts those of all machines.
    """
    yield from _objections(view, DISAGREES)


@rule(
    IDLE,
    "warning",
    "the launcher starts fewer processes than a member has GPUs",
    "Each process uses one GPU unless the script spreads its work itself; the others are held and idle.",
    "take the option out, so that each GPU has a process",
)
def launcher_idle_gpus(view: View) -> Iterator[Hit]:
    """PyTorch, torchrun --nproc_per_node; DeepSpeed, --num_gpus: one process is one GPU."""
    yield from _objections(view, IDLE)
