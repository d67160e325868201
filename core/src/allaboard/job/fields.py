"""Reading one value by its type: a small interpreter of the vocabulary in `allaboard.job.training_job`.

A field is ``Annotated[type, kind, doc]``. `read` returns the value in its plain form and appends every
problem, with its path; it never stops at the first. ``lenient`` also takes ``"4"`` and ``4.0`` for 4
(templating and kfp.local make such values).
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from allaboard.errors import Problem
from allaboard.job import gpus
from allaboard.text import units
from allaboard.text.expressions import MOST, trouble_with
from allaboard.text.names import (
    ANNOTATIONS_LIMIT,
    nearest,
    one_of,
    why_not_a_job_name,
    why_not_a_label_value,
    why_not_a_qualified_name,
    why_not_an_image,
    why_not_an_object_name,
)
from allaboard.text.untrusted import SpelledFloat, SpelledInt, plain_number, show, spelled

_VARIABLE = re.compile(r"[A-Za-z_.\-][A-Za-z0-9_.\-]*")

_FIELD_OF_SOURCE = {
    "persistentVolumeClaim": "pvc",
    "emptyDir": "empty_dir",
    "ephemeral": "ephemeral",
    "hostPath": "host_path",
}
VOLUME_SOURCES = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI",
    "fc", "flexVolume", "gcePersistentDisk", "glusterfs", "image", "iscsi", "nfs", "photonPersistentDisk",
    "portworxVolume", "projected", "quobyte", "rbd", "scaleIO", "secret", "storageos", "vsphereVolume",
)  # fmt: skip
"""Sources of a volume (core/v1, VolumeSource), without those that have a field of their own."""
MEMBERS_MAX = 10_000
"""Members of one job. Each is a process here and a pod with its records there."""
GPUS_MAX = 1_000
COUNT_MAX = 2**31 - 1
"""Largest number in a counter of Kubernetes (int32)."""
EXPRESSION_LIMIT = 10 * 1024
"""Bytes of a CEL expression (resource.k8s.io/v1: CELSelectorExpressionMaxLength)."""
LONGEST_TEXT = 4_096
"""Bytes of a name, a path or a uri."""
LONGEST_WORD = 128 * 1024 - 1
"""Bytes of one argument, or of one variable with its name: what Linux hands to a process."""
LONGEST_PART = 255
"""Bytes of one part of a path."""


@cache
def hints(kind: type) -> dict[str, Any]:
    """The annotated fields of one typed dictionary, evaluated once."""
    return get_type_hints(kind, include_extras=True)


def parts(hint: Any) -> tuple[Any, str, str]:
    """(type, kind, doc) of an annotated field."""
    base, kind, doc = get_args(hint)[:3]
    return base, kind, doc


def example_of(hint: Any) -> Any:
    """A right value of an annotated field; None where its fields are explained one by one."""
    return (*get_args(hint)[3:], None)[0]


def default_of(hint: Any) -> str:
    """Description of a field's default; empty if an absent field means nothing."""
    return str((*get_args(hint)[4:], "")[0])


MOST_PROBLEMS = 200
"""Problems of a job that are told one by one: a file of thousands is no job."""


_OF_PODS = (
    "affinity", "dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "initContainers", "nodeName",
    "nodeSelector", "priorityClassName", "runtimeClassName", "schedulerName", "securityContext",
    "serviceAccountName", "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints",
)  # fmt: skip
_ELSEWHERE = {
    **{name: f"; of its pods it is pod.metadata.{name}" for name in ("labels", "annotations")},
    **{name: f"; of its pods it is pod.spec.{name}" for name in _OF_PODS},
}
"""Fields of Kubernetes that people write into a job -> where a job has them."""


_LIST_OR_FIELDS = {"code": "paths", "packages": "requirements"}
"""Kind of a field that is a list or, in its place, fields -> the kind of the list."""


