"""The Python reference: a page for each group of public modules, read from their source by griffe.

Nothing of ours is imported for it, so neither Airflow nor kfp need be there. A public name is one of
``__all__``, else one without an underscore that its module defines. It is told under the shortest path that
a package exports, wherever its definition lies.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import griffe

from tests.docs.site.markdown import contents, table
from tests.meta.source import DISTS

FOLDER = "reference/python"


@dataclass(frozen=True, slots=True)
class Section:
    """Names of one module: those given, else all that no section before has. Without a title it goes on
    with the section before.
    """

    title: str
    module: str
    names: tuple[str, ...] = ()
    classes_only: bool = False
    without_members: bool = False
    """A DAG file writes the arguments of these; Airflow calls their methods."""


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    title: str
    about: str
    sections: tuple[Section, ...]
    with_values: bool = False
    """The page also has the classes that results and fields are of."""


PAGES = (
    Page(
        "allaboard",
        "allaboard",
        "Run, follow and check a job from Python. [Examples](../../how-to/python.md); "
        "[what stays exact](../../contract.md#python).",
        (
            Section("Run, follow, check", "allaboard", ("run", "submit", "attach", "check")),
            Section("Progress from what a script prints", "allaboard.follow.printed"),
            Section("A job, and those of a sweep", "allaboard", ("TrainingJob", "grid")),
            Section("An outcome, an observation", "allaboard", ("Outcome", "Observation", "State")),
            Section("Errors", "allaboard.errors", classes_only=True),
        ),
        with_values=True,
    ),
    Page(
        "inside",
        "allaboard.inside",
        "Help for a training script: save and resume, read shards, report progress and metrics. "
        "[An example to run](../../tutorials/ml-engineer.md).",
        (
            Section("In a training script", "allaboard.inside"),
            Section(
                "Callbacks of libraries",
                "allaboard.inside",
                ("TrainerCallback", "LightningCallback", "AccelerateTracker"),
            ),
        ),
        with_values=True,
    ),
    Page(
        "data",
        "Checkpoints, shards, stores",
        "Read and write the files of runs from a program of your own. The commands `allaboard checkpoints` "
        "and `allaboard shards` call the same functions.",
        (
            Section("Checkpoints", "allaboard.checkpoints"),
            Section("Checkpoints of other libraries", "allaboard.checkpoints.foreign"),
            Section("Shards", "allaboard.shards"),
            Section("Stores", "allaboard.storage"),
        ),
    ),
    Page(
        "airflow",
        "allaboard_provider",
        "Operators, sensors and the rest of the Airflow provider. "
        "[How tasks use them](../../how-to/airflow.md); "
        "[what is tried again](../../files/provider/README.md#what-is-tried-again).",
        (
            Section("Operators", "allaboard_provider.operators", without_members=True),
            Section("Sensors", "allaboard_provider.sensors", without_members=True),
            Section("Retry policy", "allaboard_provider.retries", classes_only=True),
            Section("Exceptions of failed tasks", "allaboard_provider.errors", classes_only=True),
            Section("Hook", "allaboard_provider.hooks.allaboard", classes_only=True),
            Section("Triggers", "allaboard_provider.triggers.train", ("TrainingJobTrigger",), False, True),
            Section("", "allaboard_provider.triggers.jobs", ("JobTrigger",), False, True),
            Section("", "allaboard_provider.triggers.checkpoints", ("CheckpointTrigger",), False, True),
            Section(
                "Triggers of watchers",
                "allaboard_provider.triggers.assets",
                ("NewChampionTrigger", "NewCheckpointTrigger"),
            ),
            Section("Link to the page of a run", "allaboard_provider.links", ("TrainingLink",), False, True),
        ),
    ),
    Page(
        "kfp",
        "allaboard_kfp",
        "The components of Kubeflow Pipelines. [From an empty cluster to a green "
        "pipeline](../../how-to/kfp.md); [what a step "
        "does](../../files/kfp_components/README.md#what-a-step-does).",
        (Section("Components", "allaboard_kfp"),),
    ),
    Page(
        "testing",
        "allaboard.testing",
        "Builders and fakes for your own tests. A fake behaves like the backend or the cluster that it "
        "stands for.",
        (
            Section("Builders and fakes", "allaboard.testing"),
            Section("What every backend does", "allaboard.backends.base", classes_only=True),
        ),
    ),
    Page(
        "extending",
        "Extension points",
        "The names that an engine, a gang scheduler, a cause or a rule uses. [How each is "
        "written](../../extending.md).",
        (
            Section("An engine", "allaboard.engines", ("Engine",)),
            Section("", "allaboard.engines.kubeflow", ("KubeflowEngine",)),
            Section("A gang scheduler", "allaboard.gangs", ("Gang",)),
            Section("", "allaboard.gangs.base", ("GangPlan", "GangView")),
            Section("", "allaboard.gangs.placement", ("gang_places", "scheduler_message")),
            Section("A cause", "allaboard.diagnosis.rule", ("rule", "says", "Place")),
            Section("", "allaboard.diagnosis.finding", ("Finding", "Need", "Level")),
            Section("", "allaboard.diagnosis.complaints", ("complained",)),
            Section("", "allaboard.diagnosis.case", ("Case",)),
            Section("", "allaboard.diagnosis.reading", ("from_logs",)),
            Section("", "allaboard.diagnosis.logs", ("line_pattern",)),
            Section("What the doctor returns", "allaboard.diagnosis"),
            Section("A rule of lint", "allaboard.lint.rule", ("rule", "Hit")),
            Section("", "allaboard.lint.view", ("View",)),
            Section("What lint returns", "allaboard.lint"),
        ),
    ),
)
DUNDERS = ("__len__", "__iter__", "__call__", "__enter__")
"""Special methods that a page has where they have a docstring."""


# --- which names there are


@cache
def _modules() -> griffe.ModulesCollection:
    """All our modules, read and not imported."""
    loader = griffe.GriffeLoader(
        search_paths=[dist.source.parent for dist in DISTS],
        allow_inspection=False,
        extensions=griffe.load_extensions(),
    )
    for dist in DISTS:
        loader.load(dist.package)
    return loader.modules_collection


def found(path: str) -> griffe.Object:
    """The definition of what a user imports by this path. Raises KeyError, AliasResolutionError."""
    one = _modules()[path]
    if one.is_module and one.name in one.members:  # the package hands out the function, not its module
        one = one[one.name]
    return one.final_target if isinstance(one, griffe.Alias) else one


def public_names(module: str) -> list[str]:
    """The names of ``__all__``, in its order; else those that the module defines, or takes ``as`` their own
    name.
    """
    one = _modules()[module]
    if one.exports is not None:
        return [str(name) for name in one.exports]
    passed_on = re.findall(r"\bimport (\w+) as \1$", one.source, re.MULTILINE)
    return [
        name
        for name, member in one.members.items()
        if name[0] != "_" and (name in passed_on if member.is_alias else not member.is_module)
    ]


@cache
def headings() -> dict[str, list[tuple[str, list[str]]]]:
    """Page -> for each heading the public paths below it. A definition is in one place."""
    modules = {section.module for page in PAGES for section in page.sections}
    exported = {
        found(f"{module}.{name}").canonical_path: f"{module}.{name}"
        for module in sorted(modules, key=len, reverse=True)
        if _modules()[module].exports is not None
        for name in public_names(module)
    }
    seen: set[str] = set()
    pages: dict[str, list[tuple[str, list[str]]]] = {page.name: [] for page in PAGES}
    for page in PAGES:
        for section in page.sections:
            if section.title:
                pages[page.name].append((section.title, []))
            for name in section.names or public_names(section.module):
                one = found(f"{section.module}.{name}")
                if one.canonical_path in seen or (section.classes_only and not one.is_class):
                    continue
                seen.add(one.canonical_path)
                path = exported.get(one.canonical_path, f"{section.module}.{name}")
                pages[page.name][-1][1].append(path)
    for page in PAGES:
        if page.with_values:
            begun = [path for _, paths in pages[page.name] for path in paths]
            pages[page.name].append(("Values of their fields", [*_values(begun, seen)]))
    return pages


def _values(paths: Sequence[str], seen: set[str]) -> Iterator[str]:
    """The classes of ours that results and fields of these are of, and so on; ``seen`` gets them."""
    todo = [*paths]
    while todo:
        one = found(todo.pop(0))
        members = (
            [member for name, member in one.members.items() if name[0] != "_"] if one.is_class else [one]
        )
        for member in members:
            for name in _names_in(getattr(member, "returns", None) or getattr(member, "annotation", None)):
                kind = _of_ours(name.canonical_path)
                if isinstance(kind, griffe.Class) and kind.name[0] != "_" and kind.canonical_path not in seen:
                    seen.add(kind.canonical_path)
                    todo.append(kind.canonical_path)
                    yield kind.canonical_path


def _names_in(expression: griffe.Expr | str | None) -> list[griffe.ExprName]:
    parts = expression.iterate(flat=True) if isinstance(expression, griffe.Expr) else ()
    return [part for part in parts if isinstance(part, griffe.ExprName)]


def _of_ours(path: str) -> griffe.Object | None:
    """The definition, where it is in our source."""
    with suppress(KeyError, griffe.AliasResolutionError):
        return found(path)
    return None


@cache
def _paths() -> dict[str, str]:
    """Path of a definition, and each public path -> the public path; with the members that pages have."""
    paths: dict[str, str] = {}
    for sections in headings().values():
        for public in [path for _, names in sections for path in names]:
            one = found(public)
            members = [name for name in one.members if one.is_class and has_member(public, name)]
            for below in ["", *(f".{name}" for name in members)]:
                paths[f"{one.canonical_path}{below}"] = paths[f"{public}{below}"] = f"{public}{below}"
    return paths


def has_member(path: str, name: str) -> bool:
    """Whether the page of this class has the member: what is public and has a docstring, properties, and the
    values of an Enum.
    """
    one = found(path)
    member = one.members[name]
    hidden = any(section.without_members and path.startswith(f"{section.module}.") for section in _SECTIONS)
    if hidden or member.is_alias or (name[0] == "_" and name not in DUNDERS):
        return False
    if isinstance(member, griffe.Attribute) and (_is_enum(one) or "property" in member.labels):
        return True
    return member.docstring is not None and not member.is_class


_SECTIONS = [section for page in PAGES for section in page.sections]


# --- the pages


def pages() -> dict[str, str]:
    """Path -> page: an index, and one for each of `PAGES`."""
    made = {f"{FOLDER}/{page.name}.md": "\n".join(_page(page)) for page in PAGES}
    return {f"{FOLDER}/index.md": "\n".join(_index()), **made}


def _index() -> Iterator[str]:
    yield from [
        "# Python",
        "",
        "The public names, their arguments, results and errors, read from the source.",
        "",
    ]
    rows = [(f"[{page.title}]({page.name}.md)", page.about.partition(" [")[0]) for page in PAGES]
    yield from table(("Page", "For"), rows)
    yield from contents(page.name for page in PAGES)


def _page(page: Page) -> Iterator[str]:
    yield from [f"# {page.title}", "", page.about, ""]
    for title, paths in headings()[page.name]:
        yield from [f"## {title}", ""]
        for path in paths:
            yield from entry(path)


def entry(path: str) -> Iterator[str]:
    one = found(path)
    canonical = [f":canonical: {one.canonical_path}"] if one.canonical_path != path else []
    called = _component(one) or one
    if isinstance(called, griffe.Function):
        signature = f"{path}{_signature(called)}{_result(one)}"
        yield from _directive("function", signature, canonical, _docstring(called, path))
    elif isinstance(one, griffe.Class):
        kind = "exception" if _is_exception(one) else "class"
        signature = path if _is_enum(one) else path + _signature(one)
        yield from _directive(kind, signature, canonical, [*_class(one, path)])
    else:
        yield from _directive("data", path, [*canonical, *_type_of(one)], _docstring(one, path))


def _class(one: griffe.Class, path: str) -> Iterator[str]:
    bases = [*_bases(one)]
    above = [public for base in bases if (public := _paths().get(base.canonical_path))]
    if above:
        yield from [f"A {', '.join(_link(public.rpartition('.')[2], public) for public in above)}.", ""]
    yield from _docstring(one, path)
    if "__init__" in one.members:
        yield from _docstring(one.members["__init__"], path)
    for base in bases:  # what no page has, and takes arguments that are this one's, too
        if base.canonical_path not in _paths() and "__init__" in base.members:
            yield from _docstring(base, path)
    for name, member in one.members.items():
        if not has_member(path, name):
            continue
        text = _docstring(member, path)
        if isinstance(member, griffe.Function):
            marks = [f":{mark}:" for mark in ("classmethod", "staticmethod") if mark in member.labels]
            yield from _directive("method", f"{name}{_signature(member)}{_result(member)}", marks, text)
        elif isinstance(member, griffe.Attribute):
            kind = "property" if "property" in member.labels else "attribute"
            value = [f":value: {member.value}"] if _is_enum(one) and member.value is not None else []
            yield from _directive(kind, name, [*_type_of(member), *value], text)


def _bases(one: griffe.Class) -> Iterator[griffe.Class]:
    """The classes of ours that it extends."""
    for base in one.bases:
        above = _of_ours(base.canonical_path if isinstance(base, griffe.Expr) else base)
        if isinstance(above, griffe.Class):
            yield above


def _is_enum(one: griffe.Object) -> bool:
    return isinstance(one, griffe.Class) and any("Enum" in str(base) for base in one.bases)


def _is_exception(one: griffe.Class) -> bool:
    names = (str(base) for base in one.bases)
    return any(name.endswith(("Exception", "Error")) for name in names) or any(
        map(_is_exception, _bases(one))
    )


def _directive(kind: str, signature: str, options: Sequence[str], body: Sequence[str]) -> Iterator[str]:
    """A directive of Sphinx's Python domain; its fence is longer than those within."""
    longest = max((len(line) - len(line.lstrip("`")) for line in body), default=0)
    fence = "`" * max(longest + 1, 4)
    yield from [f"{fence}{{py:{kind}}} {signature}", *options, "", *body, fence, ""]


