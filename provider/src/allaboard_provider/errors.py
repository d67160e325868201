"""allaboard's errors as Airflow's exceptions.

Bad input is the author's to fix and becomes `AirflowFailException`, which no retry repeats. Every other error
may pass and becomes `AirflowException`, which Airflow retries as often as the task says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from allaboard.errors import AllaboardError, BadInput


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn errors of the core into exceptions of Airflow."""
    try:
        yield
    except BadInput as error:
        raise AirflowFailException(str(error)) from None
    except AllaboardError as error:
        raise AirflowException(str(error)) from error
