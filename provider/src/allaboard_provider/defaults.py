"""Defaults of tasks, and what a site configures about them. They are cheap, for DAG files ask at every
parse.
"""

from __future__ import annotations

import math
import os
from configparser import RawConfigParser

from allaboard.errors import SiteError
from allaboard.text.untrusted import show
from allaboard_provider.compat import conf

ELSEWHERE = ("stop", "fail")
DEFER_AFTER = 10.0
"""Seconds that a deferral takes at least (`triggers.polling.SETTLE`): a task that is followed for as long
before it defers takes at most some twice as long as one that knew its end.
"""


def deferrable() -> bool:
    """Return whether tasks wait in the triggerer: by ``[allaboard] deferrable``, else by the environment's
    AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE, else True.

    ``default_deferrable`` in airflow.cfg is ignored: Airflow writes its own False into the file that it
    generates, so the file does not tell what a person chose.
    """
    if _in_environment("allaboard", "deferrable") or _in_file("allaboard", "deferrable"):
        return bool(conf.getboolean("allaboard", "deferrable"))
    if _in_environment("operators", "default_deferrable"):
        return bool(conf.getboolean("operators", "default_deferrable"))
    return True


def elsewhere() -> str:
    """``[allaboard] elsewhere``: what a next try does whose local run lives on another host. Raises SiteError
    for a word that is not in `ELSEWHERE`.
    """
    word = str(conf.get("allaboard", "elsewhere", fallback="")).strip().lower() or ELSEWHERE[0]
    if word not in ELSEWHERE:
        raise SiteError(
            f"[allaboard] elsewhere is {show(word)} in Airflow's configuration; stop and fail are allowed: "
            "stop has the run stopped on the other host and resumes it here, fail fails this try; correct it "
            "in airflow.cfg, or in AIRFLOW__ALLABOARD__ELSEWHERE"
        )
    return word


def defer_after() -> float:
    """``[allaboard] defer_after``: the seconds for which a worker follows a run itself before its task
    defers. Raises SiteError for what is no number of seconds.
    """
    text = str(conf.get("allaboard", "defer_after", fallback="")).strip()
    try:
        seconds = float(text or DEFER_AFTER)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise SiteError(
            f"[allaboard] defer_after is {show(text)} in Airflow's configuration; a number of seconds from 0 "
            "on is allowed: 0 defers at once; correct it in airflow.cfg, or in "
            "AIRFLOW__ALLABOARD__DEFER_AFTER"
        )
    return seconds


def _in_environment(section: str, option: str) -> bool:
    """Return whether the environment sets the option to a value that is not empty."""
    name = f"AIRFLOW__{section}__{option}".upper()
    return any(os.environ.get(f"{name}{kind}") for kind in ("", "_CMD", "_SECRET"))


def _in_file(section: str, option: str) -> bool:
    # Airflow's `has_option` includes defaults; the parser that it extends holds only what a file sets.
    if not isinstance(conf, RawConfigParser) or not RawConfigParser.has_option(conf, section, option):
        return False
    return bool(conf.get(section, option, fallback=""))
