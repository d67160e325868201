"""What a task does that does not say itself: cheap, for DAG files ask at every parse."""

from __future__ import annotations

import os
from configparser import RawConfigParser

from airflow.sdk import conf


def deferrable() -> bool:
    """Whether tasks wait in the triggerer: by ``[allaboard] deferrable``, else by ``[operators]
    default_deferrable`` where the installation sets it, else True. (What Airflow has for the latter where
    nobody sets it, False, is nobody's word.)
    """
    for section, option in (("allaboard", "deferrable"), ("operators", "default_deferrable")):
        if _is_set(section, option):
            return bool(conf.getboolean(section, option))
    return True


def _is_set(section: str, option: str) -> bool:
    """By the environment or the configuration file, for any value but an empty one."""
    name = f"AIRFLOW__{section}__{option}".upper()
    if f"{name}_CMD" in os.environ or f"{name}_SECRET" in os.environ:
        return True
    # Airflow's `has_option` finds its defaults as well; its parser itself holds what was read from a file.
    in_file = isinstance(conf, RawConfigParser) and RawConfigParser.has_option(conf, section, option)
    return bool((name in os.environ or in_file) and conf.get(section, option, fallback=""))
