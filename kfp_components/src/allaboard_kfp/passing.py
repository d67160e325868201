"""Passing of the arguments of a component to its task, while a pipeline is made.

An artifact in the place of a uri becomes the input that takes one. A parameter of the pipeline that stands
inside a mapping, a list or a text becomes an input of its own (`allaboard_kfp.parameters`). A value that
Kubeflow cannot hold is refused, with the field's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from kfp.dsl import for_loop, pipeline_channel, structures
from kfp.dsl.pipeline_context import Pipeline
from kfp.dsl.types import type_utils

from allaboard.errors import BadInput
from allaboard.text.untrusted import show
from allaboard_kfp.parameters import PREFIX, WHOLE, mark

ARTIFACT = "_artifact"
"""``checkpoint_artifact`` is the input that takes the artifact which is given as ``checkpoint``."""
REQUIRED = frozenset({"checkpoint", "source"})
"""Of those, the ones without which nothing can be done. For kfp both are optional."""
EXACT = 2**53
"""Numbers of Kubeflow are doubles: beyond this a whole number may become its neighbour."""
TEXTS = frozenset({"args", "annotations", "command", "env", "environment", "labels", "node_selector"})
"""Fields that hold text: a number or a truth that stands in one becomes its text."""
_TYPES = {
    bool: type_utils.BOOLEAN, int: type_utils.NUMBER_INTEGER, float: type_utils.NUMBER_DOUBLE,
    str: type_utils.STRING, list: type_utils.LIST, dict: type_utils.STRUCT,
}  # fmt: skip
_NAMES = {
    type_utils.BOOLEAN: "Boolean", type_utils.NUMBER_INTEGER: "Integer", type_utils.NUMBER_DOUBLE: "Float",
    type_utils.STRING: "String", type_utils.LIST: "List", type_utils.STRUCT: "Dict",
}  # fmt: skip
"""Names that kfp gives the types of its inputs in a component."""


def passed(
    spec: structures.ComponentSpec, arguments: Mapping[str, Any]
) -> tuple[structures.ComponentSpec, dict[str, Any]]:
    """The component's spec with the inputs that these arguments need, and the arguments for it. Raises
    BadInput for what Kubeflow cannot hold, TypeError for what is missing, as kfp does.
    """
    given = dict(_placed(spec, name, value) for name, value in arguments.items())
    for name in (name.removesuffix(ARTIFACT) for name in spec.inputs if name.endswith(ARTIFACT)):
        if {name, f"{name}{ARTIFACT}"} <= {*given}:
            raise BadInput(f"{spec.name}: both {name} and {name}{ARTIFACT} are given; give one of them")
        if name in REQUIRED and not {name, f"{name}{ARTIFACT}"} & {*given}:
            raise TypeError(f"{spec.name}() missing 1 required argument: {name}.")
    inputs = _Inputs()
    given = {name: _argument(spec, name, value, inputs) for name, value in given.items()}
    more = {
        name: structures.InputSpec(type=kind, description=description)
        for name, kind, description in inputs.specs()
    }
    return replace(spec, inputs={**spec.inputs, **more}) if more else spec, {**given, **inputs.channels}


def _placed(spec: structures.ComponentSpec, name: str, value: Any) -> tuple[str, Any]:
    """The input that takes an argument, which is another one for an artifact; that of an importer is its
    uri.
    """
    if isinstance(value, pipeline_channel.PipelineArtifactChannel) and f"{name}{ARTIFACT}" in spec.inputs:
        importer = getattr(value.task, "importer_spec", None)
        if importer is not None:  # the launcher would download all of it, to tell us what we know
            return name, importer.artifact_uri
        return f"{name}{ARTIFACT}", value
    return name, value


def _argument(spec: structures.ComponentSpec, name: str, value: Any, inputs: _Inputs) -> Any:
    if isinstance(value, pipeline_channel.PipelineChannel):
        kind = _ir_type(spec.inputs[name].type) if name in spec.inputs else None
        if kind in (type_utils.STRUCT, type_utils.LIST) and _is_untyped_item(value):
            # The driver writes it as the JSON of its value, and refuses to give that to a mapping.
            held = mark(inputs.name_of(value, name), "json")
            return {WHOLE: held} if kind == type_utils.STRUCT else [WHOLE, held]
        return value
    return _field(value, name, inputs, text=False, below=name in TEXTS)


def _field(value: Any, path: str, inputs: _Inputs, *, text: bool, below: bool) -> Any:
    """A value with a mark for each parameter of the pipeline in it. ``text``: it stands where text does, and
    ``below``: so does what it holds.
    """
    match value:
        case pipeline_channel.PipelineChannel():
            return inputs.mark(value, path, text=text)
        case str():
            return _text(value, path, inputs)
        case Mapping():
            return dict(_item(name, item, path, inputs, text=below) for name, item in value.items())
        case list() | tuple():
            return [
                _field(item, f"{path}[{n}]", inputs, text=below, below=below) for n, item in enumerate(value)
            ]
        case bool():
            return value
        case int() if abs(value) > EXACT and int(float(value)) != value:
            raise BadInput(
                f"{path}: {value} is not exact in Kubeflow, whose numbers are doubles; write it as text"
            )
        case float() if not math.isfinite(value):
            raise BadInput(f"{path}: {value} is no number of JSON; write it as text, or leave the field out")
        case int() | float():
            return value
        case None:
            raise BadInput(f"{path}: Kubeflow's inputs hold no null; leave the field out")
    raise BadInput(
        f"{path}: Kubeflow's inputs cannot hold {type(value).__name__}; give text, a number, true, "
        "false, a list, a mapping, or a parameter of the pipeline"
    )


def _item(name: Any, value: Any, path: str, inputs: _Inputs, *, text: bool) -> tuple[str, Any]:
    """One field of a mapping."""
    if isinstance(name, pipeline_channel.PipelineChannel):
        name = inputs.mark(name, path, text=True)
    elif not isinstance(name, str):
        raise BadInput(f"{path}: the field's name {show(repr(name))} is not text; quote it")
    at = f"{path}.{show(name, 80, quote=False)}"
    return _text(name, path, inputs), _field(value, at, inputs, text=text, below=text or name in TEXTS)


def _text(value: str, path: str, inputs: _Inputs) -> str:
    """A text with a mark for each parameter in it: what an f-string makes of one is a pattern of kfp's."""
    channels = pipeline_channel.extract_pipeline_channels_from_string(value)
    for parameter in sorted(channels, key=lambda channel: channel.pattern):
        value = value.replace(parameter.pattern, inputs.mark(_in_loop(parameter), path, text=True))
    return value


