"""One redaction for everything that prints, writes or sends."""

import base64
import json
import pickle
import random
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from allaboard.errors import BadInput, Problem
from allaboard.text.redaction import (
    redact_job,
    redact_message,
    redact_text,
    redact_texts,
    redact_url,
    secret_values,
)

CANARY = "c4nary-V4lue_77"


@pytest.mark.parametrize(
    "text",
    [
        f"s3://key:{CANARY}@bucket/x is refused",
        f"s3://key:a/{CANARY}@bucket/x",
        f"postgres://u:a#{CANARY}@host/db",
        f"https://{CANARY}@github.com/x.git",
        f"//u:{CANARY}@host",
        f"stores: a=s3://b/c,d=https://u:{CANARY}@h/z",
        f"https://b.s3.amazonaws.com/x?X-Amz-Credential={CANARY}&X-Amz-Signature={CANARY}&X-Amz-Security-Token={CANARY}",
        f"https://cdn/x?Policy={CANARY}&Signature={CANARY}&Key-Pair-Id={CANARY}",
        f"https://x.blob.core.windows.net/c?sv=2020&sig={CANARY}",
        f"https://x/y?X%2DAmz%2DSignature={CANARY}",
        f"/relative?token={CANARY}#access_token={CANARY}",
        f"Bearer {CANARY}",
        f"invalid token: Bearer {CANARY}, try again",
        f"Authorization: Bearer {CANARY}",
        f"authorization: {CANARY}",
        f"{{'Authorization': 'Basic {CANARY}', 'a': 1}}",
        f'{{"authorization": b"Bearer {CANARY}"}}',
        f"Authorization: AWS4-HMAC-SHA256 Credential={CANARY}/x, Signature={CANARY}",
        f"Set-Cookie: session={CANARY}; Path=/",
        f"X-Api-Key: {CANARY}",
        f"api_key={CANARY}",
        f"key={CANARY}",
        f"AccountName=x;AccountKey={CANARY};End=1",
        f"HF_TOKEN={CANARY} python train.py",
        f"env:TOKEN={CANARY}",
        f'{{"password": "{CANARY}", "x": 1}}',
        f'"{{\\"password\\": \\"{CANARY}\\"}}"',
        f"password='two words {CANARY}'",
        f"password: {CANARY}",
        f"  client_secret: {CANARY}",
        f"python train.py --api-key {CANARY} --lr 1",
        f"['train.py', '--token', '{CANARY}']",
        f'["train.py", "--token", "{CANARY}"]',
        f"--wandb-api-key={CANARY}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\\n{CANARY} cut off",
    ],
)
def test_a_secret_in_a_text_is_hidden(text: str) -> None:
    shown = redact_text(text)
    assert CANARY not in shown and "***" in shown
    assert redact_text(shown) == shown


@pytest.mark.parametrize(
    "token",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "github_pat_11ABCDEFG0aaaaaaaaaaaa_bbbbb",
        "glpat-xxxxxxxxxxxxxxxxxxxx",
        "hf_abcdefghijklmnopqrstuvwxyz123456",
        "sk-proj-abcdefghijklmnop1234567890",
        "sk-ant-api03-abcdefghijklmnop",
        "xoxb-1234567890-abcdefgh",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dBjftJeZ4CVPmB92K27uhbU",
        "sha256~abcdefghijklmnopqrstuvwxyz",
    ],
)
def test_a_token_of_a_known_form_is_hidden_wherever_it_stands(token: str) -> None:
    assert redact_text(f"rejected {token}.").startswith("rejected ***")
    assert token not in redact_text(f"({token})") and token not in redact_text(f'"{token}"')


