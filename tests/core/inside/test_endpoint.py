"""The endpoint of Kubeflow's progress protocol: what posts become, and what hostile ones do not."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import pytest

import allaboard
from allaboard.follow.progress import Progress, add_report
from allaboard.text.reportline import decode

SOURCE = Path(allaboard.__file__).parent / "inside" / "helper" / "endpoint.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="members on a cluster are of Linux")


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("endpoint_of_the_helper", SOURCE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


endpoint = loaded()


def status(**fields: Any) -> dict[str, Any]:
    return fields


def metrics(**values: Any) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


# What a post becomes.


@pytest.mark.parametrize(
    ("posted", "known", "fields"),
    [
        (status(progressPercentage=0, metrics=metrics(total_steps="40")), None, {"step": 0, "total": 40}),
        (
            status(
                progressPercentage=25,
                estimatedRemainingSeconds=60,
                metrics=metrics(loss="0.5", current_step="10", total_steps="40", epoch="1.25"),
            ),
            None,
            {"step": 10, "total": 40, "loss": 0.5, "epoch": 1.25, "steps_per_second": 0.5},
        ),
        (status(progressPercentage=100, metrics=metrics(train_loss="0.1")), 40,
         {"step": 40, "total": 40, "train_loss": 0.1}),
        (status(progressPercentage=30), None, {"step": 30, "total": 100}),
        (status(progressPercentage="30", estimatedRemainingSeconds="70"), None,
         {"step": 30, "total": 100, "steps_per_second": 1}),
        (status(metrics=metrics(loss=2)), None, {"loss": 2}),
        (status(metrics=metrics(global_step=3, current_step=4)), 8, {"step": 4, "total": 8}),
        (status(progressPercentage=300), None, {}),
        (status(progressPercentage=-1), 40, {}),
        (status(lastUpdatedTime="2026-01-01T00:00:00Z"), None, {}),
        (status(progressPercentage=50, estimatedRemainingSeconds=0), None, {"step": 50, "total": 100}),
    ],
)  # fmt: skip
def test_what_a_post_tells(posted: Any, known: int | None, fields: dict[str, Any]) -> None:
    assert endpoint.report_fields(posted, known)[0] == fields


def test_the_number_of_all_steps_is_remembered() -> None:
    assert endpoint.report_fields(status(metrics=metrics(total_steps="40")), None)[1] == 40
    assert endpoint.report_fields(status(progressPercentage=3), 40)[1] == 40


@pytest.mark.parametrize(
    "listed",
    [
        None, 3, "x", {}, [None, 3, "x", [], {}], [{"name": 3, "value": "1"}], [{"name": "", "value": "1"}],
        [{"name": "a\nb", "value": "1"}], [{"name": "\x1b[2J", "value": "1"}],
        [{"name": "x" * 101, "value": "1"}],
        [{"name": "a", "value": None}], [{"name": "a", "value": [1]}], [{"name": "a", "value": True}],
        [{"name": "a", "value": "1" * 41}], [{"name": "a", "value": "one"}], [{"name": "kind", "value": "1"}],
        [{"name": "v", "value": "2"}], [{"name": "nonfinite", "value": "2"}],
    ],
)  # fmt: skip
def test_metrics_that_are_none(listed: Any) -> None:
    assert endpoint.report_fields({"metrics": listed}, None) == ({}, None)


def test_what_is_not_finite_is_named() -> None:
    fields, _ = endpoint.report_fields(status(metrics=metrics(loss="nan", other="-inf", step=1)), None)
    report = decode(endpoint.report_line(fields).decode())
    assert report is not None and report.fields == {"step": 1, "loss": None, "other": None}
    assert report.nonfinite == ("loss", "other")


def test_a_line_is_what_a_pipe_takes_as_a_whole() -> None:
    many = metrics(**{f"metric-{n}-{'x' * 80}": "1e-300" for n in range(500)})
    line = endpoint.report_line(endpoint.report_fields(status(metrics=many, progressPercentage=1), None)[0])
    assert len(line) <= 4096 and line.endswith(b"\n") and line.count(b"\n") == 1
    report = decode(line.decode())
    assert report is not None and report.fields["step"] == 1 and len(report.fields) > 20
    assert endpoint.report_line({}) is None


def test_followers_read_the_lines() -> None:
    progress, known = Progress(), None
    for percentage, step in ((0, None), (50, "20"), (100, None)):
        own = metrics(total_steps="40") + (metrics(current_step=step) if step else [])
        posted = status(progressPercentage=percentage, metrics=own if percentage < 100 else None)
        fields, known = endpoint.report_fields(posted, known)
        report = decode(endpoint.report_line(fields).decode())
        assert report is not None
        progress = add_report(progress, report, 1.0)
    assert (progress.step, progress.total, progress.lost_steps) == (40, 40, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"3", b'"x"', b"null", b"{}", b'{"trainerStatus": []}', b'{"trainerStatus": null}',
        b"\xff\xfe", b'{"trainerStatus": {"a": ' + b"[" * 30_000 + b"]" * 30_000 + b"}}",
        b'{"trainerStatus":' * 3_000, b'{"trainerStatus": {"progressPercentage": ' + b"9" * 60_000,
    ],
)  # fmt: skip
def test_bodies_that_are_refused(body: bytes) -> None:
    with pytest.raises(endpoint.Refused) as refused:
        endpoint.trainer_status(body)
    assert refused.value.status == 400


@pytest.mark.parametrize("number", ["9" * 5000, "1e999", "-Infinity", "NaN", "1e-999", "-0", "true", '"4e1"'])
def test_numbers_of_any_size(number: str) -> None:
    """In linear time, whatever they say."""
    posted = endpoint.trainer_status(
        b'{"trainerStatus": {"progressPercentage": %b, "estimatedRemainingSeconds": %b}}'
        % (number.encode(), number.encode())
    )
    fields, _ = endpoint.report_fields(posted, None)
    assert fields in ({}, {"step": 0, "total": 100}, {"step": 40, "total": 100, "steps_per_second": 1.5})


# Over a connection.


class Server:
    """An endpoint in this process; what it writes lies in ``log``."""

    def __init__(self) -> None:
        self.log, self._write = os.pipe()
        os.set_blocking(self.log, False)
        self.answerer = endpoint.Answerer("secret", self._write)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                self.answerer.answer(connection, time.monotonic())

    def send(self, data: bytes, *, more: bool = False) -> int:
        """The status of the answer. ``more``: nothing tells the server that this is all."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            with suppress(OSError):
                connection.sendall(data)
                if not more:
                    connection.shutdown(socket.SHUT_WR)
            answer = b""
            with suppress(OSError):
                while chunk := connection.recv(4096):
                    answer += chunk
            return int(answer.split()[1]) if answer else 0

    def post(self, body: bytes, token: str = "secret", **more: Any) -> int:
        head = f"POST /status HTTP/1.1\r\nHost: x\r\nauthorization: bearer {token}\r\n"
        return self.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, **more)

    def lines(self) -> list[str]:
        time.sleep(0.05)
        with suppress(BlockingIOError):
            return os.read(self.log, 1 << 16).decode().splitlines()
        return []


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.listener.close()


