"""The configuration and the commands on the page about several hosts, as a newcomer copies them."""

from __future__ import annotations

import configparser
import re
import shlex
from textwrap import dedent

from tests.provider.hosts.namespaces import ROOT

PAGE = ROOT / "core" / "docs" / "how-to" / "airflow-hosts.md"


def blocks(language: str) -> list[str]:
    """The code blocks of this language, in order."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [dedent(text) for _, text in found]


def configuration() -> dict[str, str]:
    """The settings of the page's airflow.cfg as variables, without those that each site makes up."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(blocks("ini")[0])
    return {
        f"AIRFLOW__{section.upper()}__{name.upper()}": value.replace(":PASSWORD", "")
        for section in parser.sections()
        for name, value in parser.items(section)
        if value != "THE SAME ON EVERY HOST"
    }


def commands(component: str) -> list[list[str]]:
    """The words behind ``airflow`` of each line that starts this component."""
    lines = (line for block in blocks("sh") for line in block.splitlines())
    found = [shlex.split(line)[1:] for line in lines if line.startswith("airflow ")]
    return [words for words in found if component in words[:2]]