# --- signatures


def _signature(called: griffe.Function | griffe.Class) -> str:
    parts: list[str] = []
    kinds = griffe.ParameterKind
    stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}
    has_star = False
    for parameter in _parameters(called):
        if parameter.kind is kinds.keyword_only and not has_star:
            parts.append("*")
        has_star = has_star or parameter.kind in (kinds.keyword_only, kinds.var_positional)
        star = stars.get(parameter.kind, "") if parameter.kind else ""
        text = f"{star}{parameter.name}"
        if parameter.annotation is not None:
            text += f": {_type(parameter.annotation)}"
        if parameter.default is not None and not star:
            text += f" = {parameter.default}"
        parts.append(text)
    return f"({', '.join(parts)})"


def _parameters(called: griffe.Function | griffe.Class) -> list[griffe.Parameter]:
    """Those of a class take in what it hands on to a class of ours that it extends."""
    own = [parameter for parameter in called.parameters if parameter.name not in ("self", "cls")]
    if (
        not isinstance(called, griffe.Class)
        or not own
        or own[-1].kind is not griffe.ParameterKind.var_keyword
    ):
        return own
    names = {parameter.name for parameter in own}
    handed_on = [
        parameter
        for base in _bases(called)
        if "__init__" in base.members
        for parameter in _parameters(base)
        if parameter.kind is griffe.ParameterKind.keyword_only and parameter.name not in names
    ]
    return [*own[:-1], *handed_on, own[-1]]


