"""The way from a connection to a cluster: each way of Airflow's own connections of type ``kubernetes``, on a
worker and in a triggerer, against a server that speaks HTTP; what is said when it leads nowhere; and that
nothing secret is said at all.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from allaboard.backends.kubernetes.client import api, credentials, loader, protocol
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.state import leases
from allaboard.errors import AllaboardError, BadInput
from allaboard_provider import clusters
from allaboard_provider.hooks.allaboard import AllaboardHook
from allaboard_provider.operators.train import TrainingJobOperator
from allaboard_provider.sensors import TrainingJobSensor
from allaboard_provider.triggers.jobs import JobTrigger
from allaboard_provider.triggers.train import TrainingJobTrigger
from tests.core.backends.kubernetes.scripted import Scripted, refused, says, scripted
from tests.provider.building import a_context

TOKEN = "hush-hush"
VERSION = {"major": "1", "minor": "36"}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a process that has read no connection yet, on a machine without a cluster of its own."""
    monkeypatch.setattr(clusters, "_settings", {})
    monkeypatch.setattr(loader, "SERVICE_ACCOUNT", tmp_path / "serviceaccount")
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KUBECONFIG", "ALLABOARD_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Scripted]:
    with scripted() as found:
        found.otherwise = says(VERSION)
        yield found


def kubeconfig(url: str, **contexts: str) -> dict[str, Any]:
    """``contexts``: name -> token; the first is the current one."""
    users = contexts or {"here": TOKEN}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": next(iter(users)),
        "contexts": [{"name": n, "context": {"cluster": "c", "user": n}} for n in users],
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": n, "user": {"token": token}} for n, token in users.items()],
    }


