"""Which place a command line is about: this machine or a cluster, by options and by the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allaboard.cli import main
from allaboard.cli.place import Place
from allaboard.errors import BadInput
from allaboard.running import backend_of

CONFIG = """
apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: me, namespace: research}}]
clusters: [{name: lab, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: me, user: {token: secret}}]
"""


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BACKEND", "NAMESPACE", "CONTEXT", "KUBECONFIG"):
        monkeypatch.delenv(f"ALLABOARD_{name}", raising=False)
    file = tmp_path / "config"
    file.write_text(CONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    return file


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main([*words])
    return code, "".join(capsys.readouterr())


def test_without_a_word_it_is_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert backend_of().name == "local"
    assert said(capsys, "list") == (0, "no runs on this machine yet; start one: allaboard run job.yaml\n")


def test_the_environment_chooses_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_BACKEND", "kubernetes")
    backend = backend_of()
    assert (backend.name, backend.where) == ("kubernetes", "in namespace research of http://127.0.0.1:9")
    monkeypatch.setenv("ALLABOARD_NAMESPACE", "team")
    assert backend_of().where.startswith("in namespace team")
    assert backend_of("local").name == "local"


def test_whoever_names_a_namespace_means_a_cluster() -> None:
    assert Place(namespace="team").open().where.startswith("in namespace team")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("list", "--context", "lob"), "context 'lob' is not in kubeconfig"),
        (("list", "--backend", "local", "-n", "team"), "--namespace"),
        (("list", "--kubeconfig", "/nowhere"), "kubeconfig /nowhere is not there"),
        (("run", "job.yaml", "-n", "team", "--mount", "/data=./data"), "--mount is about this machine"),
        (("run", "job.yaml", "-n", "team", "--fit", "shrink"), "a gang is never shrunk"),
        (("stop",), "say which run"),
        (("stop", "digits", "--orphans"), "not both"),
        (("stop", "digits", "--watch"), "--watch looks for orphans; give --orphans, too"),
        (("stop", "--orphans", "--watch"), "--watch looks after a cluster, and runs of this machine are"),
        (("cluster", "--reaper", "--rbac", "viewer"), "print one thing each"),
    ],
)
def test_what_cannot_be_meant_is_bad_input(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, text = said(capsys, *words)
    assert code == 2 and message in text and "Traceback" not in text


def test_a_backend_that_is_not_known_is_told_with_the_nearest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match="did you mean 'kubernetes'"):
        backend_of("kubernets")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("name: digits\nimage: x\ncommand: [train]\n")
    monkeypatch.setenv("ALLABOARD_BACKEND", "kubernets")
    for words in (["list"], ["render", "job.yaml"], ["preflight", "job.yaml"], ["status", "x"]):
        code, text = said(capsys, *words, "--json")
        assert code == 2 and "did you mean 'kubernetes'" in json.loads(text)["error"]["message"], words


@pytest.mark.parametrize("verb", [["status", "x"], ["preflight", "job.yaml"], ["run", "job.yaml"]])
def test_a_namespace_beside_an_environment_of_this_machine_is_a_contradiction(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    verb: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text("name: digits\ncommand: [true]\n")
    monkeypatch.setenv("ALLABOARD_BACKEND", "local")
    code, text = said(capsys, *verb, "-n", "team")
    assert code == 2 and "--namespace names a cluster, and ALLABOARD_BACKEND says local" in text


def test_every_verb_of_a_cluster_takes_its_backend(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "cluster", "--backend", "kubernetes", "--kubeconfig", "/nowhere")
    assert code == 2 and "kubeconfig /nowhere is not there" in text


def test_runs_of_this_machine_leave_no_orphans(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "list", "--orphans", "--json") == (0, '{\n  "orphans": []\n}\n')
    code, text = said(capsys, "stop", "--orphans")
    assert code == 0 and "watched by their own supervisors" in text