GOOD = json.dumps({"trainerStatus": {"progressPercentage": 7}}).encode()


def test_a_post_is_a_line(server: Server) -> None:
    assert server.post(GOOD) == 200
    assert [decode(line) and decode(line).fields for line in server.lines()] == [{"step": 7, "total": 100}]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer secret\r\n\r\n", 405),
        (b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", 401),
        (b"POST / HTTP/1.1\r\nAuthorization: Basic secret\r\nContent-Length: 2\r\n\r\n{}", 401),
        (b"POST / HTTP/1.1\r\nAuthorization: Bearer\r\nContent-Length: 2\r\n\r\n{}", 401),
        (b"POST / HTTP/1.1\r\nAuthorization: Bearer secret\r\n\r\n{}", 411),
        (
            b"POST / HTTP/1.1\r\nAuthorization: Bearer secret\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            411,
        ),
        (b"POST / HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: -1\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 65537\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 99999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nAuthorization: Bearer secret\r\nContent-Length: 9\r\n\r\n{}", 400),
        (b"POST / HTTP/1.1\r\nX: " + b"y" * 100_000, 431),
        (b"\x16\x03\x01\x02\x00\x01", 400),
        (b"\r\n\r\n", 401),
        (b"", 400),
    ],
)
def test_what_is_no_post(server: Server, sent: bytes, status: int) -> None:
    # A refused request may be cut short: its sender then has no answer.
    assert server.send(sent) in (status, 0)
    assert server.lines() == [] and server.post(GOOD) == 200, "and the next one is answered"


@pytest.mark.parametrize("token", ["", "secre", "secret2", "SECRET", "\x00", "é"])
def test_another_token(server: Server, token: str) -> None:
    assert server.post(GOOD, token) == 401 and server.lines() == []


def test_who_says_nothing_keeps_others_waiting_for_a_moment(server: Server) -> None:
    silent = socket.create_connection(("127.0.0.1", server.port))
    begun = time.monotonic()
    assert server.post(GOOD) == 200 and time.monotonic() - begun < endpoint.PATIENCE + 3
    silent.close()


def test_more_posts_than_anybody_needs_are_refused(server: Server) -> None:
    answers = [server.post(GOOD) for _ in range(40)]
    assert answers[: endpoint.BURST] == [200] * endpoint.BURST and 429 in answers
    assert sum(answer == 200 for answer in answers) < 20
    assert server.post(GOOD, "wrong") == 401


# With the libraries that post.


@pytest.mark.thorough
def test_the_callback_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.core.inside.containers import environment, mounted, started_by
    from tests.core.inside.test_helper import run

    script = tmp_path / "train.py"
    script.write_text(TRANSFORMERS)
    done = run(started_by(mounted(tmp_path), [sys.executable, str(script)]), environment(HOME=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    reports = [report for line in done.stdout.splitlines() if (report := decode(line)) is not None]
    assert [(r.fields["step"], r.fields["total"]) for r in reports] == [(0, 40), (10, 40), (40, 40)]
    assert reports[1].fields["loss"] == 0.5 and reports[2].fields["loss"] == 0.25


TRANSFORMERS = """
from types import SimpleNamespace
from transformers.integrations import integration_utils
from transformers.integrations.integration_utils import KubeflowCallback, get_available_reporting_integrations

assert "kubeflow" in get_available_reporting_integrations()
callback = KubeflowCallback()
callback._MIN_UPDATE_INTERVAL = 0
state = SimpleNamespace(is_world_process_zero=True, max_steps=40, global_step=0, epoch=0.0)
callback.on_train_begin(None, state, None)
callback.on_log(None, state, None, logs={"loss": 0.5, "learning_rate": 1e-3})
state.global_step, state.epoch = 10, 0.25
callback.on_step_end(None, state, None)
callback.on_log(None, state, None, logs={"loss": 0.25})
state.global_step = 40
callback.on_train_end(None, state, None)
"""
