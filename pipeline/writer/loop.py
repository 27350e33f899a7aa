"""The writer's loop: reads Kafka, hands over to the lanes, and never waits for the store."""

from __future__ import annotations

import itertools
import logging
import resource
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from queue import Empty
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import (
    FencedInstanceIdError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)
from kafka.structs import OffsetAndMetadata

from pipeline import metrics as m
from pipeline.bus.codec import decode
from pipeline.bus.consumer import make_consumer
from pipeline.errors import IncompatibleContractError, PoisonMessageError, RackpulseError
from pipeline.service import Health
from pipeline.writer.block import Taken
from pipeline.writer.deadletters import Letter, Limit, letter_of
from pipeline.writer.events import Event, Failed, Item, Opened, Reopen, Stored
from pipeline.writer.gaps import Gap
from pipeline.writer.group import GroupWatch
from pipeline.writer.lane import Lane
from pipeline.writer.shared import Shared
from pipeline.writer.takeover import Wanted

log = logging.getLogger(__name__)

_POLL_MS = 100
_POLL_RECORDS = 50
_FETCH_BYTES = 1_000_000  # at fleet rate twenty fetches a second, and not one for each message
_GAUGES_EVERY_S = 1.0
_TROUBLE_S = 10.0  # for so long an error that did not come again is shown


@dataclass
class _Partition:
    """A partition that the group gave to this writer.

    Attributes:
        generation: rises whenever it is opened anew; what was read under an older one is void.
        phase: ``waiting`` for its take-over, ``open``, or ``stopped`` until a person acts.
        next: offset that is expected next.
        stored: offset up to which all is settled, plus one.
        held: paused because too much waits for the store.
    """

    generation: int
    phase: str = "waiting"
    label: str = ""
    next: int = 0
    stored: int = 0
    held: bool = False
    why: str = ""


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._writer.taken_away(revoked)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._writer.assigned(assigned)

    def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._writer.taken_away(lost)


