"""Cache of the logs that followers have read, for when the pods are gone: the end of every try. The size of
each try is bounded, and so is that of all tries that this process follows.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from allaboard.backends.kubernetes.logs.parsing import SECOND, Stamped
from allaboard.backends.kubernetes.observe.containers import ContainerRun

EACH = 64 << 10
"""Bytes that are kept of one try: its end."""
TOGETHER = 64 << 20
"""Bytes of memory for all tries of all runs; those that were read longest ago go first."""
_OF_A_LINE = 200
"""Bytes that a line takes beside its text."""


@dataclass(slots=True)
class KeptTry:
    """The end of one try. ``cut``: lines before the first one were not kept. ``whole``: it was read to its
    end. ``from_status``: its lines are from the status of its pod, which knows no times: those of its log
    replace them.
    """

    instance: ContainerRun
    lines: deque[Stamped] = field(default_factory=deque)
    size: int = 0
    cut: bool = False
    whole: bool = False
    from_status: bool = False

    @property
    def weight(self) -> int:
        return self.size + _OF_A_LINE * (len(self.lines) + 3)


class LogCache:
    """Room for the tries of many runs. Several threads may use it."""

    def __init__(self, most: int = TOGETHER) -> None:
        self.most = most
        self.lock = threading.RLock()
        self.weight = 0
        self._order: OrderedDict[tuple[int, str], dict[str, KeptTry]] = OrderedDict()

    def weigh(self, owner: int, tries: dict[str, KeptTry], id: str, before: int) -> None:
        """A try of this owner weighed ``before`` and has changed. The oldest tries may go for it."""
        self.weight += tries[id].weight - before
        self._order[owner, id] = tries
        self._order.move_to_end((owner, id))
        while self.weight > self.most and len(self._order) > 1:
            (_, gone), other_tries = self._order.popitem(last=False)
            self.weight -= other_tries.pop(gone).weight

    def release(self, owner: int, tries: dict[str, KeptTry]) -> None:
        """Release the tries of this owner."""
        with self.lock:
            for id, kept in tries.items():
                if self._order.pop((owner, id), None) is not None:
                    self.weight -= kept.weight


class AttemptLogs:
    """Lines that were read of one attempt of one run. ``cache``: the budget that it shares; None: its own."""

    __slots__ = ("__weakref__", "_cache", "_is_known", "_tries", "each")

    def __init__(self, each: int = EACH, cache: LogCache | None = None) -> None:
        self.each, self._cache = each, cache or LogCache()
        self._tries: dict[str, KeptTry] = {}
        self._is_known = False

    def add_status(self, instance: ContainerRun) -> None:
        """Keep the message of its pod's status, until its log is read."""
        at = int((instance.finished or instance.begun or 0.0) * SECOND)
        with self._cache.lock:
            if instance.message and (instance.id not in self._tries or not self._tries[instance.id].lines):
                self.add(
                    instance,
                    [Stamped(at + n, text) for n, text in enumerate(instance.message.splitlines())],
                    cut=True,
                )
                self._tries[instance.id].from_status = True

    def add(
        self, instance: ContainerRun, lines: Iterable[Stamped], *, cut: bool = False, whole: bool = False
    ) -> None:
        """Add lines, in order, and pass over those that are kept already. ``cut``: lines before them were
        not read; ``whole``: the log ends with them.
        """
        with self._cache.lock:
            if not self._is_known:
                self._is_known = True
                weakref.finalize(self, self._cache.release, id(self), self._tries).atexit = False
            kept = self._tries.get(instance.id)
            before = 0 if kept is None else kept.weight
            if kept is None:
                kept = self._tries[instance.id] = KeptTry(instance, cut=cut)
            kept.whole = kept.whole or whole
            for line in lines:
                if kept.from_status:
                    kept.lines.clear()
                    kept.size, kept.cut, kept.from_status = 0, cut, False
                if cut and kept.lines and line.at > kept.lines[-1].at:
                    # Between what was kept and this end of the log there may be lines that were not read.
                    kept.lines.clear()
                    kept.size, kept.cut = 0, True
                cut = False
                self._append(kept, line)
            self._cache.weigh(id(self), self._tries, instance.id, before)

    def _append(self, kept: KeptTry, line: Stamped) -> None:
        lines = kept.lines
        if lines and line.at < lines[0].at:
            return
        if lines and line.at <= lines[-1].at and any((k.at, k.text) == line[:2] for k in lines):
            return
        lines.append(Stamped(line.at, line.text))
        kept.size += len(line.text) + 1
        while kept.size > self.each and len(lines) > 1:
            kept.size -= len(lines.popleft().text) + 1
            kept.cut = True

    def last_line(self, instance: ContainerRun) -> Stamped | None:
        """The last line of its log that is kept."""
        with self._cache.lock:
            kept = self._tries.get(instance.id)
            return None if kept is None or kept.from_status or not kept.lines else kept.lines[-1]

    def mark_cut(self, instance: ContainerRun) -> None:
        """Note that lines before the first one that is kept were not read."""
        with self._cache.lock:
            if instance.id in self._tries:
                self._tries[instance.id].cut = True

    def move(self, instance: ContainerRun, other: ContainerRun) -> None:
        """Move the lines that were kept of one try since another began to that one."""
        with self._cache.lock:
            kept = self._tries.get(instance.id)
            begun = int(other.begun or 0.0) * SECOND
            if kept is None or kept.from_status or not kept.lines or kept.lines[-1].at < begun:
                return
            before, its_lines = kept.weight, [line for line in kept.lines if line.at >= begun]
            kept.lines = deque(line for line in kept.lines if line.at < begun)
            kept.size = sum(len(line.text) + 1 for line in kept.lines)
            kept.whole = False
            self._cache.weigh(id(self), self._tries, instance.id, before)
            self.add(other, its_lines, cut=kept.cut and not kept.lines)

    def update(self, tries: Iterable[ContainerRun]) -> None:
        """Update the tries to what they are now: some that were being read have ended since."""
        with self._cache.lock:
            for instance in tries:
                if instance.id in self._tries:
                    self._tries[instance.id].instance = instance

    def restore(self, tries: Iterable[KeptTry]) -> None:
        """Add tries that other processes have read, where nothing is known of them here."""
        with self._cache.lock:
            for kept in tries:
                if kept.instance.id not in self._tries:
                    self.add(kept.instance, kept.lines, cut=kept.cut, whole=kept.whole)
                    self._tries[kept.instance.id].from_status = kept.from_status

    def tries(self) -> list[KeptTry]:
        """All of them as they are now, each new one behind those before it."""
        with self._cache.lock:
            return [replace(kept, lines=kept.lines.copy()) for kept in self._tries.values()]