Connect = Callable[..., AllaboardHook]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes a connection ``place`` to the cluster that a connection ``lab`` with these extras names."""

    def make(
        *, lab: dict[str, Any] | None = None, lab_type: str = "kubernetes", **more: Any
    ) -> AllaboardHook:
        place = {"backend": "kubernetes", "kubernetes_conn_id": "lab", "store": "s3://bucket/team", **more}
        monkeypatch.setenv("AIRFLOW_CONN_PLACE", json.dumps({"conn_type": "allaboard", "extra": place}))
        if lab is not None:
            monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": lab_type, "extra": lab}))
        return AllaboardHook("place")

    return make


@pytest.fixture(params=["worker", "triggerer"])
def version(request: pytest.FixtureRequest) -> Callable[[AllaboardHook], Any]:
    """Asks the cluster of a hook for its version, as a worker or as a triggerer does."""

    def on_worker(hook: AllaboardHook) -> Any:
        with hook.on_cluster().api as client:
            return client.raw("GET", "/version")

    async def in_triggerer(hook: AllaboardHook) -> Any:
        read = await AllaboardHook.aread(hook.conn_id)
        async with read.awaited() as backend:
            return await asyncio.to_thread(backend.api.raw, "GET", "/version")

    if request.param == "worker":
        return on_worker
    return lambda hook: asyncio.run(in_triggerer(hook))


def asked_as(server: Scripted) -> list[str]:
    """The scheme may be written in any case, and is, by the client library."""
    tokens = (asked.headers["authorization"] for asked in server.asked)
    return [f"Bearer {text[7:]}" if text.lower().startswith("bearer ") else text for text in tokens]


# --- each way of naming a cluster


def test_a_kubeconfig_by_its_path(
    connect: Connect, version: Callable[..., Any], server: Scripted, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(json.dumps(kubeconfig(server.url)))
    assert version(connect(lab={"kube_config_path": str(tmp_path / "config")})) == VERSION
    assert asked_as(server) == [f"Bearer {TOKEN}"]


@pytest.mark.parametrize("form", ["mapping", "JSON", "prefixed"])
def test_a_kubeconfig_by_its_content(
    connect: Connect, version: Callable[..., Any], server: Scripted, form: str
) -> None:
    content: Any = kubeconfig(server.url)
    content = content if form == "mapping" else json.dumps(content)
    name = "extra__kubernetes__kube_config" if form == "prefixed" else "kube_config"
    assert version(connect(lab={name: content})) == VERSION
    assert asked_as(server) == [f"Bearer {TOKEN}"]


def test_a_context_of_it(connect: Connect, version: Callable[..., Any], server: Scripted) -> None:
    content = kubeconfig(server.url, here=TOKEN, there="hush-there")
    version(connect(lab={"kube_config": content, "cluster_context": "there"}))
    assert asked_as(server) == ["Bearer hush-there"]


def test_what_is_usual_where_the_default_connection_does_not_exist(
    connect: Connect, version: Callable[..., Any], server: Scripted, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(json.dumps(kubeconfig(server.url)))
    assert version(connect(kubernetes_conn_id=None)) == VERSION
    assert asked_as(server) == [f"Bearer {TOKEN}"]


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Scripted, Path]]:
    """The API server that a pod sees, and the folder of its service account."""
    pki = pytest.importorskip("tests.cluster.pki")
    ca = pki.authority("tests")
    host = pki.sign(ca, "api", hosts=["127.0.0.1"])
    account = tmp_path / "serviceaccount"
    account.mkdir()
    (account / "ca.crt").write_bytes(ca.certificate)
    (account / "token").write_text(TOKEN)
    (account / "namespace").write_text("of-pod")
    (tmp_path / "tls").write_bytes(host.certificate + host.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls")
    with scripted(context) as server:
        server.otherwise = says(VERSION)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        yield server, account


@pytest.mark.parametrize("lab", [{"in_cluster": True}, None], ids=["in_cluster", "nothing said"])
def test_the_service_account_of_the_pod_that_we_are_in(
    connect: Connect, version: Callable[..., Any], pod: tuple[Scripted, Path], lab: Any,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    server, _ = pod
    hook = connect(lab=lab, kubernetes_conn_id="lab" if lab else None)
    assert version(hook) == VERSION
    assert asked_as(server) == [f"Bearer {TOKEN}"]
    assert clusters.settings_of(hook.cluster).namespace == "of-pod"


def test_a_token_that_the_kubelet_has_renewed(
    connect: Connect, version: Callable[..., Any], pod: tuple[Scripted, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused with the old one, the new one is read; no run is lost for it."""
    monkeypatch.setattr(clusters, "RENEW_INTERVAL", -1.0)
    monkeypatch.setattr(credentials, "JUST_NOW", -1.0)
    server, account = pod
    hook = connect(lab={"in_cluster": True})
    version(hook)
    (account / "token").write_text("hush-renewed")
    server.answers(refused(401, "Unauthorized"))
    assert version(hook) == VERSION
    assert asked_as(server)[-1] == "Bearer hush-renewed"


