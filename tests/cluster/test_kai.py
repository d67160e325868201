"""KAI Scheduler, which is built by hand (README.md): two gangs at once where one has room, of which one runs,
all of it, while the other waits, all of it, and says why. KAI's pod-grouper makes the PodGroups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Object, until
from tests.cluster.components.kai import DEFAULT_QUEUE, ROOT_QUEUE, SCHEDULER, queue
from tests.cluster.plane import ControlPlane
from tests.cluster.test_queues import Place

NewPlane = Callable[..., AbstractContextManager[ControlPlane]]
LONG = 60.0
GROUP = ("scheduling.run.ai/v2alpha2", "PodGroup")
NAMED_BY = "pod-group-name"
ROOM = r"KAI Scheduler finds no 2 places together in queue default-queue: .*CPU cores"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def with_kai(tmp_path_factory: pytest.TempPathFactory, new_plane_in: NewPlane) -> Iterator[ControlPlane]:
    with new_plane_in(tmp_path_factory.mktemp("kai"), "training-operator", "kai", "kwok") as plane:
        yield plane


def groups_of(place: Place) -> dict[str, Object]:
    """The PodGroups of KAI there, by the name of their job."""
    found = place.plane.api.list(*GROUP, place.namespace)
    return {group["metadata"]["ownerReferences"][0]["name"]: group for group in found}


def says(place: Place, run: str, sentence: str) -> None:
    """Waits until ``status`` gives this reason."""
    pattern, shown = rf"^ *(waits|why) +{sentence}$", [""]

    def said() -> bool:
        shown[0] = place("status", run)
        return re.search(pattern, shown[0], re.MULTILINE) is not None

    try:
        until(sentence, said, LONG)
    except TimeoutError:
        pytest.fail(f"{sentence} is not in:\n{shown[0]}")


def test_kai_is_taken_by_itself_and_runs_one_gang_whole_and_then_the_other(
    with_kai: ControlPlane, tmp_path: Path
) -> None:
    """Three places for two gangs of two."""
    with Place(with_kai, "whole", tmp_path, *["6"] * 3) as kai:
        runs = [kai.launch(key, 2, 4) for key in ("one", "other")]
        first, second = kai.first_of(*runs, 2)
        says(kai, second, ROOM)
        assert (kai.placed(first), kai.placed(second)) == (2, 0)
        assert (kai.state(first), kai.state(second)) == ("running", "queued")
        groups = groups_of(kai)
        assert {run: groups[run]["spec"]["minMember"] for run in runs} == dict.fromkeys(runs, 2)
        for run in runs:
            named = {pod["metadata"]["annotations"][NAMED_BY] for pod in kai.pods(run)}
            assert named == {groups[run]["metadata"]["name"]}
            assert {pod["spec"]["schedulerName"] for pod in kai.pods(run)} == {SCHEDULER}
        kai.end(first)
        until("all of the second to run", lambda: kai.run(second) == 2, LONG)
        kai.end(second)
        assert [kai.state(run) for run in runs] == ["succeeded", "succeeded"]


def test_a_queue_of_kai_that_is_full_or_not_there_or_no_leaf_is_told(
    with_kai: ControlPlane, tmp_path: Path
) -> None:
    with_kai.api.create(queue("research", ROOT_QUEUE, cpu=2000))
    with Place(with_kai, "full", tmp_path, "16") as kai:
        first = kai.launch("one", 2, gang={"queue": "research"})
        until("the first to run", lambda: kai.run(first) == 2, LONG)
        second = kai.launch("other", 2, gang={"queue": "research"})
        full = "research quota has reached the allowable limit of CPU cores"
        says(kai, second, f"KAI Scheduler does not let the gang into queue research: {full}.*")
        lost = kai.launch("lost", 2, gang={"queue": "reserch"})
        says(kai, lost, "KAI Scheduler does not let the gang in: there is no queue reserch")
        above = kai.launch("above", 2, gang={"queue": ROOT_QUEUE})
        says(kai, above, "KAI .*")
        print(kai("status", above))
        assert [kai.placed(run) for run in (second, lost, above)] == [0, 0, 0]
        kai.end(first)
        until("the second to run", lambda: kai.run(second) == 2, LONG)
        kai.end(second)
