"""Every command that is printed names the place of its run, and works as it is printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from allaboard.cli import EXIT_CODES, VERBS, main
from allaboard.cli.place import Place
from allaboard.errors import ExitCode
from allaboard.report import commands
from allaboard.testing.cluster import FakeCluster
from tests.core.cli.terminal import TRAINS, WAITS, Terminal
from tests.core.cli.typed import _COMMAND as COMMAND
from tests.core.cli.typed import Typist, commands_in

AT = ["--backend", "kubernetes", "--context", "lab", "--namespace", "research"]


@pytest.fixture
def typist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Typist:
    """Somebody at a cluster of theirs, with a job in their folder."""
    found = Typist(FakeCluster(trains_for=30, namespaces=("research",)), capsys, "research", "lab")
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for file in ("job.yaml", "JOB"):
        Path(file).write_text(json.dumps({"name": "digits", "image": "x", "command": ["train"]}))
    monkeypatch.setattr(Place, "open", lambda at, *rest: found.open(at, *rest))
    return found


def printed(typist: Typist, *words: str) -> str:
    main([*words, *AT])
    return "".join(typist.capsys.readouterr())


def of_a_run_that_lives(typist: Typist) -> list[str]:
    typist.cluster.operator.trains_for = None
    started = printed(typist, "run", "job.yaml", "--detach", "--key", "k")
    typist.cluster.tick(3)
    told = [started, printed(typist, "status", "digits"), printed(typist, "doctor", "digits")]
    typist.cluster.operator.trains_for = 30
    return told


def of_one_that_fails(typist: Typist) -> list[str]:
    class EveryJob(dict[str, int]):
        def __contains__(self, job: object) -> bool:
            return True

        def __missing__(self, job: str) -> int:
            return 7

    typist.cluster.operator.ends = EveryJob()
    Path("job.yaml").write_text(
        json.dumps({"name": "digits", "image": "x", "command": ["train"], "policy": {"restart": "never"}})
    )
    told = [printed(typist, "run", "job.yaml", "--key", "k")]
    told += [printed(typist, verb, "digits") for verb in ("follow", "status", "doctor")]
    assert printed(typist, "report", "digits", "-o", "page.html")
    return [*told, Path("page.html").read_text()]


def of_one_that_is_suspended(typist: Typist) -> list[str]:
    typist.cluster.operator.trains_for = None
    printed(typist, "run", "job.yaml", "--detach", "--key", "k")
    typist.cluster.tick(3)
    return [printed(typist, "suspend", "digits"), printed(typist, "status", "digits")]


def of_one_that_succeeds(typist: Typist) -> list[str]:
    return [printed(typist, "run", "job.yaml", "--key", "k"), printed(typist, "status", "digits")]


def of_errors(typist: Typist) -> list[str]:
    told = [printed(typist, "list"), printed(typist, "status", "nothing-is-called-so")]
    typist.cluster.operator.trains_for = None
    printed(typist, "run", "job.yaml", "--detach", "--key", "k")
    Path("other.yaml").write_text(json.dumps({"name": "digits", "image": "x", "command": ["other"]}))
    told.append(printed(typist, "run", "other.yaml", "--key", "k"))
    assert "is live with another job" in told[-1]
    typist.cluster.operator.trains_for = 30
    return told


@pytest.mark.parametrize(
    ("paths", "verbs"),
    [
        (of_a_run_that_lives, {"follow", "logs", "stop"}),
        (of_one_that_fails, {"logs", "events", "run"}),
        (of_one_that_is_suspended, {"resume", "stop"}),
        (of_one_that_succeeds, {"logs", "events"}),
        (of_errors, {"run", "list", "stop"}),
    ],
)
def test_what_is_printed_on_a_cluster_works_as_it_is_printed(
    typist: Typist, paths: Callable[[Typist], list[str]], verbs: set[str]
) -> None:
    """In another shell, without the options and the environment of the first."""
    lines = [words for text in paths(typist) for words in commands_in(text.replace("&#x27;", "'"))]
    for words in lines:
        typist(words)
    assert verbs <= {words[0] for words in typist.typed}, typist.typed


@pytest.mark.thorough
def test_what_is_printed_on_this_machine_works_as_it_is_printed(ab: Terminal) -> None:
    waits, trains, fails = (
        ab.job(WAITS, "waits.json", name="waits"),
        ab.job(TRAINS),
        ab.job("1 / 0", "bad.json"),
    )
    told = [ab("run", waits, "--detach", "--key", "k"), ab("run", trains, "--key", "t")]
    ab.until_said("ready", "waits")
    told += [
        ab("status", "waits"),
        ab("run", fails, "--key", "f"),
        ab("status", "digits"),
        ab("doctor", "digits"),
    ]
    lines = {" ".join(words): words for said in told for words in commands_in(said.text)}
    assert {"logs", "follow", "stop", "events", "run"} <= {words[0] for words in lines.values()}
    stops_last = sorted(lines.values(), key=lambda words: words[0] == "stop")
    for words in stops_last:
        if words[0] == "follow" or words[-1] == "-f":  # of a run that goes on
            assert ab.start(*words).poll() is None
            continue
        said = ab(*words)
        assert said.code == 0 or (words[0] == "run" and said.code == 1), (words, said)
        assert "error:" not in said.err


def test_a_command_line_leaves_nothing_of_its_place_to_the_next(typist: Typist) -> None:
    assert "--context lab" in printed(typist, "list")
    Place.open = lambda at, *_: typist.cluster.backend(namespace="research")  # type: ignore[method-assign]
    main(["list"])
    assert "start one: allaboard run job.yaml\n" in typist.capsys.readouterr().out


# --- the pieces


def test_a_command_in_a_sentence_gets_the_place_where_its_verb_takes_one() -> None:
    lab = commands.Place(kubeconfig="/my lab", namespace="team")
    at = "--kubeconfig '/my lab' --namespace team"
    assert lab.command("stop", "digits") == f"allaboard stop digits {at}"
    text = "stop it (`allaboard stop a`), or `allaboard explain policy`; `kubectl get pods` and allaboard say"
    assert lab.in_text(text) == text.replace("stop a`", f"stop a {at}`")
    assert commands.HERE.in_text(text) == text
    assert commands.HERE.in_text("see `allaboard logs`", "r") == "see `allaboard logs r`"
    for whole in ("see `allaboard list`", "`allaboard stop a --now`", "`allaboard checkpoints list a`"):
        assert commands.HERE.in_text(whole, "r") == whole
    assert lab.in_text("`allaboard checkpoints verify`", "r") == f"`allaboard checkpoints verify r {at}`"
    pod = replace(commands.HERE, program=("kubectl", "exec", "p", "--", "allaboard"))
    assert pod.in_text("`allaboard logs r -f`") == "`kubectl exec p -- allaboard logs r -f`"


def test_the_verbs_that_take_a_place_are_those_of_the_command_line() -> None:
    from allaboard.cli import app

    def takes_one(command: object) -> bool:
        inner = getattr(command, "commands", None)
        names = {name for p in getattr(command, "params", ()) for name in p.opts}
        return all(map(takes_one, inner.values())) if inner else {"--backend", "--context"} <= names

    context = app.make_context("allaboard", ["list"])
    found = {verb for verb in VERBS if takes_one(app.get_command(context, verb))}
    assert found - {"boost", "cluster", "render"} == commands.VERBS, "those take no --backend local"


def test_the_table_of_exit_codes_has_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split()[0] for line in EXIT_CODES.splitlines()[2:]]
    assert rows == [str(code.value) for code in ExitCode]
    for words in (["--help"], ["run", "--help"]):
        main(words)
        out = capsys.readouterr().out
        assert all(f"  {line}\n" in out for line in EXIT_CODES.splitlines()[1:]), "a row is a line"


def test_the_text_that_follows_a_command_is_no_part_of_it() -> None:
    text = "see `allaboard logs a`; or: allaboard stop b.\nallaboard run j --key 'two words'   (resumes)"
    assert commands_in(text) == [["logs", "a"], ["stop", "b"], ["run", "j", "--key", "two words"]]
    assert COMMAND.search("/venv/bin/allaboard logs") is None