def _result(one: griffe.Object) -> str:
    returns = one.returns if isinstance(one, griffe.Function) else None
    return f" -> {_type(returns)}" if returns is not None else ""


def _type_of(one: griffe.Object) -> list[str]:
    annotation = one.annotation if isinstance(one, griffe.Attribute) else None
    return [f":type: {_type(annotation)}"] if annotation is not None else []


def _type(expression: griffe.Expr | str) -> str:
    """The text of a type, where names of ours are public paths, and an alias is what it stands for."""
    if not isinstance(expression, griffe.Expr):
        return expression
    parts = expression.iterate(flat=True)
    return "".join(_name(part) if isinstance(part, griffe.ExprName) else str(part) for part in parts)


def _name(name: griffe.ExprName) -> str:
    one = _of_ours(name.canonical_path)
    if isinstance(one, griffe.Attribute) and isinstance(one.value, griffe.Expr) and one.annotation is None:
        return _type(one.value)
    return name.name if one is None else _paths().get(one.canonical_path, name.name)


def _component(one: griffe.Object) -> griffe.Function | None:
    """The function that a component of KFP is made of: of ``train = make_train()`` the one within
    ``make_train``, without its outputs, which nobody gives as arguments.
    """
    made = re.fullmatch(rf"make_{one.name}\(\)", str(getattr(one, "value", "")))
    if made is None or one.parent is None:
        return None
    code = one.parent[f"make_{one.name}"].source.partition("\n")[2]
    inner = griffe.visit(one.parent.name, Path(str(one.filepath)), textwrap.dedent(code))[one.name]
    assert isinstance(inner, griffe.Function)
    for parameter in [*inner.parameters]:
        if str(parameter.annotation).startswith("dsl.Output"):
            del inner.parameters[parameter.name]
    return inner


