"""The source of the site: pages of core/docs, those that are made from the code, and what either links to.

A link that leaves core/docs leads on the site to a page that shows the file, so that the site needs no other
host. Values in, values out, but for the files that are read.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.docs.site import (
    airflow_reference,
    benchmarks,
    causes,
    commands,
    environment,
    jobs,
    llms,
    python_reference,
    roles,
    versions,
)
from tests.docs.site.markdown import fenced
from tests.meta.source import ROOT

DOCS = "core/docs"
_LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?!\w+:|#)(?P<target>[^)#\s]+)(?P<rest>[^)]*)\)")
_CODE = re.compile(r"^(`{3,}).*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "sh", ".json": "json"}


@cache
def generated() -> Mapping[str, str]:
    """Path below core/docs -> page: all that is made from the code and not committed."""
    return {
        **airflow_reference.pages(),
        **causes.pages(),
        **python_reference.pages(),
        "reference/job.md": jobs.page(),
        "reference/commands.md": commands.page(),
        "reference/environment.md": environment.page(),
        "reference/roles.md": roles.page(),
        "reference/matrix.md": versions.matrix(),
        "reference/versions.md": versions.compatibility(),
        "reference/benchmarks.md": benchmarks.page(),
    }


def written(root: Path = ROOT) -> dict[str, str]:
    """Path below core/docs -> page, of those that are committed."""
    docs = root / DOCS
    return {path.relative_to(docs).as_posix(): path.read_text() for path in sorted(docs.rglob("*.md"))}


def site(root: Path = ROOT) -> dict[str, str]:
    """Path -> text of every page of the site, and llms.txt."""
    todo = {**written(root), **generated()}
    done: dict[str, str] = {}
    linked: dict[str, str] = {}
    while todo:
        path, page = todo.popitem()
        done[path] = _relinked(path, page, root, linked)
        todo |= {
            shown: _shown(source, root)
            for shown, source in linked.items()
            if shown not in done and shown not in todo
        }
    files = sorted(path for path in done if path.startswith("files/"))
    done["files/index.md"] = "\n".join(["# Files that pages link to", "", *_tree(files)])
    return {**done, "llms.txt": llms.text(done)}


def _tree(files: list[str]) -> Iterator[str]:
    yield "```{toctree}"
    yield ":maxdepth: 1"
    yield ""
    yield from (path.removeprefix("files/").removesuffix(".md") for path in files)
    yield "```"


def _relinked(path: str, page: str, root: Path, linked: dict[str, str]) -> str:
    """``page`` with links that work on the site; ``linked`` gets the pages that files need -> the files."""
    home = posixpath.join(DOCS, path) if not path.startswith("files/") else _source(path, root)
    here = posixpath.dirname(path)

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(home), found["target"]))
        if target == DOCS or target.startswith(f"{DOCS}/"):
            on_site = posixpath.relpath(target, DOCS)
            on_site = "index.md" if on_site == "." else on_site
        else:
            on_site = _page_of(target, root)
            linked[on_site] = target
        return f"{found['text']}({posixpath.relpath(on_site, here or '.')}{found['rest']})"

    return _outside_code(page, lambda text: _LINK.sub(link, text))


def _outside_code(page: str, change: Callable[[str], str]) -> str:
    """``page`` changed where it is prose."""
    parts: list[str] = []
    at = 0
    for found in _CODE.finditer(page):
        # The text of a link may be code: [`this`](there). It is prose from its bracket on.
        if found[0].startswith("```") or not page[found.end() :].startswith("]("):
            parts += [change(page[at : found.start()]), found[0]]
            at = found.end()
    return "".join([*parts, change(page[at:])])


def _page_of(target: str, root: Path) -> str:
    if (root / target).is_dir():
        return f"files/{target}/index.md" if target != "." else "files/root.md"
    return f"files/{target}" if target.endswith(".md") else f"files/{target}.md"


def _source(path: str, root: Path) -> str:
    """The file that a page below files/ shows: the inverse of `_page_of`."""
    name = path.removeprefix("files/")
    if (root / name).is_file():
        return name
    return name.removesuffix("/index.md") + "/" if name.endswith("/index.md") else name.removesuffix(".md")


def _shown(source: str, root: Path) -> str:
    """The page of a file or folder of the repository. Raises FileNotFoundError when there is none."""
    path = root / source
    if path.is_dir():
        names = sorted(
            f"{p.name}/" if p.is_dir() else p.name for p in path.iterdir() if p.name[0] not in "._"
        )
        return "\n".join([f"# {source}/", "", *fenced("\n".join(names))])
    text = path.read_text()
    if path.suffix == ".md":
        return text
    return "\n".join(
        [f"# {path.name}", "", f"`{source}`", "", *fenced(text, _LANGUAGES.get(path.suffix, "text"))]
    )
