"""``rackpulse verify``: reads the topics again, on its own, and compares with what is stored.

It shares neither the writer's consumer nor its decoder: rows are counted from the Arrow bytes
of every message, and from the table by topic id, partition and offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from clickhouse_connect.driver.client import Client
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import OffsetOutOfRangeError

from pipeline.bus.consumer import make_consumer
from pipeline.clock import Clock
from pipeline.errors import RackpulseError, SlowDownError
from pipeline.settings import Settings
from pipeline.streams.ddl import DATABASE
from pipeline.writer.replay import read_letters
from pipeline.writer.state import Ownership, label
from pipeline.writer.topics import Topics

_WINDOW = 50_000  # offsets that are compared at once
_POLL_MS = 500
_SILENT_POLLS = 40
_DAY_MS = 86_400_000
_NAMED = 20  # examples that are kept


class _Message(NamedTuple):
    """A message of the log: rows is None when it can not be read."""

    rows: int | None
    number: tuple[str, str, int] | None
    timestamp_ms: int


@dataclass
class StreamReport:
    """What was found of one stream.

    Attributes:
        messages: in the log, as far as they are due.
        rows_in_log: of the messages that can be read.
        rows_stored: of these messages.
        missing: rows that should be stored and are not.
        doubled: rows that are stored more than once.
        unknown: stored rows of messages that the log does not hold, though it should.
        dead_lettered: messages that were set aside.
        repeats: messages that a collector had sent before, stored under another offset.
        waiting: messages behind the place of the writer.
        expired: messages whose rows the table's retention has dropped.
        before_log: stored messages that the log has dropped since.
        examples: places of what is wrong.
    """

    stream: str
    topic_id: str
    messages: int = 0
    rows_in_log: int = 0
    rows_stored: int = 0
    missing: int = 0
    doubled: int = 0
    unknown: int = 0
    dead_lettered: int = 0
    repeats: int = 0
    waiting: int = 0
    expired: int = 0
    before_log: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing is missing, doubled or unknown."""
        return not (self.missing or self.doubled or self.unknown)

    def name(self, what: str) -> None:
        """Keep an example."""
        if len(self.examples) < _NAMED:
            self.examples.append(what)


@dataclass
class Report:
    """What was found."""

    streams: list[StreamReport]
    gaps: list[dict[str, Any]]

    @property
    def ok(self) -> bool:
        """Nothing is missing, doubled or unknown anywhere."""
        return all(each.ok for each in self.streams)

    def as_json(self) -> dict[str, Any]:
        """One object for machines."""
        totals = {
            name: sum(getattr(each, name) for each in self.streams)
            for name in ("messages", "rows_in_log", "rows_stored", "missing", "doubled", "unknown",
                         "dead_lettered", "repeats", "waiting")
        }  # fmt: skip
        streams = [asdict(each) | {"ok": each.ok} for each in self.streams]
        return {"ok": self.ok, **totals, "streams": streams, "gaps": self.gaps}


