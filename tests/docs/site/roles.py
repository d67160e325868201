"""What a cluster must allow, from the Roles that `allaboard cluster --rbac` prints."""

from __future__ import annotations

from allaboard.backends.kubernetes.discovery.rbac import ROLES, text
from tests.docs.site.markdown import fenced

HEAD = """\
# Roles

What a cluster must allow to whom: the files that `allaboard cluster --rbac ROLE` prints, without a cluster
being asked. `allaboard preflight` reads the same text and tells which of it is missing.

```sh
allaboard cluster --rbac submitter -n research | kubectl apply -f -
```
"""
WHO = {
    "submitter": "Who starts, stops and follows runs: people, Airflow, steps of KFP.",
    "viewer": "Who only looks: `status`, `logs`, `list`, sensors.",
    "mpi": "Beside the submitter's: SSH keys of jobs of MPI that run as JobSets.",
    "claims": "Beside the submitter's: volumes that are made for a run.",
    "stacks": "Beside the submitter's: asking members where they stand, when a run does not move.",
    "capacity": "Beside the submitter's or viewer's: what nodes, queues and classes have.",
    "boost": "For the account of a platform that runs `allaboard boost`.",
    "reaper": "Printed by `allaboard cluster --reaper`: what ends runs whose clients do not come back.",
}


def page() -> str:
    """Markdown: a section for each Role."""
    lines = [HEAD]
    for role in ROLES:
        lines += [f"## {role}", "", WHO[role], "", *fenced(text(role), "yaml")]
    return "\n".join(lines)
