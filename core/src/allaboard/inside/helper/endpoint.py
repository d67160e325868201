"""Endpoint of Kubeflow's progress protocol on the loopback of a member, started by `start`.

Scripts that know the protocol (transformers' KubeflowCallback, Kubeflow's SDK) read three variables:
KUBEFLOW_TRAINER_SERVER_URL, KUBEFLOW_TRAINER_SERVER_TOKEN (the path of a file), and _CA_CERT, which is absent
here. They post ``{"trainerStatus": {"progressPercentage", "estimatedRemainingSeconds", "metrics": [{"name",
"value"}], "lastUpdatedTime"}}`` with the token. A post becomes one report line in the log of the container
(`allaboard.text.reportline`).

A process of its own answers. It is a child of the command for which no ``wait`` of the command waits, ends
with it, holds no terminal, is in a process group of its own, and is asleep until somebody posts. The token
lies in memory alone: an anonymous file of that process, which the same user may read.

Whoever posts is not trusted: a post has a deadline and a size, and is JSON of few words; posts come in bursts
of `BURST`, and `RATE` a second.
"""

import _socket
import json
import math
import os
import sys
import time
from _operator import _compare_digest

TYPE_CHECKING = False  # as in `start`
if TYPE_CHECKING:
    from typing import Any

URL, TOKEN = b"KUBEFLOW_TRAINER_SERVER_URL", b"KUBEFLOW_TRAINER_SERVER_TOKEN"
MOST_HEAD, MOST_BODY = 8192, 1 << 16
"""Bytes of a request."""
PATIENCE = 2.0
"""Seconds that a request may take."""
BURST, RATE = 10, 2.0
"""Posts at once, and a second after that."""
MOST_METRICS, LONGEST_NAME, LONGEST_VALUE, LONGEST_LINE = 50, 100, 40, 3900
"""Metrics of a post, characters of a name and of a value; bytes of a line, which a pipe takes whole."""
MOST_STEPS = 10**15
STEPS, TOTALS = ("current_step", "global_step", "step"), ("total_steps", "max_steps", "total")
"""Metrics that are the step, and the number of all steps."""
_TAKEN = ("v", "kind", "nonfinite", "steps_per_second")
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 405: "Method Not Allowed", 408: "Request Timeout",
    411: "Length Required", 413: "Content Too Large", 429: "Too Many Requests", 431: "Header Too Large",
}  # fmt: skip
_ANSWER = (
    "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
)
_CLONE = {"x86_64": 56, "aarch64": 220, "riscv64": 220}
_MEMFD = {"x86_64": 319, "aarch64": 279, "riscv64": 279}
"""Machine -> number of the system call."""
_PDEATHSIG = 1


def start(environment: "dict[bytes, bytes]") -> "dict[bytes, bytes]":
    """Start the process that answers; the variables by which it is found. None where Trainer has injected its
    own. Raises OSError where there is none.
    """
    if environment.get(URL):
        return {}
    if not sys.platform.startswith("linux"):
        raise OSError("anonymous files are Linux's")
    server = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    server.bind(("127.0.0.1", 0))
    server.listen(16)
    port = server.getsockname()[1]
    token = os.urandom(24).hex()
    libc = libc_of_process()
    file = anonymous_file("allaboard-token", libc)
    os.write(file, token.encode())
    starter = os.getpid()
    child = _unwaited_child(libc)
    if child == 0:
        try:
            _answer_until_end(server, file, token, starter, libc)
        finally:
            os._exit(0)
    os.close(file)
    server.close()
    variables = {URL: b"http://127.0.0.1:%d/status" % port, TOKEN: b"/proc/%d/fd/%d" % (child, file)}
    variables.update(_past_proxies(environment))
    return variables