def test_the_namespace_is_that_of_the_first_who_says_one(
    connect: Connect, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = {"kube_config": kubeconfig(server.url), "namespace": "of-lab"}
    assert clusters.settings_of(connect(lab=lab, namespace="of-place").cluster).namespace == "of-place"
    assert clusters.settings_of(connect(lab=lab).cluster).namespace == "of-lab"
    bare = {"kube_config": kubeconfig(server.url)}
    assert clusters.settings_of(connect(lab=bare).cluster).namespace == "default"
    monkeypatch.setenv("ALLABOARD_NAMESPACE", "of-environment")
    assert clusters.settings_of(connect(lab=bare).cluster).namespace == "of-environment"


def test_a_server_that_is_not_verified_only_when_the_connection_says_so(
    connect: Connect, version: Callable[..., Any], pod: tuple[Scripted, Path]
) -> None:
    server, _ = pod
    content = kubeconfig(server.url)
    with pytest.raises(AllaboardError, match="certificate"):
        version(connect(lab={"kube_config": content}))
    assert version(connect(lab={"kube_config": content, "disable_verify_ssl": True})) == VERSION
    with pytest.raises(AllaboardError, match="certificate"):
        version(connect(lab={"kube_config": {**content, "preferences": {}}}))


# --- what leads nowhere


JOB = {"name": "small", "command": ["python", "train.py"], "image": "lab/train:1"}


def an_operator(**more: Any) -> TrainingJobOperator:
    return TrainingJobOperator(task_id="train", job=JOB, allaboard_conn_id="place", **more)


def event_of(trigger: Any) -> dict[str, Any]:
    async def run() -> list[Any]:
        return [event.payload async for event in trigger.run()]

    (payload,) = asyncio.run(run())
    return dict(payload)


def trigger_of(connection: str = "place") -> TrainingJobTrigger:
    return TrainingJobTrigger("small-1", "uid", "ti", backend="kubernetes", connection=connection)


WORLD = {
    "one": {"token": TOKEN},
    "two": {"username": "me", "password": "hush-hush"},
    "three": {"tokenFile": "token"},
}


def a_world(folder: Path) -> dict[str, Any]:
    """A kubeconfig with a user of each kind and two clusters, beside the files that it names."""
    (folder / "token").write_text("hush-file")
    clusters = [
        {"name": "plain", "cluster": {"server": "http://lab:8080"}},
        {"name": "open", "cluster": {"server": "https://lab:6443", "insecure-skip-tls-verify": True}},
        {"name": "named", "cluster": {"server": "https://10.0.0.1:6443", "tls-server-name": "lab.example"}},
    ]
    users = [{"name": name, "user": user} for name, user in WORLD.items()]
    pairs = [(user, cluster["name"]) for user in WORLD for cluster in clusters]
    contexts = [
        {"name": f"{user}-{cluster}", "context": {"user": user, "cluster": cluster}}
        for user, cluster in pairs
    ]
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "one-open",
        "contexts": contexts, "clusters": clusters, "users": users,
    }  # fmt: skip


CONTEXTS = [f"{user}-{cluster}" for user in WORLD for cluster in ("plain", "open", "named")]


@pytest.mark.thorough(but=("None", "three-named"))
@pytest.mark.parametrize("form", ["kube_config_path", "kube_config", "text", "usual"])
@pytest.mark.parametrize("unverified", [None, True, "True", False, "false"])
@pytest.mark.parametrize("context", [None, *CONTEXTS])
def test_it_means_the_same_as_for_a_kubernetes_pod_operator(
    form: str,
    unverified: Any,
    context: str | None,
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks = pytest.importorskip("airflow.providers.cncf.kubernetes.hooks.kubernetes")
    from kubernetes.client import Configuration
    from kubernetes.config import kube_config

    monkeypatch.chdir(tmp_path)
    content = a_world(tmp_path)
    (tmp_path / ".kube").mkdir()
    for path in (tmp_path / "config", tmp_path / ".kube" / "config"):
        path.write_text(json.dumps(content))
    (tmp_path / ".kube" / "token").write_text("hush-file")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / ".kube" / "config"))
    # The library writes a text into a file elsewhere; from there a path is found only where it is absolute.
    if form in ("kube_config", "text"):
        content["users"][2]["user"]["tokenFile"] = str(tmp_path / "token")
    values: dict[str, dict[str, Any]] = {
        "kube_config_path": {"kube_config_path": str(tmp_path / "config")},
        "kube_config": {"kube_config": content},
        "text": {"extra__kubernetes__kube_config": json.dumps(content)},
        "usual": {},
    }
    lab = {**values[form], "cluster_context": context, "disable_verify_ssl": unverified}
    settings = clusters.settings_of(connect(lab=lab).cluster)
    theirs = hooks.KubernetesHook("lab", client_configuration=Configuration()).get_conn().configuration
    assert settings.server == theirs.host
    verify = theirs.verify_ssl and str(unverified).lower() != "true"
    assert settings.verify == verify
    assert settings.tls_name == theirs.tls_server_name
    secret = settings.credentials.current(0).authorization or ""
    expected = theirs.api_key.get("authorization") or theirs.api_key.get("BearerToken") or ""
    assert secret.lower() == (expected or theirs.get_basic_auth_token() or "").lower()


