"""The parts of the process kubelet that are values in, values out: no cluster, no root."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kubelet.environment import ConfigError, Facts, Sources, command_line, environment, expanded
from tests.cluster.kubelet.images import full_name, is_valid
from tests.cluster.kubelet.logs import Log, Wanted
from tests.cluster.kubelet.names import answered, hosts_file, resolv_conf
from tests.cluster.kubelet.node import NodeSpec, parse_node, requests_of
from tests.cluster.kubelet.obstacles import FOLDER_PREFIX, OWNER, obstacle, own_folder, sweep
from tests.cluster.kubelet.quantity import divided, quantity
from tests.cluster.kubelet.settings import Backoff
from tests.cluster.kubelet.status import Container, Sandbox, phase_of, status_of
from tests.cluster.kubelet.volumes import File, write_atomically

Object = dict[str, Any]

RUNNING: Object = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
WAITING: Object = {"waiting": {"reason": "CrashLoopBackOff"}}


def ended(code: int) -> Object:
    return {"terminated": {"exitCode": code}}


def a_pod(policy: str = "Never", containers: int = 1, **spec: Any) -> Object:
    names = [f"c{number}" for number in range(containers)]
    return {
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {
            "restartPolicy": policy,
            "containers": [{"name": name, "image": "i"} for name in names],
            **spec,
        },
    }


def a_container(state: Object, last: Object | None = None, **more: Any) -> Container:
    return Container(more.pop("name", "c0"), "i", state, last or {}, **more)


# --- quantities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", 2),
        ("500m", Fraction(1, 2)),
        ("8Gi", 8 << 30),
        ("1k", 1000),
        ("1e3", 1000),
        ("0.5", Fraction(1, 2)),
    ],
)
def test_quantities(text: str, value: Fraction) -> None:
    assert quantity(text) == value


def test_what_is_no_quantity() -> None:
    with pytest.raises(ValueError, match="no quantity"):
        quantity("many")


def test_the_downward_api_rounds_up() -> None:
    assert divided(quantity("100Mi"), "1Gi") == 1
    assert divided(quantity("1500m"), "1") == 2


# --- phases ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "state", "last", "phase"),
    [
        ("Never", RUNNING, {}, "Running"),
        ("Never", ended(0), {}, "Succeeded"),
        ("Never", ended(1), {}, "Failed"),
        ("OnFailure", ended(0), {}, "Succeeded"),
        ("OnFailure", ended(1), {}, "Running"),
        ("Always", ended(0), {}, "Running"),
        ("OnFailure", WAITING, ended(1), "Running"),
        ("Never", {"waiting": {"reason": "ContainerCreating"}}, {}, "Pending"),
    ],
    ids=str,
)
def test_the_phase_of_a_pod(policy: str, state: Object, last: Object, phase: str) -> None:
    assert phase_of(a_pod(policy), [a_container(state, last)]) == phase


def test_a_pod_that_is_stopped_between_two_runs_has_failed() -> None:
    assert phase_of(a_pod("Always"), [a_container(WAITING, ended(0))], stopping=True) == "Failed"
    assert phase_of(a_pod("Always"), [a_container(ended(0))], stopping=True) == "Succeeded"


def test_one_container_left_keeps_a_pod_running() -> None:
    two = [a_container(ended(1)), a_container(RUNNING, name="c1")]
    assert phase_of(a_pod("Never", 2), two) == "Running"


def test_a_rule_of_the_container_goes_before_the_policy_of_the_pod() -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}
    pod = a_pod("Never")
    pod["spec"]["containers"][0] |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    assert phase_of(pod, [a_container(ended(42))]) == "Running"
    assert phase_of(pod, [a_container(ended(1))]) == "Failed"


def test_a_verdict_waits_until_nothing_runs() -> None:
    verdict = Sandbox(
        "10.0.0.1", phase="Failed", reason="Evicted", conditions=({"type": "X", "status": "True"},)
    )
    pod = a_pod()
    assert status_of(pod, [a_container(RUNNING)], verdict, 0)["phase"] == "Running"
    told = status_of(pod, [a_container(ended(137))], verdict, 0)
    assert (told["phase"], told["reason"]) == ("Failed", "Evicted")
    assert "X" in {c["type"] for c in told["conditions"]}


def test_a_condition_keeps_its_time_until_it_turns() -> None:
    pod = a_pod()
    first = status_of(pod, [a_container(RUNNING)], Sandbox("10.0.0.1", "10.0.0.2"), 1000)
    pod["status"] = first
    later = status_of(pod, [a_container(RUNNING, ready=True)], Sandbox("10.0.0.1", "10.0.0.2"), 2000)

    def times(status: Object) -> dict[str, str]:
        return {c["type"]: c["lastTransitionTime"] for c in status["conditions"]}

    changed = {kind for kind, when in times(later).items() if when != times(first)[kind]}
    assert changed == {"Ready", "ContainersReady"}


# --- environment -------------------------------------------------------------------------------------------

FACTS = Facts("node", "10.0.0.2", "10.0.0.1", {"memory": "8Gi"})


def env_of(container: Object, sources: Sources | None = None) -> dict[str, str]:
    return environment(a_pod(), container, {"FROM": "image"}, {}, sources or Sources(), FACTS)


def test_references_see_what_stands_before_them() -> None:
    env = [{"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}, {"name": "C", "value": "$(A)$$(A)"}]
    assert env_of({"env": env}) == {"FROM": "image", "B": "$(A)", "A": "1", "C": "1$(A)"}


def test_later_ones_win() -> None:
    sources = Sources({"m": {"data": {"FROM": "map", "X": "map"}}})
    container = {"envFrom": [{"configMapRef": {"name": "m"}}], "env": [{"name": "X", "value": "own"}]}
    assert env_of(container, sources) == {"FROM": "map", "X": "own"}


def test_a_limit_that_is_not_set_is_what_the_node_has() -> None:
    ref = {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Gi"}}
    assert env_of({"env": [{"name": "M", "valueFrom": ref}]})["M"] == "8"


@pytest.mark.parametrize(
    ("ref", "told"),
    [
        ({"configMapKeyRef": {"name": "no", "key": "k"}}, 'configmap "no" not found'),
        ({"secretKeyRef": {"name": "s", "key": "k"}}, "couldn't find key k in Secret n/s"),
        ({"fieldRef": {"fieldPath": "spec.nope"}}, "unsupported fieldPath: spec.nope"),
    ],
    ids=["no map", "no key", "no field"],
)
def test_what_cannot_be_resolved(ref: Object, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        env_of({"env": [{"name": "X", "valueFrom": ref}]}, Sources({}, {"s": {}}))


def test_the_command_line() -> None:
    env = {"A": "1"}
    assert command_line({"command": ["x", "$(A)"]}, ["e"], ["d"], env) == ["x", "1"]
    assert command_line({"args": ["$(B)"]}, ["e"], ["d"], env) == ["e", "$(B)"]
    assert command_line({}, ["e"], ["d"], env) == ["e", "d"]
    assert expanded("$$$(A)", env) == "$1"


# --- names -------------------------------------------------------------------------------------------------


class FixedNames:
    def __init__(self, **known: list[str]) -> None:
        self.known = {name.replace("_", "."): found for name, found in known.items()}

    def addresses(self, name: str) -> list[str] | None:
        return self.known.get(name)


def ask(name: str, kind: int = 1) -> tuple[int, list[str]]:
    """The code and the addresses that the DNS server answers."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
    answer = answered(query, FixedNames(svc_ns=["10.0.0.1", "10.0.0.2"]))  # type: ignore[arg-type]
    ident, flags, _, count = struct.unpack(">HHHH", answer[:8])
    assert ident == 7 and flags & 0x8000
    records = [answer[len(query) + 16 * n :][:16] for n in range(count)]
    return flags & 15, [socket.inet_ntoa(record[12:]) for record in records]


