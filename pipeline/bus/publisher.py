"""The publisher: rows go to the spool, and from there to Kafka in the background.

``put`` returns once the rows survive the end of the process. A thread of its own sends them
in the order of spooling, with an idempotent producer and ``acks=all``; what Kafka acknowledged
leaves the spool. While Kafka is away it keeps trying and says so.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from kafka import KafkaProducer
from kafka.errors import (
    InvalidRecordError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnknownTopicOrPartitionError,
)
from kafka.partitioner.default import murmur2

from pipeline.bus.arrow_body import write_body
from pipeline.bus.codec import Header, epoch_ms, split, write_header
from pipeline.bus.endpoint import end_producer, producer_options, warn_without_crc32c
from pipeline.bus.kafka_log import calm_kafka_logs
from pipeline.bus.spool import DEFAULT_MAX_BYTES, Item, Spool
from pipeline.bus.spool_file import Record
from pipeline.clock import Clock, SystemClock
from pipeline.errors import RackpulseError, SlowDownError
from pipeline.settings import Settings
from pipeline.streams import Contracts

log = logging.getLogger(__name__)

ROW_TOO_LARGE = "row_too_large"
REFUSED = "refused_by_kafka"

_IN_FLIGHT_BYTES = 32_000_000
_IN_FLIGHT_MESSAGES = 4_000
# The producer tries again for ever: giving up would let later messages overtake.
_FOR_EVER_MS = 2**31 - 1
_TRIM_EVERY_S = 1.0
_TELL_AFTER_S = 5.0
_TELL_EVERY_S = 30.0
_LONGEST_PAUSE_S = 5.0
# Kafka says of these that another try cannot help: the message, not the way, is at fault.
_REFUSALS = (MessageSizeTooLargeError, RecordListTooLargeError, InvalidRecordError)


@dataclass(frozen=True)
class PublisherStats:
    """How a publisher fares.

    Attributes:
        spooled_bytes: of messages that Kafka has not acknowledged.
        spooled_rows: likewise.
        dropped_rows: all that were dropped since the spool was made.
        dropped: the same by stream and reason.
        sent_messages: that Kafka acknowledged since the start; likewise rows and bytes.
        last_error: why nothing is sent now; None while all is well.
        silent_s: seconds for which messages wait and Kafka acknowledged none.
    """

    spooled_bytes: int
    spooled_rows: int
    dropped_rows: int
    dropped: dict[str, dict[str, int]]
    sent_messages: int
    sent_rows: int
    sent_bytes: int
    last_error: str | None
    silent_s: float


@dataclass(slots=True)
class _Flight:
    """A producer and what was handed to it.

    Attributes:
        suspect: index of a record that flies alone, because it may be the one that is refused.
    """

    producer: KafkaProducer
    flying: dict[int, Record] = field(default_factory=dict)
    answers: deque[tuple[Record, BaseException | None]] = field(default_factory=deque)
    size: int = 0
    heard_at: float = 0.0
    suspect: int | None = None


class Publisher:
    """Takes rows of a collector and brings them to Kafka once, or counts them as dropped.

    Args:
        collector_id: name of the collector; with the spool's own id it stands on every row.
        spool_dir: folder of this collector's spool alone.
        max_bytes: of the spool; when it is full the oldest messages are dropped.
        stuck_after_s: a producer that had no answer for so long is replaced.

    Raises:
        RackpulseError: another process has the spool, or the disk has no room for one.
    """

    def __init__(
        self,
        settings: Settings,
        contracts: Contracts,
        collector_id: str,
        spool_dir: Path,
        clock: Clock | None = None,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        stuck_after_s: float = 90.0,
    ) -> None:
        warn_without_crc32c()
        calm_kafka_logs()
        self._settings = settings
        self._contracts = contracts
        self._clock = clock or SystemClock()
        self._stuck_after_s = stuck_after_s
        self._spool = Spool(spool_dir, collector_id, max_bytes=max_bytes)
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._again: deque[Record] = deque()
        self._suspects: set[int] = set()
        self._flight: _Flight | None = None
        self._sent_messages = self._sent_rows = self._sent_bytes = 0
        self._last_error: str | None = None
        self._silent_since: float | None = None
        self._told_at: float | None = None
        self._trimmed_at = 0.0
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    @property
    def collector_id(self) -> str:
        """The collector's name with the id of its spool, as rows carry it."""
        return self._spool.collector

    # ------------------------------------------------------------ for the collector

    def put(self, stream_name: str, table: pa.Table, *, wait_s: float = 0.0) -> None:
        """Spool the rows of a table, all of them or none.

        Args:
            table: any subset of the stream's wire columns.
            wait_s: wait up to so long while the spool is more than half full, for callers that
                can wait, such as one that writes history. Others drop the oldest messages.

        Raises:
            SlowDownError: the disk takes nothing now; nothing was taken.
            KeyError: unknown stream or column, or an identity column is missing.
            ValueError: an identity is NULL, or the table is larger than half the spool.
            pa.ArrowInvalid: a value does not fit its column.
        """
        stream = self._contracts[stream_name]
        refused: list[pa.RecordBatch] = []
        items = [
            Item(stream_name, key, stream.version, batch.num_rows, write_body(batch))
            for key, batch in split(stream, table, on_oversize=refused.append)
        ]
        if wait_s:
            self._wait_for_room(wait_s)
        self._spool.append(items)
        if refused:
            rows = sum(batch.num_rows for batch in refused)
            log.warning("%d rows of %s are too large for a message", rows, stream_name)
            self._spool.count_dropped(stream_name, ROW_TOO_LARGE, rows)
        self._wake.set()

    def _wait_for_room(self, wait_s: float) -> None:
        deadline = self._clock.monotonic() + wait_s
        while (
            self._spool.waiting_bytes > self._spool.max_bytes // 2
            and self._clock.monotonic() < deadline
        ):
            self._clock.wait(0.05)

    def flush(self, timeout_s: float) -> bool:
        """Wait until Kafka has everything; False when it has not in time."""
        deadline = self._clock.monotonic() + timeout_s
        while self._spool.waiting_bytes:
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.wait(0.02)
        return True

    def close(self, timeout_s: float = 10.0) -> None:
        """Send what can be sent in time and end; the rest is sent after the next start."""
        self.flush(timeout_s)
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self._spool.close()

    @property
    def stats(self) -> PublisherStats:
        """How it fares now."""
        dropped = self._spool.dropped_rows()
        since = self._silent_since
        return PublisherStats(
            spooled_bytes=self._spool.waiting_bytes,
            spooled_rows=self._spool.waiting_rows.total(),
            dropped_rows=sum(sum(reasons.values()) for reasons in dropped.values()),
            dropped=dropped,
            sent_messages=self._sent_messages,
            sent_rows=self._sent_rows,
            sent_bytes=self._sent_bytes,
            last_error=self._last_error,
            silent_s=self._clock.monotonic() - since if since is not None else 0.0,
        )

    # ------------------------------------------------------------ the sending thread

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.is_set():
            # Sleep, unless something came meanwhile; with a pause also then.
            if pause:
                self._stop.wait(pause)
            else:
                self._wake.wait(0.2)
            self._wake.clear()
            pause = self._turn(pause)
            self._tell()
        self._turn(0.0)
        self._abandon_flight()

    def _turn(self, pause: float) -> float:
        """Do what can be done now; returns how long to wait before the next turn, seconds."""
        try:
            self._step()
        except SlowDownError as exc:
            self._last_error = f"the spool's disk fails ({exc.reason})"
            return exc.retry_after_s
        except _NoTopicError as exc:
            self._last_error = str(exc)
            return 1.0
        except (KafkaError, OSError, RackpulseError) as exc:
            self._last_error = _text(exc)
            self._abandon_flight()
            return min(_LONGEST_PAUSE_S, 2 * pause or 0.2)
        except Exception:
            # The thread must not end: rows would pile up and nobody would know.
            log.exception("publisher: unexpected error")
            self._last_error = "unexpected error, see the log"
            self._abandon_flight()
            return _LONGEST_PAUSE_S
        return 0.0

    def _step(self) -> None:
        self._take_answers()
        now = self._clock.monotonic()
        if now - self._trimmed_at >= _TRIM_EVERY_S:
            self._spool.sync()
            self._spool.trim()
            self._trimmed_at = now
        if not self._spool.waiting_bytes:
            self._silent_since = self._last_error = None
        flight = self._flight
        if flight and flight.flying and now - flight.heard_at > self._stuck_after_s:
            raise KafkaTimeoutError(f"no answer for {self._stuck_after_s:.0f} s")
        while not self._stop.is_set():
            record = self._next()
            if record is None:
                break
            try:
                self._send(record)
            except BaseException:
                self._again.appendleft(record)
                raise
            self._take_answers()

    def _next(self) -> Record | None:
        flight = self._flight
        if flight and (
            flight.suspect is not None
            or flight.size >= _IN_FLIGHT_BYTES
            or len(flight.flying) >= _IN_FLIGHT_MESSAGES
        ):
            return None
        while self._again:
            record = self._again[0]
            if record.index in self._suspects and flight and flight.flying:
                return None  # it flies alone, once the others have landed
            self._again.popleft()
            if self._spool.holds(record):
                return record
            self._suspects.discard(record.index)
        return self._spool.read_next()

    def _send(self, record: Record) -> None:
        if self._silent_since is None:
            self._silent_since = self._clock.monotonic()
        flight = self._flight or self._take_off()
        count = self._spool.prepare(record, _partitions(flight.producer, record.stream))
        partition = partition_of(record.key, count)
        header = Header(
            record.stream,
            record.version,
            self._spool.collector,
            record.seq,
            epoch_ms(self._clock.now()),
        )
        try:
            future = flight.producer.send(
                record.stream,
                value=record.body,
                key=record.key.encode(),
                headers=write_header(header),
                partition=partition,
            )
        except _REFUSALS as exc:
            self._refuse(record, exc)
            return
        if record.index in self._suspects:
            flight.suspect = record.index
        if not flight.flying:
            flight.heard_at = self._clock.monotonic()
        flight.flying[record.index] = record
        flight.size += len(record.body)
        future.add_callback(self._answered, flight, record, None)
        future.add_errback(self._failed, flight, record)

    def _answered(self, flight: _Flight, record: Record, exc: BaseException | None, _: Any) -> None:
        flight.answers.append((record, exc))
        self._wake.set()

    def _failed(self, flight: _Flight, record: Record, exc: BaseException) -> None:
        self._answered(flight, record, exc, None)

    def _take_off(self) -> _Flight:
        producer = KafkaProducer(
            **producer_options(self._settings),
            client_id=f"rackpulse-{self._spool.collector}",
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            linger_ms=20,
            max_request_size=4_000_000,
            max_block_ms=5_000,
            bootstrap_timeout_ms=5_000,
            request_timeout_ms=30_000,
            delivery_timeout_ms=_FOR_EVER_MS,
            allow_auto_create_topics=False,
            metadata_max_age_ms=15_000,
            reconnect_backoff_max_ms=2_000,
        )
        self._flight = _Flight(producer)
        return self._flight

    def _take_answers(self) -> None:
        """Acknowledge in the spool what Kafka acknowledged.

        Raises:
            KafkaError: a message was not taken; the flight has to be abandoned.
        """
        flight = self._flight
        if flight is None:
            return
        failed: BaseException | None = None
        while flight.answers:
            record, exc = flight.answers.popleft()
            if exc is None:
                self._land(flight, record)
                self._heard(flight)
                continue
            failed = failed or exc
            if not isinstance(exc, _REFUSALS):
                continue  # it stays among those that fly, and is sent again
            if flight.suspect == record.index:
                self._refuse(record, exc)
                self._land(flight, record, arrived=False)
            else:
                # Its whole batch, and all that the producer held, fail for one message: each of
                # them is sent again on its own to find that one.
                self._suspects.add(record.index)
        if not flight.flying and not self._again:
            self._silent_since = None
        if failed is not None:
            raise failed

    def _land(self, flight: _Flight, record: Record, *, arrived: bool = True) -> None:
        if flight.flying.pop(record.index, None) is None:
            return
        flight.size -= len(record.body)
        self._suspects.discard(record.index)
        if flight.suspect == record.index:
            flight.suspect = None
        if arrived:
            self._spool.ack(record)
            self._sent_messages += 1
            self._sent_rows += record.rows
            self._sent_bytes += len(record.body)

    def _heard(self, flight: _Flight) -> None:
        self._last_error = None
        self._silent_since = flight.heard_at = self._clock.monotonic()
        if self._told_at is not None:
            log.info("Kafka acknowledges again; %d bytes wait", self._spool.waiting_bytes)
            self._told_at = None

    def _refuse(self, record: Record, exc: BaseException) -> None:
        log.error(
            "Kafka refuses a message of %s with %d rows: %s", record.stream, record.rows, _text(exc)
        )
        self._spool.count_dropped(record.stream, REFUSED, record.rows)
        self._spool.ack(record)

    def _abandon_flight(self) -> None:
        """Give up the producer; what it held is sent again, in order, by the next one."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        end_producer(flight.producer)
        while flight.answers:
            record, exc = flight.answers.popleft()
            if exc is None:
                self._land(flight, record)
            elif isinstance(exc, _REFUSALS):
                self._suspects.add(record.index)
        again = {record.index: record for record in (*flight.flying.values(), *self._again)}
        self._again = deque(again[index] for index in sorted(again))

    def _tell(self) -> None:
        """Say that nothing arrives, at first and then from time to time."""
        if self._silent_since is None:
            return
        now = self._clock.monotonic()
        if now - self._silent_since < _TELL_AFTER_S:
            return
        if self._last_error is None:
            self._last_error = "Kafka does not acknowledge"
        if self._told_at is None or now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            log.warning(
                "nothing reaches Kafka for %.0f s (%s); %d bytes wait in the spool",
                now - self._silent_since,
                self._last_error,
                self._spool.waiting_bytes,
            )


class _NoTopicError(RackpulseError):
    """The topic is not there, or its brokers do not answer: wait, and keep what flies."""


def _partitions(producer: KafkaProducer, topic: str) -> int:
    try:
        return len(producer.partitions_for(topic))
    except (KafkaTimeoutError, UnknownTopicOrPartitionError) as exc:
        raise _NoTopicError(
            f"Kafka has no topic {topic}, or does not answer. When it runs, make the topics "
            "with  rackpulse topics create"
        ) from exc


@lru_cache(maxsize=10_000)
def _hash(key: str) -> int:
    return int(murmur2(key.encode())) & 0x7FFFFFFF


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key, as Kafka's own clients choose it."""
    return _hash(key) % partitions


def _text(exc: BaseException) -> str:
    if isinstance(exc, RackpulseError):
        return str(exc)
    return f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
