"""A secret in a kubeconfig that is broken, or whose server is hostile: no verb shows it, whatever goes wrong;
and what goes wrong is said in a sentence.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("urllib3", reason="the Kubernetes backend needs urllib3")

from allaboard.backends.kubernetes.client import api, protocol
from allaboard.cli import main
from tests.core.backends.kubernetes.scripted import QUICK, Scripted, refused, scripted

CANARY = "canaryQ7Zt9LmKp3VwB8sHd2"
SENT = base64.b64encode(f"ann:{CANARY}".encode()).decode()
ENCODED = base64.b64encode(CANARY.encode()).decode()
V1 = "client.authentication.k8s.io/v1"
PROXY = f"http://ann:{CANARY}@"


@dataclass(frozen=True)
class Case:
    """``plugin``: what the credential plugin does, as a shell script; ``text``: all of the file, as it is;
    ``there``: the server is asked, and refuses with what it was shown.
    """

    user: Any = None
    cluster: Mapping[str, Any] | None = None
    plugin: str = ""
    text: str = ""
    there: bool = False


def runs(script: str, **said: Any) -> Case:
    spec = {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never", **said}
    return Case({"exec": spec}, plugin=script)


def prints(there: bool = False, version: str = V1, **status: str) -> Case:
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    case = runs(f"cat <<'END'\n{answer}\nEND\n")
    return Case(case.user, plugin=case.plugin, there=there)


def provider(**config: str) -> Case:
    return Case({"auth-provider": {"name": "oidc", "config": {"id-token": CANARY, **config}}})


CASES = {
    "token that is refused": Case({"token": CANARY}, there=True),
    "token of two lines": Case({"token": f"{CANARY}\n{CANARY}"}),
    "token that no header carries": Case({"token": f"{CANARY}é"}),
    "token that is a list": Case({"token": [CANARY]}),
    "token that is a mapping": Case({"token": {CANARY: CANARY}}),
    "token where a file belongs": Case({"tokenFile": CANARY}),
    "token where a folder belongs": Case({"tokenFile": f"{CANARY}/{CANARY}"}),
    "token file of two lines": Case({"tokenFile": "two-lines"}),
    "password that is refused": Case({"username": "ann", "password": CANARY}, there=True),
    "password that is a list": Case({"username": "ann", "password": [CANARY]}),
    "key that is no base64": Case({"client-certificate-data": ENCODED, "client-key-data": f"{CANARY}!"}),
    "key that is no PEM": Case({"client-certificate-data": ENCODED, "client-key-data": ENCODED}),
    "key where a file belongs": Case({"client-certificate-data": ENCODED, "client-key": CANARY}),
    "key that is a list": Case({"client-certificate-data": ENCODED, "client-key-data": [CANARY]}),
    "key without a certificate": Case({"client-key-data": ENCODED}, there=True),
    "certificate without a key": Case({"client-certificate-data": ENCODED, "token": CANARY}),
    "authority that is none": Case({"token": CANARY}, {"certificate-authority-data": ENCODED}),
    "plugin that fails": runs(f"echo 'no login for {CANARY}' >&2; exit 3"),
    "plugin that fails with a mapping": runs(f"echo '{{\"error\": \"{CANARY}\"}}' >&2; exit 3"),
    "plugin that fails over its output": runs(f"echo {CANARY}; echo token={CANARY} >&2; exit 3"),
    "plugin that prints no credential": runs(f"echo {CANARY}"),
    "plugin that prints a list": runs(f"echo '[\"{CANARY}\"]'"),
    "plugin of another version": prints(version=CANARY, token=CANARY),
    "plugin with a token of two lines": prints(token=f"{CANARY}\n{CANARY}"),
    "plugin with a key that is none": prints(clientCertificateData=CANARY, clientKeyData=CANARY),
    "plugin with an end that is none": prints(token=CANARY, expirationTimestamp=CANARY),
    "plugin whose token is refused": prints(token=CANARY, there=True),
    "plugin that is not there": runs("", command="./nothing", args=[CANARY]),
    "plugin with a secret argument": runs("exit 3", args=["--token", CANARY]),
    "plugin with a secret variable": runs('echo "$A" >&2; exit 3', env=[{"name": "A", "value": CANARY}]),
    "plugin with NUL": runs("exit 3", args=[f"{CANARY}\0"], env=[{"name": "A", "value": f"{CANARY}\0"}]),
    "plugin whose arguments are no list": runs("exit 3", args=CANARY),
    "plugin whose variables are no list": runs("exit 3", env=CANARY),
    "plugin whose variables are odd": runs("exit 3", env=[CANARY]),
    "plugin that is a word": Case({"exec": CANARY}),
    "plugin without a command": Case({"exec": {"apiVersion": V1, "args": [CANARY]}}),
    "provider": provider(),
    "provider that refreshes": provider(**{"refresh-token": CANARY, "idp-issuer-url": "https://127.0.0.1:1"}),
    "provider with odd words": Case({"auth-provider": {"name": "oidc", "config": CANARY}}),
    "provider that is a word": Case({"auth-provider": CANARY}),
    "provider that nobody knows": Case({"auth-provider": {"name": "moon", "config": {"token": CANARY}}}),
    "proxy that answers": Case(cluster={"proxy-url": PROXY}, there=True),
    "proxy that is away": Case(cluster={"proxy-url": f"{PROXY}127.0.0.1:1"}),
    "proxy with half an address": Case(cluster={"proxy-url": f"{PROXY}[::1"}),
    "proxy whose port is a word": Case(cluster={"proxy-url": f"{PROXY}proxy:web"}),
    "proxy of another kind": Case(cluster={"proxy-url": f"{PROXY}proxy:1".replace("http", "socks5")}),
    "proxy without a kind": Case(cluster={"proxy-url": f"ann:{CANARY}@proxy:80"}),
    "proxy that is a list": Case(cluster={"proxy-url": [f"{PROXY}proxy:80"]}),
    "proxy whose password has a slash": Case(cluster={"proxy-url": f"http://ann:/{CANARY}@127.0.0.1:1"}),
    "server with a password": Case(cluster={"server": f"https://ann:{CANARY}@127.0.0.1:1"}),
    "server of another kind": Case(cluster={"server": f"ftp://ann:{CANARY}@127.0.0.1:1"}),
    "users that are no list": Case(text=f"users: {CANARY}\n"),
    "users of words": Case(text=f"users: [{CANARY}]\n"),
    "user that is a word": Case(CANARY),
    "no YAML": Case(text=f"users:\n- user:\n    token: {CANARY}\n   password: {CANARY}\n\t- {CANARY}\n"),
    "a key twice": Case(text=f"users:\n- name: u\n  user: {{token: {CANARY}, token: {CANARY}}}\n"),
    "only a word": Case(text=CANARY),
    "NUL": Case(text=f"users: \0{CANARY}\n"),
}  # fmt: skip
VERBS = (
    ["cluster"],
    ["preflight", "JOB", "--json"],
    ["run", "JOB", "--key", "k"],
    ["status", "digits"],
    ["status", "digits", "--json"],
    ["stop", "digits", "--adopt"],
)


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    """It refuses everything, with all that it was shown."""

    def refuses(handler: Any) -> None:
        shown = " ".join(handler.headers.values())
        was_shown = [word for word in (CANARY, SENT) if word in shown or SENT in shown]
        refused(403, *was_shown[:1], message=f"not with {' '.join(was_shown)}; {shown}")(handler)

    with scripted() as found:
        found.otherwise = refuses
        yield found


@pytest.mark.parametrize("name", CASES)
def test_no_verb_shows_a_secret_of_a_kubeconfig(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    server: Scripted,
    name: str,
) -> None:
    case = CASES[name]
    for module in (api, protocol):  # a default, and what verbs ask for
        monkeypatch.setattr(module, "Patience", lambda **_: replace(QUICK, budget=0.3))
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"name": "digits", "image": "x", "command": ["train"]}))
    kubeconfig = str(written(tmp_path, case, server.url))
    for verb in VERBS:
        asked = len(server.asked)
        words = [str(job) if word == "JOB" else word for word in verb]
        code = main([*words, "--kubeconfig", kubeconfig])
        out, err = capfd.readouterr()
        kept = [file.read_text(errors="replace") for file in (tmp_path / "home").rglob("*") if file.is_file()]
        for text in (out, err, *kept):
            assert not [secret for secret in (CANARY, ENCODED, SENT) if secret in text], (verb, text)
        assert code in (1, 2, 5) and "bug in allaboard" not in out + err and "Traceback" not in out + err
        assert json.loads(out)["error"]["message"] if "--json" in verb else err.startswith("error: "), err
        if case.there:
            assert len(server.asked) > asked, "it was refused by the server, and not before"


def written(folder: Path, case: Case, url: str) -> Path:
    (folder / "two-lines").write_text(f"{CANARY}\n{CANARY}")
    plugin = folder / "plugin"
    plugin.write_text(f"#!/bin/sh\n{case.plugin}\n")
    plugin.chmod(0o700)
    cluster = {"server": url, **(case.cluster or {})}
    if case.there and "proxy-url" in cluster:
        cluster["proxy-url"] += url.removeprefix("http://")
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {} if case.user is None else case.user}],
    }
    path = folder / "kubeconfig"
    path.write_text(case.text or yaml.safe_dump(config))
    return path
