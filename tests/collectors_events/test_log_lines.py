"""A line of a log is an event once, also when the collector was started again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pipeline.collectors.log_lines import CATCH_UP, KEEP, LogLines
from pipeline.collectors.page import Page, Reading
from pipeline.collectors.readers.kmsg import LogEvent, log_events

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def lines(*times: datetime | None, code: int = 79) -> list[LogEvent]:
    text = "\n".join(
        f"{time.isoformat() + ' h ' if time else ''}NVRM: Xid (PCI:0000:01:00): {code}, x{n}"
        for n, time in enumerate(times)
    )
    return log_events(Page(text.encode(), "t", AT, "test", "h"), Reading())


def test_a_tail_that_grows() -> None:
    seen = LogLines()
    old = AT - timedelta(hours=5)
    assert seen.new("t", lines(old), AT) == []
    assert seen.new("t", lines(old), AT) == []
    later = lines(old, AT + timedelta(seconds=5))
    assert seen.new("t", later, AT + timedelta(seconds=10)) == later[1:]
    assert seen.new("t", later, AT + timedelta(seconds=20)) == []


def test_what_came_while_the_collector_was_away_is_told() -> None:
    young, old = AT - CATCH_UP / 2, AT - CATCH_UP * 2
    fresh = LogLines().new("t", lines(old, young, None), AT)
    assert [event.time for event in fresh] == [young]


def test_restart_tells_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "lines.json"
    found = lines(AT - timedelta(seconds=5))
    before = LogLines(path)
    assert before.new("t", found, AT) == found
    before.keep()
    after = LogLines(path)
    assert after.new("t", found, AT + timedelta(seconds=60)) == []
    more = [*found, *lines(AT + timedelta(seconds=30), code=48)]
    assert after.new("t", more, AT + timedelta(seconds=60)) == more[1:]


def test_killed_before_the_events_were_safe_tells_them_again(tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    found = lines(AT - timedelta(seconds=5))
    LogLines(path).new("t", found, AT)
    assert LogLines(path).new("t", found, AT) == found


def test_broken_state_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "lines.json"
    for text in ("", "[1]", '{"t": 5}', "\x00"):
        path.write_text(text)
        assert LogLines(path).new("t", lines(AT), AT)


def test_memory_is_bounded() -> None:
    seen = LogLines()
    for start in range(0, 3 * KEEP, 1_000):
        seen.new("t", lines(*(AT + timedelta(milliseconds=start + n) for n in range(1_000))), AT)
    assert len(seen._seen["t"]) == KEEP
