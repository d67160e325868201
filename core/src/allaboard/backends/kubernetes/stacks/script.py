"""Runs in the container of a member, by its own python3, and reads the stacks of a run's Python processes.

By exec it is sent as text, and prints one JSON object of bounded size, ``{"looks": [...]}``; with a number as
its second argument it looks as often, and prints ``{"rounds": [[...], ...]}``. Where exec is not allowed
(``policy.hang.ask: file``) `allaboard.inside.startup` starts it beside the first Python of the container,
with its pid and the path of a file: it looks into that file now and then, and when there is a new word in it,
it writes one report line for each process into the log of the container, and one with their number. `asking`
and `by_file` read its output.

A process answers if it began with `allaboard.inside.startup`: a signal makes it write its stacks into an
anonymous file, which is read through ``/proc``. A process that does not catch that signal is never sent it,
because it would end: its stacks are read by py-spy, where the image has that. All are asked twice: a process
that has computed nothing in between waits.

It stands alone, and works with Python 3.6.
"""

# ruff: noqa: PTH115, PTH116, PTH119, PTH123, PTH208, RUF005, SIM105  (/proc; an old Python)

import base64
import json
import os
import select
import signal
import socket
import sys
import time
import zlib

TYPE_CHECKING = False  # an old Python has no such names
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIGNAL = 61
FILE, COLLECTIVES = "memfd:allaboard-stacks", "memfd:allaboard-collectives"
"""The values of `allaboard.inside.startup`."""
HELPERS = ("memfd:allaboard-token", "memfd:allaboard-keeper")
"""Files of the processes of the helper (`allaboard.inside.helper`), which are no script's."""
RUN = "ALLABOARD_RUN"
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
BETWEEN, PATIENCE, SETTLED = 1.0, 1.5, 0.05
"""Seconds between the two rounds, for the answers of one, and between two looks at them."""
MOST_PROCESSES, MOST_TEXT, MOST_PRINTED = 256, 1 << 15, 3 << 20
"""Processes that are asked; bytes of one answer, whose end is the main thread; bytes of all answers."""
LAST = b"#"
"""Asks for the last collectives, as `allaboard.inside.startup` has it."""
MOST_RECORD, MOST_LAST = 1 << 23, 8
"""Bytes of such an answer, and the collectives of each group that are passed on."""
KEPT = (
    "pg_id", "process_group", "collective_seq_id", "is_p2p", "profiling_name", "input_sizes", "input_dtypes",
    "state", "retired",
)  # fmt: skip
"""Fields of each that are passed on."""
MOST_THREADS = 256
"""Threads of a process that are looked at."""
OF_TORCH = ("pt_", "gloo_")
"""The names of threads that torch's own code starts and that never rest."""
MOST_SPIED = 32
"""Processes that py-spy reads."""
MOST_FRAMES_TEXT, APART = 4000, 0.2
"""Characters of a stack, and seconds between two looks, where there are many."""
EVERY = 2.0
"""Seconds between two looks into the file."""
MOST_WORD, MOST_LINE = 40, 3900
"""Characters of the word; bytes of a line, which a pipe takes as a whole beside other writers."""


def main(rounds: int) -> None:
    sys.stdout.write(json.dumps({"rounds": _often(rounds)} if rounds else {"looks": _looks()}))


def _often(rounds: int) -> "list[list[dict[str, object]]]":
    """Looks a moment apart at processes that answer, each with the innermost frames of its main thread."""
    series: list[list[dict[str, object]]] = []
    pids, printed = _processes(os.environ.get(RUN, "")), 0
    for _ in range(rounds):
        begun = time.monotonic()
        seen = _round(pids, spies=False)
        looks = [
            _look(pid, now, dict(now, text=_main_thread(now["text"])[:MOST_FRAMES_TEXT]))
            for pid, now in seen.items()
        ]
        printed += len(json.dumps(looks))
        if not seen or printed > MOST_PRINTED:
            break
        series.append(looks)
        pids = list(seen)
        time.sleep(max(0.0, APART - (time.monotonic() - begun)))
    return series


def _main_thread(text: object) -> str:
    """The stack of the main thread, which faulthandler writes last."""
    text = str(text)
    return text[max(text.rfind("Thread 0x"), text.rfind("Current thread 0x"), 0) :]


def listen(starter: int, path: str) -> None:
    """Answer the file's words for as long as the first process of the run in this container lives."""
    first, ended = _first_process(starter)
    if not _is_alone():
        return
    log = _log_of(first, starter)
    if log is None:
        return
    # A reader of the starter's output must not wait for this process.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    answered = ""
    while not ended(EVERY):
        word = _word(path)
        if word and word != answered:
            answered = word
            for line in answer_lines(word, _looks()):
                os.write(log, line)


