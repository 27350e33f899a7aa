"""Rows of many pages put together, so that messages are not tiny.

Pages that are read within one short window become one table per stream; the publisher
splits it by key. What waits is bounded: when the spool cannot take more, the oldest rows
are dropped and counted.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Protocol

import pyarrow as pa

# Half a minute of the reference fleet, a few hundred megabytes.
MAX_WAITING_ROWS = 500_000


class Sink(Protocol):
    """Where rows go: the publisher, or a terminal."""

    def put(self, stream_name: str, table: pa.Table) -> None:
        """Take rows of one stream; when it returns they are safe."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Send what is spooled; False when some of it could not be sent in time."""
        ...

    def close(self, timeout_s: float) -> None:
        """End in order."""
        ...


class Batches:
    """Rows that wait for the next window's end. Used from several threads."""

    def __init__(self, max_rows: int = MAX_WAITING_ROWS) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[pa.Table]] = {}
        self._rows = 0
        self._max_rows = max_rows
        self.dropped: Counter[str] = Counter()

    @property
    def rows(self) -> int:
        """Rows that wait."""
        return self._rows

    def add(self, tables: Mapping[str, Iterable[pa.Table]]) -> None:
        """Add tables by stream."""
        with self._lock:
            for stream, parts in tables.items():
                for table in parts:
                    if table.num_rows:
                        self._waiting.setdefault(stream, deque()).append(table)
                        self._rows += table.num_rows
            while self._rows > self._max_rows:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        # The stream with most tables waiting loses its oldest; events are few and stay.
        stream = max(self._waiting, key=lambda name: (name != "event", len(self._waiting[name])))
        table = self._waiting[stream].popleft()
        self._rows -= table.num_rows
        self.dropped[stream] += table.num_rows
        if not self._waiting[stream]:
            del self._waiting[stream]

    def take(self) -> dict[str, list[pa.Table]]:
        """All that waits, by stream, the oldest first."""
        with self._lock:
            waiting, self._waiting, self._rows = self._waiting, {}, 0
        return {stream: list(tables) for stream, tables in waiting.items()}

    def give_back(self, stream: str, table: pa.Table) -> None:
        """Rows that the sink refused wait again, in front."""
        with self._lock:
            self._waiting.setdefault(stream, deque()).appendleft(table)
            self._rows += table.num_rows
            while self._rows > self._max_rows:
                self._drop_oldest()