class Verifier:
    """Compares topics with tables.

    Args:
        client: of the store.
        retention_days: how long the tables keep rows.
    """

    def __init__(self, settings: Settings, client: Client, clock: Clock) -> None:
        self._settings = settings
        self._client = client
        self._clock = clock
        self._topics = Topics(settings)
        self._ownership = Ownership(lambda: client, "verify", clock)

    def run(self, streams: Sequence[str], wait_s: float = 0.0) -> Report:
        """Compare these streams.

        Args:
            wait_s: how long to wait until the writer has written what is in the topics now.

        Raises:
            RackpulseError: Kafka or the store is away.
        """
        try:
            letters = {letter.origin for letter in read_letters(self._settings)}
            reports = []
            for stream in streams:
                report = self._stream(stream, letters, wait_s)
                if report is not None:
                    reports.append(report)
            # Again: what was set aside meanwhile was no loss either; _stream asks per message.
            return Report(reports, self._gaps())
        except SlowDownError as exc:
            raise RackpulseError(f"Kafka does not answer ({exc.reason}); is it running?") from exc
        finally:
            self._topics.close()

    def _stream(
        self, stream: str, letters: set[tuple[str, int, int]], wait_s: float
    ) -> StreamReport | None:
        topic_id = self._topics.now(stream).topic_id
        ends = {p: span for (_, p), span in self._topics.ends(stream).items()}
        settled = self._wait(stream, topic_id, ends, wait_s)
        letters = letters | {letter.origin for letter in read_letters(self._settings)}
        report = StreamReport(stream, topic_id)
        starts = self._incarnations(topic_id)
        with_consumer = make_consumer(self._settings, None)
        try:
            for partition, (begin, end) in sorted(ends.items()):
                due = min(end, settled[partition] + 1)
                report.waiting += end - max(begin, due)
                reader = _LogReader(with_consumer, TopicPartition(stream, partition), begin, due)
                for first, last, messages in reader.windows():
                    labels = {
                        offset: label(topic_id, _incarnation(starts.get(partition, {}), offset))
                        for offset in messages
                    }
                    self._compare(report, partition, (first, last), messages, labels, letters)
                report.before_log += self._count_before(stream, topic_id, partition, begin)
        finally:
            with_consumer.close(autocommit=False)
        self._doubled_numbers(report)
        return report

    def _wait(
        self, stream: str, topic_id: str, ends: Mapping[int, tuple[int, int]], wait_s: float
    ) -> dict[int, int]:
        deadline = self._clock.monotonic() + wait_s
        while True:
            stands = self._ownership.stands(stream, topic_id, list(ends))
            settled = {partition: stand.settled for partition, stand in stands.items()}
            behind = any(
                settled[partition] < end - 1 and end > begin
                for partition, (begin, end) in ends.items()
            )
            if not behind or self._clock.monotonic() >= deadline:
                return settled
            self._clock.wait(0.5)

    def _compare(
        self,
        report: StreamReport,
        partition: int,
        window: tuple[int, int],
        messages: Mapping[int, _Message],
        labels: Mapping[int, str],
        letters: set[tuple[str, int, int]],
    ) -> None:
        """Compare the messages of one window of offsets with the rows stored of it."""
        stored = self._stored(report, partition, window)
        absent = []
        for offset, message in messages.items():
            report.messages += 1
            rows = stored.pop((labels[offset], offset), 0)
            report.rows_stored += rows
            expected = message.rows or 0
            report.rows_in_log += expected
            place = f"{report.stream}/{partition} offset {offset}"
            if rows > expected:
                report.doubled += rows - expected
                report.name(f"{place}: {rows} rows stored, {expected} sent")
            elif rows and rows < expected:
                report.missing += expected - rows
                report.name(f"{place}: {rows} of {expected} rows stored")
            elif not rows:
                absent.append((offset, message, (labels[offset], partition, offset)))
        current = set(labels.values())
        for (name, offset), rows in stored.items():
            if name in current and offset not in messages:
                report.unknown += rows
                report.name(f"{report.stream}/{partition} offset {offset}: not in the log")
        others = self._elsewhere(report.stream, [m for _, m, _ in absent])
        oldest = self._clock.now().timestamp() * 1000 - self._settings.retention_days * _DAY_MS
        for offset, message, origin in absent:
            place = f"{report.stream}/{partition} offset {offset}"
            if origin in letters:
                report.dead_lettered += 1
                report.rows_in_log -= message.rows or 0
            elif message.number in others:
                report.repeats += 1
                report.rows_in_log -= message.rows or 0
            elif message.timestamp_ms < oldest:
                report.expired += 1
            else:
                report.missing += message.rows or 1
                what = "rows" if message.rows else "a message that can not be read"
                report.name(f"{place}: {message.rows or 1} {what}, not stored, not set aside")

    def _stored(
        self, report: StreamReport, partition: int, window: tuple[int, int]
    ) -> dict[tuple[str, int], int]:
        rows = self._client.query(
            f"""SELECT kafka_topic_id, kafka_offset, count()
            FROM {DATABASE}.{report.stream}
            WHERE startsWith(kafka_topic_id, {{topic_id:String}})
                AND kafka_partition = {{partition:UInt32}}
                AND kafka_offset BETWEEN {{first:UInt64}} AND {{last:UInt64}}
            GROUP BY kafka_topic_id, kafka_offset""",
            parameters={
                "topic_id": report.topic_id, "partition": partition,
                "first": window[0], "last": window[1],
            },
        ).result_rows  # fmt: skip
        return {(str(name), int(offset)): int(count) for name, offset, count in rows}

    def _elsewhere(self, stream: str, messages: Sequence[_Message]) -> set[tuple[str, str, int]]:
        """Which of these numbers are stored, wherever they came from."""
        numbers = [message.number for message in messages if message.number is not None]
        found: set[tuple[str, str, int]] = set()
        for start in range(0, len(numbers), 5_000):
            some = numbers[start : start + 5_000]
            rows = self._client.query(
                f"""SELECT DISTINCT collector_id, kafka_key, collector_seq
                FROM {DATABASE}.{stream}
                WHERE collector_id IN {{collectors:Array(String)}}
                    AND kafka_key IN {{keys:Array(String)}}
                    AND collector_seq IN {{numbers:Array(UInt64)}}""",
                parameters={
                    "collectors": sorted({number[0] for number in some}),
                    "keys": sorted({number[1] for number in some}),
                    "numbers": sorted({number[2] for number in some}),
                },
            ).result_rows
            found |= {(str(c), str(k), int(n)) for c, k, n in rows}
        return found

    def _doubled_numbers(self, report: StreamReport) -> None:
        """The same message of a collector, stored from two places."""
        rows = self._client.query(
            f"""SELECT collector_id, kafka_key, collector_seq, sum(rows) - max(rows)
            FROM (
                SELECT collector_id, kafka_key, collector_seq,
                    kafka_topic_id, kafka_partition, kafka_offset, count() AS rows
                FROM {DATABASE}.{report.stream}
                GROUP BY ALL
            )
            GROUP BY collector_id, kafka_key, collector_seq
            HAVING count() > 1"""
        ).result_rows
        for collector, key, number, count in rows:
            report.doubled += int(count)
            report.name(f"{report.stream}: message {number} of {collector} for {key} twice")

    def _incarnations(self, topic_id: str) -> dict[int, dict[int, int]]:
        """First offset by incarnation and partition."""
        rows = self._client.query(
            f"""SELECT kafka_partition, incarnation, min(settled) + 1
            FROM {DATABASE}.writer_epoch
            WHERE kafka_topic_id = {{topic_id:String}} AND incarnation > 0
            GROUP BY kafka_partition, incarnation""",
            parameters={"topic_id": topic_id},
        ).result_rows
        starts: dict[int, dict[int, int]] = {}
        for partition, incarnation, start in rows:
            starts.setdefault(int(partition), {})[int(incarnation)] = int(start)
        return starts

    def _count_before(self, stream: str, topic_id: str, partition: int, begin: int) -> int:
        answer = self._client.query(
            f"""SELECT uniqExact(kafka_offset) FROM {DATABASE}.{stream}
            WHERE kafka_topic_id = {{topic_id:String}} AND kafka_partition = {{partition:UInt32}}
                AND kafka_offset < {{begin:UInt64}}""",
            parameters={"topic_id": topic_id, "partition": partition, "begin": begin},
        )
        return int(answer.result_rows[0][0])

    def _gaps(self) -> list[dict[str, Any]]:
        rows = self._client.query(
            f"""SELECT stream, kind, count(), sum(greatest(last_missing - first_missing + 1, 0))
            FROM {DATABASE}.ingest_gap FINAL GROUP BY ALL ORDER BY ALL"""
        ).result_rows
        return [
            {"stream": stream, "kind": kind, "gaps": int(number), "messages": int(missing)}
            for stream, kind, number, missing in rows
        ]


