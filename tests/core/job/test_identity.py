"""A run is found by its key alone; a changed job is seen, shown, and never mistaken."""

from __future__ import annotations

from allaboard.job.identity import (
    airflow_key,
    canonical,
    differences,
    fresh_key,
    same_spec,
    spec_hash,
)
from allaboard.testing import a_job
from allaboard.text.names import attempt_name, checkpoint_folder, run_name, why_not_a_job_name


def test_the_same_key_gives_the_same_run_and_others_do_not() -> None:
    assert run_name("digits", "k") == run_name("digits", "k")
    names = {run_name("digits", airflow_key("i", "d", "r", "t", n)) for n in range(5000)}
    assert len(names) == 5000
    assert all(why_not_a_job_name(n) is None for n in names)
    assert fresh_key() != fresh_key()


def test_attempts_and_generations_have_names_of_their_own() -> None:
    assert [attempt_name("r-1", n) for n in (1, 2, 3)] == ["r-1", "r-1-2", "r-1-3"]
    assert [checkpoint_folder("r-1", g) for g in (1, 2)] == ["r-1", "r-1-g2"]


def test_the_hash_covers_what_was_set_in_any_order() -> None:
    one = {"name": "digits", "workers": 2, "policy": {"ttl": "1d", "attempts": 2}}
    two = {"workers": 2, "policy": {"attempts": 2, "ttl": "1d"}, "name": "digits"}
    assert spec_hash(one) == spec_hash(two) and canonical(one) == canonical(two)
    assert spec_hash(one) != spec_hash({**one, "workers": 3})
    assert spec_hash(a_job().as_mapping()) != spec_hash(a_job(policy={"restart": "on_failure"}).as_mapping())


def test_a_hash_of_an_unknown_version_is_never_a_refusal() -> None:
    assert same_spec("v9:abc", {"name": "x"})
    assert not same_spec("v1:abc", {"name": "x"})


def test_a_difference_is_one_line_with_its_path() -> None:
    old = {"name": "a", "policy": {"backoff_limit": 3}, "command": ["a"]}
    new = {"name": "a", "policy": {"backoff_limit": 5, "ttl": "1d"}, "command": ["a"]}
    assert differences(old, new) == ["policy.backoff_limit: 3 -> 5", 'policy.ttl: absent -> "1d"']
