"""What Airflow hides, found in a job, and what templates take out of connections and Variables."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import mask_secret

from allaboard_provider.masking import hidden, masked_in, noting


def a_connection(**extra: Any) -> Any:
    return SimpleNamespace(
        login="me",
        host="hub.example",
        password="pw-of-a-connection",
        extra=json.dumps(extra),
        extra_dejson=extra,
    )


class Accessor(dict[str, Any]):
    __getattr__ = dict.__getitem__


def test_the_secrets_in_a_job_are_found_whatever_they_stand_under() -> None:
    mask_secret("first secret")
    mask_secret("second.secret")
    job = {
        "name": "small",
        "command": ["python", "train.py", "--greeting=first secret"],
        "environment": {"GREETING": "first secret, then second.secret\nfirst secret", "LR": "0.1"},
        "pod": {"spec": {"first secret": [["second.secret!"]]}},
    }
    assert masked_in(job) == ("first secret", "second.secret")
    assert masked_in({"name": "small", "workers": 2, "spot": None}) == ()
    assert hidden("it was second.secret") == "it was ***"


@pytest.mark.parametrize("value", ["\0", "first secret\0", "", "*** first secret ***"])
def test_any_text_is_read(value: str) -> None:
    mask_secret("first secret")
    assert all("first secret" in part or "\0" in part for part in masked_in([value]))


def test_what_a_template_takes_from_airflow_is_masked_by_its_name() -> None:
    extra = {
        "sas_token": "token-of-an-extra",
        "deep": [{"s3_key": "key-of-an-extra"}],
        "region": "eu-central-1",
    }
    values = {"signing_key": "key-in-a-variable", "bucket": "s3://bucket/team"}
    context = noting(
        {
            "conn": Accessor(vault=a_connection(**extra)),
            "var": {
                "value": Accessor(values),
                "json": Accessor(hub={"api_token": "token-in-json", "lr": "0.0001"}),
            },
            "ds": "2026-01-01",
        }
    )
    assert context["conn"].vault.host == "hub.example" and context["ds"] == "2026-01-01"
    assert context["var"]["value"].bucket == context["var"]["value"].get("bucket") == "s3://bucket/team"
    assert context["var"]["value"].signing_key and context["var"]["json"].get("hub", {})["lr"] == "0.0001"
    known = (
        "pw-of-a-connection", "token-of-an-extra", "key-of-an-extra", "key-in-a-variable", "token-in-json",
    )  # fmt: skip
    assert masked_in([*known, "eu-central-1", "s3://bucket/team", "0.0001", "hub.example"]) == known
