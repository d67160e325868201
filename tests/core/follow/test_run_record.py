"""What a launch does under a key that exists: every row of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allaboard.follow import run_record
from allaboard.follow.run_record import Data, RunRecord, decide
from allaboard.job.identity import airflow_key, kfp_key, spec_hash
from allaboard.runs.observation import Owner, State

SPEC = {"name": "digits", "workers": 2}
OTHER = {"name": "digits", "workers": 3}
ME, YOU = Owner("me"), Owner("you")
DEFERRED = Owner("you", phase="deferred", kind="orchestrated")
LIVE = [
    State.QUEUED,
    State.STARTING,
    State.RUNNING,
    State.RESTARTING,
    State.SUSPENDED,
    State.STOPPING,
    State.UNKNOWN,
]


def record(owner: Owner = YOU, **fields: object) -> RunRecord:
    base = RunRecord("digits-1", "k", "digits", SPEC, spec_hash(SPEC), owner, "u1", 0.0)
    return replace(base, **fields)  # type: ignore[arg-type]


def test_nothing_there_starts() -> None:
    assert decide(None, State.UNKNOWN, ME, SPEC) == run_record.Start()


@pytest.mark.parametrize("state", LIVE)
def test_live_with_the_same_owner_or_a_crashed_worker_is_adopted(state: State) -> None:
    assert decide(record(ME), state, ME, SPEC) == run_record.Adopt()
    assert decide(record(YOU), state, ME, SPEC) == run_record.Adopt()
    assert decide(record(replace(DEFERRED, id="me")), state, ME, SPEC) == run_record.Adopt()


def test_live_with_another_spec_is_refused_with_the_difference() -> None:
    assert decide(record(), State.RUNNING, ME, OTHER) == run_record.Refuse(("workers: 2 -> 3",))


def test_live_and_deferred_means_that_a_person_cleared_it() -> None:
    assert decide(record(DEFERRED), State.RUNNING, ME, SPEC) == run_record.StopFirst(())
    assert decide(record(DEFERRED), State.RUNNING, ME, OTHER) == run_record.StopFirst(("workers: 2 -> 3",))


@pytest.mark.parametrize("state", [State.FAILED, State.STOPPED, State.LOST, State.TIMED_OUT])
def test_what_ended_badly_is_tried_again_and_a_changed_spec_is_taken(state: State) -> None:
    assert decide(record(), state, ME, SPEC) == run_record.NewAttempt(())
    assert decide(record(), state, ME, OTHER) == run_record.NewAttempt(("workers: 2 -> 3",))


def test_a_success_is_handed_over_once_and_then_trains_anew() -> None:
    assert decide(record(), State.SUCCEEDED, ME, SPEC) == run_record.HandOver()
    assert decide(record(handed_over=True), State.SUCCEEDED, ME, SPEC) == run_record.NewGeneration(())


@pytest.mark.parametrize("spec", [SPEC, OTHER])
def test_a_success_of_a_step_of_a_pipeline_run_is_handed_over_again_and_again(
    spec: dict[str, object],
) -> None:
    """Argo starts a step anew whose pod was lost after its training."""
    step = record(handed_over=True, key=kfp_key("0c1d2e3f", "retrain.root.train.executor"))
    assert decide(step, State.SUCCEEDED, ME, spec) == run_record.HandOver()
    assert decide(step, State.FAILED, ME, SPEC) == run_record.NewAttempt(())


@pytest.mark.parametrize(
    "key",
    [
        kfp_key("", "/tmp/x"), airflow_key("i", "d", "r", "t"), "once/1", "kfp", "[", "[]", "3", "null",
        '["kfp"]', '["kfp",1]', '{"kfp":1,"a":2,"b":3}', '["kfpx","run","task"]', '"kfp"', "", "[" * 100_000,
    ],
)  # fmt: skip
def test_a_success_under_any_other_key_trains_anew(key: str) -> None:
    taken = record(handed_over=True, key=key)
    assert decide(taken, State.SUCCEEDED, ME, SPEC) == run_record.NewGeneration(())


def test_attempts_count_up_and_a_generation_starts_at_one() -> None:
    first = record().ended(State.FAILED, 5.0)
    second = first.next_attempt("u2", ME, OTHER, spec_hash(OTHER))
    assert (second.attempt, second.generation, second.uid, second.outcome) == (2, 1, "u2", None)
    assert [(e.attempt, e.state) for e in second.history] == [(1, "failed")]
    assert second.interruptions == 0
    taken = second.next_attempt("u2", ME, OTHER, spec_hash(OTHER), interrupted=True)
    assert (taken.attempt, taken.interruptions) == (3, 1)
    assert taken.next_generation("u3", ME, SPEC, spec_hash(SPEC)).interruptions == 0
    third = second.ended(State.SUCCEEDED, 9.0).next_generation("u3", ME, SPEC, spec_hash(SPEC))
    assert (third.attempt, third.generation) == (1, 2) and len(third.history) == 2


def test_the_first_word_on_how_it_ended_stands() -> None:
    ended = record().ended(State.SUCCEEDED, 5.0)
    assert ended.ended(State.LOST, 6.0) == ended


def test_a_record_survives_json_and_keeps_what_a_newer_writer_added() -> None:
    import json

    data = json.loads(json.dumps(record().ended(State.LOST, 5.0).to_dict())) | {"shiny": [1]}
    read = RunRecord.from_dict(data)
    assert read.unknown == {"shiny": [1]} and json.loads(json.dumps(read.to_dict())) == data


# --- data

PLACE = "/store/digits/shards"
OLD = Data(f"{PLACE}/version-00000000000000aa", "content:v1:aaaaaaaaaaaaaaaa", fixed=True)
NEW = Data(f"{PLACE}/version-00000000000000bb", "content:v1:bbbbbbbbbbbbbbbb", fixed=True)
BLIND = replace(NEW, content=None)
WHY = (
    "its data has changed (aaaaaaaaaaaa -> bbbbbbbbbbbb), and its checkpoints belong to the old data: "
    "it trains from scratch"
)


def named(data: Data | None) -> dict[str, object]:
    return {**SPEC, "data": {"shards": data.uri if data else "store://digits/shards"}}


def trained_on(data: Data | None, owner: Owner = YOU, **fields: object) -> RunRecord:
    return record(owner, data=data, spec=named(data), spec_hash=spec_hash(named(data)), **fields)


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("owner", [ME, YOU, DEFERRED])
def test_live_with_other_data_is_stopped_whoever_followed_it(state: State, owner: Owner) -> None:
    decision = decide(trained_on(OLD, owner), state, ME, named(NEW), NEW)
    assert isinstance(decision, run_record.StopFirst) and decision.reason == WHY


@pytest.mark.parametrize("state", [State.FAILED, State.STOPPED, State.LOST, State.TIMED_OUT, State.SUCCEEDED])
@pytest.mark.parametrize("handed_over", [True, False])
def test_what_ended_with_other_data_trains_from_scratch(state: State, handed_over: bool) -> None:
    """A result that nobody took, too: it is no model of the data that there is now."""
    ended = trained_on(OLD, handed_over=handed_over)
    decision = decide(ended, state, ME, named(NEW), NEW)
    assert isinstance(decision, run_record.NewGeneration) and decision.reason == WHY


def test_the_same_data_under_another_name_is_the_same() -> None:
    moved = replace(NEW, content=OLD.content)
    assert decide(trained_on(OLD), State.RUNNING, ME, named(moved), moved) == run_record.Adopt()
    assert decide(trained_on(OLD), State.FAILED, ME, named(moved), moved) == run_record.NewAttempt(())
    assert decide(trained_on(OLD), State.SUCCEEDED, ME, named(moved), moved) == run_record.HandOver()
    refused = decide(trained_on(OLD), State.RUNNING, ME, {**named(moved), "workers": 3}, moved)
    assert refused == run_record.Refuse(("workers: 2 -> 3",))


def test_data_that_is_unknown_is_as_it_always_was() -> None:
    for before, now in ((None, NEW), (OLD, None), (None, None)):
        assert decide(trained_on(before), State.FAILED, ME, named(before), now) == run_record.NewAttempt(())
        assert decide(trained_on(before), State.RUNNING, ME, named(before), now) == run_record.Adopt()
        deferred = decide(trained_on(before, DEFERRED), State.RUNNING, ME, named(before), now)
        assert deferred == run_record.StopFirst(())


def test_a_job_that_names_a_version_from_now_on_is_the_job_that_it_was() -> None:
    """Records of an earlier release do not know their data."""
    assert decide(trained_on(None), State.RUNNING, ME, named(NEW), NEW) == run_record.Adopt()
    elsewhere = Data("/other", "content:v1:cc")
    refused = decide(trained_on(None), State.RUNNING, ME, named(elsewhere), elsewhere)
    assert isinstance(refused, run_record.Refuse)


def test_who_cannot_read_them_tells_versions_apart_by_their_names() -> None:
    assert isinstance(
        decide(trained_on(OLD), State.FAILED, ME, named(BLIND), BLIND), run_record.NewGeneration
    )
    blind = replace(OLD, content=None)
    assert decide(trained_on(OLD), State.FAILED, ME, named(blind), blind) == run_record.NewAttempt(())
    place = Data(PLACE)
    assert decide(trained_on(OLD), State.FAILED, ME, named(place), place) == run_record.NewAttempt(())


def test_a_record_keeps_its_data_and_one_without_is_read() -> None:
    kept = trained_on(OLD)
    assert RunRecord.from_dict(kept.to_dict()) == kept
    older = {name: value for name, value in kept.to_dict().items() if name != "data"}
    assert RunRecord.from_dict(older).data is None
    newer = {**kept.to_dict(), "data": {**kept.to_dict()["data"], "shiny": 1}}
    assert RunRecord.from_dict(newer).data == OLD
