"""The keeper: the small process between a supervisor and its members that starts them and lets none survive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from allaboard.backends.local.procs import Identity


@dataclass(frozen=True, slots=True)
class Started:
    """The member's program runs (exec succeeded). ``at`` is epoch seconds, here and below."""

    member: str
    identity: Identity
    at: float


@dataclass(frozen=True, slots=True)
class Exited:
    """The main process ended and nothing of the member is left but ``survivors`` (unkillable; normally empty).

    ``code`` is the exit code, or minus the signal; ``maxrss`` the peak memory of the main process in bytes.
    """

    member: str
    code: int
    maxrss: int
    at: float
    survivors: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SpawnFailed:
    """The program never ran. ``stage`` is log, cwd, exec or fork; ``text`` is a sentence for the job's author."""

    member: str
    stage: str
    errno: int
    text: str
    at: float


Event = Started | Exited | SpawnFailed


class Keeper:
    """The supervisor's handle. Single-threaded use; methods raise nothing when the keeper is dead: see `alive`."""

    pid: int
    identity: Identity

    @classmethod
    def start(cls, mark: str, keep_fds: Iterable[int] = ()) -> Keeper:
        """Fork the keeper. Call before the supervisor has threads. It keeps ``keep_fds`` open (the run's lock), no other."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """False once `read_events` met the end of the line: call `on_keeper_death`."""
        raise NotImplementedError

    def fileno(self) -> int:
        """Readable when `read_events` has something to say, the keeper's death included."""
        raise NotImplementedError

    def read_events(self) -> list[Event]:
        """What happened since the last call, in order, without waiting."""
        raise NotImplementedError

    def spawn(
        self, member: str, argv: Sequence[str], env: Mapping[str, str], cwd: str, log: str, fds: Iterable[int] = ()
    ) -> None:
        """Start a member: answered by Started or SpawnFailed. ``fds`` stay open in it (slot locks).

        ALLABOARD_MARK and ALLABOARD_MEMBER are set here. A bare command is looked up in the PATH of ``env``.
        """
        raise NotImplementedError

    def signal(self, member: str, sig: int) -> None:
        """Send ``sig`` to the member's main process only, as Kubernetes does."""
        raise NotImplementedError

    def kill(self, member: str) -> None:
        """Kill the member's whole tree; answered by Exited."""
        raise NotImplementedError

    def kill_all(self) -> None:
        """`kill` for every member, and for orphans that belong to none."""
        raise NotImplementedError

    def hold(self, fds: Iterable[int]) -> None:
        """Keep these open in the keeper until it ends (the gang's owner lock)."""
        raise NotImplementedError

    def on_keeper_death(self, within: float = 2.0) -> tuple[Identity, ...]:
        """Kill all that the keeper left; returns survivors. Members whose Exited never came are gone afterwards."""
        raise NotImplementedError

    def close(self, within: float = 5.0) -> list[Event]:
        """Kill all members, end the keeper, wait for it; returns the last events."""
        raise NotImplementedError
