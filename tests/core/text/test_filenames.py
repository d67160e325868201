"""Names out of other people's files."""

from typing import Any

import pytest

from allaboard.text.filenames import leads_out, relative_name, sha256

OUT = ["/etc/passwd", "../x", "a/../../x", "..", "a\\..\\x", "\\\\server\\x", "C:x", "c:/x", "a\0/../x"]
ODD = [
    "",
    ".",
    "a//b",
    "a/",
    "./a",
    "a/./b",
    "a\nb",
    "a\x1b[2J",
    "a\u202eb",
    "\ud800",
    "x" * 256,
    "a/" * 600 + "b",
]


@pytest.mark.parametrize("name", [*OUT, *ODD, ".allaboard-x.tmp", None, 3, b"a", ["a"], {"a": 1}])
def test_a_name_that_may_lead_elsewhere_is_refused_in_one_line(name: Any) -> None:
    with pytest.raises(ValueError) as caught:
        relative_name(name)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "name", ["a.tar", "shards/cat 7/ümlaut.tar", "a..b", "...", "ab:c", "x" * 255, "-rf", "~"]
)
def test_any_other_name_is_taken(name: str) -> None:
    assert relative_name(name) == name and leads_out(name) is None


@pytest.mark.parametrize("name", OUT)
def test_a_key_that_leads_out_of_a_folder_is_told(name: str) -> None:
    assert leads_out(name)


def test_a_checksum_has_64_lower_case_hex_digits() -> None:
    assert sha256("0a" * 32) == "0a" * 32
    for wrong in (
        "",
        "0A" * 32,
        "0a" * 31,
        "0a" * 32 + "\n",
        "../" * 21 + "x",
        "٣" * 64,
        None,
        0,
        "/" + "a" * 63,
    ):
        with pytest.raises(ValueError, match="is not a SHA-256"):
            sha256(wrong)
