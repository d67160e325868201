"""Foreign text on its way to a terminal."""

import sys
import unicodedata

import pytest

from allaboard.text.printable import last_state, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss 0.5", "loss 0.5"),
        ("Überwachung 训练 ✔️ 👍", "Überwachung 训练 ✔️ 👍"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\nb\r\nc\td", r"a\nb\r\nc\td"),
        ("\x9b2J\x7f\x00", r"\x9b2J\x7f\x00"),
        ("user\u202egnp.exe", r"user\u202egnp.exe"),
        ("a\u2028b\u2029c\x85d", r"a\u2028b\u2029c\x85d"),
        ("\ud800 \udcff", r"\ud800 \udcff"),
        ("pay\u200bpal\u2066\ufeff\u00ad", r"pay\u200bpal\u2066\ufeff\xad"),
        ("a\u3164\U000e0041\U000e0100b", r"a\u3164\U000e0041\U000e0100b"),
        (r"C:\x1b", r"C:\x1b"),
    ],
)
def test_what_a_terminal_obeys_or_hides_is_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


def test_no_character_of_unicode_breaks_a_line_or_is_a_control() -> None:
    shown = visible("".join(map(chr, range(sys.maxunicode + 1))))
    assert len(shown.splitlines()) == 1
    assert not {unicodedata.category(c) for c in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()


def test_a_text_of_several_lines_keeps_them_and_nothing_else() -> None:
    assert visible("a\r\nb\nc\rd\x0be\tf", newlines=True) == "a\nb\nc\\rd\\x0be\\tf"
    assert visible("a\tb\x1b", tabs=True) == "a\tb\\x1b"


def test_a_length_bounds_the_result() -> None:
    assert visible("x" * 10, most=10) == "x" * 10
    assert visible("x" * 11, most=10) == "x" * 7 + "..."
    assert len(visible("\x1b" * 10**6, most=20)) == 20


def test_any_value_is_shown() -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert visible(Hostile()) == "<Hostile>"
    assert visible(None) == "None"


def test_a_progress_bar_is_its_last_state() -> None:
    assert last_state("10%\r50%\r100%") == "100%"
    assert last_state("10%\r50%\r") == "50%"
    assert last_state("plain") == "plain"
    assert last_state("\r\r") == ""
