"""Links to where a script tracks its run: the sentences with which MLflow, Weights & Biases and others print
the address of the page of a run.

A training process may print anything. A link is taken from a whole sentence of the tracker alone, is http or
https, names a host, holds no user or password, and is told to who reads it as the script's word.
"""

from __future__ import annotations

import re

MOST = 4
"""Trackers of one run that are told."""
_LONGEST_LINE, _LONGEST = 4000, 1000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PLAIN = re.compile(
    r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:[/?#][!#-&(-;=?-\[\]_a-z~]*)?"
)
"""A host, maybe with a port, and after it what needs no quotes in HTML."""
_URL = r"(?P<url>https?://[!-~]+)"
_TRACKERS = {
    "MLflow": re.compile(rf"(?:\N{{RUNNER}} )?View run .{{0,300}} at: {_URL}"),
    "Weights & Biases": re.compile(rf"wandb: (?:\N{{ROCKET}} )?View run (?:.{{0,300}} )?at:? {_URL}"),
    "Comet": re.compile(rf"COMET INFO: Experiment is live on comet\S* {_URL}"),
    "ClearML": re.compile(rf"ClearML results page: {_URL}"),
    "SwanLab": re.compile(rf"swanlab: (?:\N{{ROCKET}} )?View run at {_URL}"),
    "TensorBoard": re.compile(rf"TensorBoard [0-9.a-z]+ at {_URL} \(Press CTRL\+C to quit\)"),
}


def tracking_link(line: str) -> tuple[str, str] | None:
    """(name of the tracker, address of the run's page) in a line of output; None where there is none."""
    if "://" not in line or len(line) > _LONGEST_LINE:
        return None
    text = _COLOUR.sub("", line).strip()
    for name, sentence in _TRACKERS.items():
        if (match := sentence.fullmatch(text)) and is_plain_url(match["url"]):
            return name, match["url"]
    return None


def is_plain_url(url: str) -> bool:
    """True for a http(s) address of a host that a page may link: no user, no password, plain characters."""
    return len(url) <= _LONGEST and _PLAIN.fullmatch(url) is not None