def _incarnation(starts: Mapping[int, int], offset: int) -> int:
    """The newest incarnation that holds this offset."""
    return max((number for number, start in starts.items() if offset >= start), default=0)


class _LogReader:
    """Reads a partition from ``begin`` to before ``end``."""

    def __init__(self, consumer: KafkaConsumer, tp: TopicPartition, begin: int, end: int) -> None:
        self._consumer = consumer
        self._tp = tp
        self._begin = begin
        self._end = end

    def windows(self) -> Iterator[tuple[int, int, dict[int, _Message]]]:
        """First offset, last offset and messages of each window.

        Raises:
            RackpulseError: the broker gives nothing more before the end.
        """
        if self._end <= self._begin:
            return
        self._consumer.assign([self._tp])
        self._consumer.seek(self._tp, self._begin)
        first = self._begin
        window: dict[int, _Message] = {}
        silent = 0
        while True:
            try:
                records = self._consumer.poll(_POLL_MS).get(self._tp, [])
            except OffsetOutOfRangeError:
                # Retention dropped what was to be read while reading.
                begin = self._consumer.beginning_offsets([self._tp])[self._tp]
                self._consumer.seek(self._tp, begin)
                continue
            for record in records:
                if record.offset < self._end:
                    window[record.offset] = _look(record)
            at = self._consumer.position(self._tp) or 0
            if at >= self._end:
                yield first, self._end - 1, window
                return
            if at - first >= _WINDOW:
                yield first, at - 1, window
                first, window = at, {}
            silent = 0 if records else silent + 1
            if silent > _SILENT_POLLS:
                raise RackpulseError(
                    f"Kafka gives nothing of {self._tp.topic}/{self._tp.partition} from offset"
                    f" {at} on, and its log ends at {self._end}"
                )


def _look(record: Any) -> _Message:
    """Count a message's rows, without the writer's decoder."""
    headers = {name: value for name, value in record.headers if value is not None}
    try:
        number = (
            headers["rackpulse-collector"].decode(),
            (record.key or b"").decode("utf-8", "replace"),
            int(headers["rackpulse-seq"]),
        )
    except (KeyError, ValueError):
        number = None
    try:
        with pa.ipc.open_stream(record.value) as stream:
            rows = sum(batch.num_rows for batch in stream)
    except (pa.ArrowException, OSError, TypeError, ValueError):
        rows = None
    return _Message(rows, number, record.timestamp)