# --- docstrings


def _docstring(one: griffe.Object | griffe.Alias, home: str) -> list[str]:
    return [*prose(one.docstring.value, partial(_target, home))] if one.docstring else []


def _target(home: str, name: str) -> str | None:
    """The public path that a name within a docstring of ``home`` means, None where no page has it."""
    paths = _paths()
    for path in (f"{home}.{name}", f"{home.rpartition('.')[0]}.{name}", name):
        if path in paths:
            return paths[path]
    alike = {public for public in paths.values() if name[:1].isupper() and public.endswith(f".{name}")}
    return alike.pop() if len(alike) == 1 else None


_CODE = re.compile(r"``(?P<double>[^`]+)``|(?<!`)`(?P<single>[^`]+)`(?!`)", re.DOTALL)
_CAMEL = re.compile(r"(?<![\w./-])[A-Z][a-z]+(?:[A-Z][a-z]+)+(?![\w./-]*\w)")
_DOCUMENT = re.compile(r"core/docs/(?P<page>[\w/-]+)\.md(?:,\s+(?P<heading>[A-Z][\w ]*\w))?")
_GOOGLE = re.compile(r"^(Args|Returns):$", re.MULTILINE)


def prose(text: str, target: Callable[[str], str | None]) -> Iterator[str]:
    """A docstring as Markdown: `name`, and the name of a class, lead to what ``target`` says of them, blocks
    of code get their fence.
    """
    for paragraph in re.split(r"\n[ ]*\n", _without_google(text).strip("\n")):
        if paragraph.startswith((">>> ", "    ")):
            yield from ["```python", *textwrap.dedent(paragraph).splitlines(), "```", ""]
        else:
            yield from [*_linked(re.sub(r"::$", ":", paragraph), target).splitlines(), ""]


