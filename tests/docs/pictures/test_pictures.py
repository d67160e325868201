"""The moving picture: the screen draws what a terminal would, the film keeps times and says what it cut."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.pictures.film import Frame, Shot, shots, svg, thinned, with_notes
from tests.docs.pictures.screen import Picture, Screen, Span, Style, UnknownSequence
from tests.meta.source import ROOT

PICTURE = ROOT / "core" / "docs" / "pictures" / "run.svg"


def drawn(*texts: str, columns: int = 20, rows: int = 4) -> list[str]:
    screen = Screen(columns, rows)
    for text in texts:
        screen.feed(text)
    return [line(row) for row in screen.picture()]


def line(row: tuple[Span, ...]) -> str:
    text = ""
    for span in row:
        text = text.ljust(span.column) + span.text
    return text


def a_picture(text: str) -> Picture:
    screen = Screen(40, 2)
    screen.feed(text)
    return screen.picture()


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        pytest.param(["a\r\nb"], ["a", "b"], id="lines"),
        pytest.param(["abc\rX"], ["Xbc"], id="a return writes over"),
        pytest.param(["one\r\ntwo\r\x1b[1A\x1b[2Knew"], ["new", "two"], id="a live view draws anew"),
        pytest.param(["abcdef\x1b[3D\x1b[K"], ["abc"], id="erased to the end of the line"),
        pytest.param(["a\r\nb\r\nc\r\nd\r\ne"], ["b", "c", "d", "e"], id="it scrolls"),
        pytest.param(["x" * 21], ["x" * 20, "x"], id="a long line goes on below"),
        pytest.param(["\x1b[3", "1mred", "\x1b[", "0m."], ["red."], id="sequences that were cut in two"),
        pytest.param(["\x1b[?25l\x1b]0;title\x07a\x1b[?25h"], ["a"], id="cursor and title are not drawn"),
        pytest.param(["a\x1b[2;5Hb"], ["a", "    b"], id="a place is named"),
        pytest.param(["a\r\nb\x1b[2Jc"], ["", " c"], id="all erased"),
    ],
)
def test_the_screen_draws_what_a_terminal_would(written: list[str], seen: list[str]) -> None:
    assert drawn(*written)[: len(seen)] == seen


@pytest.mark.parametrize(
    ("code", "style"),
    [
        ("1;32", Style("#98c379", bold=True)),
        ("2", Style(dim=True)),
        ("38;2;249;38;114", Style("#f92672")),
        ("38;5;237", Style("#3a3a3a")),
        ("38;5;197", Style("#ff005f")),
        ("1;31;22;39", Style()),
        ("48;5;1;33", Style("#e5c07b")),
    ],
)
def test_colours(code: str, style: Style) -> None:
    screen = Screen(10, 1)
    screen.feed(f"\x1b[{code}mx\x1b[0m y")
    first, *rest = screen.picture()[0]
    assert (first.style, first.text[0]) == (style, "x")
    assert not rest or rest[0].style == Style()


@pytest.mark.parametrize("text", ["\x1b[5S", "\x1bP", "\x01"])
def test_what_it_does_not_know_is_no_picture(text: str) -> None:
    with pytest.raises(UnknownSequence):
        drawn(text)


def test_times_are_kept_but_where_only_clocks_move() -> None:
    frames = [
        Frame(0.0, a_picture("training 1 s   loss 3")),
        Frame(0.5, a_picture("training 2 s   loss 2")),
        Frame(1.0, a_picture("training 3 s   loss 1")),  # from here on, nothing but its clock
        Frame(2.0, a_picture("training 4 s   loss 1")),
        Frame(9.0, a_picture("training 5 s   loss 1")),
        Frame(9.2, a_picture("over")),
    ]
    made = shots(frames, idle=1.5, end=4.0)
    assert [(shot.frame.at, shot.lasts) for shot in made] == [
        (0.0, 0.5), (0.5, 0.5), (1.0, 1.0), (2.0, 0.5), (9.2, 4.0),
    ]  # fmt: skip


def test_a_note_is_a_change() -> None:
    frames = [Frame(float(n), a_picture("same")) for n in range(4)]
    noted = with_notes(frames, [(1.0, 3.0, "kill -9")])
    assert [frame.note for frame in noted] == ["", "kill -9", "kill -9", ""]
    assert {shot.frame.note for shot in shots(noted, idle=0.1, end=1.0)} == {"", "kill -9"}


def test_thinning_keeps_the_first_the_last_and_one_for_each_while() -> None:
    frames = [Frame(n / 10, a_picture(str(n))) for n in range(11)]
    kept = thinned(frames, 0.5)
    assert [frame.at for frame in kept] == [0.0, 0.4, 0.9, 1.0]


def test_the_film_shows_each_frame_for_its_time_and_draws_equal_rows_once() -> None:
    made = [Shot(Frame(0.0, a_picture("a <b> & c\r\nx")), 1.0), Shot(Frame(7.0, a_picture("d\r\nx")), 3.0)]
    text = svg(made, columns=40, title="t", footer="f", alternative="what it shows")
    ElementTree.fromstring(text)
    assert re.findall(r"([\d.]+)%\{transform:translateX\((-?\d+)px\)", text) == [
        ("0.000", "0"), ("25.000", "-348"),
    ]  # fmt: skip
    assert text.count('<g id="r') == 3 and text.count("<use ") == 4
    assert "a &lt;b&gt; &amp; c" in text and "7.0 s" in text
    assert "prefers-reduced-motion" in text and "what it shows" in text


def test_the_picture_of_the_readme_is_light_and_needs_nothing() -> None:
    check_picture(PICTURE.read_text())


@pytest.mark.slow
@pytest.mark.thorough
def test_a_real_run_is_recorded(tmp_path: Path) -> None:
    """What `make pictures` does: the run, the kill and the drawing."""
    command = [sys.executable, "-m", "tests.docs.pictures.record", str(tmp_path / "run.svg")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_picture((tmp_path / "run.svg").read_text())


def check_picture(text: str) -> None:
    root = ElementTree.fromstring(text)
    assert len(text.encode()) < 300_000
    assert {part.tag.rpartition("}")[2] for part in root.iter()} <= {
        "svg", "title", "desc", "style", "defs", "g", "text", "use", "rect", "circle",
    }  # fmt: skip
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    words = " ".join(root.itertext())
    assert "kill -9 worker-0" in words and "1 restart" in words and "Succeeded" in words
    assert "A real run of" in words and "time is shortened" in words
