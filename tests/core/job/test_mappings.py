"""Mappings that are given as text."""

from __future__ import annotations

import pytest

from allaboard.errors import BadInput
from allaboard.job.mappings import as_mapping
from allaboard.text.untrusted import LIMITS


@pytest.mark.parametrize(
    "text",
    [
        '{"a": [1, null]}',
        "{'a': [1, None]}",
        "a:\n- 1\n-\n",
        "  a: [1, null]  \n",
    ],
    ids=["JSON", "Python", "YAML", "blanks around"],
)
def test_a_mapping_may_be_written_as_json_as_python_or_as_yaml(text: str) -> None:
    assert as_mapping(text, "job") == {"a": [1, None]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("just words", "it holds text"),
        ("[1, 2]", "it holds a list"),
        ("7", "it holds one value"),
        ("", "it holds nothing"),
        ("a: 1\n---\nb: 2", "it holds 2 documents"),
        ("a: b: c", "is not YAML"),
        ('{"a": 1, "a": 2}', "the field 'a' appears twice"),
        ("{'a': 1, 'a': 2}", "is not JSON"),
        ('{"a": ' + "[" * 70 + "]" * 70 + "}", "nested more than 64 deep"),
        ("{'a': " + "1" * 200 + "}", "is not JSON"),
        ("a: " + "x" * LIMITS.size, f"{LIMITS.size:,} bytes"),
        ('{"a": {{ n }}}', 'templates stand within quotes: "{{ params.workers }}"'),
    ],
)
def test_any_other_text_is_refused_with_its_name_and_the_reason(text: str, words: str) -> None:
    with pytest.raises(
        BadInput, match=r"^job: .* is not a mapping \(.*\); give a mapping, or JSON or YAML"
    ) as refused:
        as_mapping(text, "job", instead="a file")
    assert words in str(refused.value) and ", or a file" in str(refused.value)
    assert len(str(refused.value)) < 300
