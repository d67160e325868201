"""What every version of Airflow does with us, under a real `airflow standalone`: the chain, the pages, the
connection form. What happens to a training when its task or its follower ends is in test_lifecycle and
test_followers, which run beside every version, too (tests/provider/versions.py).
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from allaboard_provider.hooks.allaboard import FIELDS
from tests.provider.live import Live

pytestmark = [
    pytest.mark.airflow_live,
    pytest.mark.slow,
    pytest.mark.thorough,
    pytest.mark.timeout(600),
]
CHAIN = ("prepare", "train", "collect", "evaluate", "promote")


def asked(live: Live, path: str, *, signed_in: bool = True) -> tuple[int, str]:
    """Status and text of a page of this Airflow."""
    live.airflow.api("GET", "/dags?limit=1")  # signs in
    # From 3.2 on whoever says nothing is an admin of such an Airflow.
    headers = {"Authorization": f"Bearer {live.airflow._token if signed_in else 'nobody'}"}
    request = urllib.request.Request(f"{live.airflow.url}{path}", headers=headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_chain_ends_with_a_champion_and_its_pages_show_it(live: Live) -> None:
    run = live.start("whole_chain")
    for task in CHAIN:
        run.at(task).wait_task("success")
    trained, verdict = run.at("train").xcom(), run.at("promote").xcom()
    assert trained["state"] == "succeeded" and trained["checkpoints"]["best"].endswith("step-000000000010")
    assert run.at("evaluate").xcom()["metrics"]["step"] == 10
    assert verdict["promoted"] is True
    page = f"/allaboard/page/{run.dag}/{run.name}/train/-1"
    status, text = asked(live, page)
    assert status == 200 and trained["run"] in text
    assert asked(live, page, signed_in=False)[0] in (401, 403)
    status, text = asked(live, f"/allaboard/api/dag/{run.dag}/models")
    models: dict[str, Any] = json.loads(text)
    assert status == 200 and trained["run"] in json.dumps(models)
    assert asked(live, "/allaboard/api/now")[0] == 200
    assert asked(live, "/allaboard/bundle.js", signed_in=False)[0] == 200


def test_the_connection_form_has_the_fields_of_the_hook(live: Live) -> None:
    status, text = asked(live, "/ui/connections/hook_meta")
    assert status == 200
    (ours,) = (kind for kind in json.loads(text) if kind["connection_type"] == "allaboard")
    assert set(ours["extra_fields"] or {}) == set(FIELDS)


def test_the_tabs_are_known_to_the_web_pages(live: Live) -> None:
    found = live.airflow.api("GET", "/plugins?limit=100")["plugins"]
    (ours,) = (plugin for plugin in found if plugin["name"] == "allaboard")
    assert [view["name"] for view in ours["external_views"]] == ["Training"]
    assert [app["name"] for app in ours["react_apps"]] == ["Models", "Trainings"]
