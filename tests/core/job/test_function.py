"""A function as a job: what is shipped of it, what is refused and why, and what its members do."""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import allaboard
from allaboard import BadInput, TrainingJob
from allaboard.backends.local.backend import LocalBackend
from allaboard.checking.job import require_valid
from allaboard.job.function import STARTER
from allaboard.text.reportline import decode

MODEL = "of this module"


def marked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator like those of people."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


@marked
def trains(
    lr: float,
    path: Path | str = "data",
    /,
    *,
    layers: list[int] = [2, 3],  # noqa: B006
    note: str | None = None,
) -> dict[str, Any]:
    """A text that is indented less
    than the function: {{ braces }} {% and %} $(HOME) $$(X) {# more #}."""
    import json as j

    def helper(x: int) -> int:
        return x if x < 2 else x * helper(x - 1)

    values = [helper(n) for n in layers]
    text = f"{{literal}} {lr!r} {os_name()}" if False else "{{literal}} $(HOME)"  # type: ignore[name-defined]  # noqa: F821
    print(j.dumps({"text": text, "doc": trains.__doc__}))
    return {"lr": lr, "values": values, "note": note, "path": path}


def clean(lr: float, path: str = "data", *, layers: list[int] = [2, 3], note: str | None = None) -> Any:  # noqa: B006
    """{{ braces }} {% and %} $(HOME) $$(X) {# more #}."""
    import json as j

    def helper(x: int) -> int:
        return x if x < 2 else x * helper(x - 1)

    values: list[int] = [helper(n) for n in layers]
    print(j.dumps({"text": f"{{x}} $(HOME) {lr}", "doc": clean.__doc__}))
    return {"lr": lr, "values": values, "note": note, "path": path}


