"""allaboard for Airflow: operators, sensors, triggers and a connection type over the allaboard core.

Nothing of Airflow, and nothing heavy, is imported by the package itself: a DAG file pays only for what it
names.
"""

from __future__ import annotations

__version__ = "0.1.0"
