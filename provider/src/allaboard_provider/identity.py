"""Who a task instance is to allaboard: its key (the same for every try) and its owner (another for every
try).

The key begins with the name of the Airflow installation, so that two of them on one machine never share a
run. The name is made once per metadata database and kept in a Variable. Two tasks that make it at the same
moment may see two names for an instant; therefore each task instance keeps the one it first used, in its own
state store, which lives through retries and clears.
"""

from __future__ import annotations

import secrets
from typing import Any

from airflow.sdk import Variable, conf

from allaboard.identity import airflow_key
from allaboard.observation import Owner

VARIABLE = "allaboard_instance"
STORED = "allaboard_instance"


def key_of(context: Any) -> str:
    """The key of the run of this task instance."""
    ti = context["ti"]
    map_index = -1 if ti.map_index is None else ti.map_index
    return airflow_key(instance(context), ti.dag_id, ti.run_id, ti.task_id, map_index)


def instance(context: Any) -> str:
    """The name of this Airflow installation: ``[allaboard] instance``, else the one made for the metadata
    database.
    """
    fixed = conf.get("allaboard", "instance", fallback="")
    if fixed:
        return str(fixed)
    store = context["task_state_store"]
    found = store.get(STORED) or Variable.get(VARIABLE, default=None)
    if not found:
        Variable.set(
            VARIABLE,
            secrets.token_hex(4),
            "The name of this Airflow installation in the keys of allaboard's runs",
        )
        found = Variable.get(VARIABLE)
    store.set(STORED, found)
    return str(found)


def on_worker(ti: Any, *, local: bool = True) -> Owner:
    """This try, while a worker follows. A ``local`` run whose worker is gone for good is stopped after some
    minutes, as that of any client at a terminal; a next try that comes earlier adopts it. A run on a cluster
    goes on: that its follower is gone is seen by his Lease.
    """
    return Owner(str(ti.id), "worker", "attached" if local else "orchestrated")


def in_triggerer(ti_id: Any) -> Owner:
    """The same try, while a triggerer follows. Triggerers may be restarted or be away; that stops nothing."""
    return Owner(str(ti_id), "deferred", "orchestrated")


def stopping(ti_id: Any) -> Owner:
    """The same try once a person has ended it: whoever takes the run to stop it owns it under this name.
    Attached: should that one die before it has stopped the run, the supervisor of a local run does, and on a
    cluster the janitor finds it. Deferred: a next try does not adopt it.
    """
    return Owner(f"{ti_id}/ended", "deferred", "attached")
