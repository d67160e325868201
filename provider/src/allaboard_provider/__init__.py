"""allaboard for Airflow: operators, sensors, triggers and a connection type over the allaboard core.

The package itself imports nothing of Airflow and nothing heavy: a DAG file pays only for what it names.
"""

from __future__ import annotations

__version__ = "0.1.0"


def _refuse_airflow_2() -> None:
    """Raises ImportError beside an Airflow 2, whichever module of ours it loads first."""
    from importlib.util import find_spec
    from pathlib import Path

    airflow = find_spec("airflow")  # found, not imported
    places = [] if airflow is None else [Path(place) for place in airflow.submodule_search_locations or ()]
    if places and not any((place / "sdk" / "__init__.py").exists() for place in places):
        raise ImportError(
            "allaboard needs Airflow 3.1.8 or later, and the installed Airflow has no task SDK: it is an "
            "Airflow 2, which is past its end of life; pip install 'apache-airflow>=3.1.8'"
        )


_refuse_airflow_2()
