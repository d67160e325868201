"""The context of this process: its run, attempt, rank and world size. Read from the environment at every
call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from allaboard.errors import BadInput


@dataclass(frozen=True, slots=True)
class Context:
    """``rank`` of ``world_size`` processes, ``local_rank`` on this machine: 0, 1, 0 in a process of its own.

    What only allaboard sets is None outside of it: ``run``, ``attempt`` (1, 2, ...), ``generation``,
    ``member`` (``worker-0``), ``data`` (uri of the shards), ``checkpoints`` (uri of this run's own folder),
    ``start_from`` (uri of a checkpoint whose weights to begin with), ``checkpoint`` (uri of the one to
    evaluate), ``grace`` (seconds between SIGTERM and SIGKILL). ``restart`` counts the restarts of this
    attempt that an elastic launcher made.
    """

    run: str | None
    attempt: int | None
    generation: int | None
    member: str | None
    rank: int
    world_size: int
    local_rank: int
    restart: int
    data: str | None
    checkpoints: str | None
    start_from: str | None
    checkpoint: str | None
    grace: float | None

    @property
    def inside(self) -> bool:
        """True if allaboard started this process."""
        return self.run is not None

    @property
    def resumes(self) -> bool:
        """True if an earlier attempt, or an earlier start of this one, may have left a checkpoint to continue
        from.
        """
        return (self.attempt or 1) > 1 or self.restart > 0


def context(environ: Mapping[str, str] | None = None) -> Context:
    """The context of this process now: its run, attempt, rank and world size, read from the environment.

    Raises BadInput if RANK, WORLD_SIZE or LOCAL_RANK, or mpirun's variables in their place, are inconsistent
    or no numbers.
    """
    env = os.environ if environ is None else environ
    rank, world_size = ranks(env)
    return Context(
        run=env.get("ALLABOARD_RUN") or None,
        attempt=_number(env, "ALLABOARD_ATTEMPT"),
        generation=_number(env, "ALLABOARD_GENERATION"),
        member=_member(env),
        rank=rank,
        world_size=world_size,
        local_rank=_rank(env, next((name for name in _LOCAL_RANKS if env.get(name)), "LOCAL_RANK"), 0),
        restart=_number(env, "TORCHELASTIC_RESTART_COUNT") or 0,
        data=env.get("ALLABOARD_DATA") or None,
        checkpoints=env.get("ALLABOARD_CHECKPOINTS") or None,
        start_from=env.get("ALLABOARD_START_FROM") or None,
        checkpoint=env.get("ALLABOARD_CHECKPOINT") or None,
        grace=_seconds(env, "ALLABOARD_GRACE"),
    )


def ranks(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """(global rank, number of ranks) of this process.

    The script's own process group decides once it exists, because RANK may be the rank of a node; before,
    RANK and WORLD_SIZE; where neither is set, what mpirun told; else its place among the members of the job:
    TFJob, PaddleJob and JAXJob tell no rank. A process outside of a job stands alone: (0, 1). torch is asked
    if the script has imported it and never imported here.
    """
    group = sys.modules.get("torch.distributed")
    if group is not None and group.is_available() and group.is_initialized():
        return group.get_rank(), group.get_world_size()
    env = os.environ if environ is None else environ
    names = ("RANK", "WORLD_SIZE")
    if not env.get("RANK") and not env.get("WORLD_SIZE"):
        started = next((both for both in _MPI if env.get(both[0]) and env.get(both[1])), None)
        if started is None and (own := _member_rank(env)) is not None:
            return own
        names = started or names
    rank, world_size = _rank(env, names[0], 0), _rank(env, names[1], 1)
    if rank >= world_size:
        raise BadInput(
            f"{names[0]} is {rank} and {names[1]} {world_size}; ranks count from 0 and stay below {names[1]}"
        )
    return rank, world_size


_MPI = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"))
"""Variables of rank and number of processes under mpirun: Open MPI; MPICH and Intel MPI."""
_LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


def _member(env: Mapping[str, str]) -> str | None:
    """The name of this member; where its pod cannot be told it, its place among the groups by its rank."""
    rank = _number(env, "ALLABOARD_RANK")
    if env.get("ALLABOARD_MEMBER") or rank is None:
        return env.get("ALLABOARD_MEMBER") or None
    before = 0
    for group in env.get("ALLABOARD_GROUPS", "").split(","):
        name, _, count = group.partition(":")
        if not count.isdecimal():
            return None
        if rank < before + int(count):
            return f"{name}-{rank - before}"
        before += int(count)
    return None


def _member_rank(env: Mapping[str, str]) -> tuple[int, int] | None:
    """The rank of this member and how many train with it; of one that helps, such as a parameter server, its
    place among all, which is never 0.
    """
    role, _, index = (_member(env) or "").rpartition("-")
    before = 0
    rank = None
    for group in env.get("ALLABOARD_GROUPS", "").split(","):
        name, _, count = group.partition(":")
        if not count.isdecimal():
            return None
        if name == role and index.isdecimal():
            rank = before + int(index)
        before += int(count)
    if rank is None:
        return None
    trainers = _number(env, "ALLABOARD_TRAINERS") or before
    return rank, trainers if rank < trainers else before


def _rank(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name) or str(default)
    # Guessing 0 here would make every rank the first one.
    if not text.isascii() or not text.isdigit():
        raise BadInput(f"the environment variable {name} is {text!r}; give a whole number")
    return int(text)


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _seconds(env: Mapping[str, str], name: str) -> float | None:
    try:
        return float(env[name])
    except (KeyError, ValueError):
        return None
