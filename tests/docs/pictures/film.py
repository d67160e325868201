"""A recording as one SVG that moves by CSS alone: no script, no font, nothing to fetch.

Frames lie side by side like those of a film, and a keyframe moves the strip to each at its time. A row that
several frames share is drawn once. Values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import pairwise

from rich.cells import cell_len

from tests.docs.pictures.screen import Picture, Row, Span

_CLOCKS = re.compile(r"\d+(?:\.\d+)? (?:s|min|h)\b|[\u2800-\u28ff]")
"""What moves though nothing happens: seconds that are counted, and the spinner."""
_WIDE, _HIGH = 8.0, 17.0
"""Pixels of a cell."""
_EDGE, _BAR = 14, 30
_GROUND, _INK, _FAINT, _LINE, _NOTE = "#1b1f27", "#d8dee9", "#949db0", "#3b4252", "#ffd68a"


@dataclass(frozen=True, slots=True)
class Frame:
    """``at``: seconds since the recording began. ``note``: what happens outside the terminal."""

    at: float
    picture: Picture
    note: str = ""


@dataclass(frozen=True, slots=True)
class Shot:
    """A frame for so many seconds of the film."""

    frame: Frame
    lasts: float


def thinned(frames: Sequence[Frame], every: float) -> list[Frame]:
    """At most one frame for each ``every`` seconds: the last of them, at the time when it was drawn. The
    first and the last stay, and whoever comes before another note.
    """
    kept = [
        frame
        for frame, following in pairwise(frames)
        if frame is frames[0]
        or int(frame.at / every) != int(following.at / every)
        or frame.note != following.note
    ]
    return [*kept, *frames[-1:]]


def shots(frames: Sequence[Frame], *, idle: float, end: float) -> list[Shot]:
    """How long each is shown. Stretches in which nothing but clocks moves take ``idle`` seconds at most, the
    last frame ``end``; all others keep their real time.
    """
    made: list[Shot] = []
    stretch: tuple[str, str] | None = None
    spent = 0.0
    for frame, following in pairwise(frames):
        means = (_without_clocks(frame.picture), frame.note)
        spent = spent if means == stretch else 0.0
        stretch = means
        lasts = min(following.at - frame.at, idle - spent)
        if lasts > 0:
            made.append(Shot(frame, lasts))
            spent += lasts
    return [*made, Shot(frames[-1], end)]


def _without_clocks(picture: Picture) -> str:
    return "\n".join(" ".join(_CLOCKS.sub("", span.text) for span in row) for row in picture)


def svg(made: Sequence[Shot], *, columns: int, title: str, footer: str, alternative: str) -> str:
    """The picture. ``alternative``: what it shows, for those who do not see it."""
    rows = 1 + max((n for shot in made for n, row in enumerate(shot.frame.picture) if row), default=0)
    wide = round(columns * _WIDE + 2 * _EDGE)
    foot = _BAR + round(rows * _HIGH + 1.5 * _EDGE)
    high = foot + 2 * round(_HIGH) + _EDGE
    size = f'width="{wide}" height="{high}"'
    drawn: dict[Row, int] = {}
    strip = [_frame(shot.frame, at * wide, rows, wide, foot, drawn) for at, shot in enumerate(made)]
    defined = (f'<g id="r{number}">{_row(row)}</g>' for row, number in drawn.items())
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" {size} role="img" '
            'aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title><desc id="d">{escape(alternative)}</desc>',
            f"<style>{''.join(_rules(made, wide))}</style>",
            f"<defs>{''.join(defined)}</defs>",
            f'<rect x=".5" y=".5" width="{wide - 1}" height="{high - 1}" rx="8" fill="{_GROUND}" '
            f'stroke="{_LINE}"/>',
            "".join(f'<circle cx="{18 + 16 * n}" cy="16" r="5" fill="{_LINE}"/>' for n in range(3)),
            f'<text x="{wide / 2:g}" y="20" text-anchor="middle" class="f">{escape(title)}</text>',
            f'<text x="{_EDGE}" y="{foot + 2 * _HIGH:g}" class="f">{escape(footer)}</text>',
            f'<svg {size}><g class="film">{"".join(strip)}</g></svg>',
            "</svg>\n",
        ]
    )


def _rules(made: Sequence[Shot], wide: int) -> Iterator[str]:
    whole = sum(shot.lasts for shot in made)
    yield "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    yield f"fill:{_INK}}}.b{{font-weight:700}}.d{{opacity:.68}}.f{{fill:{_FAINT};font-size:12px}}"
    # Where nothing moves, on paper or for whoever asks for stillness, it shows how it ends.
    last = (1 - len(made)) * wide
    yield f".n{{fill:{_NOTE};font-weight:700}}.film{{transform:translateX({last}px)}}"
    yield "@media(prefers-reduced-motion:no-preference)"
    yield f"{{.film{{animation:film {whole:.2f}s step-end infinite}}}}"
    yield "@keyframes film{"
    at = 0.0
    for number, shot in enumerate(made):
        yield f"{100 * at / whole:.3f}%{{transform:translateX({-number * wide}px)}}"
        at += shot.lasts
    yield "}"


def _frame(frame: Frame, left: int, rows: int, wide: int, foot: int, drawn: dict[Row, int]) -> str:
    shown = "".join(
        f'<use href="#r{drawn.setdefault(row, len(drawn))}" y="{number * _HIGH:g}"/>'
        for number, row in enumerate(frame.picture[:rows])
        if row
    )
    clock = f'<text x="{wide - _EDGE}" y="20" text-anchor="end" class="f">{frame.at:.1f} s</text>'
    note = f'<text x="{_EDGE}" y="{foot + 0.7 * _HIGH:g}" class="n">{escape(frame.note)}</text>'
    note = note if frame.note else ""
    return f'<g transform="translate({left})">{shown}{clock}{note}</g>'


def _row(row: Row) -> str:
    return "".join(_span(span) for span in row)


def _span(span: Span) -> str:
    """Held to the grid by its length: a fallback font may draw lines and dots in another width."""
    classes = " ".join(name for name, on in (("b", span.style.bold), ("d", span.style.dim)) if on)
    marks = f' class="{classes}"' if classes else ""
    marks += f' style="fill:{span.style.colour}"' if span.style.colour else ""
    left, wide = _EDGE + span.column * _WIDE, cell_len(span.text) * _WIDE
    words = escape(span.text, quote=False)
    return f'<text x="{left:g}" y="{_BAR + _HIGH:g}" textLength="{wide:g}"{marks}>{words}</text>'


def with_notes(frames: Sequence[Frame], notes: Sequence[tuple[float, float, str]]) -> list[Frame]:
    """Frames between two times bear a note: (from, to, words)."""
    return [
        replace(frame, note=next((words for begins, ends, words in notes if begins <= frame.at < ends), ""))
        for frame in frames
    ]