def _linked(text: str, target: Callable[[str], str | None]) -> str:
    parts: list[str] = []
    at = 0
    for code in [*_CODE.finditer(text), None]:
        plain = text[at : code.start() if code else None].replace("<", "\\<")
        plain = _CAMEL.sub(lambda word: _link(word[0], path) if (path := target(word[0])) else word[0], plain)
        parts.append(_DOCUMENT.sub(_to_page, plain))
        if code:
            name = " ".join((code["single"] or code["double"]).split())
            parts.append(_link(name, target(name.removesuffix("()")) if code["single"] else None))
            at = code.end()
    return "".join(parts)


def _link(name: str, path: str | None) -> str:
    """The name as code, which leads to the place of the path."""
    return f"{{py:obj}}`{name} <{path}>`" if path else f"`{name}`"


def _to_page(named: re.Match[str]) -> str:
    heading = " ".join((named["heading"] or "").split())
    place = f"#{heading.lower().replace(' ', '-')}" if heading else ""
    words = f"{named['page']}, {heading}" if heading else named["page"]
    return f"[{words}](../../{named['page']}.md{place})"


def _without_google(text: str) -> str:
    """``Args:`` as fields, ``Returns:`` of a component as a list of its outputs."""
    head, *parts = _GOOGLE.split(text)
    made = [head]
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        items = re.split(r"\n(?=\w+: )", "\n" + textwrap.dedent(body.strip("\n")))[1:]
        if kind == "Args":
            made += [f":param {item}\n" for item in items]
        else:
            named = (" ".join(item.split()).partition(": ") for item in items)
            made += ["\nOutputs:\n\n", *(f"- ``{name}``: {text}\n" for name, _, text in named)]
    return "".join(made)