@dataclass
class _Inputs:
    """The inputs that a task gets for the parameters in its arguments: by name the channel and the place of
    the first one.
    """

    channels: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    names: dict[tuple[type, str], str] = field(default_factory=dict)

    def mark(self, channel: Any, path: str, *, text: bool) -> str:
        """The mark of a channel that stands at this path. Raises BadInput for an artifact."""
        if _ir_type(channel.channel_type) is None:
            raise BadInput(
                f"{path}: an artifact ({channel.full_name}) cannot stand inside another input; "
                "give the uri, which the step that made it has as an output parameter"
            )
        channel = _typed(channel)
        return mark(self.name_of(channel, path), "float" if _is_float(channel) else "any", text=text)

    def name_of(self, channel: Any, path: str) -> str:
        """The name of the input for this channel."""
        key = (type(channel), channel.pattern)
        if key not in self.names:
            base = name = PREFIX + re.sub(r"\W", "_", channel.full_name, flags=re.ASCII)
            number = 2
            while name in self.channels:
                name, number = f"{base}_{number}", number + 1
            self.names[key], self.channels[name], self.places[name] = name, channel, path
        return self.names[key]

    def specs(self) -> list[tuple[str, Any, str]]:
        """Name, type and description of each input."""
        return [
            (name, _NAMES[_ir_type(channel.channel_type)], f"what stands in {self.places[name]}")
            for name, channel in self.channels.items()
        ]


def _in_loop(channel: Any) -> Any:
    """The item of a loop that a text names. kfp takes it for a plain parameter, which leads nowhere."""
    pipeline = Pipeline.get_default_pipeline()
    for group in reversed(pipeline.groups if pipeline is not None else []):
        item = getattr(group, "loop_argument", None)
        if item is None:
            continue
        if channel.full_name == item.full_name:
            return item
        before = f"{item.full_name}{for_loop.LoopArgumentVariable.SUBVAR_NAME_DELIMITER}"
        if channel.full_name.startswith(before):
            return getattr(item, channel.full_name.removeprefix(before))
    return channel


def _typed(channel: Any) -> Any:
    """The channel with its type. kfp gives every field of the items of a constant list the type of the first
    one's first field.
    """
    if not isinstance(channel, for_loop.LoopArgumentVariable) or not channel.is_with_items_loop_argument:
        return channel
    items = [item for item in channel.items_or_pipeline_channel if isinstance(item, Mapping)]
    typed = copy(channel)
    kind = _kind(item.get(channel.subvar_name) for item in items)
    typed.channel_type = _NAMES[_TYPES.get(kind, type_utils.STRING)]
    return typed


def _is_float(channel: Any) -> bool:
    if isinstance(channel, for_loop.LoopParameterArgument) and channel.is_with_items_loop_argument:
        return _kind(channel.items_or_pipeline_channel) is float
    return bool(_ir_type(channel.channel_type) == type_utils.NUMBER_DOUBLE)


def _kind(values: Iterable[Any]) -> type:
    """The type of all these values; of several types `object`."""
    kinds = {type(value) for value in values}
    return float if kinds == {int, float} else kinds.pop() if len(kinds) == 1 else object


def _ir_type(kind: Any) -> Any:
    """One of kfp's constants for the types of parameters; None for an artifact's."""
    if not isinstance(kind, str):
        return None
    name = type_utils.get_parameter_type_name(kind) if type_utils.is_parameter_type(kind) else None
    return None if name is None else type_utils.get_parameter_type(kind)


def _is_untyped_item(channel: Any) -> bool:
    """Return whether this is an item of a loop over a list whose items have no type: kfp takes them for
    text.
    """
    items = (for_loop.LoopParameterArgument, for_loop.LoopArgumentVariable)
    return isinstance(channel, items) and _ir_type(channel.channel_type) == type_utils.STRING
