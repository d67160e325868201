"""The view on a terminal: one frame that is redrawn until the run ends. The last frame stays.

    ⠹ digits-1f0c9a77  running  for 42 s                                      attempt 1 · 0 restarts
      Created 12:00:01 → Running 12:00:02

      admitted 0.0 s   scheduled 0.1 s   rendezvous 2.1 s   first step 0.3 s   training 39 s

      member     rank  phase      exit  restarts
      master-0      0  running       -         0
      worker-0      1  running       -         0

      ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╺━━━━━━━━━━━  312/500   62%   22 s left
      loss 0.0312   8.4 steps/s   checkpoint at step 300

      12:00:02  worker-0  Started  started try 0

This module imports rich, and is itself imported only if stdout is a terminal.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import click
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from allaboard.backends.base import Handle
from allaboard.follow.loop import Outcome
from allaboard.report import localtime, phrases
from allaboard.report.commands import Place
from allaboard.report.ending import ending_lines
from allaboard.report.plain import launch_lines
from allaboard.report.terminal import WARNING, say, shown
from allaboard.runs.observation import Event, MemberSeen, Observation, State
from allaboard.runs.status import state_of
from allaboard.text.units import counted, show_seconds

EVENTS = 5
_FRAMES_PER_SECOND = 8


class LiveView:
    """``events`` returns the events so far and is called at every observation. ``at``: where the run is;
    ``again``: the command that
    continues with the run.
    """

    def __init__(
        self,
        events: Callable[[], Sequence[Event]],
        at: Place,
        *,
        again: str | None = None,
        console: Console | None = None,
    ) -> None:
        self.events, self.at, self.again = events, at, again
        self.console = console or Console(highlight=False, soft_wrap=False)
        self.frame = Frame(at)
        self.live = Live(
            self.frame, console=self.console, refresh_per_second=_FRAMES_PER_SECOND, redirect_stdout=False
        )

    def launched(self, handle: Handle) -> None:
        lines = launch_lines(handle, self.at)
        # These lines stand above the frame. The frame itself shows that a run was started.
        for line in lines if handle.adopted or handle.hand_over else lines[1:]:
            self.console.print(_text(line, "bold yellow" if line.startswith(WARNING) else "dim"))
            self.frame.printed.add(line)
        if not self.live.is_started:
            self.live.start()

    def seen(self, seen: Observation) -> None:
        for note in seen.notes:
            if note not in self.frame.printed:
                self.frame.printed.add(note)
                self.console.print(_text(note, "dim"))
        self.frame.show(seen, self.events())
        self._draw()

    def say(self, text: str) -> None:
        self.frame.sentence = text
        self._draw()

    def _draw(self) -> None:
        with suppress(OSError):  # the terminal is gone; SIGHUP follows
            self.live.refresh()

    def ended(self, outcome: Outcome) -> None:
        self.frame.show(outcome.seen, outcome.seen.events or self.events())
        self.close()
        click.echo()
        # The frame already shows the final state. Only a failure gets a headline.
        lines = ending_lines(outcome, self.at, self.again)
        for line in itertools.islice(lines, 1, None) if outcome.ok else lines:
            say(line)

    def close(self) -> None:
        """Give the terminal its cursor back; the last frame stays."""
        with suppress(OSError):
            if self.live.is_started:
                self.frame.over = True
                self.live.stop()
            sys.stdout.flush()


class Frame:
    """The picture of one observation. The display's own thread draws it, so clocks advance between
    observations.
    """

    def __init__(self, at: Place, clock: Callable[[], float] = time.time) -> None:
        self.place, self.clock = at, clock
        self.seen: Observation | None = None
        self.at = clock()
        self.events: Sequence[Event] = ()
        self.sentence = ""
        self.over = False
        self.printed: set[str] = set()
        self.spinner = Spinner("dots")

    def show(self, seen: Observation, events: Sequence[Event]) -> None:
        # The seconds of a phase count from the latest observation.
        if self.seen is None or self.seen.phases != seen.phases:
            self.at = self.clock()
        self.seen, self.events = seen, events

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        seen = self.seen
        if seen is None:
            yield Text("starting", style="dim")
            return
        room = options.size.height
        parts = [p for p in self._parts(seen, options.max_width, room) if p is not None]
        yield Group(*parts)

    def _parts(self, seen: Observation, width: int, room: int) -> Iterator[RenderableType | None]:
        yield self._headline(seen)
        if seen.held_by and not state_of(seen).is_final:
            # A line of its own: a queue's reasons are long.
            yield Padding(_text(seen.held_by, "yellow"), (0, 0, 0, 2))
        elif seen.slow is not None and not state_of(seen).is_final:
            yield Padding(_text(seen.slow.text, "yellow"), (0, 0, 0, 2))
        yield Padding(_condition_line(seen), (0, 0, 0, 2))
        yield self._phases(seen)
        yield Padding(_member_table(seen, max(3, room - 18)), (1, 0, 0, 2))
        yield self._progress(seen, width)
        yield self._events(room)
        if self.sentence:
            yield Padding(_text(self.sentence, "bold magenta"), (1, 0, 0, 2))
        elif not self.over and state_of(seen) is State.QUEUED:
            yield Padding(_text(f"who else waits: {self.place.command('queues')}", "dim"), (1, 0, 0, 2))
        elif not self.over and not seen.elsewhere:
            output = self.place.command("logs", seen.run, "-f")
            yield Padding(_text(f"its output: {output}", "dim"), (1, 0, 0, 2))

    def _headline(self, seen: Observation) -> RenderableType:
        state = state_of(seen)
        words_of_state = Text.assemble(
            (shown(seen.run), "bold"), "  ",
            (str(state).replace("_", " "), f"bold {phrases.COLOURS[state]}"), "  ",
            (phrases.duration_phrase(seen, self.clock()), "dim"),
        )  # fmt: skip
        row = Table.grid(expand=True)
        row.add_column(width=2)
        row.add_column(ratio=1)
        row.add_column(justify="right")
        restarts = f"{seen.restarts} restart{'' if seen.restarts == 1 else 's'}"
        mark: RenderableType = (
            Text(_state_mark(state), style=phrases.COLOURS[state])
            if state.is_final or self.over
            else self.spinner
        )
        row.add_row(mark, words_of_state, Text(f"attempt {seen.attempt} · {restarts}", style="dim"))
        return row

    def _phases(self, seen: Observation) -> RenderableType | None:
        lines = phrases.phases(seen, 0.0 if self.over else self.clock() - self.at)
        if not lines:
            return None
        line = Text()
        for name, seconds, on in lines:
            line.append(name, style="bold" if on else "dim").append(
                f" {seconds}   ", style="cyan" if on else "dim"
            )
        return Padding(line, (0, 0, 0, 2))

    def _progress(self, seen: Observation, width: int) -> RenderableType | None:
        if seen.progress.step is None:
            return None
        share, rest = phrases.share_done(seen), phrases.seconds_left(seen)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(
                total=1.0,
                completed=share or 0.0,
                width=max(10, min(48, width - 40)),
                finished_style="green",
                pulse=share is None,
            ),
            _text(phrases.step_phrase(seen.progress.step, seen.progress.total)),
            f"{share:.0%}" if share is not None else "",
            "" if not rest or state_of(seen).is_final else f"{show_seconds(rest)} left",
        )
        return Padding(Group(bar, _text(_metrics_line(seen))), (1, 0, 0, 2))

    def _events(self, room: int) -> RenderableType | None:
        last = phrases.notable_events(self.events)[-min(EVENTS, max(0, room - 17)) :] if room > 17 else []
        if not last:
            return None
        cells = ([*localtime.event_row(event)[:3], phrases.brief(event.message)] for event in last)
        lines = phrases.table(("", "", "", ""), cells)[1:]
        rows = [
            _text(line, "yellow" if event.type == "Warning" else "dim", one_line=True)
            for event, line in zip(last, lines, strict=True)
        ]
        return Padding(Group(*rows), (1, 0, 0, 2))


def _text(text: str, style: str = "default", *, one_line: bool = False) -> Text:
    """Text from outside. rich would parse a `str` for markup, and `Text` lets ESC through."""
    if one_line:
        return Text(shown(text), style=style, no_wrap=True, overflow="ellipsis")
    return Text(shown(text), style=style)


def _state_mark(state: State) -> str:
    return {State.SUCCEEDED: "✓", State.STOPPED: "■"}.get(state, "✗" if state.is_final else "·")


def _condition_line(seen: Observation) -> Text:
    line = Text()
    for condition in phrases.conditions_in_order(seen.conditions):
        if line:
            line.append(" → ", style="dim")
        style = {"Succeeded": "bold green", "Failed": "bold red"}.get(condition.type, "default")
        line.append(shown(condition.type), style=style).append(
            f" {localtime.clock(condition.since)}", style="dim"
        )
    return line


def _member_table(seen: Observation, most: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_row(*(Text(title, style="dim") for title in ("member", "rank", "phase", "exit", "restarts")))
    shown = _choose_members(seen.members, most)
    for member in shown:
        name, rank, phase, code, restarts = phrases.member_row(member)
        colour = (
            "yellow" if phase.startswith("waits") else phrases.MEMBER_COLOURS.get(member.phase, "default")
        )
        table.add_row(
            _text(name),
            _text(rank),
            _text(phase, colour),
            _text(code),
            _text(restarts) if member.restarts else Text("0", style="dim"),
        )
    hidden = len(seen.members) - len(shown)
    if hidden:
        table.add_row(Text(f"and {hidden} more", style="dim"))
    return table


def _choose_members(members: Sequence[MemberSeen], most: int) -> list[MemberSeen]:
    """All members if there is room; otherwise the first one and those that failed or restarted."""
    if len(members) <= most:
        return list(members)
    ranked = sorted(members, key=lambda m: (m.phase == "running" and not m.restarts, m.rank))
    return sorted(ranked[: most - 1], key=lambda m: m.rank)


def _metrics_line(seen: Observation) -> str:
    parts = [
        f"{name} {phrases.number(value)}"
        for name, value in seen.progress.metrics.items()
        if name != phrases.SPEED
    ]
    pace = phrases.steps_per_second(seen)
    if pace is not None:
        parts.append(f"{pace:.3g} steps/s")
    if seen.progress.checkpoint:
        parts.append(f"checkpoint {seen.progress.checkpoint.rpartition('/')[2]}")
    if seen.progress.lost_steps:
        parts.append(f"{counted(seen.progress.lost_steps, 'step')} lost")
    return "   ".join(parts)