def test_dns_answers() -> None:
    assert ask("svc.ns") == (0, ["10.0.0.1", "10.0.0.2"])
    assert ask("svc.ns", kind=28) == (0, [])  # there is such a name, but it has no IPv6 address
    assert ask("other.ns") == (3, [])


ONE_QUESTION = b"\0\0\0\0\0\1" + b"\0" * 6


@pytest.mark.parametrize(
    "junk", [b"", b"\0" * 12, b"\xff" * 20, ONE_QUESTION + b"\x3fabc" + b"\0" * 9, ONE_QUESTION + b"\3abc\0"]
)
def test_dns_survives_junk(junk: bytes) -> None:
    assert isinstance(answered(junk, FixedNames()), bytes)  # type: ignore[arg-type]


def test_the_files_of_a_pod() -> None:
    pod = a_pod(hostname="zero", subdomain="web", hostAliases=[{"ip": "1.2.3.4", "hostnames": ["a", "b"]}])
    hosts = hosts_file(pod, "10.0.0.2")
    assert "10.0.0.2\tzero.web.n.svc.cluster.local zero\n" in hosts
    assert "1.2.3.4\ta b\n" in hosts
    assert resolv_conf("10.0.0.1", "n").startswith("search n.svc.cluster.local svc.cluster.local")


# --- nodes and images --------------------------------------------------------------------------------------


