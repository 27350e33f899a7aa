"""Repeats of collectors: told by their very number, never by "as high as the highest".

A collector numbers its messages per stream and key. When partitions are added, a key moves to
another partition, whose writer may be ahead of the old one's: a lower number is then new. So a
number that is not above the highest is looked up in the ``messages`` projection, which lies in
the same parts as the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clickhouse_connect.driver.client import Client

from pipeline.streams.ddl import DATABASE
from pipeline.writer.block import Taken

_ASK_AT_ONCE = 5_000

Pair = tuple[str, str]


@dataclass
class Sifted:
    """Messages of a block, told apart.

    Attributes:
        fresh: to be stored.
        repeats: stored already; left out.
        gaps: collector, key, first and last missing number.
        filled: collector, key and number that came late into a gap.
    """

    fresh: list[Taken] = field(default_factory=list)
    repeats: list[Taken] = field(default_factory=list)
    gaps: list[tuple[str, str, int, int]] = field(default_factory=list)
    filled: list[tuple[str, str, int]] = field(default_factory=list)


class Sequences:
    """What is known of the numbers of one stream.

    Args:
        stream: name of the stream.
        client: gives a client of the store.
        settings: of reading statements.
    """

    def __init__(
        self, stream: str, client: Callable[[], Client], settings: Mapping[str, str] | None = None
    ) -> None:
        self._stream = stream
        self._client = client
        self._settings = dict(settings or {})
        self._highest: dict[Pair, int] = {}

    def forget(self) -> None:
        """Ask the table again: what was taken to be stored may not be."""
        self._highest.clear()

    def sift(self, messages: Sequence[Taken]) -> Sifted:
        """Leave out what is stored already, and note holes in the numbering.

        Raises:
            ClickHouseError, OSError, HTTPError: the store's.
        """
        self._learn({message.pair for message in messages})
        doubtful = self._doubtful(messages)
        stored = self._stored(doubtful) if doubtful else set()
        sifted = Sifted()
        taken: set[tuple[str, str, int]] = set()
        for message in messages:
            pair, seq = message.pair, message.header.seq
            number = (*pair, seq)
            if number in stored or number in taken:
                sifted.repeats.append(message)
                continue
            taken.add(number)
            highest = self._highest.get(pair, 0)
            if seq <= highest:
                sifted.filled.append(number)
            elif highest and seq > highest + 1:
                # Nothing stored of this pair yet is no hole: it may be older than retention.
                sifted.gaps.append((*pair, highest + 1, seq - 1))
            self._highest[pair] = max(highest, seq)
            sifted.fresh.append(message)
        return sifted

    def _doubtful(self, messages: Iterable[Taken]) -> list[Taken]:
        """Messages whose number is not above all before them."""
        highest = dict(self._highest)
        doubtful = []
        for message in messages:
            if message.header.seq <= highest.get(message.pair, 0):
                doubtful.append(message)
            else:
                highest[message.pair] = message.header.seq
        return doubtful

    def _learn(self, pairs: set[Pair]) -> None:
        unknown = [pair for pair in pairs if pair not in self._highest]
        for start in range(0, len(unknown), _ASK_AT_ONCE):
            some = unknown[start : start + _ASK_AT_ONCE]
            # Collectors times keys may be more than was asked; what is known stays right.
            rows = self._rows(
                """SELECT collector_id, kafka_key, max(collector_seq)
                FROM {table} WHERE collector_id IN {{collectors:Array(String)}}
                    AND kafka_key IN {{keys:Array(String)}}
                GROUP BY collector_id, kafka_key""",
                {
                    "collectors": sorted({collector for collector, _ in some}),
                    "keys": sorted({key for _, key in some}),
                },
            )
            found = {(str(row[0]), str(row[1])): int(row[2]) for row in rows}
            for pair in some:
                self._highest[pair] = found.get(pair, 0)

    def _stored(self, messages: Sequence[Taken]) -> set[tuple[str, str, int]]:
        stored: set[tuple[str, str, int]] = set()
        for start in range(0, len(messages), _ASK_AT_ONCE):
            some = messages[start : start + _ASK_AT_ONCE]
            rows = self._rows(
                """SELECT DISTINCT collector_id, kafka_key, collector_seq
                FROM (
                    SELECT collector_id, kafka_key, collector_seq,
                        kafka_topic_id, kafka_partition, kafka_offset, count()
                    FROM {table} WHERE collector_id IN {{collectors:Array(String)}}
                        AND kafka_key IN {{keys:Array(String)}}
                        AND collector_seq IN {{numbers:Array(UInt64)}}
                    GROUP BY ALL
                )""",
                {
                    "collectors": sorted({message.header.collector_id for message in some}),
                    "keys": sorted({message.key for message in some}),
                    "numbers": sorted({message.header.seq for message in some}),
                },
            )
            stored |= {(str(row[0]), str(row[1]), int(row[2])) for row in rows}
        return stored

    def _rows(
        self, sql: str, parameters: dict[str, list[str] | list[int]]
    ) -> Sequence[Sequence[Any]]:
        answer = self._client().query(
            sql.format(table=f"{DATABASE}.{self._stream}"),
            parameters=parameters,
            settings=self._settings,
        )
        rows: Sequence[Sequence[Any]] = answer.result_rows
        return rows
