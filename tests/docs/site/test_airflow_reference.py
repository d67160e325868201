"""The reference of the provider has every class that a DAG file may name, each parameter with its meaning."""

from __future__ import annotations

import pytest

from allaboard_provider.get_provider_info import get_provider_info
from tests.docs.site import airflow_reference as reference
from tests.docs.site import python_reference as source

CLASSES = {
    one.name: (path, one, kind) for kind in reference.KINDS for path, one in reference.classes(kind).items()
}


def test_every_class_that_airflow_is_told_of_has_a_page() -> None:
    info = get_provider_info()
    named = {
        name
        for kind in ("operators", "sensors", "hooks", "triggers")
        for integration in info[kind]
        for module in integration["python-modules"]
        for name in source.public_names(module)
        if name.endswith(("Operator", "Sensor", "Hook", "Trigger"))
    }
    assert named and named <= set(CLASSES), named - set(CLASSES)
    pages = reference.pages()
    assert all(f"{reference.FOLDER}/{name}.md" in pages for name in CLASSES)


@pytest.mark.parametrize("name", [name for name, (_, _, kind) in CLASSES.items() if kind.example])
def test_it_has_a_dag_that_names_it(name: str) -> None:
    text = reference.example_of(name).read_text()
    assert (name if name != "TrainingDecoratedOperator" else "@task.training") in text


@pytest.mark.parametrize("name", [name for name, (_, _, kind) in CLASSES.items() if kind.example])
def test_each_parameter_has_a_meaning(name: str) -> None:
    path, one, _ = CLASSES[name]
    rows = [*reference._parameters(path, one)]
    assert rows and [row[0] for row in rows if not row[-1].strip()] == []


def test_templates_are_those_that_airflow_renders() -> None:
    from importlib import import_module

    for name, (path, one, kind) in CLASSES.items():
        # A decorator has those of Airflow's, too; the arguments of a trigger are no templates.
        if not kind.example or name.endswith(("DecoratedOperator", "Trigger")):
            continue
        module, _, attribute = path.rpartition(".")
        fields = set(getattr(import_module(module), attribute).template_fields)
        assert reference.template_fields(one) == fields, name
