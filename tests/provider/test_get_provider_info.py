"""What Airflow is told about the provider is true: the schema holds, every path in it can be imported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import airflow
import jsonschema

import allaboard_provider
from allaboard_provider.get_provider_info import get_provider_info

INFO = get_provider_info()


def test_it_keeps_to_airflows_schema() -> None:
    schema = Path(airflow.__file__).with_name("provider_info.schema.json")
    jsonschema.validate(INFO, json.loads(schema.read_text()))


def test_the_version_is_the_packages() -> None:
    assert INFO["versions"][0] == allaboard_provider.__version__


def modules_named() -> Iterator[str]:
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for integration in INFO[kind]:
            yield from integration["python-modules"]


def test_every_module_that_it_names_is_there_and_every_module_of_its_kind_is_named() -> None:
    for name in modules_named():
        import_module(name)
    source = Path(allaboard_provider.__file__).parent
    for kind in ("operators", "sensors", "hooks", "triggers"):
        there = {f"allaboard_provider.{kind}.{p.stem}" for p in (source / kind).glob("[a-z]*.py")}
        shared = {f"allaboard_provider.{kind}.{name}" for name in ("base", "polling", "backends")}
        assert there - shared == {name for name in modules_named() if f".{kind}." in name}


def test_the_connections_hook_is_the_one_that_speaks_for_the_type() -> None:
    (kind,) = INFO["connection-types"]
    module, _, name = kind["hook-class-name"].rpartition(".")
    hook = getattr(import_module(module), name)
    assert hook.conn_type == kind["connection-type"] == "allaboard"
    assert set(kind["conn-fields"]) == set(import_module(module).FIELDS)


def test_the_options_are_the_ones_that_are_read() -> None:
    source = Path(allaboard_provider.__file__).parent
    code = "\n".join(path.read_text() for path in source.rglob("*.py") if path.name != "get_provider_info.py")
    for option in INFO["config"]["allaboard"]["options"]:
        assert f'"allaboard", "{option}"' in code
    links = [integration["external-doc-url"] for integration in INFO["integrations"]]
    assert all(link.startswith("https://") for link in links)


def test_airflow_finds_the_provider_and_its_plugin_by_entry_points() -> None:
    (provider,) = [e for e in entry_points(group="apache_airflow_provider") if "allaboard" in e.value]
    assert provider.load()() == INFO
    (plugin,) = [e for e in entry_points(group="airflow.plugins") if "allaboard" in e.value]
    assert plugin.load().name == "allaboard"
