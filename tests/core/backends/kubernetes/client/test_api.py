"""What the clients send, what they make of answers, and what they do when there is none."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.config import Fixed, Secret
from allaboard.backends.kubernetes.client.errors import (
    Conflict,
    Exists,
    Forbidden,
    Gone,
    Invalid,
    Missing,
    Silent,
    Unauthorized,
)
from allaboard.backends.kubernetes.client.protocol import Executed, Patience
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, NODES, PODS
from allaboard.errors import AllaboardError, BackendUnreachable, SiteError
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.scripted import (
    HASTY,
    Scripted,
    bookmark,
    cut,
    event,
    failure,
    half,
    opens_a_socket,
    page,
    pod,
    refused,
    row,
    says,
    scripted,
    streams,
    table,
    tunnel,
)

Client = Callable[..., Any]


# --- what is sent -------------------------------------------------------------------------------------------


def test_a_get_asks_for_json_as_who_we_are(server: Scripted, client: Client) -> None:
    server.answers(says(pod("a")))
    assert client(server).get(PODS, "a")["metadata"]["uid"] == "u-a"
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("GET", "/api/v1/namespaces/team/pods/a")
    assert asked.headers["authorization"] == "Bearer sesame"
    assert asked.headers["accept"] == "application/json"
    assert asked.headers["user-agent"].startswith("allaboard/")


def test_a_server_that_repeats_our_token_is_quoted_without_it(server: Scripted, client: Client) -> None:
    server.otherwise = refused(403, "Forbidden", "token sesame of Bearer sesame\n\x1b[2Jis not good enough")
    with pytest.raises(Forbidden, match="is not good enough") as caught:
        client(server).get(PODS, "a")
    assert "sesame" not in f"{caught.value} {caught.value.message} {caught.value.causes}"
    assert str(caught.value).isprintable()


def test_paths_of_groups_namespaces_and_cluster_wide_kinds(server: Scripted, client: Client) -> None:
    server.otherwise = says({"kind": "List", "items": [], "metadata": {"resourceVersion": "1"}})
    api = client(server)
    api.list(PYTORCHJOBS)
    api.list(PYTORCHJOBS, "other")
    api.list(PYTORCHJOBS, "")
    api.list(NODES)
    assert server.lines == [
        "GET /apis/kubeflow.org/v1/namespaces/team/pytorchjobs",
        "GET /apis/kubeflow.org/v1/namespaces/other/pytorchjobs",
        "GET /apis/kubeflow.org/v1/pytorchjobs",
        "GET /api/v1/nodes",
    ]


def test_every_write_is_validated_strictly(server: Scripted, client: Client) -> None:
    server.otherwise = says(pod("a"))
    api = client(server)
    api.create(PODS, pod("a"), dry_run=True)
    api.replace(PODS, pod("a"))
    api.patch(PODS, "a", {"metadata": {"annotations": {"a": "b"}}})
    api.patch(PODS, "a", {"status": {}}, kind="strategic", sub="status")
    assert [asked.query.get("fieldValidation") for asked in server.asked] == ["Strict"] * 4
    assert server.asked[0].query["dryRun"] == "All"
    assert server.lines[1:] == [
        "PUT /api/v1/namespaces/team/pods/a",
        "PATCH /api/v1/namespaces/team/pods/a",
        "PATCH /api/v1/namespaces/team/pods/a/status",
    ]
    assert server.asked[2].headers["content-type"] == "application/merge-patch+json"
    assert server.asked[3].headers["content-type"] == "application/strategic-merge-patch+json"


def test_a_delete_says_which_object_it_means(server: Scripted, client: Client) -> None:
    server.answers(says(pod("a")), refused(404, "NotFound"))
    api = client(server)
    api.delete(PODS, "a", uid="u-a", resource_version="7", propagation="Foreground", grace=3)
    api.delete(PODS, "b")
    assert server.asked[0].body == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Foreground",
        "preconditions": {"uid": "u-a", "resourceVersion": "7"},
        "gracePeriodSeconds": 3,
    }
    assert "preconditions" not in server.asked[1].body


def test_a_list_follows_its_pages(server: Scripted, client: Client) -> None:
    server.answers(page([pod("a"), pod("b")], token="more"), page([pod("c")]))
    items, version = client(server).list(PODS, labels="a=b", limit=2)
    assert [item["metadata"]["name"] for item in items] == ["a", "b", "c"]
    assert items[0]["kind"] == "Pod"
    assert version == "100"
    assert [asked.query.get("continue") for asked in server.asked] == [None, "more"]
    assert {asked.query["labelSelector"] for asked in server.asked} == {"a=b"}


def test_a_list_whose_token_is_too_old_begins_again(server: Scripted, client: Client) -> None:
    server.answers(page([pod("a")], token="more"), refused(410, "Expired"), page([pod("b")], version="200"))
    items, version = client(server).list(PODS, limit=1)
    assert [item["metadata"]["name"] for item in items] == ["b"]
    assert version == "200"


def test_the_first_so_many_are_enough(server: Scripted, client: Client) -> None:
    server.answers(page([pod("a"), pod("b")], token="more"))
    items, _ = client(server).list(PODS, limit=2, at_most=1)
    assert [item["metadata"]["name"] for item in items] == ["a"]
    assert len(server.asked) == 1


def test_a_table_is_rows_without_objects(server: Scripted, client: Client) -> None:
    server.answers(says(table([("a", "Running")], token="more")), says(table([("b", "")], columns=False)))
    items, _ = client(server).list(PYTORCHJOBS, table=True)
    assert items == [
        {"Name": "a", "State": "Running", "Age": "5s"},
        {"Name": "b", "State": "", "Age": "5s"},
    ]
    assert server.asked[0].query["includeObject"] == "None"
    assert server.asked[0].headers["accept"].startswith("application/json;as=Table;v=v1;g=meta.k8s.io")


def test_anything_else_that_is_served(server: Scripted, client: Client) -> None:
    server.answers(says("ok"), says({"gitVersion": "v1.36.3"}), says({"status": {"allowed": True}}, 201))
    api = client(server)
    assert api.raw("GET", "/readyz", query={"verbose": True}) == "ok"
    assert api.raw("GET", "/version")["gitVersion"] == "v1.36.3"
    review = api.raw("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"spec": {}})
    assert review["status"]["allowed"]
    assert server.asked[0].query == {"verbose": "true"}
    assert server.asked[2].body == {"spec": {}}


def test_time_is_the_servers(server: Scripted, client: Client) -> None:
    server.otherwise = says({"gitVersion": "v1.36.3"})
    api = client(server)
    at = api.server_time()
    assert abs(at - 1795262400) < 2, "2026-11-21T12:00:00Z"
    api.server_time()
    assert len(server.asked) == 1


# --- what answers mean --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (refused(404, "NotFound", 'pods "a" not found', {"name": "a", "kind": "pods"}), Missing, "not found"),
        (refused(409, "AlreadyExists", 'pods "a" already exists'), Exists, "already exists"),
        (refused(409, "Conflict", "the object has been modified"), Conflict, "modified"),
        (refused(422, "Invalid", "spec.x: Required value"), Invalid, "Required value"),
        (refused(400, "BadRequest", "the body is no object"), Invalid, "no object"),
        (refused(403, "Forbidden", 'pods is forbidden: User "u" cannot create'), Forbidden, "cannot create"),
        (refused(401, "Unauthorized", "Unauthorized"), Unauthorized, "Unauthorized"),
        (refused(410, "Expired", "too old resource version"), Gone, "too old"),
    ],
)
def test_a_refusal_is_an_error_with_the_servers_words(
    server: Scripted, client: Client, answer: Any, kind: type[AllaboardError], words: str
) -> None:
    server.otherwise = answer
    with pytest.raises(kind, match=words) as caught:
        # A replace compares, so that a conflict is an answer.
        client(server).replace(PODS, pod("a"))
    assert "sesame" not in str(caught.value)
    assert len(server.asked) == (2 if kind is Unauthorized else 1)


def test_an_object_that_is_not_there_is_no_kind_that_is_not_served(server: Scripted, client: Client) -> None:
    server.answers(
        refused(
            404, "NotFound", 'pytorchjobs.kubeflow.org "a" not found', {"name": "a", "kind": "pytorchjobs"}
        ),
        says("404 page not found\n", 404),
        refused(404, "NotFound", 'namespaces "team" not found', {"name": "team", "kind": "namespaces"}),
    )
    api = client(server)
    found = []
    for _ in range(3):
        with pytest.raises(Missing) as caught:
            api.get(PYTORCHJOBS, "a")
        found.append((caught.value.unserved, caught.value.absent))
    assert found == [(False, ("pytorchjobs", "a")), (True, ("", "")), (False, ("namespaces", "team"))]
    assert "pytorchjobs.kubeflow.org a" in str(caught.value)


def test_an_invalid_object_names_its_fields(server: Scripted, client: Client) -> None:
    causes = [{"field": "spec.replicas", "message": "must be 1 or more", "reason": "FieldValueInvalid"}]
    server.answers(
        refused(422, "Invalid", "PyTorchJob a is invalid", {"causes": causes}),
        refused(
            400,
            "BadRequest",
            'strict decoding error: unknown field "spec.bogus", duplicate field "spec.x[0].y"',
        ),
    )
    api = client(server)
    with pytest.raises(Invalid) as caught:
        api.create(PYTORCHJOBS, {"metadata": {"name": "a"}})
    assert [str(cause) for cause in caught.value.causes] == ["spec.replicas: must be 1 or more"]
    with pytest.raises(Invalid) as caught:
        api.create(PYTORCHJOBS, {"metadata": {"name": "a"}})
    assert [(cause.field, cause.message) for cause in caught.value.causes] == [
        ("spec.bogus", "unknown field"),
        ("spec.x[0].y", "duplicate field"),
    ]


def test_what_answers_but_is_no_api_server(server: Scripted, client: Client) -> None:
    server.answers(says("<html>Welcome to the hotel's network</html>"))
    with pytest.raises(BackendUnreachable, match="is this a Kubernetes API server"):
        client(server).get(PODS, "a")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("[" * 100_000, "nested more than 200 deep"),
        ('{"a":' * 900 + "1" + "}" * 900, "nested more than 200 deep"),
        ('{"a": ' + "9" * 4_300 + "}", "a number has 4300 characters"),
        ("", "no JSON object"),
        ("[]", "no JSON object"),
    ],
    ids=["brackets", "depth", "digits", "nothing", "a list"],
)
def test_an_answer_that_no_api_server_gives(
    server: Scripted, client: Client, answer: str, words: str
) -> None:
    server.answers(says(answer))
    with pytest.raises(BackendUnreachable, match=words):
        client(server).get(PODS, "a")


def test_an_answer_is_read_up_to_its_limit(
    server: Scripted, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.client.protocol.LARGEST_ANSWER", 1_000)
    large = {"kind": "Pod", "x": "y" * 2_000}
    server.answers(says({"kind": "Pod"}), says(large))
    server.otherwise = says(large)
    assert client(server).get(PODS, "a") == {"kind": "Pod"}
    with pytest.raises(SiteError, match="more than the"):
        client(server).get(PODS, "a")
    assert len(server.asked) <= 3


def test_half_of_a_surrogate_pair_is_replaced(server: Scripted, client: Client) -> None:
    server.answers(says('{"a": "x\\ud800y", "b": "\\ud83d\\ude00"}'))
    assert client(server).get(PODS, "a") == {"a": "x\ufffdy", "b": "\N{GRINNING FACE}"}


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "Status", "code": "many", "reason": 7, "message": ["a"], "details": "none"},
        {"kind": "Status", "details": {"causes": "x", "kind": [], "name": {}}},
        {"kind": "Status", "details": {"causes": ["x", None, {"field": 1, "message": 2}]}},
        [],
        None,
    ],
)
@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_a_refusal_of_any_shape_is_an_error_of_ours(
    server: Scripted, client: Client, status: int, body: Any
) -> None:
    server.otherwise = says(body, status)
    with pytest.raises(AllaboardError):
        client(server).get(PODS, "a")


@pytest.mark.parametrize(
    "body",
    [
        {"items": 3},
        {"items": [1, None]},
        {"metadata": [], "items": None},
        {"columnDefinitions": 1, "rows": 2},
        {"columnDefinitions": [1], "rows": [1, {"cells": 3}]},
    ],
)
@pytest.mark.parametrize("table", [False, True])
def test_a_list_of_any_shape_is_read(server: Scripted, client: Client, body: Any, table: bool) -> None:
    server.answers(says(body))
    items, version = client(server).list(PODS, table=table)
    assert (not any(items), version) == (True, "")


# --- what may pass ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(cut, id="reset"),
        pytest.param(half, id="half an answer"),
        pytest.param(refused(500, "InternalError"), id="500"),
        pytest.param(says("<html><b>502</b> Bad Gateway</html>", 502), id="502 of a gateway"),
        pytest.param(refused(503, "ServiceUnavailable"), id="503"),
        pytest.param(refused(504, "Timeout"), id="504"),
        pytest.param(refused(429, "TooManyRequests"), id="429"),
    ],
)
@pytest.mark.parametrize("method", ["get", "create", "patch", "delete"])
def test_what_may_pass_is_tried_again(server: Scripted, client: Client, trouble: Any, method: str) -> None:
    server.answers(trouble, trouble, says(pod("a")))
    api = client(server)
    {
        "get": lambda: api.get(PODS, "a"),
        "create": lambda: api.create(PODS, pod("a")),
        "patch": lambda: api.patch(PODS, "a", {"metadata": {"labels": {"a": "b"}}}),
        "delete": lambda: api.delete(PODS, "a", uid="u-a"),
    }[method]()
    assert len(server.asked) == 3
    assert len({str(asked.body) for asked in server.asked}) == 1


def test_429_waits_as_long_as_it_says(server: Scripted, client: Client) -> None:
    server.answers(refused(429, "TooManyRequests", Retry_After="1"), says(pod("a")))
    client(server).get(PODS, "a")
    assert 1.0 <= server.asked[1].at - server.asked[0].at < 1.6


def test_a_server_that_asks_for_more_than_our_patience_is_not_waited_for(
    server: Scripted, client: Client
) -> None:
    server.answers(refused(429, "TooManyRequests", "slow down", Retry_After="600"))
    with pytest.raises(BackendUnreachable, match="429: slow down"):
        client(server).get(PODS, "a")


def test_a_create_that_was_carried_out_without_an_answer_meets_itself(
    server: Scripted, client: Client
) -> None:
    server.answers(cut, refused(409, "AlreadyExists"), refused(409, "AlreadyExists"))
    api = client(server)
    with pytest.raises(Exists) as caught:
        api.create(PODS, pod("a"))
    assert caught.value.retried
    with pytest.raises(Exists) as caught:
        api.create(PODS, pod("a"))
    assert not caught.value.retried


def test_a_conflict_of_what_compares_nothing_passes(server: Scripted, client: Client) -> None:
    server.answers(refused(409, "Conflict", "quota was modified"), says(pod("a")))
    client(server).create(PODS, pod("a"))
    server.answers(refused(409, "Conflict"), says(pod("a")))
    client(server).patch(PODS, "a", {"spec": {}})
    server.answers(refused(409, "Conflict"))
    with pytest.raises(Conflict):
        client(server).patch(PODS, "a", {"metadata": {"uid": "other"}})
    server.answers(refused(409, "Conflict"))
    with pytest.raises(Conflict):
        client(server).delete(PODS, "a", uid="other")


def test_who_never_answers_is_unreachable_and_named(server: Scripted, client: Client) -> None:
    server.otherwise = refused(503, "ServiceUnavailable", "apiserver is shutting down")
    with pytest.raises(BackendUnreachable) as caught:
        client(server).get(PODS, "a")
    assert server.url in str(caught.value)
    assert "503: apiserver is shutting down" in str(caught.value)
    assert len(server.asked) > 10


def test_a_port_that_nobody_listens_at(client: Client) -> None:
    with scripted() as server:
        api = client(server, patience=HASTY)
    with pytest.raises(BackendUnreachable, match=rf"{server.url} refuses connections \(\d+ tries"):
        api.get(PODS, "a")


def test_whoever_waits_for_an_answer_is_told_why_once(
    server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.client.api.TELL_AFTER", 0.0)
    told: list[str] = []
    api = server.api(patience=Patience(budget=60, first=0.01))
    api.on_silence = told.append
    server.answers(refused(503, "X", "starting"), refused(503, "X", "starting"), says(pod("a")))
    api.get(PODS, "a")
    assert len(told) == 2 and "answers 503: starting; each request is tried again for" in told[0]
    server.answers(refused(503, "X", "again"), says(pod("a")))
    api.get(PODS, "a")
    assert "tried again for 1m" in told[0], "each request has its own time"
    assert [words == "the API server answers again" for words in told] == [False, True, False, True]


def test_a_name_that_means_nothing(server: Scripted, client: Client) -> None:
    server.url = "http://no-such-host.invalid:6443"
    with pytest.raises(BackendUnreachable, match="has a name that cannot be resolved"):
        client(server, patience=HASTY).get(PODS, "a")


def test_silence_is_no_answer(server: Scripted, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.client.protocol.Request.headers", _silent_soon)
    over = threading.Event()

    def never(_: object) -> None:
        over.wait()

    server.answers(never, says(pod("a")))
    client(server).get(PODS, "a")
    assert len(server.asked) == 2
    over.set()


def _silent_soon(request: Any) -> dict[str, str]:
    object.__setattr__(request, "silence", 0.2)
    return {"accept": request.accept}


def test_401_is_asked_again_with_new_credentials_once(server: Scripted, client: Client) -> None:
    class Rotated:
        renewals = 0

        def due(self, now: float) -> bool:
            return False

        def current(self, now: float) -> Secret:
            return Secret(f"Bearer token-{self.renewals}")

        def renew(self) -> None:
            self.renewals += 1

        def fingerprint(self) -> str:
            return "rotated"

    server.answers(refused(401, "Unauthorized"), says(pod("a")))
    server.otherwise = refused(401, "Unauthorized")
    api = client(server, credentials=Rotated())
    api.get(PODS, "a")
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer token-0", "Bearer token-1"]
    words = r"API server http://127\.0\.0\.1:\d+ does not accept the credentials of .*; log in again"
    with pytest.raises(Unauthorized, match=words):
        client(server, credentials=Rotated()).get(PODS, "a")
    assert len(server.asked) == 4


def test_who_was_let_in_before_is_unreachable_and_not_a_stranger(server: Scripted, client: Client) -> None:
    """Whoever the server asks about tokens may be away for a while, as the server itself may."""
    api = client(server)
    server.answers(says(pod("a")), *[refused(401, "Unauthorized")] * 5, says(pod("b")))
    server.otherwise = refused(401, "Unauthorized", "Unauthorized")
    assert api.get(PODS, "a")["metadata"]["name"] == "a"
    assert api.get(PODS, "b")["metadata"]["name"] == "b"
    with pytest.raises(BackendUnreachable, match="answers 401: Unauthorized"):
        api.get(NODES, "n")


def test_a_server_that_has_not_read_its_roles_yet(server: Scripted, client: Client) -> None:
    """It forbids what it allowed, for a moment after its start; what it never allowed is forbidden."""
    words = (
        'pods "a" is forbidden: User "u" cannot get resource "pods" in API group "" in the namespace "team"'
    )
    forbidden = refused(403, "Forbidden", words)
    api = client(server)
    server.answers(forbidden)
    with pytest.raises(Forbidden):
        api.get(PODS, "a")
    server.answers(says(pod("a")), *[forbidden] * 5, says(pod("b")))
    api.get(PODS, "a")
    assert api.get(PODS, "b")["metadata"]["name"] == "b"
    server.answers(refused(403, "Forbidden", "exceeded quota: team"))
    with pytest.raises(Forbidden, match="exceeded quota"):
        api.get(PODS, "a")
    assert len(server.asked) == 9
    server.otherwise = forbidden
    with pytest.raises(Forbidden):  # within the patience of this client
        api.get(PODS, "a")
    before = len(server.asked)
    assert before >= 11, "it was asked again and again"
    with pytest.raises(Forbidden):
        api.list(PODS)
    assert len(server.asked) == before + 1


# --- streams ------------------------------------------------------------------------------------------------


def test_a_watch_hands_on_what_happens_and_ends_with_the_server(server: Scripted, client: Client) -> None:
    split = b'{"type": "MODIFIED", "object": '
    server.answers(
        streams(
            event("ADDED", pod("a")),
            split,
            0.05,
            b'{"metadata": {"name": "b"}}}\n{"type": "DELETED", "object": {"metadata": {"name": "c"}}}\n',
            event("BOOKMARK", {"metadata": {"resourceVersion": "9"}}),
        )
    )
    seen = list(client(server).watch(PODS, labels="a=b", resource_version="5", timeout=30))
    assert [(kind, thing["metadata"].get("name")) for kind, thing in seen] == [
        ("ADDED", "a"),
        ("MODIFIED", "b"),
        ("DELETED", "c"),
        ("BOOKMARK", None),
    ]
    query = server.asked[0].query
    assert query["allowWatchBookmarks"] == "true"
    assert (query["resourceVersion"], query["labelSelector"]) == ("5", "a=b")
    assert 27 <= int(query["timeoutSeconds"]) <= 30


def test_rows_of_a_watch_keep_the_columns_of_the_first(server: Scripted, client: Client) -> None:
    server.answers(
        streams(
            row("ADDED", "a", "Running", "101", first=True),
            row("MODIFIED", "a", "Succeeded", "102"),
            bookmark("103"),
        )
    )
    seen = list(client(server).watch(PYTORCHJOBS, resource_version="5", table=True))
    assert [
        (kind, [r["State"] for r in rows["rows"]], rows["metadata"]["resourceVersion"]) for kind, rows in seen
    ] == [
        ("ADDED", ["Running"], "101"),
        ("MODIFIED", ["Succeeded"], "102"),
        ("BOOKMARK", [], "103"),
    ]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refused(410, "Expired"), Gone),
        (streams(failure(410, "Expired")), Gone),
        (streams(failure(500, "InternalError")), BackendUnreachable),
        (streams(event("ADDED", pod("a")), end="cut"), BackendUnreachable),
        (streams(b'{"type": "ADDED", "obj\n'), BackendUnreachable),
        (streams(b'{"type": "ADDED", "object": [1]}\n'), BackendUnreachable),
        (streams(b'{"type": [], "object": {}}\n'), BackendUnreachable),
        (streams(b'{"type": "ERROR", "object": {"code": "x", "details": 1}}\n'), BackendUnreachable),
        (streams(b'{"a":' * 5_000 + b"\n"), BackendUnreachable),
        (refused(403, "Forbidden"), Forbidden),
    ],
    ids=[
        "410",
        "410 inside",
        "500 inside",
        "cut",
        "an incomplete watch event",
        "a list as object",
        "no type",
        "an error of any shape",
        "depth",
        "403",
    ],
)
def test_a_watch_that_ends_badly_says_how(
    server: Scripted, client: Client, answer: Any, kind: type[AllaboardError]
) -> None:
    server.answers(answer)
    with pytest.raises(kind):
        list(client(server).watch(PODS, resource_version="5"))
    assert len(server.asked) == 1


def test_a_watch_that_falls_silent_is_lost(
    server: Scripted, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.client.api.WATCH_GRACE", 0.2)
    server.answers(streams(event("ADDED", pod("a")), 3600, end="silent"))
    with pytest.raises(Silent, match="was silent for 1 s"):
        list(client(server).watch(PODS, resource_version="5", timeout=1))


def test_a_watch_can_be_closed_by_another_thread(server: Scripted) -> None:
    server.answers(streams(event("ADDED", pod("a")), 3600))
    with server.api() as api:
        stream = api.watch(PODS, resource_version="5")
        assert next(stream)[0] == "ADDED"
        threading.Timer(0.1, stream.close).start()
        assert list(stream) == []


def test_lines_of_a_log(server: Scripted) -> None:
    server.answers(streams(b"one\ntw", b"o\nthr", b"ee"), refused(400, "BadRequest", "is waiting to start"))
    api = server.api()
    lines = list(
        api.log(
            "a", container="pytorch", since="2026-11-21T12:00:00Z", tail=5, limit_bytes=100, previous=True
        )
    )
    assert lines == [b"one\n", b"two\n", b"three"]
    assert server.lines == ["GET /api/v1/namespaces/team/pods/a/log"]
    assert server.asked[0].query == {
        "container": "pytorch",
        "sinceTime": "2026-11-21T12:00:00Z",
        "tailLines": "5",
        "limitBytes": "100",
        "previous": "true",
        "timestamps": "true",
    }
    with pytest.raises(Invalid, match="waiting to start"):
        list(api.log("a"))


def test_a_followed_log_that_is_cut_or_silent_ends_without_its_half_line(server: Scripted) -> None:
    server.answers(
        streams(b"one\nhalf", end="cut"), streams(b"two\nhalf", 3), streams(b"three\nha", end="cut")
    )
    api = server.api()
    assert list(api.log("a", follow=True)) == [b"one\n"]
    assert list(api.log("a", follow=True, silence=0.3)) == [b"two\n"]
    with pytest.raises(BackendUnreachable):
        list(api.log("a"))


def test_a_line_without_an_end_comes_in_pieces(server: Scripted) -> None:
    server.answers(streams(*[b"x" * 400_000] * 6, b"\n"))
    lines = list(server.api().log("a"))
    assert sum(map(len, lines)) == 2_400_001
    assert max(map(len, lines)) < 2_000_000


# --- exec ---------------------------------------------------------------------------------------------------

DONE = b'\x03{"kind": "Status", "status": "Success"}'


def test_a_command_is_given_its_input_and_says_what_it_wrote(server: Scripted, client: Client) -> None:
    given: list[bytes] = []
    server.answers(opens_a_socket(b"\x01", b"\x01one ", b"\x02bad", b"\x01two", DONE, given=given))
    api = client(server)
    ended = api.execute("a", ["python3", "-c", "x & y"], container="main", given=b"in" * 50_000)
    assert ended == Executed(0, b"one two", b"bad")
    assert given == [b"\0" + b"in" * 50_000]
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("GET", "/api/v1/namespaces/team/pods/a/exec")
    assert asked.headers["sec-websocket-protocol"] == "v5.channel.k8s.io,v4.channel.k8s.io"
    assert asked.headers["authorization"] == "Bearer sesame"
    wanted = {"container": "main", "stdin": "true", "stdout": "true", "stderr": "true", "command": "x & y"}
    assert asked.query == wanted, "of the words of a command the last is seen here"


@pytest.mark.parametrize(("status", "error"), [(403, Forbidden), (404, Missing), (400, Invalid)])
def test_a_command_that_is_refused(
    server: Scripted, client: Client, status: int, error: type[AllaboardError]
) -> None:
    server.otherwise = refused(status, "No", "cannot exec")
    with pytest.raises(error, match="exec in pod a"):
        client(server).execute("a", ["true"])


def test_a_command_that_does_not_end_is_left(server: Scripted, client: Client) -> None:
    server.otherwise = opens_a_socket(b"\x01half", end="silent")
    ended = client(server).execute("a", ["true"], seconds=0.5)
    assert (ended.code, ended.out) == (None, b"half") and "it did not end within" in ended.trouble


def test_a_command_that_writes_too_much_is_left(server: Scripted, client: Client) -> None:
    server.answers(opens_a_socket(*[b"\x01" + bytes(1 << 16)] * 5, DONE))
    ended = client(server).execute("a", ["true"], most=1 << 16)
    assert ended.code is None and len(ended.out) < 1 << 18 and "more than" in ended.trouble


def test_what_answers_an_exec_but_opens_no_socket(server: Scripted, client: Client) -> None:
    server.otherwise = says("hello")
    with pytest.raises(SiteError, match="no WebSocket"):
        client(server).execute("a", ["true"])


# --- TLS, proxies -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A CA, and a server's context with a certificate for ``api.cluster`` and 127.0.0.1."""
    pytest.importorskip("cryptography")
    from tests.cluster import pki

    ca = pki.authority("tests")
    folder = tmp_path_factory.mktemp("tls")
    made = {}
    for name, hosts in {"address": ["127.0.0.1"], "name": ["api.cluster"]}.items():
        pki.sign(ca, name, hosts=hosts).write(folder, name)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
        context.load_verify_locations(cadata=ca.certificate.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        made[name] = context
    user = pki.sign(ca, "somebody")
    return ca.certificate.decode(), made, (user.certificate.decode(), user.key.decode())


def test_a_server_of_the_clusters_own_authority(authority: Any, client: Client) -> None:
    ca, contexts, certificate = authority
    with scripted(contexts["address"]) as server:
        server.otherwise = says(pod("a"))
        client(server, authority=ca).get(PODS, "a")
        client(server, authority=ca, credentials=Fixed(Secret(None, certificate))).get(PODS, "a")
        client(server, verify=False).get(PODS, "a")
        with pytest.raises(SiteError, match=r"certificate that is not trusted.*certificate-authority"):
            client(server).get(PODS, "a")


def test_a_server_whose_certificate_has_another_name(authority: Any, client: Client) -> None:
    ca, contexts, _ = authority
    with scripted(contexts["name"]) as server:
        server.otherwise = says(pod("a"))
        with pytest.raises(SiteError, match="tls-server-name"):
            client(server, authority=ca).get(PODS, "a")
        client(server, authority=ca, tls_name="api.cluster").get(PODS, "a")
        with pytest.raises(SiteError, match="tls-server-name"):
            client(server, authority=ca, tls_name="other.cluster").get(PODS, "a")


def test_a_command_goes_the_way_of_every_request(authority: Any, client: Client) -> None:
    ca, contexts, _ = authority
    with scripted(contexts["name"]) as server, tunnel() as (address, asked):
        server.otherwise = opens_a_socket(b"\x01out", DONE)
        way = {"authority": ca, "proxy": f"http://user:hunter2@{address}"}
        api = client(server, tls_name="api.cluster", **way)
        assert api.execute("a", ["true"]) == Executed(0, b"out")
        with pytest.raises(SiteError, match="tls-server-name"):
            client(server, tls_name="other.cluster", **way).execute("a", ["true"])
    assert asked[0].endswith("Basic dXNlcjpodW50ZXIy")


def test_through_a_proxy_with_a_password(authority: Any, client: Client) -> None:
    ca, contexts, _ = authority
    with scripted(contexts["address"]) as server, tunnel() as (address, asked):
        server.otherwise = says(pod("a"))
        client(server, authority=ca, proxy=f"http://user:hunter2@{address}").get(PODS, "a")
        client(server, authority=ca, proxy=f"http://{address}").get(PODS, "a")
    host = server.url.removeprefix("https://")
    assert [line.split(" ")[:2] for line in asked] == [["CONNECT", host]] * 2
    assert asked[0].endswith("Basic dXNlcjpodW50ZXIy")
    with pytest.raises(BackendUnreachable, match="cannot be reached through its proxy") as caught:
        client(server, patience=HASTY, authority=ca, proxy=f"http://user:hunter2@{address}").get(PODS, "a")
    assert "hunter2" not in str(caught.value)


def test_the_bundle_of_authorities_is_read_once(authority: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, contexts, _ = authority
    built = []
    real = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda **said: built.append(said) or real(**said))
    ca += "\n"  # unlike that of other tests
    with scripted(contexts["address"]) as server:
        server.otherwise = says(pod("a"))
        for _ in range(5):
            with server.api(authority=ca) as api:
                api.get(PODS, "a")
    assert len(built) == 1


def test_a_broken_certificate_says_where_to_look(authority: Any, client: Client, tmp_path: Path) -> None:
    ca, contexts, (certificate, _) = authority
    with scripted(contexts["address"]) as server:
        with pytest.raises(SiteError, match=r"certificate-authority\(-data\)"):
            client(server, authority="no certificate").get(PODS, "a")
        broken = Fixed(Secret(None, (certificate, "no key")))
        with pytest.raises(SiteError, match=r"client-key\(-data\)"):
            client(server, authority=ca, credentials=broken).get(PODS, "a")


def test_a_client_keeps_its_connection(server: Scripted, client: Client) -> None:
    server.otherwise = says(pod("a"))
    api = client(server)
    for _ in range(5):
        api.get(PODS, "a")
    assert server.connections == 1


def test_secrets_are_in_no_repr(server: Scripted) -> None:
    settings = server.settings(
        credentials=Fixed(Secret("Bearer sesame", ("CERTIFICATE", "PRIVATE"))),
        proxy="http://user:hunter2@proxy:3128",
    )
    for secret in ("sesame", "PRIVATE", "hunter2"):
        assert secret not in repr(settings)
        assert secret not in settings.identity


def test_an_answer_is_lost_while_others_go_on(server: Scripted) -> None:
    """Many threads share one client."""
    server.otherwise = says(pod("a"))
    server.answers(*[cut, says(pod("a"))] * 20)
    failed: list[BaseException] = []
    with server.api(Patience(budget=10, first=0.01, longest=0.05)) as api:

        def work() -> None:
            try:
                for _ in range(10):
                    api.get(PODS, "a")
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert len(server.asked) == 100
    assert CONFIGMAPS.name == "configmaps"
