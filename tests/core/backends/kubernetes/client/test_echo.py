"""A server that quotes what it was shown: the token, the password, the proxy's. None of it is told again."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.config import Fixed, Secret
from allaboard.backends.kubernetes.client.echo import Echo
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, PODS
from allaboard.errors import AllaboardError
from tests.core.backends.kubernetes.scripted import (
    HASTY,
    Scripted,
    event,
    failure,
    pod,
    refused,
    says,
    streams,
)

Client = Callable[..., Any]

TOKEN = "open-sesame_and/more"
PASSWORD = 'pass wörd"7'
BASIC = base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
SHOWN = {
    "token": (Secret(f"Bearer {TOKEN}"), [TOKEN]),
    "password": (Secret(f"Basic {BASIC}"), [PASSWORD, BASIC]),
}


@pytest.fixture(params=[*SHOWN])
def shown(request: pytest.FixtureRequest) -> tuple[Secret, list[str]]:
    return SHOWN[request.param]


def told(words: Callable[[], Any]) -> str:
    """All that can be read off the error, and off what it was made from."""
    with pytest.raises(AllaboardError) as caught:
        words()
    found, link = [], caught.value
    while link is not None:
        found += [str(link), repr(link), repr(getattr(link, "causes", "")), repr(vars(link))]
        link = link.__cause__ or link.__context__  # type: ignore[assignment]
    return "\n".join(found)


def escaped(text: str) -> str:
    """The same in JSON that escapes every letter."""
    return "".join(f"\\u{ord(c):04x}" for c in text)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 418, 422, 500])
def test_in_a_refusal(server: Scripted, client: Client, shown: tuple[Secret, list[str]], status: int) -> None:
    secret, words = shown
    for word in words:
        details = {
            "name": word,
            "causes": [{"field": f"spec.{word}", "message": f"no {word}", "reason": word}],
        }
        server.otherwise = refused(status, word, f"the user with {word} is not let in", details)
        said = told(lambda: client(server, patience=HASTY, credentials=Fixed(secret)).get(PODS, "a"))
        assert word not in said and "is not let in" in said


def test_in_a_refusal_that_spells_it_otherwise(server: Scripted, client: Client) -> None:
    body = f'{{"kind":"Status","code":403,"message":"not {escaped(TOKEN)} but Basic"}}'
    server.otherwise = lambda handler: _raw(handler, 403, body)
    said = told(lambda: client(server, credentials=Fixed(Secret(f"Bearer {TOKEN}"))).get(PODS, "a"))
    assert TOKEN not in said and "not ***" in said


@pytest.mark.parametrize("page", ["<html><b>who is {0}?</b>", "who is {0}?", '["{0}"]', '{{"error": "{0}"}}'])
def test_in_the_page_of_a_gateway(server: Scripted, client: Client, page: str) -> None:
    server.otherwise = says(page.format(TOKEN), 403)
    said = told(lambda: client(server, credentials=Fixed(Secret(f"Bearer {TOKEN}"))).get(PODS, "a"))
    assert TOKEN not in said


@pytest.mark.parametrize("code", [0, 403, 410, 429, 500])
def test_in_an_error_of_a_watch(
    server: Scripted, client: Client, shown: tuple[Secret, list[str]], code: int
) -> None:
    secret, words = shown
    for word in words:
        error = failure(code, "Expired", f"the watch of {word} is over")
        error["object"]["details"] = {"causes": [{"field": word, "message": word}]}
        server.answers(streams(event("ADDED", pod("a")), error))
        api = client(server, credentials=Fixed(secret))
        said = told(lambda api=api: list(api.watch(PODS, resource_version="1")))  # type: ignore[misc]
        assert word not in said and "is over" in said


@pytest.mark.parametrize("follow", [False, True])
def test_in_a_line_of_a_log(server: Scripted, shown: tuple[Secret, list[str]], follow: bool) -> None:
    secret, words = shown
    lines = [b"\xff plain\n", *(f"Authorization: {word} was used\n".encode() for word in words)]
    whole = b"".join(lines) + words[0].encode()
    server.answers(streams(whole[:15], whole[15:30], whole[30:]))
    found = list(server.api(credentials=Fixed(secret)).log("a", follow=follow))
    assert found[0] == b"\xff plain\n" and found[-1] == b"***"
    assert found[1] == b"Authorization: *** was used\n" and len(found) == len(lines) + 1
    assert not [word for word in words if word.encode() in b"".join(found)]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_in_a_redirect_and_its_headers(server: Scripted, client: Client, status: int) -> None:
    where = f"https://login.example/?next={TOKEN}"
    server.otherwise = says(f"go to {where}", status, location=where, warning=f'299 - "{TOKEN}"')
    api = client(server, credentials=Fixed(Secret(f"Bearer {TOKEN}")))
    for ask in (lambda: api.get(PODS, "a"), lambda: api.list(PODS), lambda: api.create(PODS, pod("a"))):
        assert TOKEN not in told(ask)
    assert not [asked for asked in server.asked if "login" in asked.path], "nobody is sent there with it"


@pytest.mark.parametrize("status", [429, 503])
def test_in_the_headers_of_a_server_that_is_busy(server: Scripted, client: Client, status: int) -> None:
    server.otherwise = refused(status, "Busy", f"{TOKEN} waits", retry_after=TOKEN, warning=TOKEN)
    api = client(server, patience=HASTY, credentials=Fixed(Secret(f"Bearer {TOKEN}")))
    assert TOKEN not in told(lambda: api.get(PODS, "a"))


def test_of_a_proxy_too(server: Scripted, client: Client) -> None:
    proxy = server.url.replace("://", "://ann:pass%20word7@")
    server.otherwise = says("who is pass word7, pass%20word7, " + _basic("ann:pass word7"), 407)
    said = told(lambda: client(server, proxy=proxy).get(PODS, "a"))
    assert "who is ***, ***, ***" in said


def test_one_that_was_renewed_since_is_hidden_still() -> None:
    echo = Echo()
    echo.shown(["first-token"])
    echo.shown(["second-token"])
    assert echo.lines([b"first-token, second-token\n"]) == [b"***, ***\n"]
    assert json.loads(echo.body(b'{"message": "first-token"}')) == {"message": "***"}


def test_an_object_keeps_its_words(server: Scripted, client: Client) -> None:
    """It is written back as it was read."""
    body = {**pod("a"), "kind": "ConfigMap", "data": {"record": TOKEN}}
    server.otherwise = says(body)
    found = client(server, credentials=Fixed(Secret(f"Bearer {TOKEN}"))).get(CONFIGMAPS, "a")
    assert found["data"] == {"record": TOKEN}


def _basic(words: str) -> str:
    return base64.b64encode(words.encode()).decode()


def _raw(handler: Any, status: int, body: str) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body.encode())
