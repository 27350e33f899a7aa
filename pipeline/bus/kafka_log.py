"""Keeps kafka-python from filling the log while a broker is away.

It writes some lines ten times a second then; we say ourselves what is the matter.
"""

from __future__ import annotations

import logging
import time

_EVERY_S = 30.0
_LOGGERS = (
    "kafka.cluster",
    "kafka.net.manager",
    "kafka.net.connection",
    "kafka.net.transport",
    "kafka.net.sasl.plain",
    "kafka.producer.sender",
    "kafka.producer.transaction_manager",
    "kafka.consumer.fetcher",
    "kafka.coordinator",
    "kafka.coordinator.base",
    "kafka.coordinator.consumer",
)


class _Sparse(logging.Filter):
    """Lets a line through once in a while; lines that differ in numbers only are the same."""

    def __init__(self) -> None:
        super().__init__()
        self._let_through: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place = (record.pathname, record.lineno)
        now = time.monotonic()
        if now - self._let_through.get(place, -_EVERY_S) < _EVERY_S:
            return False
        self._let_through[place] = now
        return True


_sparse = _Sparse()


def calm_kafka_logs() -> None:
    """Write each kind of kafka-python's lines twice a minute at most. Safe to call again."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_sparse)
