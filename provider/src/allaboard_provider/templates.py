"""Templates in structured fields: a job, the metrics of an evaluation, the result of another task.

Structure comes from the author alone. A text (JSON, YAML) or a file is parsed first, and then its texts are
rendered one by one. So nothing that a template puts in (a `conf` value, a parameter, an XCom) becomes a
field, an item or another command: it stays one text, or one number.

Two things are taken whole, and trust their source with all of the value: a field that is one single
expression (``job="{{ ti.xcom_pull('plan') }}"``), and, in a DAG that renders native objects, a text within
that is one (``"command": "{{ params.command }}"``). What is taken whole is not rendered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

import jinja2
from jinja2.nativetypes import NativeEnvironment

from allaboard.errors import BadInput
from allaboard.job.mappings import as_mapping
from allaboard_provider.errors import naming_field
from allaboard_provider.masking import noting

if TYPE_CHECKING:
    from airflow.sdk import Context

MARKS = ("{{", "{%", "{#")
"""The beginnings of Jinja's own marks."""


class LeafByLeaf:
    """For operators. ``structured``: the template fields that may hold structure."""

    structured: ClassVar[tuple[str, ...]] = ()

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        """Airflow's hook for operators that render nested values themselves, mapped ones included."""
        context = cast("Context", noting(context))
        own = {name for name in template_fields if parent is self and name in self.structured}
        for name in template_fields:
            if name not in own:
                with naming_field(name, lambda: self.run_of(context)):
                    super()._do_render_template_fields(parent, [name], context, jinja_env, seen_oids)  # type: ignore[misc]
                continue
            value = getattr(self, name)
            if not self.is_resolved(name, value, seen_oids):
                jinja = Jinja(self, context, jinja_env, seen_oids)
                with naming_field(name, lambda: self.run_of(context)):
                    setattr(self, name, self.render_structure(name, value, jinja))

    def run_of(self, context: Mapping[str, Any]) -> str:
        """The name or the key of the run of this task, for errors; empty for a task that starts none."""
        return ""

    def is_resolved(self, name: str, value: Any, seen_oids: set[int]) -> bool:
        """Return whether Airflow has just made this value out of an XCom, for a mapped task: then its texts
        are not the author's.
        """
        return id(value) in seen_oids

    def render_structure(self, name: str, value: Any, jinja: Jinja) -> Any:
        """The value of a field with its templates rendered. A function is the author's, and not Airflow's to
        call for a value.
        """
        if callable(value):
            return value
        if not isinstance(value, str):
            return jinja.leaves(value, name)
        whole = jinja.single_expression(value)
        if whole is not None:
            return whole()
        return jinja.mapping(value, name) if value.lstrip().startswith("{") else jinja.leaf(value)


class Jinja:
    """Renders values of one operator."""

    def __init__(self, operator: Any, context: Any, env: jinja2.Environment, seen: set[int]) -> None:
        self.operator, self.context, self.env, self.seen = operator, context, env, seen

    def leaves(self, value: Any, path: str) -> Any:
        """The value with every text in it rendered. ``path``: of the value, for errors."""
        if id(value) in self.seen:
            return value
        if isinstance(value, Mapping):
            return {name: self.leaves(item, f"{path}.{name}") for name, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.leaves(item, f"{path}[{n}]") for n, item in enumerate(value))
        with naming_field(path, lambda: self.operator.run_of(self.context)):
            if isinstance(value, str):
                return self.leaf(value)
            return self.operator.render_template(value, self.context, self.env, self.seen)

    def mapping(self, text: str, path: str) -> Any:
        """The mapping that a text says, rendered. Any other text stays as it is: its reader refuses it."""
        try:
            value = as_mapping(text, "the field")
        except BadInput:
            return text
        return self.leaves(value, path)

    def leaf(self, text: str) -> Any:
        """A text, rendered. Only one single expression gives a native object; a text is never read as Python,
        which would make structure of it.
        """
        if not any(mark in text for mark in MARKS):
            return text
        if not isinstance(self.env, NativeEnvironment):
            return self.operator.render_template(text, self.context, self.env, self.seen)
        template = self.env.from_string(text)
        nodes = [*template.root_render_func(template.new_context(dict(self.context)))]
        return nodes[0] if len(nodes) == 1 else "".join(map(str, nodes))

    def single_expression(self, text: str) -> Any:
        """The function that gives the value of a text that is ``{{ ... }}`` and nothing else; None for other
        texts.
        """
        inner = text.strip()
        if not (inner.startswith("{{") and inner.endswith("}}")):
            return None
        try:
            evaluate = self.env.compile_expression(inner[2:-2].lstrip("-+").rstrip("-+"), False)
        except jinja2.TemplateSyntaxError:
            return None

        def value() -> Any:
            result = evaluate(dict(self.context))
            if isinstance(result, jinja2.Undefined):
                return str(result)
            return dict(result) if isinstance(result, Mapping) else result

        return value


def result_in(value: Any, field: str) -> Any:
    """The result of another task as a mapping, also where Jinja has made text of it; any other value as it
    is. Raises BadInput.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return as_mapping(value, field)
    return value


def is_list(value: Any) -> bool:
    """Return whether a rendered field holds several values: a list, or the output of a mapped task."""
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))


def uri_in(value: Any, field: str, example: str) -> str:
    """The uri that a rendered field names; the result of another task stands for its ``uri``. Raises
    BadInput.
    """
    uri = result_in(value, field)
    if isinstance(uri, Mapping):
        uri = uri.get("uri")
    if not isinstance(uri, str) or uri.strip() in ("", "None"):
        raise BadInput(f"{field}: {uri!r} names no place; give {example}")
    return uri.strip()
