"""allaboard's errors in Airflow's words, at one place.

Who must act decides: the author of the job (bad input) gets `AirflowFailException`, which no retry repeats;
everything else may pass and is an `AirflowException`, which Airflow retries as often as the task says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from allaboard.errors import AllaboardError, BadInput


@contextmanager
def airflow_errors() -> Iterator[None]:
    """Around everything that asks the core for something."""
    try:
        yield
    except BadInput as error:
        raise AirflowFailException(str(error)) from None
    except AllaboardError as error:
        raise AirflowException(str(error)) from error