@pytest.mark.parametrize(
    "text",
    [
        "step 12 of 100, loss 0.5, val_loss=0.25",
        "tokens=4096 tokens_per_second=1234.5 max_token_id=50256 token_loss=0.3",
        "KeyError: 'loss'",
        "rows = sorted(rows, key=lambda row: row.step)",
        "secret 'hf' is not in this cluster",
        "the field key: not found",
        "go on with it: allaboard run job.yaml --key nightly-2026-01-01",
        "http://127.0.0.1:8080/@scope/package?prefix=a&max-keys=10",
        "s3://bucket/models/run-1f0c9a77/step-000000000120",
        "TOKENIZERS_PARALLELISM=false PWD=/home/me",
        "the bearer token is not accepted",
        "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
        "risk-free-of-all-charges-1 and task-1234567890123456",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_known_values_are_hidden_in_every_spelling() -> None:
    known = 'p"ä/ss wörd\n2'
    for spelling in (known, json.dumps(known), repr(known), "p%22%C3%A4%2Fss%20w%C3%B6rd%0A2"):
        assert redact_text(f"a {spelling} b", [known]).replace('"', "").replace("'", "") == "a *** b"
    assert redact_text("pytest has a test", ["test"]) == "pytest has a ***"
    assert redact_text("a1 b", ["a1", "", "***"]) == "a1 b"


def test_a_url_alone_is_redacted_however_malformed() -> None:
    assert redact_url("s3://me:pass word\"'<>@b/k") == "s3://***@b/k"
    assert redact_url("https://h/x?Signature=a b'c&list-type=2") == "https://h/x?Signature=***&list-type=2"
    assert redact_url("store://digits/checkpoints") == "store://digits/checkpoints"
    assert redact_url("/data/train?x=1") == "/data/train?x=1"


def test_variables_are_hidden_by_name_or_value() -> None:
    variables = {
        "HF_TOKEN": CANARY,
        "wandbApiKey": CANARY,
        "PGPASSWORD": CANARY,
        "SENTRY_DSN": CANARY,
        "DB_PASS": CANARY,
        "CODE": 1234,
        "PIP_INDEX_URL": f"https://me:{CANARY}@index/simple",
        "TOKENIZERS_PARALLELISM": "false",
        "MAX_TOKENS": 512,
        "EMPTY_TOKEN": "",
        "OMP_NUM_THREADS": "2",
    }
    shown = redact_job({"environment": variables})["environment"]
    assert CANARY not in str(shown)
    assert list(shown) == list(variables)
    kept = {n: v for n, v in shown.items() if "***" not in str(v)}
    assert set(kept) == {"CODE", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "EMPTY_TOKEN", "OMP_NUM_THREADS"}


def test_a_job_is_hidden_where_it_holds_secrets_and_nowhere_else() -> None:
    job = {
        "name": "digits",
        "command": ["python", "train.py", "--token", CANARY, f"--api-key={CANARY}", "--lr", "0.1"],
        "environment": {"API_KEY": CANARY, "LR": "0.1"},
        "secrets": [{"name": "hf", "env": True}],
        "checkpoints": {"uri": f"s3://a:{CANARY}@b/c"},
        "pod": {
            "spec": {
                "containers": [
                    {
                        "env": [
                            {"name": "DB_PASSWORD", "value": CANARY},
                            {"name": "T", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}},
                        ]
                    }
                ],
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            },
            "metadata": {"annotations": {"example.com/api-token": CANARY}},
        },
        "engine_spec": {"env": {"SECRET_KEY": CANARY}, "password": CANARY},
    }
    shown = redact_job(job)
    assert CANARY not in json.dumps(shown)
    assert CANARY in json.dumps(job)
    assert shown["secrets"] == job["secrets"]
    assert shown["command"][-2:] == ["--lr", "0.1"]
    assert shown["environment"]["LR"] == "0.1"
    assert shown["pod"]["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert shown["pod"]["spec"]["containers"][0]["env"][1]["valueFrom"]["secretKeyRef"]["key"] == "token"
    assert redact_job(shown) == shown
    assert secret_values(job) == (CANARY,)


def test_passwords_and_signatures_of_urls_are_secrets_of_a_job_and_what_is_beside_them_is_not() -> None:
    job = {
        "command": ["pip", "--index-url=https://me:p%40ss-w0rd@index:8443/simple", "git@host:a/b"],
        "environment": {
            "DATA": f"https://bucket/x?X-Amz-Date=20260131T000000Z&X-Amz-Expires=3600&X-Amz-Signature={CANARY}",
            "PLAIN": "https://host:8080/a?page=2",
        },
    }
    assert secret_values(job) == tuple(sorted({"p%40ss-w0rd", "p@ss-w0rd", CANARY}))
    assert redact_text("login as me with p@ss-w0rd", secret_values(job)) == "login as me with ***"


def test_a_secret_object_of_a_cluster_is_hidden_whole() -> None:
    shown = redact_job(
        {"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "b64"}, "stringData": {"c": "d"}}
    )
    assert shown == {
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"a": "***"},
        "stringData": {"c": "***"},
    }


@pytest.mark.parametrize(
    "value", [f"'{CANARY}'", f'"{CANARY}"', "1234567890", f"['{CANARY}']", f"{{'a': '{CANARY}'}}"]
)
def test_what_is_said_of_a_secrets_field_quotes_no_value(value: str) -> None:
    assert (
        redact_message("environment.DB_PASSWORD", f"expected text, not {value}") == "expected text, not ***"
    )
    assert redact_text("environment.DB_PASSWORD: expected text") == "environment.DB_PASSWORD: expected text"
    assert redact_message("workers", f"expected a number, not {value}") == f"expected a number, not {value}"


@pytest.mark.parametrize("path", ["ALLABOARD_SECRETS", "secrets", "secrets[0]", "secrets[0].name"])
def test_what_only_names_a_secret_is_quoted(path: str) -> None:
    message = "'a_b' is not an object name; use lower-case letters, digits, '-' and '.'"
    assert redact_message(path, message) == message
    assert redact_text(f"{path}: {message}") == f"{path}: {message}"


def test_results_keep_their_names_and_numbers() -> None:
    result = {"metrics": {"token": 12, "key": "a"}, "said": [f"Bearer {CANARY}"], "none": None}
    assert redact_texts(result) == {**result, "said": ["Bearer ***"]}


class _Hostile(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("no")

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_any_value_is_taken() -> None:
    loop: dict[Any, Any] = {"a": 1}
    loop["loop"] = [loop]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    laughs: list[Any] = ["x"]
    for _ in range(60):
        laughs = [laughs, laughs]
    for value in (
        loop,
        deep,
        laughs,
        _Hostile(x=1),
        {1: 2, None: object()},
        {"token": b"\xff"},
        "\ud800",
        10**5000,
    ):
        redact_job(value)
        redact_job({"environment": value})
        secret_values(value)
    redact_text(object())
    redact_url(None)


_PIECES = [
    "key", "token", "=", ":", " ", "://", "@", "?", "&", "'", '"', "\\", "\n", "Bearer ", "Authorization",
    "--", "-", "password", "s3", "/", "#", "abc", "9", "***", "%2D", "sig", "{", "}", ",", ";", "eyJabcd.",
    "AKIA", "-----BEGIN ", "PRIVATE KEY", "\ud800", "é", "\x1b",
]  # fmt: skip
_REPEATED = [*_PIECES, "a" * 50, "key=", "--token ", "//a:", "?a=", "a:b@", "Bearer a ", "A.", "eyJ"]


def test_done_twice_it_changes_nothing_more() -> None:
    chance = random.Random(9)
    for _ in range(5000):
        text = "".join(chance.choices(_PIECES, k=chance.randrange(1, 14)))
        once = redact_text(text)
        assert redact_text(once) == once, text
        assert redact_url(redact_url(text)) == redact_url(text), text


@pytest.mark.parametrize("piece", _REPEATED)
@pytest.mark.timeout(60)
def test_time_grows_with_the_text_alone(piece: str) -> None:
    redact_text(piece * (500_000 // len(piece)))


def test_a_problem_and_the_error_that_tells_it_hide_the_same() -> None:
    """A value may be known for a secret by the path before it alone."""
    problem = Problem("environment.DB_PASSWORD", f"{CANARY} is no number", suggestion=f"token={CANARY}")
    error = BadInput(f"job x cannot run, password={CANARY}:", [problem])
    for text in (str(problem), str(problem.to_dict()), str(error), error.headline, str(error.problems)):
        assert CANARY not in text and "***" in text
    assert "environment.DB_PASSWORD: *** is no number" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems, again.code) == (str(error), error.problems, error.code)


def test_a_known_value_is_in_no_name_of_a_result_and_other_names_stay() -> None:
    value = {"metrics": {"the door": 1.0, "token": 2.0}, "notes": ["the door", 3]}
    assert redact_texts(value, iter(["the door"])) == {
        "metrics": {"***": 1.0, "token": 2.0}, "notes": ["***", 3],
    }  # fmt: skip


@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
@pytest.mark.parametrize("after", ["", "@", "@h", "@ho"])
def test_a_known_value_is_hidden_in_base64_whatever_stands_around_it(before: str, after: str) -> None:
    secret = "pä/ss w+rd?~canary"
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(f"{before}{secret}{after}".encode()).decode()
        hidden = redact_text(f"sent {text} to it", [secret])
        assert "***" in hidden and text[6:-8] not in hidden
    for quoted in (quote(secret, safe=""), quote_plus(secret), quote(secret).lower()):
        assert redact_text(f"at {quoted} it", [secret]) == "at *** it"
