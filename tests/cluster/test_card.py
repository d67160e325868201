"""The card on Airflow's dashboard where Kueue has one gang wait for another: what it says of both, how full
their queue is, and how that looks in a browser.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.discovery import rbac
from tests.cluster.on_airflow import TEAM, OnCluster, airflow_on, prepare
from tests.cluster.plane import ControlPlane
from tests.provider.live import Run, until
from tests.provider.ui.browser import BROWSER, browser
from tests.provider.ui.test_in_a_browser import PICTURES, ask

pytest.importorskip("boto3")
pytest.importorskip("airflow")

KUEUE = "kueue.x-k8s.io/v1beta2"
GPU = "nvidia.com/gpu"

pytestmark = [pytest.mark.airflow_live, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def live(
    new_plane_in: Callable[..., AbstractContextManager[ControlPlane]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OnCluster]:
    """Its team has a queue with three GPUs and eight cores."""
    folder = tmp_path_factory.mktemp("plane")
    with new_plane_in(folder, "training-operator", "kueue", "s3", "nodes") as plane:
        prepare(plane)
        quotas = [{"name": "cpu", "nominalQuota": "8"}, {"name": GPU, "nominalQuota": "3"}]
        groups = [{"coveredResources": ["cpu", GPU], "flavors": [{"name": "a100", "resources": quotas}]}]
        for kind, name, spec in (
            ("ResourceFlavor", "a100", {}),
            ("ClusterQueue", "lab", {"namespaceSelector": {}, "resourceGroups": groups}),
            ("LocalQueue", "research", {"clusterQueue": "lab"}),
        ):
            about = {"name": name, **({"namespace": TEAM} if kind == "LocalQueue" else {})}
            plane.api.create({"apiVersion": KUEUE, "kind": kind, "metadata": about, "spec": spec})
        with airflow_on(plane, tmp_path_factory.mktemp("airflow")) as found:
            yield found


def test_the_card_shows_who_waits_in_kueue_and_how_full_the_queue_is(
    live: OnCluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = live.start("queued")
    first.wait_watched()
    second = live.start("queued")
    url = f"{live.airflow.url}/allaboard/api/now"

    def told() -> Any:
        found = ask(url)[1]
        [queue] = found["queues"] or [None]
        return found if queue and queue["waiting"] == 1 and len(found["runs"]) == 2 else None

    found = until("the card shows both, and the queue", told)
    assert [row["state"] for row in found["runs"]] == ["queued", "running"]
    assert "it needs 1 more nvidia.com/gpu in flavor a100, which others use" in found["runs"][0]["held_by"]
    [queue] = found["queues"]
    assert (queue["kind"], queue["name"], queue["parent"]) == ("LocalQueue", "research", "lab")
    assert (queue["where"], queue["running"]) == (f"namespace {TEAM}", 1)
    assert amounts(found) == [(GPU, "a100", "2"), ("cpu", "a100", "2")]
    # What a queue may give belongs to the whole cluster: to see it takes one Role more.
    live.plane.api.apply([*yaml.safe_load_all(rbac.manifest("capacity", TEAM))])
    full = [(GPU, "a100", "2 of 3"), ("cpu", "a100", "2 of 8")]
    until("the card shows the quotas", lambda: amounts(ask(url)[1]) == full)
    if BROWSER is not None:
        look_at(live, (first, second), tmp_path_factory)
    first.finish()
    first.wait_task("success")
    second.wait_watched()
    second.finish()
    second.wait_task("success")
    assert ask(url)[1]["queues"] == []


def amounts(told: Any) -> list[tuple[str, str, str]]:
    return [(a["resource"], a["flavor"], a["words"]) for a in told["queues"][0]["amounts"]]


def look_at(live: OnCluster, runs: tuple[Run, ...], tmp_path_factory: pytest.TempPathFactory) -> None:
    """The card in a browser, in light and dark; kept as pictures."""
    with browser(tmp_path_factory.mktemp("profile")) as page:
        page.size(1360, 560)
        for theme in ("light", "dark"):
            page.open(live.airflow.url + "/")
            page.until("document.querySelectorAll('.allaboard .card .row').length === 2")
            page.until_text("Pool Slots")
            page.picture(PICTURES / f"cluster-card-{theme}.png")
            page.ask("localStorage.setItem('theme', 'dark')")
        text = page.ask("document.querySelector('.allaboard .card').innerText")
        assert all(run.name in text for run in runs), "two runs of one DAG are told apart"
        assert (
            "1 running, 1 waiting" in text and "queue of Kueue, of ClusterQueue lab, namespace team" in text
        )
        assert "nvidia.com/gpu (a100)" in text and "2 of 3" in text
        width = "document.querySelector('.allaboard .meter .progress i').style.width"
        assert page.ask(width).startswith("66.6")
        assert page.errors == []
