"""Values of a job that Airflow hides: passwords of connections, values under names of secrets in their extras
and among Variables, and whatever else was given to `airflow.sdk.log.mask_secret` in this process.

Airflow masks its logs and *Rendered Templates*. A run is told in many other places (XCom, the tab, the
trigger's row, lineage, the command line), by processes that have rendered nothing; so its record keeps which
values of its job are secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from allaboard_provider.compat import mask_secret, redact

_MARK = "\0"
"""A mark that no text of a job holds."""


def hidden(text: object) -> str:
    """A text without secrets, those that Airflow knows in this process included."""
    from allaboard.text.redaction import redact_text

    return redact_text(redact(str(text)))


def masked_in(value: Any) -> tuple[str, ...]:
    """The parts of the texts in a plain value that Airflow hides in this process."""
    return tuple(dict.fromkeys(part for text in _texts(value) for part in _masked_parts(text)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(name)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _masked_parts(text: str) -> tuple[str, ...]:
    masked = str(redact(text, replacement=_MARK))
    if masked == text:
        return ()
    rest = (re.escape(part) for part in re.split(f"{_MARK}+", masked))
    parts = re.fullmatch("(.+?)".join(rest), text, re.DOTALL)
    return (text,) if parts is None else parts.groups()


class Noting:
    """Airflow's ``conn`` or ``var`` of templates, which hands on what it is asked for and masks the secrets
    in it. Airflow itself knows fewer names of secrets than `allaboard.text.redaction`.
    """

    def __init__(self, accessor: Any, mask: Callable[[str, Any], None]) -> None:
        self._accessor, self._mask = accessor, mask

    def __getattr__(self, name: str) -> Any:
        return self._noted(name, getattr(self._accessor, name))

    def get(self, name: str, *default: Any, **named: Any) -> Any:
        return self._noted(name, self._accessor.get(name, *default, **named))

    def _noted(self, name: str, value: Any) -> Any:
        self._mask(name, value)
        return value


def noting(context: Mapping[str, Any]) -> dict[str, Any]:
    """A context of templates in which secrets that are taken from connections and Variables are masked."""
    noted = dict(context)
    if "conn" in context:
        noted["conn"] = Noting(context["conn"], _mask_connection)
    variables = context.get("var")
    if isinstance(variables, Mapping):
        noted["var"] = {kind: Noting(accessor, _mask_named) for kind, accessor in variables.items()}
    return noted


def _mask_connection(_: str, connection: Any) -> None:
    if password := getattr(connection, "password", None):
        mask_secret(password)
    if getattr(connection, "extra", None):
        _mask_named("", connection.extra_dejson)


def _mask_named(name: str, value: Any) -> None:
    """Mask a value under a name of a secret, and those within a structure."""
    from allaboard.text.redaction import hidden_value

    if isinstance(value, Mapping):
        for inner_name, inner in value.items():
            _mask_named(str(inner_name), inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _mask_named(name, inner)
    elif isinstance(value, str) and hidden_value(name, value):
        mask_secret(value)