def _past_proxies(environment: "dict[bytes, bytes]") -> "dict[bytes, bytes]":
    """Variables by which requests to the loopback go past a proxy; none where no proxy is named."""
    names = {name.lower() for name, value in environment.items() if value}
    if not names & {b"http_proxy", b"all_proxy"}:
        return {}
    given = [name for name in (b"no_proxy", b"NO_PROXY") if environment.get(name)] or [b"no_proxy"]
    lists = {name: environment.get(name, b"") for name in given}
    return {
        name: b"127.0.0.1," + hosts if hosts else b"127.0.0.1"
        for name, hosts in lists.items()
        if hosts.strip() != b"*" and b"127.0.0.1" not in [host.strip() for host in hosts.split(b",")]
    }


# The process.


def libc_of_process() -> "Any":
    try:
        import ctypes

        return ctypes.PyDLL(None, use_errno=True)
    except Exception:  # a Python without ctypes
        return None


def anonymous_file(name: str, libc: "Any") -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    # A Python that was built for an old glibc, as conda's, lacks it.
    number = _MEMFD.get(os.uname().machine)
    file = libc.syscall(number, name.encode(), 1) if libc is not None and number is not None else -1
    if file < 0:
        raise OSError("no anonymous files")
    return int(file)


def _unwaited_child(libc: "Any") -> int:
    """Fork. The child tells its parent no signal when it ends, so that a command that waits until it has no
    children left does not wait for this one (clone(2), wait(2): __WCLONE).
    """
    number = _CLONE.get(os.uname().machine) if libc is not None else None
    child = libc.syscall(number, 0, 0, 0, 0, 0) if number is not None else -1
    return int(child) if child >= 0 else os.fork()


def _answer_until_end(server: "Any", file: int, token: str, starter: int, libc: "Any") -> None:
    dies_along = libc is not None and libc.prctl(_PDEATHSIG, 9, 0, 0, 0) == 0
    os.setpgid(0, 0)
    os.chdir("/")
    log = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    _close_others({0, 1, 2, server.fileno(), file, log})
    server.settimeout(None if dies_along else 1.0)
    answerer = Answerer(token, log)
    while os.getppid() == starter:
        try:
            connection, _ = server._accept()
        except OSError:  # nobody has posted
            continue
        connection = _socket.socket(fileno=connection)
        try:
            answerer.answer(connection, time.monotonic())
        except OSError:
            pass
        finally:
            connection.close()


def _close_others(kept: "set[int]") -> None:
    low = 0
    for descriptor in [*sorted(kept), 4096]:
        if low < descriptor:  # an empty range from 0 is all of them to some Pythons
            os.closerange(low, descriptor)
        low = descriptor + 1


# Requests.


class Refused(Exception):
    """A request that is answered with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Answerer:
    """Answers posts, and writes what they report to the descriptor ``log``."""

    def __init__(self, token: str, log: int) -> None:
        self._token, self._log = token.encode(), log
        self._left, self._at = float(BURST), 0.0
        self._total: int | None = None

    def answer(self, connection: "Any", now: float) -> None:
        """Read one request, answer it, write its report. ``now``: of a monotonic clock."""
        line = None
        try:
            line = self._line(connection, now)
            status = 200
        except Refused as refused:
            status = refused.status
        except OSError:
            status = 408
        connection.settimeout(PATIENCE)
        connection.sendall((_ANSWER % (status, _REASONS[status])).encode())
        if line is not None:  # whoever trains has its answer, also where the log takes its time
            os.write(self._log, line)

    def _line(self, connection: "Any", now: float) -> "bytes | None":
        method, headers, rest = _head(connection, now + PATIENCE)
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not _compare_digest(token.strip(), self._token):
            raise Refused(401)
        if method != b"POST":
            raise Refused(405)
        status = trainer_status(_body(connection, headers, rest, now + PATIENCE))
        self._left = min(float(BURST), self._left + (now - self._at) * RATE)
        self._at = now
        if self._left < 1:
            raise Refused(429)
        self._left -= 1
        fields, self._total = report_fields(status, self._total)
        return report_line(fields)


def _receive(connection: "Any", most: int, end: float) -> bytes:
    left = end - time.monotonic()
    if left <= 0:
        raise Refused(408)
    connection.settimeout(left)
    data: bytes = connection.recv(most)
    if not data:
        raise Refused(400)
    return data


def _head(connection: "Any", end: float) -> "tuple[bytes, dict[bytes, bytes], bytes]":
    """(method, headers, what has come of the body)."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) >= MOST_HEAD:
            raise Refused(431)
        data += _receive(connection, MOST_HEAD - len(data), end)
    head, _, rest = data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    pairs = [line.partition(b":") for line in lines]
    return first.partition(b" ")[0], {name.strip().lower(): value.strip() for name, _, value in pairs}, rest


