"""Whose fault a cause is: every code of the table is a rule's, is in one row, and agrees with its rule."""

from __future__ import annotations

from allaboard.diagnosis.causes import all_rules
from allaboard.diagnosis.faults import FAULTS, Fault, fault_of

PASSING_IMAGES = {"image_pull_network", "image_pull_rate_limited"}


def test_each_code_of_the_table_is_a_rule_and_is_in_one_row() -> None:
    codes = [code for row in FAULTS.values() for code in row]
    assert len(codes) == len(set(codes)) and set(codes) <= all_rules().keys()
    assert Fault.PLACE not in FAULTS and fault_of("gpu_hardware_error") is Fault.PLACE


def test_interruptions_may_pass_and_what_is_the_users_may_not() -> None:
    rules = all_rules()
    passing = {code for row in FAULTS.values() for code in row if rules[code].cause.retryable}
    assert passing == FAULTS[Fault.INTERRUPTION] | PASSING_IMAGES