def test_the_reader_needs_no_client_library(connect: Connect, server: Scripted, tmp_path: Path) -> None:
    """A triggerer, and a worker, that read a connection and ask the cluster."""
    lab = json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": kubeconfig(server.url)}})
    place = {"backend": "kubernetes", "kubernetes_conn_id": "lab", "store": "s3://bucket/team"}
    environ = {
        **os.environ,
        "AIRFLOW_CONN_LAB": lab,
        "AIRFLOW_CONN_PLACE": json.dumps({"conn_type": "allaboard", "extra": place}),
        "AIRFLOW_HOME": str(tmp_path),
    }
    program = (
        "import asyncio, sys\n"
        "from allaboard_provider.hooks.allaboard import AllaboardHook\n"
        "with AllaboardHook('place').on_cluster().api as client:\n"
        "    client.raw('GET', '/version')\n"
        "async def main():\n"
        "    async with (await AllaboardHook.aread('place')).awaited() as backend:\n"
        "        await asyncio.to_thread(backend.api.raw, 'GET', '/version')\n"
        "asyncio.run(main())\n"
        "names = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(names & {'kubernetes', 'kubernetes_asyncio', 'torch', 'boto3'}))\n"
        "hooks = 'airflow.providers.cncf.kubernetes.hooks'\n"
        "print([name for name in sys.modules if name.startswith(hooks)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["[]", "[]"] and len(server.asked) == 2


@pytest.mark.parametrize(
    ("lab", "words"),
    [
        ({"in_cluster": True}, "in_cluster: this process is not in a pod"),
        ({}, "no kubeconfig is at .*; give it in_cluster, kube_config or kube_config_path"),
        ({"kube_config_path": "/nowhere/config"}, "no kubeconfig is at /nowhere/config"),
        ({"kube_config": "{: hush-hush"}, r"kube_config is no YAML \(line 1\)"),
        ({"kube_config": "hush-hush"}, "kube_config"),
        ({"kube_config": {"apiVersion": "v1"}}, "kube_config has no contexts; name another"),
        ({"kube_config": {**kubeconfig("http://a"), "current-context": ""}}, "choose with cluster_context"),
        ({"kube_config": kubeconfig("http://a"), "cluster_context": "therr"}, "therr"),
        (
            {"kube_config": kubeconfig("http://a"), "in_cluster": True},
            "gives in_cluster and kube_config; give it one of",
        ),
    ],
    ids=str,
)
def test_a_connection_that_leads_to_no_cluster_fails_its_task_without_a_retry(
    connect: Connect, lab: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hook = connect(lab=lab)
    with pytest.raises(AirflowFailException, match=words) as failure:
        an_operator().execute(a_context())
    assert "connection 'lab'" in str(failure.value)
    works, why = hook.test_connection()
    event = event_of(trigger_of())
    assert not works and event["status"] == "error" and "BadInput" in event["error"]
    for text in (str(failure.value), why, json.dumps(event), caplog.text):
        assert "hush" not in text


def test_a_connection_of_another_type_is_none_to_a_cluster(connect: Connect) -> None:
    """Its fields would mean nothing, and the pod's own account would be used without a word."""
    hook = connect(lab={"in_cluster": True}, lab_type="http")
    with pytest.raises(AirflowFailException, match=r"connection 'lab' is of type 'http'.*'kubernetes'"):
        an_operator().execute(a_context())
    assert "type 'http'" in hook.test_connection()[1]
    assert "type 'http'" in event_of(trigger_of())["error"]


@pytest.mark.parametrize("which", ["place", "lab"])
def test_a_connection_that_does_not_exist_is_named(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    hook = connect(lab={"in_cluster": True})
    monkeypatch.delenv(f"AIRFLOW_CONN_{which.upper()}")
    with pytest.raises(AirflowException, match=f"connection '{which}' does not exist"):
        an_operator().execute(a_context())
    assert f"connection '{which}' does not exist" in hook.test_connection()[1]
    assert f"connection '{which}' does not exist" in event_of(trigger_of())["error"]


@pytest.fixture
def nobody() -> str:
    """The address of a server that is not there."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}"


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (api, protocol):  # a default, and what the button asks for
        monkeypatch.setattr(module, "Patience", lambda **_: Patience(budget=0.0))
    monkeypatch.setattr(leases, "PATIENCE", Patience(budget=0.0))


@pytest.mark.usefixtures("_hasty")
def test_a_server_that_is_not_there_is_named_and_may_be_back_for_the_next_try(
    connect: Connect, nobody: str
) -> None:
    hook = connect(lab={"kube_config": kubeconfig(nobody)})
    for task in (
        an_operator(),
        TrainingJobSensor(task_id="w", allaboard_conn_id="place", run="a"),
        TrainingJobSensor(task_id="w", allaboard_conn_id="place", kind="PyTorchJob", job_name="a"),
    ):
        with pytest.raises(AirflowException, match=nobody) as failure:
            task.execute(a_context())
        assert not isinstance(failure.value, AirflowFailException)
        assert TOKEN not in str(failure.value)
    works, why = hook.test_connection()
    assert not works and nobody in why


def test_the_button_in_the_form_tells_which_cluster_answers(connect: Connect, server: Scripted) -> None:
    hook = connect(lab={"kube_config": kubeconfig(server.url)}, namespace="team", store="/data/store")
    works, why = hook.test_connection()
    assert works and f"namespace team of {server.url}, which answers" in why


# --- nothing secret


def test_nothing_that_a_connection_says_is_told_to_anybody(
    connect: Connect, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither to the task log at any level, nor to XCom, a trigger's row, an error, or a repr."""
    caplog.set_level(logging.DEBUG)
    lab = {"kube_config": kubeconfig(server.url), "namespace": "team"}
    hook = connect(lab=lab, secrets="hush-name", image="lab/hush:1")
    context = a_context()
    server.otherwise = refused(403, "Forbidden", "not for you")
    with pytest.raises(AirflowException, match="not for you") as failure:
        an_operator().execute(context)
    server.answers(refused(404, "NotFound", details={"kind": "pytorchjobs", "name": "nightly"}))
    sensor = TrainingJobSensor(task_id="w", allaboard_conn_id="place", kind="PyTorchJob", job_name="nightly")
    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(context)
    row = deferral.value.trigger.serialize()
    assert row[0] == f"{JobTrigger.__module__}.JobTrigger"
    settings = clusters.settings_of(hook.cluster)
    held = [hook.cluster, settings, settings.credentials, hook.on_cluster().api]
    texts = [
        str(failure.value),
        json.dumps(row),
        json.dumps(context["ti"].xcoms),
        caplog.text,
        *map(repr, held),
    ]
    assert asked_as(server)[0] == f"Bearer {TOKEN}", "it was really used"
    for words in texts:
        assert "hush" not in words
    assert TOKEN not in hook.cluster.digest and settings.identity.isalnum()


def test_a_plugin_that_fails_shows_no_secret(
    connect: Connect, server: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    content = kubeconfig(server.url)
    script = 'echo \'{"token": "hush-hush"}\'; exit 3'
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
        "env": [{"name": "SECRET", "value": "hush-env"}],
        "interactiveMode": "Never",
    }  # fmt: skip
    content["users"][0]["user"] = {"exec": plugin}
    hook = connect(lab={"kube_config": content})
    with pytest.raises(AirflowException) as failure:
        an_operator().execute(a_context())
    for text in (str(failure.value), caplog.text, hook.test_connection()[1]):
        assert "hush" not in text


def test_bad_input_is_no_secret_either(connect: Connect) -> None:
    with pytest.raises(BadInput) as refusal:
        _ = connect(lab={"kube_config": "users: [hush-hush"}).on_cluster()
    assert "hush" not in str(refusal.value) and refusal.value.__cause__ is None