def test_a_node_in_one_line() -> None:
    text = "n1:cpu=4,nvidia.com/gpu=2,label:zone=a,taint:spot=yes:NoSchedule"
    spec = parse_node(text)
    assert spec == NodeSpec(
        "n1", {"cpu": "4", "nvidia.com/gpu": "2"}, {"zone": "a"}, ("spot=yes:NoSchedule",)
    )
    assert parse_node(spec.text) == spec


def test_what_a_pod_asks_for_is_its_containers_or_its_largest_init_container() -> None:
    def asks(**requests: str) -> Object:
        return {"name": "x", "resources": {"requests": requests}}

    pod = a_pod(initContainers=[asks(cpu="5"), asks(cpu="1")])
    pod["spec"]["containers"] = [asks(cpu="1"), asks(cpu="2", memory="1Gi")]
    assert requests_of(pod) == {"cpu": 5, "memory": 1 << 30}


def test_image_names() -> None:
    assert full_name("alpine") == "docker.io/library/alpine:latest"
    assert full_name("a/b:1") == "docker.io/a/b:1"
    assert full_name("ghcr.io/a/b") == "ghcr.io/a/b:latest"
    assert is_valid("registry:5000/a/b:1.2-x") and not is_valid("Not A Name") and not is_valid("UPPER")


def test_back_off() -> None:
    waits = [Backoff(0.5, 2).wait(failures) for failures in (1, 2, 3, 4, 100)]
    assert waits == [0.5, 1, 2, 2, 2]


# --- logs --------------------------------------------------------------------------------------------------


def read(log: Log, **options: Any) -> str:
    async def whole() -> bytes:
        return b"".join([piece async for piece in log.read(Wanted(**options))])

    return asyncio.run(whole()).decode()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "log")
    yield made
    made.end()


def test_a_log_in_the_format_of_the_runtimes(log: Log) -> None:
    log.write("stdout", b"one\ntw")
    log.write("stderr", b"other\n")
    log.write("stdout", b"o\n")
    words = [line.split(" ", 3)[1:] for line in log.path.read_text().splitlines()]
    assert words == [["stdout", "F", "one"], ["stderr", "F", "other"], ["stdout", "F", "two"]]
    assert read(log, stream="stderr") == "other\n"


def test_long_lines_are_cut_and_come_back_whole(log: Log) -> None:
    line = b"x" * 100_000
    for at in range(0, len(line), 7000):
        log.write("stdout", line[at : at + 7000])
    log.write("stdout", b"\nend\n")
    assert read(log) == line.decode() + "\nend\n"
    assert read(log, timestamps=True).count("Z ") == 2


def test_the_last_lines(log: Log) -> None:
    for number in range(20_000):
        log.write("stdout", b"line %d\n" % number)
    assert read(log, tail=2) == "line 19998\nline 19999\n"
    assert read(log, tail=0) == ""
    assert read(log, tail=100_000).count("\n") == 20_000
    assert log.last(3, 11) == "\nline 19999\n"[-11:]


def test_a_follower_gets_every_line_and_ends_with_the_log(tmp_path: Path) -> None:
    async def play() -> str:
        log = Log(tmp_path / "log")

        async def follow() -> bytes:
            return b"".join([piece async for piece in log.read(Wanted(follow=True))])

        reader = asyncio.create_task(follow())
        for number in range(100):
            log.write("stdout", b"%d\n" % number)
            await asyncio.sleep(0)
        log.write("stdout", b"unfinished")
        log.end()
        return (await reader).decode()

    assert asyncio.run(play()) == "".join(f"{n}\n" for n in range(100)) + "unfinished"


# --- written volumes ---------------------------------------------------------------------------------------


def test_files_of_a_volume_turn_at_once(tmp_path: Path) -> None:
    write_atomically(tmp_path, {"a": File(b"1", 0o600), "deep/b": File(b"2", 0o644)})
    assert (tmp_path / "a").read_text() == "1"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "deep" / "b").read_text() == "2"
    before = (tmp_path / "..data").readlink()
    write_atomically(tmp_path, {"a": File(b"1", 0o600), "deep/b": File(b"2", 0o644)})
    assert (tmp_path / "..data").readlink() == before  # nothing changed
    write_atomically(tmp_path, {"c": File(b"3", 0o644)})
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith("..")) == ["c"]
    assert len(list(tmp_path.glob("..2*"))) == 1


def test_who_is_not_root_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = obstacle.__wrapped__()
    assert reason is not None and "need root" in reason


def test_the_sweep_spares_the_living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine, dead = tmp_path / f"{FOLDER_PREFIX}mine", tmp_path / f"{FOLDER_PREFIX}dead"
    own_folder(mine)
    own_folder(dead)
    (dead / OWNER).write_text(f"{os.getpid()} 1")  # the same number, but a process that began at another time
    sweep()
    assert mine.exists() and not dead.exists()
