"""Which cluster, as whom, where: kubeconfigs, pods, plugins, proxies; and what is said when something is
wrong."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.client import credentials, kubeconfig
from allaboard.backends.kubernetes.client import loader as module
from allaboard.backends.kubernetes.client.config import Secret, Settings
from allaboard.backends.kubernetes.client.loader import Access, proxy_of, settings_of
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.errors import AllaboardError, BackendUnreachable, BadInput, SiteError
from tests.core.backends.kubernetes.scripted import QUICK, Scripted, pod, refused, says

NOWHERE = "https://api.example:6443"


@pytest.fixture(autouse=True)
def _no_pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", tmp_path / "serviceaccount")


def written(path: Path, **parts: Any) -> Path:
    """A kubeconfig with one context ``here``; parts replace its own."""
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": NOWHERE}}],
        "users": [{"name": "u", "user": {"token": "sesame"}}],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({**config, **parts}))
    return path


def cluster(**said: Any) -> list[dict[str, Any]]:
    return [{"name": "c", "cluster": {"server": NOWHERE, **said}}]


def user(**said: Any) -> list[dict[str, Any]]:
    return [{"name": "u", "user": said}]


def settings(path: Path | None = None, environ: Mapping[str, str] | None = None, **said: Any) -> Settings:
    given = {"kubeconfig": str(path)} if path else {}
    return Access(**given, **said, environ=environ or {}).settings()


def secret(found: Settings) -> Secret:
    return found.credentials.current(time.time())


# --- which cluster ------------------------------------------------------------------------------------------


def test_the_current_context_of_a_kubeconfig(tmp_path: Path) -> None:
    found = settings(written(tmp_path / "config"))
    assert (found.server, found.namespace) == (NOWHERE, "team")
    assert secret(found).authorization == "Bearer sesame"
    assert "context 'here'" in found.source


def test_options_come_before_the_environment_and_that_before_the_files(tmp_path: Path) -> None:
    contexts = [
        {"name": name, "context": {"cluster": name, "user": "u", "namespace": f"of-{name}"}}
        for name in ("here", "there", "elsewhere")
    ]
    clusters = [
        {"name": n, "cluster": {"server": f"https://{n}:6443"}} for n in ("here", "there", "elsewhere")
    ]
    path = written(tmp_path / "config", contexts=contexts, clusters=clusters)
    environ = {
        "ALLABOARD_KUBECONFIG": str(path),
        "ALLABOARD_CONTEXT": "there",
        "ALLABOARD_NAMESPACE": "from-environment",
        "KUBECONFIG": "/nowhere",
    }
    assert settings(None, environ).server == "https://there:6443"
    assert settings(None, environ).namespace == "from-environment"
    assert settings(None, environ, context="elsewhere", namespace="said").server == "https://elsewhere:6443"
    assert settings(None, environ, namespace="said").namespace == "said"
    assert settings(path, {}, context="there").namespace == "of-there"


def test_several_files_are_one_and_the_first_is_right(tmp_path: Path) -> None:
    one = written(tmp_path / "a" / "one", users=[], clusters=cluster(server="https://one:6443"))
    token = tmp_path / "b" / "token"
    two = written(
        tmp_path / "b" / "two",
        **{"current-context": "other"},
        users=user(tokenFile="token"),
        clusters=cluster(server="https://two:6443"),
    )
    token.write_text("from a file\n")
    environ = {"KUBECONFIG": os.pathsep.join([str(one), str(tmp_path / "missing"), str(two)])}
    found = settings(None, environ)
    assert found.server == "https://one:6443"
    assert secret(found).authorization == "Bearer from a file", "paths are relative to their own file"


def test_the_usual_place(tmp_path: Path) -> None:
    written(tmp_path / ".kube" / "config")
    assert settings(None, {"HOME": str(tmp_path)}).server == NOWHERE


def test_a_server_below_a_path(tmp_path: Path, server: Scripted) -> None:
    server.otherwise = says(pod("a"))
    path = written(tmp_path / "config", clusters=cluster(server=f"{server.url}/k8s/clusters/c-1/"))
    with Access(str(path), environ={}).api(QUICK) as api:
        api.get(PODS, "a")
    assert server.lines == ["GET /k8s/clusters/c-1/api/v1/namespaces/team/pods/a"]


def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "account"
    folder.mkdir()
    for name, text in {"token": "of the pod", "ca.crt": "a CA", "namespace": "of-pod"}.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(module, "SERVICE_ACCOUNT", folder)
    environ = {
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
        "HOME": str(tmp_path),
    }
    found = settings(None, environ)
    assert (found.server, found.namespace, found.authority) == ("https://10.96.0.1:443", "of-pod", "a CA")
    assert secret(found).authorization == "Bearer of the pod"
    assert settings(None, {**environ, "KUBERNETES_SERVICE_HOST": "fd00::1"}).server == "https://[fd00::1]:443"
    assert settings(None, {**environ, "ALLABOARD_NAMESPACE": "said"}).namespace == "said"
    no_namespace = written(
        tmp_path / "config", contexts=[{"name": "here", "context": {"cluster": "c", "user": "u"}}]
    )
    assert settings(no_namespace).namespace == "of-pod"


# --- what is wrong with it ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "options", "words"),
    [
        ({}, {"context": "heer"}, r"context 'heer' is not in kubeconfig .*did you mean 'here'\? It has here"),
        ({}, {"context": "x"}, r"context 'x' is not in kubeconfig \S+; it has here"),
        ({"current-context": ""}, {}, "no current-context; choose with --context: here"),
        ({"contexts": []}, {}, "no contexts"),
        ({"clusters": []}, {}, "names the cluster 'c', which is not there; it has none"),
        ({"users": []}, {}, "names the user 'u', which is not there"),
        ({"clusters": cluster(server="")}, {}, "has no server"),
        ({"clusters": cluster(server="https://lab:port")}, {}, "is no URL; .* not 'https://lab:port'"),
        ({"clusters": cluster(server="https://:6443")}, {}, "is no URL"),
        ({"users": user(token="sesame\nopen")}, {}, "holds a line end, or a character"),
        ({"users": user(token="sesame€")}, {}, "holds a line end, or a character"),
        (
            {"clusters": cluster(**{"certificate-authority-data": "!!"})},
            {},
            "certificate-authority-data is no base64",
        ),
        ({"clusters": cluster(**{"certificate-authority": "ca.crt"})}, {}, "ca.crt cannot be read"),
        ({"clusters": cluster(**{"proxy-url": "socks5://p:1"})}, {}, "socks5:// is not supported"),
        ({"users": user(**{"client-certificate-data": "YQ=="})}, {}, "no client-key"),
        ({"users": user(exec={"args": []})}, {}, "exec has no command and no apiVersion"),
        ({"users": user(**{"as": "somebody"})}, {}, "impersonates another user"),
        ({"contexts": ["here"]}, {}, "an item of contexts is not name and context"),
        ({}, {"namespace": "Team_1"}, "namespace 'Team_1' is not a legal name"),
    ],
)
def test_trouble_is_a_sentence_that_says_where(
    tmp_path: Path, parts: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((BadInput, SiteError), match=words) as caught:
        found = settings(written(tmp_path / "config", **parts), **options)
        found.credentials.current(0)
    assert "sesame" not in str(caught.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not there; name another with --kubeconfig"):
        settings(tmp_path / "missing")
    with pytest.raises(BadInput, match=r"no kubeconfig is at .*/.kube/config, and this process is not in"):
        settings(None, {"HOME": str(tmp_path)})
    broken = tmp_path / "broken"
    broken.write_text("users:\n- token: sesame\n  : [")
    with pytest.raises(BadInput, match=r"is no YAML \(line 3\)") as caught:
        settings(broken)
    assert "sesame" not in str(caught.value)
    broken.write_text("- a list")
    with pytest.raises(BadInput, match="is no mapping"):
        settings(broken)
    broken.write_text("")
    with pytest.raises(BadInput, match="no contexts"):
        settings(broken)


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 50_000,
        "a: &a [*a]",
        "contexts: 5",
        "contexts: [5]",
        "users: {a: b}",
        "current-context: {a: b}",
        "contexts: [{name: here, context: {cluster: {a: b}}}]\ncurrent-context: here",
        "- a",
        "\udcff",
    ],
)
def test_a_hostile_kubeconfig_ends_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(BadInput) as caught:
        settings(path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "said",
    [{"exec": 5}, {"exec": {"command": "x", "apiVersion": "v1", "args": 5}}, {"tokenFile": "~nouser/x"},
     {"exec": {"command": "x", "apiVersion": "v1", "env": [5]}}, {"auth-provider": [1]}],
)  # fmt: skip
def test_a_hostile_user_of_a_kubeconfig_ends_in_a_sentence(tmp_path: Path, said: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        settings(written(tmp_path / "config", users=user(**said)))


def test_a_pod_without_an_account(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match="automountServiceAccountToken"):
        settings(None, {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "HOME": str(tmp_path)})


# --- as whom ------------------------------------------------------------------------------------------------


def test_a_token_in_a_block_of_yaml_has_no_line_end(tmp_path: Path) -> None:
    assert secret(settings(written(tmp_path / "c", users=user(token="t\n")))).authorization == "Bearer t"


def test_passwords_and_certificates(tmp_path: Path) -> None:
    found = secret(settings(written(tmp_path / "config", users=user(username="me", password="pw"))))
    assert found.authorization == f"Basic {base64.b64encode(b'me:pw').decode()}"
    (tmp_path / "me.crt").write_text("CERTIFICATE")
    both = {"client-certificate": "me.crt", "client-key-data": base64.b64encode(b"KEY").decode()}
    found = secret(settings(written(tmp_path / "config", users=user(**both))))
    assert found == Secret(None, ("CERTIFICATE", "KEY"))


def test_a_token_file_is_read_again_after_a_while(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    found = settings(written(tmp_path / "config", users=user(tokenFile=str(token))))
    assert secret(found).authorization == "Bearer one"
    token.write_text("two")
    assert secret(found).authorization == "Bearer one"
    assert found.credentials.due(time.time() + 61)
    assert found.credentials.current(time.time() + 61).authorization == "Bearer two"
    token.unlink()
    assert found.credentials.current(time.time() + 200).authorization == "Bearer two"


def test_a_token_file_is_read_again_when_its_token_is_refused(
    tmp_path: Path, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "JUST_NOW", -1.0)
    token = tmp_path / "token"
    token.write_text("one")
    path = written(tmp_path / "config", users=user(tokenFile=str(token)), clusters=cluster(server=server.url))

    def rotate(handler: Any) -> None:
        token.write_text("two")
        refused(401, "Unauthorized")(handler)

    server.answers(rotate, says(pod("a")))
    with Access(str(path), environ={}).api(QUICK) as api:
        api.get(PODS, "a")
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer one", "Bearer two"]


def test_a_token_that_somebody_wrote_into_the_kubeconfig_meanwhile(tmp_path: Path, server: Scripted) -> None:
    path = written(tmp_path / "config", clusters=cluster(server=server.url))
    server.answers(refused(401, "Unauthorized"), says(pod("a")))
    with Access(str(path), environ={}).api(QUICK) as api:
        written(tmp_path / "config", clusters=cluster(server=server.url), users=user(token="newer"))
        api.get(PODS, "a")
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer sesame", "Bearer newer"]


# --- plugins ------------------------------------------------------------------------------------------------


def plugin(folder: Path, said: Any, *, code: int = 0, stderr: str = "") -> Path:
    """A program that prints ``said`` and counts its calls in ``calls``."""
    path = folder / "plugin"
    (folder / "said").write_text(said if isinstance(said, str) else json.dumps(said))
    path.write_text(
        f"#!/bin/sh\necho call >> {folder}/calls\nprintf '%s' \"$KUBERNETES_EXEC_INFO\" > {folder}/told\n"
        f"echo '{stderr}' >&2\ncat {folder}/said\nexit {code}\n"
    )
    path.chmod(0o755)
    return path


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().split())


V1 = "client.authentication.k8s.io/v1"


def credential(**status: Any) -> dict[str, Any]:
    return {"apiVersion": V1, "kind": "ExecCredential", "status": status}


def with_plugin(folder: Path, **said: Any) -> Path:
    return written(
        folder / "config",
        users=user(exec={"apiVersion": V1, "command": "./plugin", "args": ["login"], **said}),
    )


def test_a_plugin_is_run_once_and_again_before_its_token_ends(tmp_path: Path) -> None:
    plugin(tmp_path, credential(token="t1", expirationTimestamp="2026-11-21T12:10:00Z"))
    path = with_plugin(tmp_path, provideClusterInfo=True, env=[{"name": "A", "value": "B"}])
    now = 1795262400.0  # 12:00
    first, second = settings(path), settings(path)
    assert first.credentials.due(now)
    assert first.credentials.current(now).authorization == "Bearer t1"
    assert second.credentials.current(now + 500).authorization == "Bearer t1"
    assert calls(tmp_path) == 1
    told = json.loads((tmp_path / "told").read_text())
    assert told["spec"]["cluster"]["server"] == NOWHERE
    plugin(tmp_path, credential(token="t2", expirationTimestamp="2026-11-21T13:00:00Z"))
    assert first.credentials.current(now + 545).authorization == "Bearer t2"
    assert calls(tmp_path) == 2


def test_a_plugin_that_fails_later_is_a_server_out_of_reach(tmp_path: Path) -> None:
    plugin(tmp_path, credential(token="t1", expirationTimestamp="2026-11-21T12:10:00Z"))
    found = settings(with_plugin(tmp_path)).credentials
    now = 1795262400.0
    found.current(now)
    plugin(tmp_path, "", code=255, stderr="SSO session has expired")
    assert found.current(now + 560).authorization == "Bearer t1", "it is good for 40 s yet"
    with pytest.raises(BackendUnreachable, match=r"ended with 255: SSO session has expired; log in"):
        found.current(now + 700)


def test_a_certificate_from_a_plugin(tmp_path: Path) -> None:
    plugin(tmp_path, credential(clientCertificateData="CERTIFICATE", clientKeyData="KEY"))
    assert secret(settings(with_plugin(tmp_path))) == Secret(None, ("CERTIFICATE", "KEY"))


@pytest.mark.parametrize(
    ("said", "more", "words"),
    [
        ("token: sesame", {}, "printed no ExecCredential"),
        (credential(), {}, "neither a token nor a certificate"),
        ({**credential(token="sesame"), "apiVersion": f"{V1}beta1"}, {}, "speaks 'client.authentication"),
        ("", {"code": 3, "stderr": "no such profile"}, "ended with 3: no such profile; log in"),
    ],
)
def test_a_plugin_that_is_wrong_says_so_without_its_token(
    tmp_path: Path, said: Any, more: dict[str, Any], words: str
) -> None:
    plugin(tmp_path, said, **more)
    with pytest.raises(SiteError, match=words) as caught:
        secret(settings(with_plugin(tmp_path)))
    assert "sesame" not in str(caught.value)


def test_a_plugin_that_is_not_installed(tmp_path: Path) -> None:
    path = with_plugin(tmp_path, command="aws-of-nowhere", installHint="Install the AWS CLI.")
    with pytest.raises(SiteError, match=r"'aws-of-nowhere', which is not here; Install the AWS CLI"):
        secret(settings(path))


@pytest.mark.parametrize("path", ["", ".", ":/nowhere"])
def test_a_plugin_is_not_taken_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    (tmp_path / "aws-of-nowhere").write_text("#!/bin/sh\ntouch ran\n")
    (tmp_path / "aws-of-nowhere").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    with pytest.raises(SiteError, match="which is not here"):
        secret(settings(with_plugin(tmp_path, command="aws-of-nowhere")))
    assert not (tmp_path / "ran").exists()


def test_a_plugin_that_needs_a_person(tmp_path: Path) -> None:
    plugin(tmp_path, credential(token="t"))
    if os.isatty(0):
        pytest.skip("there is a terminal here")
    with pytest.raises(SiteError, match="wants to ask a person"):
        secret(settings(with_plugin(tmp_path, interactiveMode="Always")))


def test_many_who_are_refused_at_once_run_a_plugin_once(
    tmp_path: Path, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(tmp_path, credential(token="t1"))
    said = user(exec={"apiVersion": V1, "command": "./plugin"})
    path = written(tmp_path / "config", users=said, clusters=cluster(server=server.url))
    with Access(str(path), environ={}).api(QUICK) as api:
        server.otherwise = says(pod("a"))
        api.get(PODS, "a")
        plugin(tmp_path, credential(token="t2"))
        # As if the first were old: what was fetched just now is not thrown away.
        api.settings.credentials._since -= 60  # type: ignore[attr-defined]
        valid = says(pod("a"))

        def check(handler: Any) -> None:
            ok = handler.headers["Authorization"] == "Bearer t2"
            (valid if ok else refused(401, "Unauthorized"))(handler)

        server.otherwise = check
        failed: list[AllaboardError] = []

        def ask() -> None:
            try:
                api.get(PODS, "a")
            except AllaboardError as error:
                failed.append(error)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert calls(tmp_path) == 2


# --- proxies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "server", "expected"),
    [
        ({}, NOWHERE, None),
        ({"HTTPS_PROXY": "http://p:3128"}, NOWHERE, "http://p:3128"),
        ({"https_proxy": "p:3128"}, NOWHERE, "http://p:3128"),
        ({"HTTP_PROXY": "http://p:3128"}, NOWHERE, None),
        ({"HTTP_PROXY": "http://p:3128"}, "http://api.example", "http://p:3128"),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "*"}, NOWHERE, None),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "example"}, NOWHERE, None),
        ({"HTTPS_PROXY": "http://p:3128", "no_proxy": ".example, other"}, NOWHERE, None),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "api.example:6443"}, NOWHERE, None),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "api.example:443"}, NOWHERE, "http://p:3128"),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "ample,pi.example"}, NOWHERE, "http://p:3128"),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "10.0.0.0/8"}, "https://10.96.0.1:443", None),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "10.96.0.1"}, "https://10.96.0.1:443", None),
        (
            {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "10.1.0.0/16,1/2/3"},
            "https://10.96.0.1",
            "http://p:3128",
        ),
        ({"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "fd00::/8"}, "https://[fd00::1]:443", None),
    ],
)
def test_proxies_of_the_environment(environ: dict[str, str], server: str, expected: str | None) -> None:
    assert proxy_of(server, environ) == expected


def test_the_kubeconfigs_proxy_comes_first(tmp_path: Path) -> None:
    path = written(tmp_path / "config", clusters=cluster(**{"proxy-url": "http://own:1"}))
    assert settings(path, {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "*"}).proxy == "http://own:1"


# --- the client library's own configuration -----------------------------------------------------------------


def test_a_configuration_of_the_client_library_is_refreshed_by_its_hook() -> None:
    client = pytest.importorskip("kubernetes.client")
    configuration = client.Configuration()
    refreshed = []

    def refresh(configuration: Any) -> None:
        refreshed.append(1)
        for name in ("authorization", "BearerToken"):
            configuration.api_key[name] = "Bearer from the hook"

    configuration.refresh_api_key_hook = refresh
    borrowed = credentials.borrowed_credentials(lambda: configuration, "test")
    assert {borrowed.current(0).authorization for _ in range(2)} == {"Bearer from the hook"}
    assert len(refreshed) == 1


def test_a_configuration_whose_certificate_is_gone(tmp_path: Path) -> None:
    client = pytest.importorskip("kubernetes.client")
    configuration = client.Configuration()
    configuration.cert_file = str(tmp_path / "me.crt")
    with pytest.raises(SiteError, match=r"client certificate .*me\.crt cannot be read"):
        credentials.borrowed_credentials(lambda: configuration, "test").current(0)


def a_provider(url: str) -> dict[str, Any]:
    """A kubeconfig as kubectl of 2022 wrote them, for a login by OpenID Connect that lasts."""
    body = base64.urlsafe_b64encode(json.dumps({"exp": 4102444800}).encode()).rstrip(b"=").decode()
    token = f"e30.{body}.sig"
    provider = {
        "name": "oidc",
        "config": {"id-token": token, "client-id": "me", "idp-issuer-url": "https://id"},
    }
    return {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "users": [{"name": "me", "user": {"auth-provider": provider}}],
    }


@pytest.mark.parametrize("form", ["file", "text"])
def test_a_provider_that_kubectl_no_longer_has(form: str, tmp_path: Path) -> None:
    pytest.importorskip("kubernetes.client")
    text = json.dumps(a_provider("https://lab:6443"))
    (tmp_path / "config").write_text(text)
    if form == "file":
        found = kubeconfig.read_kubeconfigs([tmp_path / "config"])
    else:
        found = kubeconfig.parse_kubeconfig(text, "kube_config", ("kube_config_path", "cluster_context"))
    secret = settings_of(found.context(None), "team", {}).credentials.current(0)
    assert (secret.authorization or "").startswith("Bearer e30.")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("users: [", "kube_config is no YAML"),
        ("[]", "kube_config is no mapping"),
        ("{contexts: 5}", "kube_config: contexts is no list"),
        ("{contexts: [5]}", "kube_config: an item of contexts is not name and context"),
        ("{}", "kube_config has no contexts; name another file with kube_config_path"),
        ("{contexts: [{name: a, context: {}}]}", "choose with cluster_context: a"),
    ],
)
def test_a_text_is_spoken_of_by_its_own_names(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        kubeconfig.parse_kubeconfig(text, "kube_config", ("kube_config_path", "cluster_context")).context(
            None
        )
