"""What goes on: rows, rates and lag per stream, scoring runs, open incidents."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from clickhouse_connect.driver.client import Client

from pipeline.bus.consumer import log_ends
from pipeline.bus.topics import topic_ids
from pipeline.clock import Clock
from pipeline.errors import RackpulseError
from pipeline.settings import Settings
from pipeline.streams import Contracts

_RATE_WINDOW_S = 30.0


@dataclass(frozen=True)
class StreamStatus:
    """One stream.

    Attributes:
        rows: rows stored.
        rows_per_second: over the last half minute.
        lag: messages in Kafka that are not stored yet; None while Kafka does not answer.
    """

    name: str
    rows: int
    rows_per_second: float | None
    lag: int | None


@dataclass(frozen=True)
class Scoring:
    """What the detectors did.

    Attributes:
        live: detectors with a live model.
        newest: end of the newest window that was judged, by detector.
    """

    live: frozenset[str]
    newest: Mapping[str, datetime]

    def text(self, now: datetime) -> str:
        """One line for a person."""
        if not self.live:
            return "no live model yet: training begins when the history has landed"
        if not self.newest:
            return f"{len(self.live)} live models, nothing judged yet"
        oldest = min(utc(moment) for moment in self.newest.values())
        age = max(0, int((now - oldest).total_seconds()))
        return f"{len(self.live)} live models, judged up to {oldest:%H:%M} UTC ({age} s ago)"


def utc(moment: datetime) -> datetime:
    """The store's times are UTC; the client gives some of them without saying so."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class Observer:
    """Looks at the store and at Kafka from time to time; keeps half a minute of counts."""

    def __init__(
        self, client: Client, settings: Settings, contracts: Contracts, clock: Clock
    ) -> None:
        self._client = client
        self._settings = settings
        self._contracts = contracts
        self._clock = clock
        self._history: deque[tuple[float, dict[str, int]]] = deque()

    def streams(self) -> list[StreamStatus]:
        """All streams, in the order of the contracts."""
        rows = self._rows()
        now = self._clock.monotonic()
        self._history.append((now, rows))
        while len(self._history) > 2 and now - self._history[1][0] >= _RATE_WINDOW_S:
            self._history.popleft()
        then, before = self._history[0]
        lag = self._lag()
        found = []
        for name in self._contracts:
            rate = None
            if now > then:
                rate = round((rows.get(name, 0) - before.get(name, 0)) / (now - then), 1)
            found.append(
                StreamStatus(name, rows.get(name, 0), rate, None if lag is None else lag[name])
            )
        return found

    def _rows(self) -> dict[str, int]:
        answer = self._client.query(
            "SELECT table, sum(rows) FROM system.parts "
            "WHERE database = 'telemetry' AND active GROUP BY table"
        )
        return {str(table): int(count) for table, count in answer.result_rows}

    def _lag(self) -> dict[str, int] | None:
        try:
            ids = topic_ids(self._settings)
            ends = log_ends(self._settings, list(self._contracts))
        except RackpulseError:
            return None
        lag = dict.fromkeys(self._contracts, 0)
        for name in self._contracts:
            stored = self._stored_offsets(name, ids.get(name, ""))
            for (topic, partition), (start, end) in ends.items():
                if topic == name:
                    lag[name] += max(0, end - max(start, stored.get(partition, -1) + 1))
        return lag

    def _stored_offsets(self, stream: str, topic_id: str) -> Mapping[int, int]:
        answer = self._client.query(
            f"SELECT kafka_partition, max(kafka_offset) FROM telemetry.{stream} "
            "WHERE kafka_topic_id = {topic_id:String} GROUP BY kafka_topic_id, kafka_partition",
            parameters={"topic_id": topic_id},
        )
        return {int(partition): int(offset) for partition, offset in answer.result_rows}

    def incidents(self) -> list[dict[str, Any]]:
        """Open incidents, oldest first."""
        answer = self._client.query(
            "SELECT id, detector, entity_kind, entity_id AS entity, entity_name, location, "
            "cause, severity, summary, opened_at, drill "
            "FROM telemetry.incident WHERE state = 'open' ORDER BY opened_at, id"
        )
        return [
            {**row, "opened_at": utc(row["opened_at"]).isoformat()}
            for row in answer.named_results()
        ]

    def scoring(self) -> Scoring:
        """How far each detector's live model has judged."""
        live = self._client.query(
            "SELECT detector FROM telemetry.detector_model WHERE state = 'live'"
        )
        runs = self._client.query(
            "SELECT detector, max(window_end) FROM telemetry.score_run "
            "WHERE cluster = {cluster:String} AND model_version != '' "
            "AND window_end > now() - INTERVAL 1 DAY GROUP BY detector",
            parameters={"cluster": self._settings.cluster},
        )
        return Scoring(
            live=frozenset(str(row[0]) for row in live.result_rows),
            newest={str(name): newest for name, newest in runs.result_rows},
        )


def as_json(streams: list[StreamStatus]) -> list[dict[str, Any]]:
    """Plain objects for ``status --json`` and the run file."""
    return [asdict(stream) for stream in streams]
