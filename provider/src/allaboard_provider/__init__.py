"""allaboard for Airflow: operators, sensors, triggers and a connection type over the allaboard core.

The package itself imports nothing of Airflow and nothing heavy: a DAG file pays only for what it names.
"""

from __future__ import annotations

__version__ = "0.1.0"
