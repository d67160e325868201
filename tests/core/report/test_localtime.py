"""Times as people read them: in their zone, unambiguous when clocks go back, and UTC where TZ is nonsense."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from allaboard.report import localtime

BERLIN = "Europe/Berlin"


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_times_are_those_of_the_zone_that_tz_names(monkeypatch: pytest.MonkeyPatch) -> None:
    noon = epoch("2026-11-20T12:00:02")
    for zone, said in {
        BERLIN: "13:00:02",
        f":{BERLIN}": "13:00:02",
        "America/New_York": "07:00:02",
        "Asia/Kolkata": "17:30:02",
        "UTC": "12:00:02",
        "/usr/share/zoneinfo/Asia/Tokyo": "21:00:02",
    }.items():
        if zone.startswith("/") and not Path(zone).exists():
            continue
        monkeypatch.setenv("TZ", zone)
        assert localtime.clock(noon) == said, zone
    assert localtime.clock(None) == "--:--:--"


def test_without_tz_it_is_the_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    time.tzset()
    now = epoch("2026-01-15T12:00:02")
    assert localtime.clock(now) == time.strftime("%H:%M:%S", time.localtime(now))


def test_a_moment_of_another_day_has_its_date(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", BERLIN)
    now = epoch("2026-11-20T23:30:00")  # the 21st in Berlin
    assert localtime.moment(epoch("2026-11-20T23:00:02"), now) == "00:00:02"
    assert localtime.moment(epoch("2026-11-20T22:59:00"), now) == "11-20 23:59"
    assert localtime.moment(None, now) == "-"


def test_the_hour_that_comes_twice_shows_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", BERLIN)
    first, second = epoch("2026-10-25T00:30:00"), epoch("2026-10-25T01:30:00")
    assert [localtime.clock(t) for t in (first, second)] == ["02:30:00+02:00", "02:30:00+01:00"]
    assert localtime.moment(first, epoch("2026-11-20T12:00:00")) == "10-25 02:30+02:00"
    assert localtime.clock(epoch("2026-10-24T23:59:59")) == "01:59:59"
    assert localtime.clock(epoch("2026-10-25T02:00:00")) == "03:00:00"


def test_the_hour_that_does_not_exist_is_never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", BERLIN)
    leap = epoch("2026-03-29T01:00:00")
    assert [localtime.clock(t) for t in (leap - 1, leap, leap + 1800)] == ["01:59:59", "03:00:00", "03:30:00"]


@pytest.mark.parametrize(
    "zone",
    ["garbage/x", "", ":", "a b", "CET-1CEST,M3.5.0,M10.5.0/3", "../../etc/passwd", "/etc/passwd", "/"],
)
def test_a_tz_that_names_no_zone_means_utc_and_says_so(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    monkeypatch.setenv("TZ", zone)
    assert localtime.clock(epoch("2026-11-20T12:00:02")) == "12:00:02Z"
    assert localtime.moment(epoch("2026-11-19T12:00:02"), epoch("2026-11-20T12:00:02")) == "11-19 12:00Z"


@pytest.mark.parametrize("line", [["--help"], ["list"], ["check", "job.yaml"], ["schema"]])
def test_whoever_shows_no_time_does_not_load_zones(tmp_path: Path, line: list[str]) -> None:
    (tmp_path / "job.yaml").write_text("name: digits\ncommand: [python, train.py]\n")
    code = (
        "import sys\nfrom allaboard.cli import main\n"
        "sys.argv = ['allaboard', *sys.argv[1:]]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'pendulum' not in sys.modules"
    )
    # A home of its own: where another test left a run, `list` shows when it began.
    environ = {**os.environ, "ALLABOARD_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code, *line], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
