"""Build the site: what `make docs` does.

    python -m tests.docs.site.build [--external]     into dist/docs/html

Its pages are made here, where allaboard can be imported; Sphinx runs in an environment of its own,
.venv/docs. A warning is an error, and so is a link that leads nowhere; --external asks the hosts of links to
others, too.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.site.links import broken
from tests.docs.site.staging import DOCS, site
from tests.meta.source import ROOT

INTO = ROOT / "dist" / "docs"
SPHINX = ROOT / ".venv" / "docs" / "bin" / "python"


def stage(into: Path) -> int:
    """Write the source of the site. Returns how many pages it has."""
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(ROOT / DOCS, into, ignore=shutil.ignore_patterns("*.md", "__pycache__"))
    pages = site()
    for path, text in pages.items():
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_text(text)
    return len(pages)


def build(source: Path, into: Path, *, external: bool = False) -> list[str]:
    """What is wrong with it, nothing when it is good."""
    shutil.rmtree(into, ignore_errors=True)
    command = [str(SPHINX), "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto"]
    done = subprocess.run([*command, "-b", "html", str(source), str(into)], check=False)
    wrong = [f"sphinx ended with {done.returncode}"] if done.returncode else []
    # What machines read: llms.txt, and each page as it was written.
    shutil.copyfile(source / "llms.txt", into / "llms.txt")
    for page in source.rglob("*.md"):
        shutil.copyfile(page, into / page.relative_to(source))
    wrong += broken(into)
    if external:
        check = subprocess.run(
            [*command, "-b", "linkcheck", str(source), str(into.parent / "links")], check=False
        )
        wrong += ["links to others: see above"] if check.returncode else []
    return wrong


def main(arguments: list[str]) -> int:
    if not SPHINX.exists():
        print("there is no .venv/docs; make docs makes it, with the network", file=sys.stderr)
        return 2
    pages = stage(INTO / "source")
    wrong = build(INTO / "source", INTO / "html", external="--external" in arguments)
    for line in wrong:
        print(line, file=sys.stderr)
    if not wrong:
        print(f"{pages} pages: {(INTO / 'html' / 'index.html').relative_to(ROOT)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
