"""The reference of the Airflow provider: a page for each operator, sensor, decorator, hook and trigger, read
from its source by griffe, with a DAG that `tests.provider.test_system` runs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import griffe

from tests.docs.site import python_reference as source
from tests.docs.site.markdown import code, contents, fenced, table
from tests.meta.source import ROOT

FOLDER = "reference/airflow"
EXAMPLES = ROOT / "tests" / "provider" / "system"
SETTINGS = {"defaults.deferrable()": "`[allaboard] deferrable`, else True"}
"""Defaults that a setting gives -> what a reader is told of them."""
OF_AIRFLOW = ("python_callable", "op_args", "op_kwargs")
"""Parameters that Airflow fills in from a call of the decorated function."""
_PARAM = re.compile(r"^:param (\w+): ((?:.|\n(?!:|\n))*)", re.MULTILINE)
_SNAKE = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Kind:
    """Classes of one kind. ``above``: the class of Airflow whose arguments they take, too; ``example``:
    whether a DAG file uses them by name.
    """

    title: str
    modules: tuple[str, ...]
    above: str = ""
    example: bool = True


KINDS = (
    Kind("Operators", ("allaboard_provider.operators",), "BaseOperator"),
    Kind("Decorators", ("allaboard_provider.decorators.training",), "BaseOperator"),
    Kind("Sensors", ("allaboard_provider.sensors",), "BaseSensorOperator"),
    Kind("Event sources", ("allaboard_provider.triggers.assets",)),
    Kind("Hooks", ("allaboard_provider.hooks.allaboard",), example=False),
    Kind(
        "Triggers",
        (
            "allaboard_provider.triggers.train",
            "allaboard_provider.triggers.jobs",
            "allaboard_provider.triggers.checkpoints",
        ),
        example=False,
    ),
)


@cache
def classes(kind: Kind) -> dict[str, griffe.Class]:
    """Public path -> class, in the order of their modules."""
    paths = [f"{module}.{name}" for module in kind.modules for name in source.public_names(module)]
    found = {path: source.found(path) for path in paths}
    return {path: one for path, one in found.items() if isinstance(one, griffe.Class) and _is_told(one)}


def _is_told(one: griffe.Class) -> bool:
    return one.docstring is not None and one.name[0] != "_" and one.name.endswith(_ENDINGS)


_ENDINGS = ("Operator", "Sensor", "Hook", "Trigger")


def examples() -> list[Path]:
    """The DAG files, sorted."""
    return sorted(EXAMPLES.glob("example_*.py"))


def example_of(name: str) -> Path:
    """The DAG file of a class: ``example_training_job.py`` of a `TrainingJobOperator`."""
    if name == "TrainingDecoratedOperator":
        return EXAMPLES / "example_training_task.py"
    snake = _SNAKE.sub("_", name.removesuffix("Operator").removesuffix("Trigger")).lower()
    return EXAMPLES / f"example_{snake}.py"


def pages() -> dict[str, str]:
    """Path -> page: an index, and one for each class."""
    made = {
        f"{FOLDER}/{one.name}.md": "\n".join(_page(kind, path, one))
        for kind in KINDS
        for path, one in classes(kind).items()
    }
    return {f"{FOLDER}/index.md": "\n".join(_index()), **made}


def _index() -> Iterator[str]:
    yield from [
        "# Airflow",
        "",
        "Every operator, sensor, decorator, hook and trigger, with its parameters and a DAG that runs. "
        "[How tasks use them](../../how-to/airflow.md); "
        "[states, clean-up and defaults](../../how-to/airflow-states.md).",
        "",
    ]
    for kind in KINDS:
        rows = [(f"[{one.name}]({one.name}.md)", _first_sentence(one)) for one in classes(kind).values()]
        yield from [f"## {kind.title}", "", *table(("Name", "What it does"), rows)]
    yield from contents(one.name for kind in KINDS for one in classes(kind).values())


def _first_sentence(one: griffe.Class) -> str:
    text = " ".join(split(one)[0].split())
    return re.split(r"(?<=[.:;]) ", text)[0].rstrip(":;")


def _page(kind: Kind, path: str, one: griffe.Class) -> Iterator[str]:
    module, _, name = path.rpartition(".")
    yield from [f"# {name}", "", *fenced(f"from {module} import {name}", "python")]
    yield from source.prose(split(one)[0], partial(source._target, path))
    rows = [*_parameters(path, one)]
    if rows:
        yield from ["## Parameters", ""]
        yield from table(("Parameter", "Type", "Default", "Template", "Meaning"), rows)
    if kind.above:
        yield from [f"It takes the parameters of Airflow's `{kind.above}`, too.", ""]
    if kind.example:
        yield from ["## Example", "", *fenced(example_of(name).read_text(), "python")]


def _parameters(path: str, one: griffe.Class) -> Iterator[Sequence[str]]:
    meanings, templates = meanings_of(one), template_fields(one)
    for parameter in source._parameters(one):
        if parameter.kind is griffe.ParameterKind.var_keyword or parameter.name in OF_AIRFLOW:
            continue
        default = "required" if parameter.default is None else str(parameter.default)
        text = " ".join(source.prose(meanings.get(parameter.name, ""), partial(source._target, path)))
        yield (
            code(parameter.name),
            code(source._type(parameter.annotation)) if parameter.annotation is not None else "",
            SETTINGS.get(default, default if default == "required" else code(default)),
            "yes" if parameter.name in templates else "",
            text,
        )


def split(one: griffe.Class) -> tuple[str, dict[str, str]]:
    """The docstring without its parameters, and their meanings."""
    text = one.docstring.value if one.docstring else ""
    meanings = {name: " ".join(meaning.split()) for name, meaning in _PARAM.findall(text)}
    return _PARAM.sub("", text), meanings


def meanings_of(one: griffe.Class) -> dict[str, str]:
    """Meaning of each parameter, of the class and of those of ours that it extends."""
    above = [meanings_of(base) for base in source._bases(one)]
    return {name: text for each in [*above, split(one)[1]] for name, text in each.items()}


def template_fields(one: griffe.Class) -> set[str]:
    """Names of the parameters that are templates, of the class or of one of ours that it extends."""
    value = getattr(one.members.get("template_fields"), "value", None)
    if value is None:
        return {name for base in source._bases(one) for name in template_fields(base)}
    names: set[str] = set()
    for element in getattr(ast.parse(str(value), mode="eval").body, "elts", []):
        if isinstance(element, ast.Constant):
            names.add(str(element.value))
        else:  # *Base.template_fields
            names |= {name for base in source._bases(one) for name in template_fields(base)}
    return names
