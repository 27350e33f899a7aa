"""When a failed delivery is tried again."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

# Seconds after each failed attempt. From five minutes on it is the schedule that Standard
# Webhooks 1.0.0 recommends; before that it is finer, because on-call waits for the page.
PAUSES_S = (
    5, 20, 60, 300, 1800, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 24 * 3600,
)  # fmt: skip
_LONGEST_RETRY_AFTER = timedelta(hours=24)
_JITTER = 0.1


def next_attempt(
    failed: int, now: datetime, rng: random.Random, retry_after: timedelta | None = None
) -> datetime | None:
    """When to try again after ``failed`` failed attempts; None to give up.

    Args:
        retry_after: what the receiver asked for; a wait is never shorter than that.
    """
    if failed > len(PAUSES_S):
        return None
    pause = timedelta(seconds=PAUSES_S[failed - 1] * (1 + rng.uniform(0, _JITTER)))
    if retry_after is not None:
        pause = max(pause, min(retry_after, _LONGEST_RETRY_AFTER))
    return now + pause


def read_retry_after(value: str | None, now: datetime) -> timedelta | None:
    """The header ``Retry-After``, in seconds or as a date (RFC 9110, 10.2.3)."""
    if not value:
        return None
    text = value.strip()
    if text.isdigit():
        return min(timedelta(seconds=int(text[:9])), _LONGEST_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(timedelta(0), min(moment - now, _LONGEST_RETRY_AFTER))