def started(job: TrainingJob, *more: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a member does, without allaboard around it."""
    words = [str(word) for word in job.get("command")]
    assert words[0] == "python"
    environment = {**os.environ, "RANK": "0", **environ}
    return subprocess.run(
        [sys.executable, *words[1:], *more], capture_output=True, text=True, env=environment, check=False
    )


def results(text: str) -> list[Any]:
    reports = [decode(line) for line in text.splitlines()]
    return [report.fields["metrics"] for report in reports if report is not None and report.kind == "result"]


def test_a_member_calls_the_function_with_the_arguments_and_reports_what_it_returns() -> None:
    job = require_valid(TrainingJob.of_function(clean, {"lr": 3e-4, "note": 'a "b" {{ c }}'}, workers=2))
    assert job.name == "clean" and job.get("workers") == 2
    done = started(job)
    assert done.returncode == 0, done.stderr
    (said,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert said == {"text": "{x} $(HOME) 0.0003", "doc": clean.__doc__}
    assert results(done.stdout) == [{"lr": 3e-4, "values": [2, 6], "note": 'a "b" {{ c }}', "path": "data"}]


def test_the_result_is_told_by_images_without_allaboard() -> None:
    job = TrainingJob.of_function(clean, {"lr": 1})
    done = started(job, PYTHONPATH=str(Path(__file__).parent / "nothing"), PYTHONNOUSERSITE="1")
    blocked = [sys.executable, "-c", "import sys; sys.modules['allaboard.inside'] = None\n" + STARTER]
    bare = subprocess.run([*blocked, job.get("command")[3]], capture_output=True, text=True, check=False)
    assert results(bare.stdout) == results(done.stdout) != []
    other = subprocess.run(
        [*blocked, job.get("command")[3]],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RANK": "1"},
    )
    assert other.returncode == 0 and results(other.stdout) == []


def test_one_value_is_a_result_and_none_is_none() -> None:
    def number() -> int:
        return 5

    def nothing() -> None:
        return None

    assert results(started(TrainingJob.of_function(number)).stdout) == [{"result": 5}]
    assert results(started(TrainingJob.of_function(nothing)).stdout) == []


def test_more_words_are_arguments() -> None:
    done = started(TrainingJob.of_function(clean, {"lr": 1}), "json:lr=2.5", "text:note=a=b: 007")
    (found,) = results(done.stdout)
    assert (found["lr"], found["note"]) == (2.5, "a=b: 007")


def test_nobody_replaces_what_looks_like_a_template_or_a_variable() -> None:
    words = TrainingJob.of_function(clean, {"lr": 1, "note": "$(A) {{ b }}"}).get("command")
    assert not any(mark in words[-1] for mark in ("{{", "{%", "{#", "$(", "$$"))


def test_a_comment_or_a_blank_line_is_no_other_job() -> None:
    def first(a: int = 1) -> int:
        # A comment.
        return a  # another one

    one = TrainingJob.of_function(first)

    def first(a=1):  # type: ignore[no-untyped-def,no-redef]

        return a

    assert TrainingJob.of_function(first) == one


@pytest.mark.parametrize("name", ["name", "value", "json", "sys", "space", "exec", "result"])
def test_a_function_may_have_any_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"of_{name}.py").write_text(f"def {name}(a):\n    '''A text\n  {{% x'''\n    return a + 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__(f"of_{name}")
    assert results(started(TrainingJob.of_function(getattr(module, name), {"a": 1})).stdout) == [
        {"result": 2}
    ]


def test_an_error_shows_its_line() -> None:
    def fails(n: int) -> None:
        raise ValueError(f"the data is odd: {n}")

    done = started(TrainingJob.of_function(fails, {"n": 7}))
    assert done.returncode == 1 and "raise ValueError(f'the data is odd: {n}')" in done.stderr


outer_value = 3


class Trainer:
    def fit(self) -> None: ...

    @staticmethod
    def apart(lr: float = 1) -> float:
        return lr


def uses_globals() -> Any:
    return [MODEL for _ in range(outer_value)], Path, len, ValueError, __name__


def uses_undefined() -> Any:
    return (lambda: torch)()  # type: ignore[name-defined]  # noqa: F821


async def waits() -> None: ...


def yields() -> Any:
    yield 1


def takes_many(*values: int) -> None: ...


def takes_any(**values: int) -> int:
    return sum(values.values())


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (uses_globals, r"uses_globals uses `MODEL`, `Path`, `outer_value` from outside its body"),
        (uses_undefined, "uses `torch` from outside"),
        (trains, "uses `os_name` from outside"),
        (lambda: 1, "a lambda has no"),
        (Trainer().fit, "is a method"),
        (Trainer, "is a class"),
        (functools.partial(clean, 1), "is a partial"),
        (print, "is a builtin_function_or_method"),
        (5, "is a int"),
        (waits, "async or a generator"),
        (yields, "async or a generator"),
        (takes_many, r"takes \*values"),
    ],
)
def test_what_is_refused_is_named(function: Any, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        TrainingJob.of_function(function)


def test_what_it_closes_over_is_named() -> None:
    model, data = object(), [1]

    def closes() -> Any:
        def inner() -> Any:
            return model

        return inner(), data

    with pytest.raises(BadInput, match="closes closes over `data`, `model`, which a member does not have"):
        TrainingJob.of_function(closes)


def test_a_function_without_source_is_refused() -> None:
    space: dict[str, Any] = {}
    exec("def typed():\n    return 1\n", space)
    with pytest.raises(BadInput, match="the source of typed cannot be read"):
        TrainingJob.of_function(space["typed"])


def test_a_static_method_and_a_function_of_any_names_are_functions() -> None:
    assert results(started(TrainingJob.of_function(Trainer.apart)).stdout) == [{"result": 1}]
    assert results(started(TrainingJob.of_function(takes_any, {"a": 1, "b": 2})).stdout) == [{"result": 3}]


@pytest.mark.parametrize(
    ("arguments", "path", "told"),
    [
        ({}, "arguments.lr", "is missing"),
        ({"lr": 1, "rate": 2}, "arguments.rate", "no such parameter"),
        ({"lr": math.nan}, "arguments.lr", "arguments are JSON"),
        ({"lr": {1: 2}}, "arguments.lr", "arguments are JSON"),
        ({"lr": object()}, "arguments.lr", "arguments are JSON"),
        ({"lr": Path("x")}, "arguments.lr", "arguments are JSON"),
    ],
)
def test_arguments_are_json_and_the_function_takes_them(
    arguments: dict[str, Any], path: str, told: str
) -> None:
    with pytest.raises(BadInput) as refused:
        TrainingJob.of_function(clean, arguments)
    (problem,) = refused.value.problems
    assert problem.path == path and told in problem.message


def test_a_default_that_is_no_json_is_refused_unless_it_is_given() -> None:
    def reads(place: Any = Path("data")) -> str:
        return str(place)

    with pytest.raises(BadInput, match=r"arguments\.place: .*PosixPath"):
        TrainingJob.of_function(reads)
    assert results(started(TrainingJob.of_function(reads, {"place": "x"})).stdout) == [{"result": "x"}]


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(BadInput, match="100,000 fit into a command"):
        TrainingJob.of_function(clean, {"lr": 1, "note": "x" * 100_000})


@pytest.mark.parametrize("fields", [{"resources": {"gpu": 4}}, {"processes_per_member": 2}])
def test_several_processes_are_started_by_torchrun(fields: dict[str, Any]) -> None:
    command = TrainingJob.of_function(clean, {"lr": 1}, **fields).get("command")
    assert command[:4] == ["torchrun", "--no_python", "python", "-c"]
    with pytest.raises(BadInput, match="command is given beside a function"):
        TrainingJob.of_function(clean, {"lr": 1}, command=["x"])


def test_a_run_of_a_function(tmp_path: Path) -> None:
    def adds(a: int, b: int) -> dict[str, Any]:
        import os

        from allaboard.inside import report

        report(step=1, total=1, loss=0.5)
        return {"sum": a + b, "world": int(os.environ["WORLD_SIZE"])}

    homes = {"ALLABOARD_HOME": str(tmp_path / "home"), "ALLABOARD_POOL": str(tmp_path / "pool")}
    backend = LocalBackend({**os.environ, **homes})
    job = TrainingJob.of_function(adds, {"a": 2, "b": 3}, workers=2, folder=str(tmp_path), name="sums")
    outcome = allaboard.run(job, backend=backend)
    assert outcome.ok and outcome.metrics == {"sum": 5, "world": 2}
