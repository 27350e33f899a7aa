from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pipeline.alerts.outbox import MAX_AGE
from pipeline.alerts.schedule import PAUSES_S, next_attempt, read_retry_after
from tests.alerts.helpers import rng

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def test_waits_longer_each_time_and_gives_up_at_the_end() -> None:
    jitter = rng()
    waits = []
    for failed in range(1, len(PAUSES_S) + 1):
        moment = next_attempt(failed, NOW, jitter)
        assert moment is not None
        waits.append((moment - NOW).total_seconds())
    for wait, pause in zip(waits, PAUSES_S, strict=True):
        assert pause <= wait <= pause * 1.1
    assert waits == sorted(waits)
    assert next_attempt(len(PAUSES_S) + 1, NOW, rng()) is None


def test_the_whole_schedule_is_over_before_an_alert_is_too_old() -> None:
    assert timedelta(seconds=sum(PAUSES_S) * 1.1) < MAX_AGE


def test_waits_as_long_as_the_receiver_asks() -> None:
    assert next_attempt(1, NOW, rng(), timedelta(seconds=90)) == NOW + timedelta(seconds=90)
    # Never shorter than the schedule.
    later = next_attempt(4, NOW, rng(), timedelta(seconds=1))
    assert later is not None
    assert later >= NOW + timedelta(seconds=300)
    assert next_attempt(1, NOW, rng(), timedelta(days=400)) == NOW + timedelta(hours=24)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("", None),
        ("120", 120),
        (" 7 ", 7),
        ("99999999999999999999", 24 * 3600),
        ("soon", None),
        ("-5", None),
        ("Mon, 30 Nov 2026 12:02:00 GMT", 120),
        ("Mon, 30 Nov 2026 11:00:00 GMT", 0),
    ],
)
def test_reads_retry_after(header: str | None, seconds: float | None) -> None:
    found = read_retry_after(header, NOW)
    assert found == (None if seconds is None else timedelta(seconds=seconds))