class Writer:
    """One member of the group: many partitions of many streams in one process."""

    def __init__(self, shared: Shared, health: Health) -> None:
        self._shared = shared
        self._options = shared.options
        self._clock = shared.clock
        self._metrics = shared.metrics
        self._health = health
        names = shared.options.streams or tuple(shared.contracts)
        self._lanes = {name: Lane(shared.contracts[name], shared) for name in names}
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._limits = {
            name: Limit(shared.options.bad_ratio, shared.options.bad_in_a_row) for name in names
        }
        # Never used again, also when a partition goes and comes back.
        self._generations = itertools.count(1)
        self._trouble: tuple[str, float] | None = None
        self._ever_assigned = False
        self._gauges_at = 0.0
        self._rows_per_message: dict[str, float] = {}
        self._watch = GroupWatch(shared, tuple(self._lanes))
        self._consumer = self._make_consumer()

    def _make_consumer(self) -> KafkaConsumer:
        return make_consumer(
            self._shared.settings,
            self._options.group,
            list(self._lanes),
            instance_id=f"{self._options.group}-{self._options.instance}",
            listener=_Listener(self),
            session_timeout_ms=self._options.session_timeout_ms,
            max_poll_interval_ms=self._options.max_poll_interval_ms,
            max_poll_records=_POLL_RECORDS,
            fetch_min_bytes=_FETCH_BYTES,
            metrics_enabled=False,
        )

    def run(self, stop: threading.Event) -> None:
        """Write until ``stop`` is set; then store what was read, and leave.

        Raises:
            RackpulseError: a person must act; the text says how.
        """
        for lane in self._lanes.values():
            lane.start()
        self._watch.start()
        try:
            while not stop.is_set():
                self._turn()
        finally:
            self._finish()

    def _turn(self) -> None:
        self._health.beat()
        try:
            for tp, records in self._consumer.poll(timeout_ms=_POLL_MS).items():
                self._take(tp, records)
        except (OffsetOutOfRangeError, LogTruncationError, NoOffsetForPartitionError) as exc:
            self._reopen_for(exc)
        except FencedInstanceIdError as exc:
            raise RackpulseError(
                f"Another writer runs as instance {self._options.instance} of the group"
                f" {self._options.group}: give each its own number with  --instance N"
            ) from exc
        except TopicAuthorizationFailedError as exc:
            raise RackpulseError(f"Kafka does not let this writer read: {exc}") from exc
        except (KafkaError, OSError) as exc:
            self._kafka_error(exc)
        self._handle_events()
        self._hold_and_release()
        self._gauges()

    def _finish(self) -> None:
        self._watch.stop()
        for lane in self._lanes.values():
            lane.stop(self._options.drain_s)
        deadline = self._clock.monotonic() + self._options.drain_s + 5
        for name, lane in self._lanes.items():
            if not lane.join(max(0.1, deadline - self._clock.monotonic())):
                log.warning("%s: did not end in time; what it was storing is asked for at the"
                            " next start", name)  # fmt: skip
        try:
            self._handle_events(raising=False)
            self._consumer.close(autocommit=False, timeout_ms=3_000)
        except (KafkaError, OSError) as exc:
            log.info("left the group without its answer: %s", exc)
        self._shared.topics.close()

    # ------------------------------------------------------------ the group

    def assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """The group gives partitions: take them over before reading them."""
        self._ever_assigned = True
        self._metrics.counter(m.WRITER_REBALANCES).inc()
        for tp in partitions:
            # A position, so that kafka-python asks for no committed offset; paused until the
            # table has said where to go on.
            self._consumer.seek(tp, 0)
            self._consumer.pause(tp)
            self._partitions[tp] = _Partition(next(self._generations))
            self._want(tp, truncated=False, diverges_at=None)

    def taken_away(self, partitions: Iterable[TopicPartition]) -> None:
        """The group takes partitions: what was read of them is void."""
        for tp in partitions:
            state = self._partitions.get(tp)
            if state is None:
                continue
            state.generation = next(self._generations)
            state.phase = "waiting"
            self._lanes[tp.topic].drop([tp.partition])

    def _want(self, tp: TopicPartition, truncated: bool, diverges_at: int | None) -> None:
        state = self._partitions[tp]
        wanted = Wanted(state.generation, truncated, diverges_at)
        self._lanes[tp.topic].open({tp.partition: wanted})

    def _reopen(
        self, tp: TopicPartition, truncated: bool = False, diverges_at: int | None = None
    ) -> None:
        """Read nothing more of it until it was taken over again."""
        state = self._partitions[tp]
        state.generation = next(self._generations)
        state.phase = "waiting"
        self._consumer.pause(tp)
        self._lanes[tp.topic].drop([tp.partition])
        self._want(tp, truncated, diverges_at)

    def _reopen_for(self, exc: KafkaError) -> None:
        """The log does not hold what was asked for: the take-over finds out why."""
        held = self._consumer.assignment()
        if isinstance(exc, LogTruncationError):
            for tp, at in exc.divergent_offsets.items():
                if tp in held:
                    self._reopen(tp, truncated=True, diverges_at=at.offset if at else None)
            return
        if isinstance(exc, NoOffsetForPartitionError):
            for tp in held:  # kafka-python lost a position: give it one again
                self._consumer.seek(tp, 0)
        named = exc.args[0] if exc.args and isinstance(exc.args[0], Mapping) else held
        for tp in named:
            if tp in held:
                self._reopen(tp)

    def _kafka_error(self, exc: Exception) -> None:
        text = f"{type(exc).__name__}: {exc}"
        if isinstance(exc, OSError) or getattr(exc, "retriable", False):
            log.info("kafka: %s", text)
        else:
            # Such as a damaged message, or one that is compressed in an unknown way: the
            # partition stands still, and nothing is skipped.
            if self._trouble is None:
                log.error("kafka: %s", text)
            self._trouble = (text, self._clock.monotonic())
        self._clock.wait(0.2)

    # ------------------------------------------------------------ what was read

    def _take(self, tp: TopicPartition, records: list[Any]) -> None:
        state = self._partitions.get(tp)
        if state is None or state.phase != "open":
            return
        items: list[Item] = []
        now = self._clock.monotonic()
        for record in records:
            if record.offset < state.next:
                continue
            if record.offset > state.next:
                items.append(self._hole(tp, state, record, now))
            try:
                what, size = self._read(record, state, now)
            except IncompatibleContractError as exc:
                self._stop_partition(tp, state, str(exc))
                break
            items.append(
                Item(
                    tp.partition, state.generation, what, record.offset,
                    record.leader_epoch, size, now,
                )
            )  # fmt: skip
            state.next = record.offset + 1
        end = self._consumer.highwater(tp)
        unread = max(0, end - state.next) if end is not None else 0
        self._lanes[tp.topic].put(items, {tp.partition: unread})

    def _read(self, record: Any, state: _Partition, now: float) -> tuple[Taken | Letter, int]:
        """Decode a message, or make a letter of it.

        Raises:
            IncompatibleContractError: its contract is another one.
            RackpulseError: too many could not be read.
        """
        size = len(record.value or b"") + len(record.key or b"")
        self._metrics.counter(m.WRITER_BYTES, record.topic).inc(size)
        try:
            decoded = decode(self._shared.contracts, record.headers, record.value)
            if decoded.header.stream != record.topic:
                raise PoisonMessageError("wrong_topic", f"it is of {decoded.header.stream}")
            if not decoded.batch.num_rows:
                raise PoisonMessageError("no_rows", "a message holds at least one row")
        except PoisonMessageError as exc:
            self._check_limit(record.topic, bad=True)
            log.warning(
                "%s/%d offset %d is set aside: %s",
                record.topic, record.partition, record.offset, exc,
            )  # fmt: skip
            return letter_of(record, state.label, exc.reason, exc.detail), size
        self._check_limit(record.topic, bad=False)
        for column in decoded.unknown_columns:
            self._metrics.counter(m.WRITER_UNKNOWN_COLUMNS, record.topic, column).inc()
        rows = decoded.batch.num_rows
        usual = self._rows_per_message.get(record.topic, float(rows))
        self._rows_per_message[record.topic] = usual + (rows - usual) * 0.02
        key = (record.key or b"").decode("utf-8", "replace")
        taken = Taken(
            record.partition, record.offset, record.leader_epoch, key,
            decoded.header, decoded.batch, size, now, record,
        )  # fmt: skip
        return taken, size

    def _check_limit(self, topic: str, bad: bool) -> None:
        limit = self._limits[topic]
        why = limit.note(bad)
        if why:
            raise RackpulseError(
                f"The writer stops: {why} of topic {topic}. Look at them with"
                "  rackpulse dead-letters list ; mend what sends them, and start the writer again"
            )

    def _hole(self, tp: TopicPartition, state: _Partition, record: Any, now: float) -> Item:
        """Offsets that the log skips: a segment was lost, or messages were of a transaction."""
        gap = Gap(
            "missing_offsets", tp.topic, state.label, tp.partition,
            first_missing=state.next, last_missing=record.offset - 1,
            detail=f"partition {tp.partition}: the log goes from {state.next - 1} to"
            f" {record.offset}",
        )  # fmt: skip
        return Item(
            tp.partition, state.generation, gap, record.offset - 1, record.leader_epoch, 0, now
        )

    def _stop_partition(self, tp: TopicPartition, state: _Partition, why: str) -> None:
        """Nothing is skipped: the partition waits for a person, the others go on."""
        state.phase, state.why = "stopped", why
        self._consumer.pause(tp)
        log.error("%s/%d waits: %s", tp.topic, tp.partition, why)

    # ------------------------------------------------------------ what the lanes say

    def _handle_events(self, raising: bool = True) -> None:
        while True:
            try:
                event = self._shared.events.get_nowait()
            except Empty:
                return
            if isinstance(event, Failed):
                if raising:
                    raise event.error
                continue
            self._handle(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Opened):
            tp = TopicPartition(event.stream, event.owned.partition)
            state = self._partitions.get(tp)
            if state is not None and state.generation == event.generation:
                self._go_on(tp, state, event)
        elif isinstance(event, Stored):
            self._commit(event)
        elif isinstance(event, Reopen):
            for partition, generation in event.generations.items():
                tp = TopicPartition(event.stream, partition)
                state = self._partitions.get(tp)
                if state is None or state.generation != generation:
                    continue
                if tp in self._consumer.assignment():
                    self._reopen(tp)

    def _go_on(self, tp: TopicPartition, state: _Partition, event: Opened) -> None:
        if tp not in self._consumer.assignment():
            return
        owned = event.owned
        state.phase, state.label, state.why = "open", owned.label, ""
        state.next = state.stored = owned.next
        # With the leader epoch, Kafka tells when the log was cut and written anew behind it
        # (KIP-320); the public seek() takes no epoch.
        self._consumer._subscription.seek(tp, OffsetAndMetadata(owned.next, "", owned.leader_epoch))
        self._consumer.resume(tp)
        state.held = False

    def _commit(self, event: Stored) -> None:
        """For lag tools only: where to go on is asked of the table."""
        offsets = {}
        for partition, (offset, leader_epoch) in event.upto.items():
            tp = TopicPartition(event.stream, partition)
            state = self._partitions.get(tp)
            if state is None or state.generation != event.generations[partition]:
                continue
            state.stored = offset + 1
            offsets[tp] = OffsetAndMetadata(offset + 1, "", leader_epoch)
        if offsets:
            self._consumer.commit_async(offsets, callback=_ignore)

    # ------------------------------------------------------------ flow

    def _hold_and_release(self) -> None:
        """Pause what the store can not take now; memory stays bounded."""
        held = {name: lane.held_bytes for name, lane in self._lanes.items()}
        total = sum(held.values())
        share = self._options.buffer_bytes / max(1, len(self._lanes))
        for tp, state in self._partitions.items():
            if state.phase != "open":
                continue
            mine = held[tp.topic]
            if not state.held and total > self._options.buffer_bytes and mine > share / 2:
                self._consumer.pause(tp)
                state.held = True
                self._lanes[tp.topic].hurry()
            elif state.held and (total < self._options.buffer_bytes * 0.6 or mine < share / 4):
                self._consumer.resume(tp)
                state.held = False

    def _gauges(self) -> None:
        now = self._clock.monotonic()
        if now - self._gauges_at < _GAUGES_EVERY_S:
            return
        self._gauges_at = now
        assignment = self._consumer.assignment()
        for tp in [tp for tp in self._partitions if tp not in assignment]:
            del self._partitions[tp]
        self._watch.mine = frozenset((tp.topic, tp.partition) for tp in assignment)
        if self._watch.should_rejoin():
            # The leader's joining makes the group assign anew; others' changes nothing.
            self._consumer._coordinator.request_rejoin()
        self._tell_ready()
        counts = dict.fromkeys(
            ((name, state) for name in self._lanes for state in ("waiting", "open", "paused",
                                                                 "stopped")), 0
        )  # fmt: skip
        lag_messages = dict.fromkeys(self._lanes, 0)
        for tp, state in self._partitions.items():
            counts[tp.topic, "paused" if state.held else state.phase] += 1
            end = self._consumer.highwater(tp)
            lag = max(0, end - state.stored) if end is not None and state.phase != "waiting" else 0
            lag_messages[tp.topic] += lag
            self._metrics.gauge(m.WRITER_LAG_MESSAGES, tp.topic, str(tp.partition)).set(lag)
        for name, limit in self._limits.items():
            self._metrics.gauge(m.WRITER_BAD_RATIO, name).set(limit.ratio)
        for (name, phase), count in counts.items():
            self._metrics.gauge(m.WRITER_PARTITIONS, name, phase).set(count)
        wall = self._clock.now()
        for name, lane in self._lanes.items():
            rows = lag_messages[name] * self._rows_per_message.get(name, 0.0)
            self._metrics.gauge(m.WRITER_LAG_ROWS, name).set(round(rows))
            oldest = lane.oldest
            self._metrics.gauge(m.WRITER_LAG_SECONDS, name).set(
                0.0 if oldest is None else max(0.0, now - oldest)
            )
            self._metrics.gauge(m.WRITER_BUFFERED, name).set(lane.held_bytes)
            if lane.newest is not None:
                age = (wall - lane.newest).total_seconds()
                self._metrics.gauge(m.WRITER_FRESHNESS, name).set(age)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._metrics.gauge(m.WRITER_PEAK_MEMORY).set(peak)

    def _tell_ready(self) -> None:
        stopped = {f"{tp.topic}/{tp.partition}": s.why for tp, s in self._partitions.items()
                   if s.phase == "stopped"}  # fmt: skip
        waiting = sum(state.phase == "waiting" for state in self._partitions.values())
        if self._trouble and self._clock.monotonic() - self._trouble[1] > _TROUBLE_S:
            self._trouble = None
        if self._trouble:
            self._health.not_ready(f"Kafka: {self._trouble[0]}")
        elif stopped:
            name, why = next(iter(stopped.items()))
            self._health.not_ready(f"{len(stopped)} partitions wait; {name}: {why}")
        elif not self._ever_assigned:
            self._health.not_ready("joining its consumer group")
        elif waiting:
            self._health.not_ready(f"taking over {waiting} partitions")
        else:
            self._health.ready()


def _ignore(_offsets: object, _answer: object) -> None:
    pass
