"""Record a real `allaboard run` in which a worker is killed, and draw it: what `make pictures` does.

    python -m tests.docs.pictures.record core/docs/pictures/run.svg

The job is that of `allaboard demo`. Its frames are what the command wrote to a pseudo-terminal, with the
times at which it wrote them; the worker gets SIGKILL from beside it, as when a machine is taken away.
"""

from __future__ import annotations

import fcntl
import math
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.processes import find_marked, send_signal
from allaboard.cli.start.demo import FILES, VICTIM
from tests.docs.pictures.film import Frame, shots, svg, thinned, with_notes
from tests.docs.pictures.screen import Screen

COLUMNS, ROWS = 100, 30
EVERY, IDLE, END = 0.25, 0.75, 5.0
"""Seconds: between two frames; of a stretch in which only clocks move; of the last frame."""
LIMIT = 240.0
"""Seconds after which a recording has failed."""


@dataclass(frozen=True, slots=True)
class Recording:
    """``killed``: seconds after its beginning."""

    frames: Sequence[Frame]
    killed: float
    code: int


def record(words: Sequence[str], folder: Path, environ: dict[str, str], kill: Kill) -> Recording:
    """What ``words`` write to a terminal of their own, until they end."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen, frames = Screen(COLUMNS, ROWS), []
    screen.feed(f"\x1b[1;32m$\x1b[0m {' '.join(words)}\r\n")
    began = time.monotonic()
    frames.append(Frame(0.0, screen.picture()))
    child = subprocess.Popen(
        words, cwd=folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    kill.start(began)
    try:
        while text := _written(ours, began + LIMIT - time.monotonic()):
            screen.feed(text)
            frames.append(Frame(time.monotonic() - began, screen.picture()))
        code = child.wait(LIMIT)
    finally:
        kill.over.set()
        os.close(ours)
        if child.poll() is None:
            child.send_signal(signal.SIGINT)  # which stops its run
            child.wait()
    if kill.at is None:
        raise SystemExit(f"the recording shows no kill: {VICTIM} was never found")
    return Recording(frames, kill.at, code)


def _written(terminal: int, seconds: float) -> str:
    """What was written in one go, which is read in pieces; empty at the end."""
    pieces: list[bytes] = []
    while True:
        wait = max(0.0, seconds) if not pieces else 0.01
        if not select.select([terminal], [], [], wait)[0]:
            if not pieces:
                raise SystemExit(f"nothing was written for {seconds:.0f} seconds")
            if _is_whole(b"".join(pieces)):
                break
            continue
        piece = b""
        with suppress(OSError):  # EIO: whoever wrote is gone
            piece = os.read(terminal, 65536)
        if not piece:
            break
        pieces.append(piece)
    return b"".join(pieces).decode(errors="replace")


def _is_whole(data: bytes) -> bool:
    """Whether no character is cut in two at the end."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.end != len(data)
    return True


class Kill:
    """Kills the victim in the middle of the training, once something is saved."""

    def __init__(self, backend: LocalBackend, share: float = 0.4) -> None:
        self.backend, self.share = backend, share
        self.over = threading.Event()
        self.at: float | None = None

    def start(self, began: float) -> None:
        threading.Thread(target=self._strike, args=(began,), daemon=True).start()

    def _strike(self, began: float) -> None:
        while not self.over.wait(0.1):
            # Before it is launched there is none, and never more than this one.
            for seen in self.backend.list():
                step, total = seen.progress.step, seen.progress.total
                if not step or not total or step < self.share * total or not seen.progress.checkpoint:
                    continue
                if [who for who in find_marked(seen.uid or "", VICTIM) if send_signal(who, signal.SIGKILL)]:
                    self.at = time.monotonic() - began
                    return


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="demo-") as name:
        folder = Path(name)
        for file in FILES:
            (folder / file).write_bytes(
                (resources.files("allaboard.cli.start") / "spirals" / file).read_bytes()
            )
        programs = Path(sys.executable).parent
        os.environ |= {
            "ALLABOARD_HOME": str(folder / "home"),
            "ALLABOARD_POOL": str(folder / "pool"),
            "ALLABOARD_STORE": str(folder / "store"),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
            "EPOCHS": "20",
        }
        os.environ.pop("NO_COLOR", None)
        environ = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        prepare = "allaboard shards prepare data:samples store://spirals/shards --samples-per-shard 300"
        subprocess.run(prepare.split(), cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
        words = ("allaboard", "run", "train.yaml")
        made = record(words, folder, environ, Kill(LocalBackend()))
    if made.code:
        raise SystemExit(f"{' '.join(words)} ended with {made.code}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(draw(made))
    print(f"{target}: {target.stat().st_size:,} bytes, {made.frames[-1].at:.0f} s of a real run")


def draw(made: Recording) -> str:
    """The recording as SVG."""
    note = f"{made.killed:.1f} s, another terminal: kill -9 {VICTIM}"
    frames = with_notes(thinned(made.frames, EVERY), [(made.killed, math.inf, note)])
    film = shots(frames, idle=IDLE, end=END)
    seconds = sum(shot.lasts for shot in film[:-1])
    return svg(
        film,
        columns=COLUMNS,
        title="a worker is killed, the loss goes on",
        footer=(
            f"A real run of {made.frames[-1].at:.0f} s in {seconds:.0f} s: "
            "where only clocks move, time is shortened."
        ),
        alternative=(
            "A terminal follows a training of a master and a worker: state, members, progress, loss. "
            "Half-way the worker is killed. All start again from the last checkpoint, the loss goes on, "
            "the run succeeds."
        ),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