def _body(connection: "Any", headers: "dict[bytes, bytes]", rest: bytes, end: float) -> bytes:
    length = headers.get(b"content-length", b"")
    if b"transfer-encoding" in headers or not length.isdigit():
        raise Refused(411)
    if len(length) > 9 or int(length) > MOST_BODY:
        raise Refused(413)
    while len(rest) < int(length):
        rest += _receive(connection, int(length) - len(rest), end)
    return rest[: int(length)]


def trainer_status(body: bytes) -> "dict[str, Any]":
    """The ``trainerStatus`` of a body. Raises Refused."""
    try:
        status = json.loads(body.decode(), parse_int=_number, parse_float=_number, parse_constant=float)
        status = status["trainerStatus"]
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
        raise Refused(400) from None
    if not isinstance(status, dict):
        raise Refused(400)
    return status


def _number(text: "Any") -> "float | None":
    """A number, as JSON or a metric's text has it; None for what is none."""
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        return None
    if isinstance(text, str) and len(text) > LONGEST_VALUE:
        return None
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() and abs(number) <= MOST_STEPS else number


# Reports.


def report_fields(
    status: "dict[str, Any]", total: "int | None"
) -> "tuple[dict[str, float | None], int | None]":
    """(fields of a progress line, the number of all steps as far as it is known). ``total``: as known before.

    Steps are the metrics `STEPS`, else the percentage: of the number of all steps where that is known, else
    of 100.
    """
    metrics = _metrics(status.get("metrics"))
    step = _whole(_first(metrics, STEPS))
    total = _whole(_first(metrics, TOTALS)) or total
    percentage = _number(status.get("progressPercentage"))
    of = total
    if step is None and percentage is not None and 0 <= percentage <= 100:
        of = total or 100
        step = int(of * percentage / 100)
    if step is None:
        of = None
    fields: dict[str, float | None] = {}
    if step is not None:
        fields["step"] = step
    if of:
        fields["total"] = of
    fields.update(metrics)
    rest = _number(status.get("estimatedRemainingSeconds"))
    if step is not None and of and rest is not None and 0 < rest < math.inf and step < of:
        fields["steps_per_second"] = round((of - step) / rest, 6)
    return fields, total


def _first(metrics: "dict[str, float]", names: "tuple[str, ...]") -> "float | None":
    """The value of the first of these metrics; all of them are taken out."""
    values = [metrics.pop(name) for name in names if name in metrics]
    return values[0] if values else None


def _whole(value: "Any") -> "int | None":
    return value if isinstance(value, int) and 0 <= value <= MOST_STEPS else None


def _metrics(listed: "Any") -> "dict[str, float]":
    metrics: dict[str, float] = {}
    for metric in listed[:MOST_METRICS] if isinstance(listed, list) else ():
        name = metric.get("name") if isinstance(metric, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            continue
        value = _number(metric.get("value"))
        if value is not None and name not in _TAKEN:
            metrics[name] = value
    return metrics


def report_line(fields: "dict[str, float | None]") -> "bytes | None":
    """The report line, cut to `LONGEST_LINE` bytes by its last fields; None where nothing is left to tell."""
    names: list[str] = list(fields)
    while names:
        odd = [name for name in names if not math.isfinite(fields[name] or 0.0)]
        body: dict[str, Any] = {"v": 1, "kind": "progress"}
        body.update({name: None if name in odd else fields[name] for name in names})
        if odd:
            body["nonfinite"] = odd
        line = ("[allaboard] " + json.dumps(body, separators=(",", ":")) + "\n").encode()
        if len(line) <= LONGEST_LINE:
            return line
        names.pop()
    return None
