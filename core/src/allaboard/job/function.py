"""A Python function as the command of a job: its source and its arguments are words of the command.

Members need nothing but Python: the first word after ``-c`` is `STARTER`, the next one JSON with the source,
the name and the arguments. More words add arguments: ``json:NAME=VALUE`` or ``text:NAME=VALUE``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import symtable
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from allaboard.errors import BadInput, Problem
from allaboard.text.untrusted import show

STARTER = """\
import json, linecache, os, sys, traceback
given = json.loads(sys.argv[1])
source, name, arguments = given["source"], given["name"], given["arguments"]
for word in sys.argv[2:]:
    kind, _, rest = word.partition(":")
    parameter, _, value = rest.partition("=")
    arguments[parameter] = json.loads(value) if kind == "json" else value
sys.argv[1:] = []
file = "<function " + name + ">"
linecache.cache[file] = len(source), None, source.splitlines(True), file
if sys.excepthook is sys.__excepthook__:
    sys.excepthook = traceback.print_exception  # which finds the lines; the interpreter's own reads files
space = {"__name__": "__main__"}
exec(compile(source, file, "exec"), space)
value = space[name](**arguments)
if value is not None:
    metrics = value if isinstance(value, dict) else {"result": value}
    try:
        from allaboard.inside import result
    except ImportError:
        if os.environ.get("RANK", "0") == "0":
            body = {"v": 1, "kind": "result", "metrics": metrics}
            print("[allaboard] " + json.dumps(body), flush=True)
    else:
        result(**metrics)
"""
"""Program that runs a function in a member. Its last line writes a report line itself where the image has no
allaboard.
"""
LARGEST = 100_000
"""Bytes of the JSON: Linux takes 128 KiB in one word of a command."""
_TRANSPARENT = {"{{": "{\\u007b", "{%": "{\\u0025", "{#": "{\\u0023", "$(": "$\\u0028", "$$": "$\\u0024"}
"""Marks of templates and of variables of a pod, and how JSON writes them so that nobody replaces them."""


def command_of_function(
    function: Callable[..., Any], arguments: Mapping[str, Any], torchrun: bool
) -> list[str]:
    """The words that run a function in a member.

    :param arguments: JSON values by parameter; those left out are the function's defaults.
    :param torchrun: start one process for each GPU, or as many as the job says.

    Raises BadInput for what is no function of its own: one that uses names from outside its body, a lambda, a
    method, one whose source cannot be read; and for arguments that it does not take or JSON cannot hold.
    """
    source, name = source_of(function)
    given = _bound(function, name, arguments)
    body = json.dumps({"name": name, "arguments": given, "source": source}, ensure_ascii=False)
    for mark, written in _TRANSPARENT.items():
        body = body.replace(mark, written)
    if len(body.encode()) > LARGEST:
        raise BadInput(
            f"{name} and its arguments have {len(body.encode()):,} bytes as JSON; {LARGEST:,} fit into a "
            "command: put what is large into a file that the function reads"
        )
    started = ["torchrun", "--no_python", "python"] if torchrun else ["python"]
    return [*started, "-c", STARTER, body]


def source_of(function: Callable[..., Any]) -> tuple[str, str]:
    """The source of a function by itself, without decorators, annotations and defaults, and its name. Raises
    BadInput for what cannot run elsewhere.
    """
    plain = inspect.unwrap(function) if callable(function) else function
    name = getattr(plain, "__name__", None)
    if inspect.ismethod(plain):
        raise BadInput(f"{plain.__qualname__} is a method, whose object stays here; write a function")
    if not inspect.isfunction(plain) or name is None:
        kind = "class" if inspect.isclass(plain) else type(plain).__name__
        raise BadInput(f"{show(repr(plain), 80)} is a {kind}; give a function that is written with def")
    if name == "<lambda>":
        raise BadInput("a lambda has no statements and no name to run elsewhere; write a function with def")
    if (
        inspect.iscoroutinefunction(plain)
        or inspect.isgeneratorfunction(plain)
        or inspect.isasyncgenfunction(plain)
    ):
        raise BadInput(f"{name} is async or a generator; give a function that returns its result")
    if captured := plain.__code__.co_freevars:
        raise BadInput(
            f"{name} closes over {_listed(captured)}, which a member does not have; make "
            f"{'it a parameter' if len(captured) == 1 else 'them parameters'}, or define what it needs inside"
        )
    definition = _definition(plain, name)
    source = ast.unparse(ast.Module([definition], []))
    if outside := [*_names_from_outside(source)]:
        raise BadInput(
            f"{name} uses {_listed(outside)} from outside its body, which a member does not have; import and "
            "define inside the function, or make it a parameter"
        )
    return source, name


def _definition(function: Callable[..., Any], name: str) -> ast.FunctionDef:
    try:
        lines = inspect.getsource(function)
    except (OSError, TypeError):
        raise BadInput(
            f"the source of {name} cannot be read: it was typed in a shell or made by exec; "
            "write it in a file"
        ) from None
    # A function within another block is indented, and its texts may not be: nothing is moved.
    tree = ast.parse(f"if True:\n{lines}" if lines[:1].isspace() else lines)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            break
    else:
        raise BadInput(f"the source of {name} is not one of a function; write it with def, in a file")
    node.decorator_list, node.returns, node.type_comment = [], None, None
    every = node.args
    every.defaults, every.kw_defaults = [], [None] * len(every.kwonlyargs)
    for argument in (*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg):
        if argument is not None:
            argument.annotation = None
    # Arguments are given by name.
    every.args, every.posonlyargs = [*every.posonlyargs, *every.args], []
    return node


def _names_from_outside(source: str) -> Iterator[str]:
    """The global names that a function uses and Python itself does not have."""
    waiting, seen = [*symtable.symtable(source, "<function>", "exec").get_children()], set[str]()
    while waiting:
        table = waiting.pop()
        waiting += table.get_children()
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_global() and name not in seen and not hasattr(builtins, name) and name != "__name__":
                seen.add(name)
    own = {table.get_name() for table in symtable.symtable(source, "<function>", "exec").get_children()}
    yield from sorted(seen - own)


def _bound(function: Callable[..., Any], name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name, defaults included. Raises BadInput with every problem."""
    parameters = inspect.signature(inspect.unwrap(function)).parameters
    problems, given = [], dict[str, Any]()
    if kept := [p.name for p in parameters.values() if p.kind is p.VAR_POSITIONAL]:
        raise BadInput(f"{name} takes *{kept[0]}; arguments of a job are given by name: name each parameter")
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for word in arguments:
        if word not in parameters and not takes_all:
            problems.append(Problem(f"arguments.{word}", f"{name} has no such parameter"))
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD or parameter.name in arguments:
            continue
        if parameter.default is parameter.empty:
            problems.append(
                Problem(f"arguments.{parameter.name}", f"is missing; {name} has no default for it")
            )
        given[parameter.name] = parameter.default
    given |= arguments
    for word, value in given.items():
        if value is not inspect.Parameter.empty and (reason := _why_not_json(value)):
            problems.append(Problem(f"arguments.{show(str(word), quote=False)}", reason))
    if problems:
        raise BadInput(f"{name} cannot be a job:", problems)
    return given


def _why_not_json(value: Any) -> str | None:
    try:
        if json.loads(json.dumps(value, allow_nan=False)) == (
            list(value) if isinstance(value, tuple) else value
        ):
            return None
    except (TypeError, ValueError, RecursionError):
        pass
    return (
        f"{show(repr(value), 80)} is a {type(value).__name__}; arguments are JSON: texts, finite numbers, "
        "booleans, null, lists and mappings of them"
    )


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
