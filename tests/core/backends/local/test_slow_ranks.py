"""Slow ranks in real gangs, told while they train. The long round: `tests.core.backends.local.slow_ranks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from allaboard.backends.local.backend import LocalBackend
from tests.core.backends.local.slow_ranks import Gang, all_told, good_enough, some_gangs, table, told_of


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_slow_rank_is_told_by_the_run_itself(backend: LocalBackend, tmp_path: Path) -> None:
    told = told_of(backend, tmp_path, Gang("sleeps", 2, 1, 0, 2.5))
    assert told.right and told.slow is not None and told.slow.factor > 1.5
    [run] = backend.list()
    assert [e.message for e in backend.events(run.run) if e.reason == "slow_rank"] == [told.slow.text]


@pytest.mark.slow
@pytest.mark.endurance
@pytest.mark.timeout(900)
def test_slow_ranks_at_random_places_are_told_and_nothing_else_is(
    backend: LocalBackend, tmp_path: Path
) -> None:
    told = [*all_told(backend, tmp_path, [*some_gangs(12, 7)], 2)]
    assert good_enough(told), "\n".join([*table(told), *(str(one) for one in told)])