def _fields_in(base: Any) -> Any:
    """The typed dictionary of a field that is a list or fields."""
    return next(option for option in get_args(base) if is_typeddict(option))


class Reader:
    """Reads values; collects problems."""

    def __init__(self, lenient: bool = False) -> None:
        self.lenient = lenient
        self.problems: list[Problem] = []
        self.more = 0

    def wrong(
        self,
        path: str,
        message: str,
        severity: str = "error",
        *,
        meant: tuple[Any, Iterable[str]] | None = None,
    ) -> None:
        """``meant``: a word, and those that it may stand for."""
        if len(self.problems) >= MOST_PROBLEMS:
            self.more += 1
            return
        word, known = meant or (None, ())
        hint = nearest(word, known) if isinstance(word, str) else None
        self.problems.append(Problem(path, message, hint, severity))

    def every_problem(self) -> list[Problem]:
        """All of them; of very many the first, and how many more there are."""
        left_out = [Problem("", f"and {self.more:,} more problems")] if self.more else []
        return [*self.problems, *left_out]

    def mapping(self, kind: type, value: Any, path: str) -> dict[str, Any]:
        """A typed dictionary's fields, known ones in the order of the dictionary."""
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected fields ({one_of(hints(kind))}), not {_show_value(value)}")
            return {}
        known = hints(kind)
        for name in value:
            if not isinstance(name, str):
                self.wrong(path, f"the field's name {_show_value(name)} is not text; quote it")
            elif name not in known:
                elsewhere = "" if path else _ELSEWHERE.get(name, "")
                self.wrong(_at(path, name), f"no such field{elsewhere}", meant=(name, known))
        return {
            name: self.field(known[name], value[name], _at(path, name))
            for name in known
            if value.get(name) is not None
        }

    def field(self, hint: Any, value: Any, path: str) -> Any:
        base, kind, _ = parts(hint)
        if kind == "group":
            return self.mapping(base, value, path)
        if kind == "choice":
            return self.choice(get_args(base), value, path)
        if kind == "list":
            return self.items(get_args(base)[0], value, path)
        if kind == "groups":
            return self.groups(base, value, path)
        if kind in _LIST_OR_FIELDS and isinstance(value, Mapping):
            return self.mapping(_fields_in(base), value, path)
        kind = _LIST_OR_FIELDS.get(kind, kind)
        reader: Callable[[Any, str], Any] = getattr(self, f"_{kind}")
        return reader(value, path)

    def items(self, kind: type, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            self.wrong(path, f"expected a list, not {_show_value(value)}")
            return []
        return [self.mapping(kind, item, f"{path}[{n}]") for n, item in enumerate(value)]

    def choice(self, allowed: tuple[str, ...], value: Any, path: str) -> Any:
        # YAML 1.1 reads a bare `none`, `on` or `off` as text or truth; `never` and `none` must survive.
        if value is False and "off" in allowed:
            return "off"
        if value not in allowed:
            message = f"{_show_value(value)} is not known; known: {one_of(allowed)}"
            self.wrong(path, message, meant=(value, allowed))
        return value

    def groups(self, base: Any, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not value:
            self.wrong(
                path, f"expected members by role, like {{master: 1, worker: 2}}, not {_show_value(value)}"
            )
            return {}
        group = next(t for t in get_args(get_args(base)[1]) if is_typeddict(t))
        read: dict[str, Any] = {}
        for role, spec in value.items():
            if not isinstance(role, str):
                self.wrong(path, f"the field's name {_show_value(role)} is not text; quote it")
                continue
            at = _at(path, role)
            read[role] = (
                self.mapping(group, spec, at) if isinstance(spec, Mapping) else self._members(spec, at)
            )
        return read

    # One method per kind of plain value.

    def _text(self, value: Any, path: str) -> Any:
        if not isinstance(value, str) or not value.strip():
            self.wrong(path, f"expected text, not {_show_value(value)}{_quoted(value)}")
        elif len(value.encode(errors="surrogatepass")) > LONGEST_TEXT:
            self.wrong(path, f"{show(value)} has more than {LONGEST_TEXT} bytes")
        elif not value.isprintable() and any(_is_control(c) for c in value):
            self.wrong(path, f"{show(value)} holds a control character")
        return value

    def _place(self, value: Any, path: str) -> Any:
        """A folder, a file or a uri."""
        before = len(self.problems)
        self._text(value, path)
        if len(self.problems) == before and (reason := _why_not_a_place(value)):
            self.wrong(path, reason)
        return value

    def _path(self, value: Any, path: str) -> Any:
        if not isinstance(value, str) or not value.startswith("/"):
            self.wrong(path, f"expected an absolute path like /data, not {_show_value(value)}")
        elif ":" in value or not value.strip("/"):
            self.wrong(path, f"{show(value)} cannot be mounted; name a folder below /, without a colon")
        else:
            self._place(value, path)
        return value

    def _folder(self, value: Any, path: str) -> Any:
        """A folder of a disk, relative or absolute."""
        before = len(self.problems)
        self._place(value, path)
        if len(self.problems) == before and "://" in value:
            self.wrong(path, f"{show(value)} is not a folder of a disk; write it like out, or /scratch/out")
        return value

    def _by_rule(self, rule: Callable[[str], str | None], value: Any, path: str) -> Any:
        if not isinstance(value, str) or not value:
            self.wrong(path, f"expected text, not {_show_value(value)}{_quoted(value)}")
        elif reason := rule(value):
            self.wrong(path, reason)
        return value

    def _job_name(self, value: Any, path: str) -> Any:
        return self._by_rule(why_not_a_job_name, value, path)

    def _image(self, value: Any, path: str) -> Any:
        return self._by_rule(why_not_an_image, value, path)

    def _object(self, value: Any, path: str) -> Any:
        return self._by_rule(why_not_an_object_name, value, path)

    def _queue(self, value: Any, path: str) -> Any:
        # Queues are named by labels, too.
        return self._by_rule(lambda name: why_not_an_object_name(name, 63), value, path)

    def _domain(self, value: Any, path: str) -> Any:
        return self._by_rule(why_not_a_qualified_name, value, path)

    def _gpu_type(self, value: Any, path: str) -> Any:
        return self._by_rule(_why_not_a_gpu_type, value, path)

    def _mig(self, value: Any, path: str) -> Any:
        if not isinstance(value, str) or not value:
            self.wrong(path, f"expected text, not {_show_value(value)}{_quoted(value)}")
        elif problem := gpus.profile_problem(value, path):
            self.problems.append(problem)
        return value

    def _expression(self, value: Any, path: str) -> Any:
        """CEL, which the API server compiles."""
        if not isinstance(value, str) or not value.strip():
            self.wrong(path, f"expected a CEL expression, not {_show_value(value)}{_quoted(value)}")
        elif len(value.encode(errors="surrogatepass")) > EXPRESSION_LIMIT:
            self.wrong(path, f"has more than the {EXPRESSION_LIMIT // 1024} KiB that Kubernetes takes")
        return value

    def _progress(self, value: Any, path: str) -> Any:
        if value is False:  # YAML 1.1 reads a bare `off` as one
            value = "off"
        if not isinstance(value, str):
            self.wrong(
                path, f"expected a regular expression or off, not {_show_value(value)}{_quoted(value)}"
            )
        elif value != "off" and (trouble := trouble_with(value, "step")) is not None:
            self.wrong(path, f"{trouble}; or write off")
        return value

    def _devices(self, value: Any, path: str) -> Any:
        """Numbers of devices by the names under which nodes offer them."""
        if not isinstance(value, Mapping):
            message = "expected numbers by name, like {rdma/hca_shared_devices_a: 1}"
            self.wrong(path, f"{message}, not {_show_value(value)}")
            return {}
        read = {}
        for name, number in value.items():
            if not isinstance(name, str):
                self.wrong(path, f"the field's name {_show_value(name)} is not text; quote it")
                continue
            at = _at(path, name)
            if reason := gpus.why_not_a_device(name):
                self.wrong(at, reason)
            read[name] = self._count(number, at, 1, GPUS_MAX)
        return read

    def _bool(self, value: Any, path: str) -> Any:
        if self.lenient and isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            self.wrong(path, f"expected true or false, not {_show_value(value)}")
        return value

    def _count0(self, value: Any, path: str) -> Any:
        return self._count(value, path, 0)

    def _count1(self, value: Any, path: str) -> Any:
        return self._count(value, path, 1)

    def _limit(self, value: Any, path: str) -> Any:
        if isinstance(value, str) and not (self.lenient and isinstance(as_int(value), int)):
            return self.choice(("unlimited",), value, path)
        return self._count(value, path, 0)

    def _labels(self, value: Any, path: str) -> Any:
        return self._marks(value, path, why_not_a_label_value)

    def _annotations(self, value: Any, path: str) -> Any:
        read = self._marks(value, path, lambda text: None)
        if sum(len(f"{k}{v}".encode(errors="surrogatepass")) for k, v in read.items()) > ANNOTATIONS_LIMIT:
            self.wrong(path, "are more than the 256 KiB that Kubernetes keeps")
        return read

    def _marks(self, value: Any, path: str, rule: Callable[[str], str | None]) -> Any:
        """Labels or annotations of an object."""
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected names and text, like {{team: vision}}, not {_show_value(value)}")
            return {}
        read = {}
        for name, text in value.items():
            if not isinstance(name, str):
                self.wrong(path, f"the field's name {_show_value(name)} is not text; quote it")
                continue
            at = _at(path, name)
            if name.startswith("allaboard.io/"):
                self.wrong(at, "allaboard finds its objects by this; take it out")
            elif reason := why_not_a_qualified_name(name):
                self.wrong(at, reason)
            elif not isinstance(text, str):
                self.wrong(at, f"expected text, not {_show_value(text)}{_quoted(text)}")
            elif reason := rule(text):
                self.wrong(at, reason)
            read[name] = text
        return read

    def _members(self, value: Any, path: str) -> Any:
        return self._count(value, path, 1, MEMBERS_MAX)

    def _gpus(self, value: Any, path: str) -> Any:
        return self._count(value, path, 0, GPUS_MAX)

    def _count(self, value: Any, path: str, least: int, most: int = COUNT_MAX) -> Any:
        if self.lenient:
            value = as_int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(path, f"expected a whole number, not {_show_value(value)}")
            return value
        if value < least:
            self.wrong(path, f"{_show_value(value)} is too few; give {least} or more")
        elif value > most:
            self.wrong(path, f"{_show_value(value)} is too many; give {most} or fewer")
        elif isinstance(value, SpelledInt):
            self._misread(value, path)
        return plain_number(value)

    def _misread(self, value: int | float, path: str) -> None:
        """A number that stands for another one than people read: ``012`` is ten."""
        if spelled(value).lstrip("+-").startswith("0") and value:
            self.wrong(
                path,
                f"{spelled(value)} means {plain_number(value)} in YAML; write {plain_number(value)}",
                severity="warning",
            )

    def _duration(self, value: Any, path: str) -> Any:
        return self._by(units.seconds, value, path)

    def _size(self, value: Any, path: str) -> Any:
        return self._by(units.size, value, path)

    def _cores(self, value: Any, path: str) -> Any:
        before = len(self.problems)
        value = self._by(units.cores, value, path)
        if len(self.problems) == before and units.cores(value) == 0:
            self.wrong(path, "0 cores cannot run anything; give more, or leave cpu out")
        return value

    def _every(self, value: Any, path: str) -> Any:
        if self.lenient:
            value = as_int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._count(value, path, 1, 10**12)
        return self._by(units.seconds, value, path)

    def _patience(self, value: Any, path: str) -> Any:
        if value is False:  # YAML 1.1 reads a bare `off` as one
            value = "off"
        if isinstance(value, str) and not value[:1].isdigit():
            return self.choice(("auto", "off"), value, path)
        before = len(self.problems)
        value = self._by(units.seconds, value, path)
        if len(self.problems) == before and units.seconds(value) <= 0:
            self.wrong(path, "0 is no time to make progress in; give more, like 10m, or off")
        return value

    def _processes(self, value: Any, path: str) -> Any:
        if self.lenient:
            value = as_int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._count(value, path, 1, MEMBERS_MAX)
        return self.choice(("auto", "cpu", "gpu"), value, path)

    def _by(self, parse: Callable[[Any], Any], value: Any, path: str) -> Any:
        try:
            if not isinstance(value, (str, int, float)):
                raise ValueError(f"expected a number with a unit, not {_show_value(value)}")
            parse(value)
        except ValueError as error:
            self.wrong(path, str(error))
        return plain_number(value) if isinstance(value, (SpelledInt, SpelledFloat)) else value

    def _command(self, value: Any, path: str) -> Any:
        if isinstance(value, str):
            self.wrong(path, f"expected a list of words, not text; write {_as_list(value)}")
            return value
        if not isinstance(value, list) or not value:
            self.wrong(
                path,
                f"expected a program and its arguments, like [python, train.py], not {_show_value(value)}",
            )
            return value
        return [self._word(word, f"{path}[{n}]") for n, word in enumerate(value)]

    def _args(self, value: Any, path: str) -> Any:
        if isinstance(value, str):
            self.wrong(path, f"expected a list of words, not text; write {_as_list(value)}")
            return value
        if not isinstance(value, list):
            self.wrong(path, f"expected arguments, like [--epochs=20], not {_show_value(value)}")
            return value
        return [self._word(word, f"{path}[{n}]") for n, word in enumerate(value)]

    def _word(self, value: Any, path: str) -> Any:
        return self._spelled(value, path, "")

    def _spelled(self, value: Any, path: str, name: str) -> Any:
        """Text, or a number as its author wrote it; ``name``: of the variable that holds it."""
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            self.wrong(path, f"expected text, not {_show_value(value)}{_quoted(value)}")
            return value
        if isinstance(value, (SpelledInt, SpelledFloat)):
            self.wrong(
                path,
                f"{spelled(value)} is taken as it is written, and other tools read {plain_number(value)}; "
                f'quote it: "{spelled(value)}"',
                severity="warning",
            )
        text = value if isinstance(value, str) else _number_text(value)
        if len(text.encode(errors="surrogatepass")) + len(name) > LONGEST_WORD:
            self.wrong(path, f"has {len(text)} characters; a process takes {LONGEST_WORD} bytes at once")
        return text

    def _digest(self, value: Any, path: str) -> Any:
        if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
            self.wrong(path, f"expected 64 hexadecimal digits, not {_show_value(value)}")
        return value

    def _requirements(self, value: Any, path: str) -> Any:
        if not isinstance(value, list) or not value:
            self.wrong(path, f"expected packages, like [einops==0.8.0], not {_show_value(value)}")
            return []
        for n, item in enumerate(value):
            before = len(self.problems)
            self._text(item, f"{path}[{n}]")
            if len(self.problems) == before and (reason := _why_not_a_requirement(item)):
                self.wrong(f"{path}[{n}]", reason)
        return value

    def _index(self, value: Any, path: str) -> Any:
        return self._by_rule(lambda url: _why_not_a_url(url, ("https", "http")), value, path)

    def _repository(self, value: Any, path: str) -> Any:
        return self._by_rule(_why_not_a_repository, value, path)

    def _ref(self, value: Any, path: str) -> Any:
        return self._by_rule(_why_not_a_ref, value, path)

    def _commit(self, value: Any, path: str) -> Any:
        return self._by_rule(_why_not_a_commit, value, path)

    def _paths(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            self.wrong(path, f"expected a list of files, not {_show_value(value)}")
            return []
        return [self._file(item, f"{path}[{n}]") for n, item in enumerate(value)]

    def _file(self, value: Any, path: str) -> Any:
        before = len(self.problems)
        self._place(value, path)
        if len(self.problems) == before and (value.startswith("/") or ".." in value.split("/")):
            self.wrong(
                path,
                f"{show(value)} is not below the job's folder; what is shipped keeps its place, so put it "
                "there",
            )
        return value

    def _environment(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected variables, like {{NCCL_DEBUG: WARN}}, not {_show_value(value)}")
            return {}
        read = {}
        for name, text in value.items():
            if isinstance(name, str):
                read[name] = self._variable(name, text, _at(path, name))
            else:
                self.wrong(path, f"the field's name {_show_value(name)} is not text; quote it")
        return read

    def _variable(self, name: str, value: Any, path: str) -> Any:
        if not _VARIABLE.fullmatch(name) or len(name) > LONGEST_PART:
            self.wrong(path, f"{show(name)} is not a legal variable name")
        if value is None:
            self.wrong(path, 'expected text, not nothing; write "" for an empty one')
            return value
        return self._spelled(value, path, name)

    def _any(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected fields of a pod template, not {_show_value(value)}")
            return {}
        return self._plain(value, path)

    def _source(self, value: Any, path: str) -> Any:
        """A volume's source as Kubernetes has it: one kind with its fields."""
        like = "like {nfs: {server: nas, path: /sets}}"
        if not isinstance(value, Mapping) or len(value) != 1:
            given = _show_value(value) if not isinstance(value, Mapping) else f"{len(value)} of them"
            self.wrong(path, f"expected one kind of volume, {like}, not {given}")
            return {}
        ((kind, inner),) = value.items()
        at = _at(path, str(kind))
        if kind in _FIELD_OF_SOURCE:
            self.wrong(at, f"is a field of its own: say {_FIELD_OF_SOURCE[kind]} in its place")
        elif kind not in VOLUME_SOURCES:
            self.wrong(
                at,
                f"no such kind of volume; known: {one_of(VOLUME_SOURCES)}",
                meant=(str(kind), VOLUME_SOURCES),
            )
        elif not isinstance(inner, Mapping):
            self.wrong(at, f"expected its fields, {like}, not {_show_value(inner)}")
        return self._plain(value, path)

    def _plain(self, value: Any, path: str) -> Any:
        """A value that goes to the cluster unchanged: numbers stay numbers, and null removes a field."""
        if isinstance(value, Mapping):
            return {str(k): self._plain(v, _at(path, str(k))) for k, v in value.items()}
        if isinstance(value, list):
            return [self._plain(v, f"{path}[{n}]") for n, v in enumerate(value)]
        if isinstance(value, (SpelledInt, SpelledFloat)):
            self._misread(value, path)
            return plain_number(value)
        return value


def _is_control(character: str) -> bool:
    return character < " " or "\x7f" <= character <= "\x9f"


def _why_not_a_place(value: str) -> str | None:
    longest = max(value.split("/"), key=len)
    if len(longest.encode(errors="surrogatepass")) > LONGEST_PART:
        return f"{show(longest)} has more than the {LONGEST_PART} bytes that a part of a path may have"
    return None


def _why_not_a_gpu_type(value: str) -> str | None:
    label, sign, kind = value.rpartition("=")
    if sign and why_not_a_qualified_name(label):
        return why_not_a_qualified_name(label)
    if why_not_a_label_value(kind) or not kind:
        message = "is not a label value; write what the node says, like NVIDIA-H100-80GB-HBM3, or label=value"
        return f"{show(value)} {message}"
    return None


def _quoted(value: Any) -> str:
    """The hint for missing quotes."""
    if isinstance(value, bool):
        return "; quote it (yes, no, on, off, true and false are truth values in YAML)"
    return "; quote it" if value is None or isinstance(value, (int, float)) else ""


def _number_text(value: int | float) -> str:
    try:
        return spelled(value)
    except ValueError:  # too many digits, which is reported already
        return ""


def as_int(value: Any) -> Any:
    """4 for ``"4"``, ``" 4 "`` and ``4.0``; everything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and len(value) < 40 and re.fullmatch(r"\s*[+-]?\d+(\.0+)?\s*", value):
        return int(value.partition(".")[0])
    return value


def json_type(hint: Any, describe: Callable[[type], dict[str, Any]]) -> dict[str, Any]:
    """The JSON Schema of an annotated field; ``describe`` gives that of a typed dictionary."""
    base, kind, doc = parts(hint)
    example = example_of(hint)
    return {
        **_SCHEMAS.get(kind, lambda b, d: _schema_of(b, d))(base, describe),
        "description": doc,
        **({} if example is None else {"examples": [example]}),
    }


def _schema_of(base: Any, describe: Callable[[type], dict[str, Any]]) -> dict[str, Any]:
    if is_typeddict(base):
        return describe(base)
    if get_origin(base) is Literal:
        return {"enum": list(get_args(base))}
    if get_origin(base) is list:
        return {"type": "array", "items": _schema_of(get_args(base)[0], describe)}
    if get_origin(base) is dict:
        return {"type": "object", "additionalProperties": _schema_of(get_args(base)[1], describe)}
    if get_origin(base) in (Union, types.UnionType):
        return {"anyOf": [_schema_of(t, describe) for t in get_args(base)]}
    return dict(_PLAIN.get(base, {}))


_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
_SCHEMAS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "count0": lambda base, describe: {"type": "integer", "minimum": 0, "maximum": COUNT_MAX},
    "count1": lambda base, describe: {"type": "integer", "minimum": 1, "maximum": COUNT_MAX},
    "members": lambda base, describe: {"type": "integer", "minimum": 1, "maximum": MEMBERS_MAX},
    "gpus": lambda base, describe: {"type": "integer", "minimum": 0, "maximum": GPUS_MAX},
    "devices": lambda base, describe: {
        "type": "object",
        "additionalProperties": {"type": "integer", "minimum": 1, "maximum": GPUS_MAX},
    },
    "expression": lambda base, describe: {
        "type": "string",
        "minLength": 1,
        "maxLength": EXPRESSION_LIMIT,
    },
    "progress": lambda base, describe: {"type": "string", "minLength": 1, "maxLength": MOST},
    "object": lambda base, describe: {"type": "string", "maxLength": 253},
    "queue": lambda base, describe: {"type": "string", "maxLength": 63},
    "job_name": lambda base, describe: {
        "type": "string",
        "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$",
        "maxLength": 40,
    },
    "path": lambda base, describe: {"type": "string", "pattern": "^/"},
    "commit": lambda base, describe: {"type": "string", "pattern": "^[0-9a-f]{40}$"},
    "digest": lambda base, describe: {"type": "string", "pattern": "^[0-9a-f]{64}$"},
    "code": lambda base, describe: _list_or_fields(base, describe),
    "packages": lambda base, describe: _list_or_fields(base, describe),
    "source": lambda base, describe: {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "properties": {kind: {"type": "object"} for kind in VOLUME_SOURCES},
        "additionalProperties": False,
    },
    "command": lambda base, describe: {
        "type": "array",
        "items": {"type": ["string", "number"]},
        "minItems": 1,
    },
    "args": lambda base, describe: {"type": "array", "items": {"type": ["string", "number"]}},
    "limit": lambda base, describe: {
        "anyOf": [{"enum": ["unlimited"]}, {"type": "integer", "minimum": 0, "maximum": COUNT_MAX}]
    },
    "environment": lambda base, describe: {
        "type": "object",
        "additionalProperties": {"type": ["string", "number"]},
    },
    "groups": lambda base, describe: {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MEMBERS_MAX},
                describe(next(t for t in get_args(get_args(base)[1]) if is_typeddict(t))),
            ]
        },
    },
    "processes": lambda base, describe: {
        "anyOf": [{"enum": ["auto", "cpu", "gpu"]}, {"type": "integer", "minimum": 1}]
    },
    "patience": lambda base, describe: {
        "anyOf": [
            {"enum": ["auto", "off"]},
            {"type": "number", "exclusiveMinimum": 0},
            {"type": "string", "pattern": "^[0-9]"},
        ]
    },
    "every": lambda base, describe: {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]},
}


_REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]{0,254}")
_SCP = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^\s:][^\s]*")


def _why_not_a_url(url: str, schemes: tuple[str, ...]) -> str | None:
    """None for an address without a password, else the reason."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in schemes or not rest.strip("/") or len(url) > LONGEST_TEXT:
        return f"{show(url)} is not an address that members can read; begin with {one_of(schemes)}"
    if any(c.isspace() or _is_control(c) for c in url):
        return f"{show(url)} holds a blank or a control character; write it as %20"
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        return "holds a password, which would be in every record; leave it out, and name a secret"
    return None


def _why_not_a_repository(url: str) -> str | None:
    if _SCP.fullmatch(url):
        return None
    return _why_not_a_url(url, ("https", "http", "ssh", "file"))


def _why_not_a_ref(ref: str) -> str | None:
    if _REF.fullmatch(ref) and ".." not in ref and "@{" not in ref and not ref.endswith((".lock", "/", ".")):
        return None
    return f"{show(ref)} is not the name of a branch or a tag"


def _why_not_a_commit(commit: str) -> str | None:
    if re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    return f"{show(commit)} is not a commit; give all 40 hexadecimal digits, or a branch or tag as ref"


def _why_not_a_requirement(line: str) -> str | None:
    """None for a line of a requirements file that names a package, with hashes or not; else the reason."""
    package, *options = re.split(r"\s+--", line.strip())
    hashes = [re.fullmatch(r"hash=sha\d{3}:[0-9a-f]{64,128}", option) for option in options]
    if package.startswith("-") or not all(hashes):
        return f"{show(line)} is not a package; write it like einops==0.8.0, after it --hash=sha256:... alone"
    if package.startswith("#"):
        return f"{show(line)} is a comment; leave it out"
    if "://" in package and ":" in package.partition("://")[2].partition("/")[0].rpartition("@")[0]:
        return "holds a password, which would be in every record; leave it out"
    return None


def _at(path: str, name: str) -> str:
    shown = show(name, quote=False)
    return f"{path}.{shown}" if path else shown


def _list_or_fields(base: Any, describe: Callable[[type], dict[str, Any]]) -> dict[str, Any]:
    """Schema of a list of text or, in its place, fields."""
    return {"anyOf": [{"type": "array", "items": {"type": "string"}}, describe(_fields_in(base))]}


def _show_value(value: Any) -> str:
    """Any value in a message, short, without what a terminal would obey."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return show(value)
    if isinstance(value, (Mapping, list, tuple)):
        return (
            f"{'fields' if isinstance(value, Mapping) else 'a list'}" if len(value) > 20 else _shorten(value)
        )
    return _shorten(value)


def _shorten(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a foreign __repr__, or a number with too many digits
        return f"a {type(value).__name__}"
    return show(text, quote=False)


def _as_list(text: str) -> str:
    import shlex

    try:
        arguments = shlex.split(text[:200])
    except ValueError:
        arguments = text[:200].split()
    return "[" + ", ".join(w if re.fullmatch(r"[\w./=-]+", w) else repr(w) for w in arguments) + "]"
