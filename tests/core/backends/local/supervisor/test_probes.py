"""What is read of the log of a member for a diagnosis, and what is seen of its rendezvous."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.local.supervisor import probes
from allaboard.backends.local.supervisor.probes import Rendezvous, excerpt, probe_port
from allaboard.diagnosis.excerpt import HEAD, MIDDLE, TAIL

CAUSE = "OSError: [Errno 28] No space left on device: '/out/step-40'"


@pytest.mark.parametrize("at", [0.05, 0.5, 0.75])
def test_the_middle_of_a_log_is_looked_at(tmp_path: Path, at: float) -> None:
    lines = [f"step {n} loss 2.{n} {'x' * 80}" for n in range(40_000)]
    lines.insert(int(len(lines) * at), CAUSE)
    log = tmp_path / "log"
    log.write_text("\n".join(lines))
    text = excerpt(log)
    assert CAUSE in text and text.endswith(lines[-1]) and text.startswith(lines[0])
    assert len(text) <= HEAD + MIDDLE + 2 * TAIL < log.stat().st_size


def test_of_more_than_may_be_read_the_beginning_and_the_end_are(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("first\n" + "step 1\n" * 400_000 + CAUSE)
    text = excerpt(log, 1 << 20)
    assert text.startswith("first\n") and text.endswith(CAUSE)


def test_a_log_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    assert excerpt(tmp_path / "nowhere") == ""


# --- the rendezvous


@pytest.fixture(params=[True, False])
def asks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the kernel answers questions about one port."""
    if not request.param:
        monkeypatch.setattr(probes, "_SOCK_DIAG", 1 << 20)
    return bool(request.param)


def server(family: int) -> socket.socket:
    if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    where = ("::", 0) if family == socket.AF_INET6 else ("127.0.0.1", 0)
    return socket.create_server(where, family=family, dualstack_ipv6=family == socket.AF_INET6)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_rendezvous_is_a_port_with_a_listener_and_those_who_talk_to_it(asks: bool, family: int) -> None:
    with server(family) as meeting:
        port = meeting.getsockname()[1]
        assert probe_port(port) == Rendezvous(True, 0)
        with socket.create_connection(("127.0.0.1", port)) as one, meeting.accept()[0]:
            assert probe_port(port) == Rendezvous(True, 1)
            assert probe_port(one.getsockname()[1]) == Rendezvous(False, 0 if asks else 1)
    assert probe_port(port) == Rendezvous(False, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_port_where_nobody_listens_reads_no_table_of_all_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read walks through every slot of the kernel, ten times a second and for each run."""
    with server(socket.AF_INET) as meeting:
        port = meeting.getsockname()[1]
    tables: list[Path] = []
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *more: tables.append(path) or opened(path, *more))
    assert probe_port(port) == Rendezvous(False, 0) and tables == []


def test_without_a_kernel_that_tells_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_SOCK_DIAG", 1 << 20)

    def refused(*_: Any) -> Any:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "open", refused)
    assert probe_port(9) is None