def answer_lines(word: str, looks: "list[dict[str, object]]") -> "Iterator[bytes]":
    """Lines for the log, each short enough to stay whole."""
    head = f'[allaboard] {{"v":1,"kind":"stacks","asked":"{word}",'
    for look in looks:
        yield f'{head}"look":"{_packed(look, MOST_LINE - len(head) - 12)}"}}\n'.encode()
    yield f'{head}"told":{len(looks)}}}\n'.encode()


def _packed(look: "dict[str, object]", most: int) -> str:
    """A look as text of ``most`` characters: its main thread, and of that the innermost frames."""
    lines = _main_thread(look["text"]).splitlines()
    collectives, records = look["collectives"], look.get("records", "")
    while True:
        text = "\n".join(lines)
        whole = json.dumps(dict(look, text=text, collectives=collectives, records=records)).encode()
        packed = base64.b64encode(zlib.compress(whole, 9)).decode()
        if len(packed) <= most or not (lines or collectives or records):
            return packed
        if len(lines) > 8 or not (collectives or records):
            lines = lines[: len(lines) * 3 // 4]
        elif records:
            records = ""
        else:
            collectives = ""


def _word(path: str) -> str:
    try:
        with open(path, "rb") as file:
            word = file.read(MOST_WORD + 1).decode("ascii", "replace").strip()
    except OSError:
        return ""  # nobody has asked yet
    return word if word.isalnum() and len(word) <= MOST_WORD else ""


def _first_process(starter: int) -> "tuple[int, Callable[[float], bool]]":
    """The uppermost process of the run in this container, which writes its log, and a function that waits for
    its end: seconds -> True when it has ended.
    """
    run, pid = os.environ.get(RUN, ""), starter
    while True:
        parent = _parent(pid)
        if parent <= 0 or _environment(parent).get(RUN) != run:
            break
        pid = parent
    try:
        # It may hold descriptors for as long as it is read: pidfd_open is of Python 3.9 and Linux 5.3.
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        began = _began(pid)

        def ended(seconds: float) -> bool:
            if began:
                time.sleep(seconds)
            return not began or _began(pid) != began

        return pid, ended
    return pid, lambda seconds: bool(select.select([handle], [], [], seconds)[0])


def _is_alone() -> bool:
    """True when no other process listens for this member. The lock is a name that goes with this process."""
    name = f"allaboard-asked-{os.environ.get(RUN, '')}-{os.environ.get('ALLABOARD_MEMBER', '')}"
    lock = socket.socket(socket.AF_UNIX)
    try:
        lock.bind("\0" + name[-100:])
    except OSError:
        return False
    lock.detach()
    return True


def _log_of(first: int, starter: int) -> "int | None":
    """A descriptor of the container's log, to which its first process writes; None: it cannot be opened."""
    try:
        if first == starter:
            return os.dup(1)
        return os.open(f"/proc/{first}/fd/1", os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    except OSError:
        return None  # a socket, or another user's


def _looks() -> "list[dict[str, object]]":
    pids = _processes(os.environ.get(RUN, ""))
    first = _round(pids)
    time.sleep(BETWEEN if first else 0)
    second = _round([pid for pid in pids if pid in first])
    stand = [
        p for p, now in second.items() if now["collectives"] and now["collectives"] == first[p]["collectives"]
    ]
    records = _records(stand)
    looks, printed = [], 0
    for pid, now in second.items():
        look = dict(_look(pid, first[pid], now), records=records.get(pid, ""))
        printed += len(json.dumps(look))
        if printed > MOST_PRINTED:
            break
        looks.append(look)
    return looks


def _look(pid: int, before: "dict[str, object]", now: "dict[str, object]") -> "dict[str, object]":
    environ = _environment(pid) if now["asked"] else {}
    rank = next((environ[name] for name in RANKS if environ.get(name)), "")
    passed = max(float(str(now["at"])) - float(str(before["at"])), 0.01)
    slept = _rates(before["switches"], now["switches"], passed)
    return {
        "pid": pid,
        "parent": now["parent"],
        "rank": int(rank) if rank.isdigit() and len(rank) < 10 else None,
        "text": now["text"],
        "state": now["state"],
        "busy": round((float(str(now["cpu"])) - float(str(before["cpu"]))) / passed, 3),
        "collectives": now["collectives"],
        "ready": now["ready"],
        "switches": slept.pop(pid, 0.0),
        "others": max(slept.values(), default=0.0),
    }


def _rates(before: object, now: object, passed: float) -> "dict[int, float]":
    """Thread -> times in a second that it went to sleep. ``passed``: seconds between the two counts."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return {}
    return {
        thread: round((times - before[thread]) / passed, 1)
        for thread, times in now.items()
        if thread in before
    }


def _processes(run: str) -> "list[int]":
    """The processes of the run in this container; other processes of the pod are left out."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    mine = [pid for pid in pids if pid != os.getpid() and run and _environment(pid).get(RUN) == run]
    return mine[:MOST_PROCESSES]


def _environment(pid: int) -> "dict[str, str]":
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read(1 << 20).decode("utf-8", "replace").split("\0")
    except OSError:
        return {}
    return dict(variable.split("=", 1) for variable in variables if "=" in variable)


def _round(pids: "list[int]", spies: bool = True) -> "dict[int, dict[str, object]]":
    """Ask all processes at once; pid -> its answer and its kernel fields. ``spies``: also read those that do
    not answer by py-spy, and tell what the kernel knows of those that have no stacks.
    """
    asked, states = {}, {}
    for pid in pids:
        try:
            path = _open_file(pid, FILE)
            size = os.stat(path).st_size if path else 0
            # Before the question wakes it.
            states[pid] = {"state": _stat(pid)[0].decode("ascii", "replace"), "ready": _threads(pid)[1]}
            if path and _send(pid):
                asked[pid] = (path, size)
                _ask_collectives(pid)
        except (OSError, IndexError):
            pass  # gone, or another user's
    end, sizes = time.monotonic() + PATIENCE, {pid: size for pid, (_, size) in asked.items()}
    waiting = set(asked)
    while waiting and time.monotonic() < end:
        time.sleep(SETTLED)
        for pid in list(waiting):
            path, before = asked[pid]
            try:
                size = os.stat(path).st_size
            except OSError:
                size = sizes[pid] = before + 1
            if size > before and size == sizes[pid]:
                waiting.discard(pid)
            sizes[pid] = size
    answers = {}
    for pid, (path, before) in asked.items():
        try:
            answers[pid] = dict(_now(pid, _answer(path, before)), **states[pid])
        except (OSError, IndexError, ValueError):
            pass
    for pid, text in _spied([pid for pid in pids if pid not in asked]) if spies else ():
        try:
            answers[pid] = _now(pid, text)
        except (OSError, IndexError, ValueError):
            pass
    for pid in pids if spies else ():
        try:
            if pid not in answers and pid not in asked and not _is_helper(pid):
                answers[pid] = dict(_now(pid, ""), asked=False, collectives="")
        except (OSError, IndexError, ValueError):
            pass
    return answers


def _spied(pids: "list[int]") -> "Iterator[tuple[int, str]]":
    """The stacks of the Python processes among these, read by py-spy, in the form of faulthandler."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    program = next((p for f in folders for p in [f + "/py-spy"] if os.access(p, os.X_OK)), "")
    if not program:
        return
    import subprocess  # slow to import

    for pid in pids[:MOST_SPIED]:
        try:
            is_python = os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
            if not is_python or _is_helper(pid):
                continue
            command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
            printed = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE
            )
            [frames] = [t["frames"] for t in json.loads(printed.stdout.decode()) if t["os_thread_id"] == pid]
            lines = ['  File "{filename}", line {line} in {name}'.format(**frame) for frame in frames]
            yield pid, "\n".join(["Thread 0x0 (most recent call first):"] + lines)[:MOST_TEXT]
        except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
            pass


def _is_helper(pid: int) -> bool:
    return any(_open_file(pid, name) for name in HELPERS)


def _answer(path: str, before: int) -> str:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(before, size - MOST_TEXT))
        return file.read(MOST_TEXT).decode("utf-8", "replace")


def _now(pid: int, text: str) -> "dict[str, object]":
    """The stacks of a process, with its kernel fields."""
    fields, (switches, ready) = _stat(pid), _threads(pid)
    return {
        "text": text,
        "state": fields[0].decode("ascii", "replace"),
        "parent": int(fields[1]),
        "cpu": (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        "at": time.monotonic(),
        "switches": switches,
        "ready": ready,
        "asked": True,
        "collectives": _collectives(pid)[1],
    }


def _threads(pid: int) -> "tuple[dict[int, int], bool]":
    """(thread -> times that it has gone to sleep, whether another than the main one is ready to run)."""
    switches, ready = {}, False
    for name in os.listdir(f"/proc/{pid}/task")[:MOST_THREADS]:
        try:
            with open(f"/proc/{pid}/task/{name}/status", "rb") as file:
                lines = file.read(8192).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if name == str(pid) or not status.get("Name", "").startswith(OF_TORCH):
            switches[int(name)] = int(status.get("voluntary_ctxt_switches", "0"))
            ready = ready or (name != str(pid) and status.get("State", "").startswith("R"))
    return switches, ready


def _stat(pid: int) -> "list[bytes]":
    """The kernel's fields of a process (/proc/PID/stat), from its state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name, in parentheses, may hold anything.
        return file.read(4096).rpartition(b")")[2].split()


def _parent(pid: int) -> int:
    try:
        return int(_stat(pid)[1])
    except (OSError, IndexError, ValueError):
        return 0


def _began(pid: int) -> bytes:
    """Start time of a process, which sets it apart from a later one of its pid; empty when it has ended."""
    try:
        fields = _stat(pid)
        return b"" if fields[0] in (b"Z", b"X") else fields[19]
    except (OSError, IndexError):
        return b""


def _open_file(pid: int, name: str) -> str:
    """The anonymous file of this name that a process has open, "" for none."""
    folder = f"/proc/{pid}/fd"
    for fd in os.listdir(folder):
        try:
            if name in os.readlink(folder + "/" + fd):
                return folder + "/" + fd
        except OSError:
            pass
    return ""


def _send(pid: int) -> bool:
    """Send the signal to a process that catches it; False: it does not. The signal goes by a descriptor of
    the process, where the system has them: its pid may be another's a moment later.
    """
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        if _catches(pid):
            os.kill(pid, SIGNAL)
            return True
        return False
    try:
        if _catches(pid):
            signal.pidfd_send_signal(handle, SIGNAL)
            return True
        return False
    finally:
        os.close(handle)


def _catches(pid: int) -> bool:
    with open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"SigCgt:"):
                return bool(int(line.split()[1], 16) >> (SIGNAL - 1) & 1)
    return False


def _collectives(pid: int) -> "tuple[str, str]":
    """(descriptor of the pipe through which a process is asked, its last answer); empty for a forked child,
    which has the file of its parent and does not answer.
    """
    try:
        path = _open_file(pid, COLLECTIVES)
        if path:
            with open(path, "rb") as file:
                head, _, answer = file.read(MOST_TEXT).decode("utf-8", "replace").partition("\n")
            who, _, pipe = head.partition(" ")
            if who == str(pid) and pipe.isdigit():
                return pipe, answer
    except OSError:
        pass
    return "", ""


def _ask_collectives(pid: int, question: bytes = b"?") -> bool:
    """Ask a process for its collectives, which a later look reads. Returns whether it can be asked."""
    pipe = _collectives(pid)[0]
    path = f"/proc/{pid}/fd/{pipe}"
    if not pipe or not os.readlink(path).startswith("pipe:"):
        return False
    ask = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        return os.write(ask, question) > 0
    finally:
        os.close(ask)


def _records(pids: "list[int]") -> "dict[int, str]":
    """The last collectives of processes; pid -> what is left of the answer when it is cut short."""
    asked = {}
    for pid in pids:
        try:
            path = _open_file(pid, COLLECTIVES)
            before = os.stat(path).st_mtime_ns if path else 0
            if path and _ask_collectives(pid, LAST):
                asked[pid] = (path, before)
        except OSError:
            pass  # gone
    records = {}
    end = time.monotonic() + PATIENCE
    while asked and time.monotonic() < end:
        time.sleep(SETTLED)
        for pid, (path, before) in list(asked.items()):
            try:
                if os.stat(path).st_mtime_ns == before:
                    continue
                with open(path, "rb") as file:
                    answer = file.read(MOST_RECORD).decode("utf-8", "replace").partition("\n")[2]
            except OSError:
                answer = "\n"
            if answer.endswith("\n"):
                records[pid] = "\n".join(_cut(line) for line in answer.split("\n")[:2])
                del asked[pid]
    return records


def _cut(line: str) -> str:
    """The JSON of torch's flight recorder with the last collectives of each group alone; empty where it is
    none.
    """
    try:
        dump = json.loads(line)
        seen: dict[object, int] = {}
        kept: list[dict[str, object]] = []
        for entry in reversed(dump.get("entries") or ()):
            seen[entry["pg_id"]] = seen.get(entry["pg_id"], 0) + 1
            if seen[entry["pg_id"]] <= MOST_LAST:
                kept.append({key: entry[key] for key in KEPT})
        return json.dumps(dict(dump, entries=kept[::-1]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return ""


if __name__ == "__main__":
    if sys.argv[0] != "-c":
        listen(int(sys.argv[1]), sys.argv[2])
    else:  # the first argument is the size of the script on stdin
        main(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
