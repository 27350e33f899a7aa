"""One stream: what was read waits here, and a thread of its own stores it.

The loop never waits for the store, and the lanes never touch the Kafka consumer: they talk
through :meth:`Lane.put`, :meth:`Lane.open`, :meth:`Lane.drop` and a queue of events.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from clickhouse_connect.driver.exceptions import ClickHouseError
from urllib3.exceptions import HTTPError

from pipeline import metrics as m
from pipeline.errors import RackpulseError, SlowDownError
from pipeline.memory import give_back
from pipeline.store import Outcome, classify, reason
from pipeline.streams import Stream
from pipeline.writer import gaps
from pipeline.writer.batch import Batch
from pipeline.writer.block import Block, Taken, newest_sample
from pipeline.writer.deadletters import DeadLetters, letter_of
from pipeline.writer.events import Failed, Item, Opened, Reopen, Stored
from pipeline.writer.gaps import Gap
from pipeline.writer.insert import Fence, insert
from pipeline.writer.sequences import Sequences
from pipeline.writer.shared import Shared, StoreClient
from pipeline.writer.state import Owned, Ownership
from pipeline.writer.takeover import Takeover, Wanted

log = logging.getLogger(__name__)

_LONGEST_BACKOFF_S = 10.0
_LONGEST_RECONNECT_S = 2.0
_IDLE_S = 5.0
_LARGE_BYTES = 8_000_000


@dataclass
class _Open:
    """A partition that this lane owns."""

    generation: int
    owned: Owned
    settled: tuple[int, int]  # offset and leader epoch
    written: int  # offset that stands in the table of epochs
    written_at: float


class _AbandonedError(Exception):
    """The batch is given up; its partitions are taken over again and read from there."""


class Lane:
    """Stores one stream.

    Args:
        stream: the contract; its topic has the same name.
    """

    def __init__(self, stream: Stream, shared: Shared) -> None:
        self.stream = stream
        self._shared = shared
        self._options = shared.options
        self._clock = shared.clock
        self._metrics = shared.metrics
        self._client = StoreClient(shared)
        self._ownership = Ownership(
            self._client, shared.writer_id, shared.clock, shared.read_settings,
            shared.settings.cluster_name,
        )  # fmt: skip
        self._takeover = Takeover(stream.name, self._ownership, shared, self._client)
        self._sequences = Sequences(stream.name, self._client, shared.read_settings)
        self._letters = DeadLetters(shared.settings)
        # Guarded by the condition:
        self._changed = threading.Condition()
        self._inbox: deque[Item] = deque()
        self._inbox_bytes = 0
        self._inbox_rows = 0
        self._unread: dict[int, int] = {}
        self._wanted: dict[int, Wanted] = {}
        self._open: dict[int, _Open] = {}
        self._stop_at: float | None = None
        self._hurry = False
        # Of the lane's own thread:
        self._batch: Batch | None = None
        self._tries = 0
        self._partitions = 0
        # Written by the lane's thread, read by the loop:
        self.newest: datetime | None = None
        self._working_since: float | None = None
        self._batch_bytes = 0
        self._thread = threading.Thread(target=self._run, name=f"lane-{stream.name}", daemon=True)

    # ------------------------------------------------------------ for the loop's thread

    def start(self) -> None:
        """Start the lane's thread."""
        self._thread.start()

    def open(self, wanted: Mapping[int, Wanted]) -> None:
        """Take these partitions over; :class:`Opened` tells when it is done."""
        with self._changed:
            self._wanted.update(wanted)
            self._changed.notify()

    def put(self, items: Iterable[Item], unread: Mapping[int, int] | None = None) -> None:
        """Hand over what was read.

        Args:
            unread: messages that the log still holds, by partition.
        """
        with self._changed:
            self._unread.update(unread or {})
            for item in items:
                self._inbox.append(item)
                self._inbox_bytes += item.size
                if isinstance(item.what, Taken):
                    self._inbox_rows += item.what.batch.num_rows
            self._changed.notify()

    def hurry(self) -> None:
        """Store what is there: no more is read until some of it is stored."""
        with self._changed:
            self._hurry = True
            self._changed.notify()

    def drop(self, partitions: Iterable[int]) -> None:
        """Forget these partitions and what was read of them."""
        with self._changed:
            for partition in partitions:
                self._wanted.pop(partition, None)
                self._open.pop(partition, None)
                self._unread.pop(partition, None)
            self._purge(set(partitions))

    @property
    def held_bytes(self) -> int:
        """Message bytes that are not stored yet."""
        return self._inbox_bytes + self._batch_bytes

    @property
    def oldest(self) -> float | None:
        """When the oldest message was read that is not stored yet, monotonic seconds."""
        if self._working_since is not None:
            return self._working_since
        with self._changed:
            return self._inbox[0].read_at if self._inbox else None

    def stop(self, within_s: float) -> None:
        """Ask the lane to store what it has and to end; does not wait."""
        with self._changed:
            self._stop_at = self._clock.monotonic() + within_s
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; False when it did not come in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _purge(self, partitions: set[int]) -> None:
        kept = [item for item in self._inbox if item.partition not in partitions]
        self._inbox = deque(kept)
        self._inbox_bytes = sum(item.size for item in kept)
        self._inbox_rows = sum(
            item.what.batch.num_rows for item in kept if isinstance(item.what, Taken)
        )

    # ------------------------------------------------------------ the lane's thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._turn()
            self._settle_open(force=True)
        except (ClickHouseError, HTTPError, OSError, SlowDownError) as exc:
            log.info("%s: the place was not written down at the end: %s", self.stream.name, exc)
        except BaseException as exc:  # the loop raises it
            self._shared.events.put(Failed(self.stream.name, exc))
        finally:
            self._letters.close()
            self._client.drop()

    def _wait(self) -> bool:
        """Wait for work; False when it is time to end."""
        with self._changed:
            while True:
                now = self._clock.monotonic()
                if self._stop_at is not None and (
                    now >= self._stop_at or not (self._batch or self._inbox)
                ):
                    return False
                if self._wanted or self._batch or self._due(now):
                    return True
                pause = _IDLE_S
                if self._inbox:
                    pause = self._inbox[0].read_at + self._linger_s() - now
                if not self._changed.wait(max(0.001, pause)) and not self._inbox:
                    return True  # idle: perhaps there is a place to write down

    def _due(self, now: float) -> bool:
        if not self._inbox:
            return False
        return (
            self._stop_at is not None
            or self._hurry
            or self._inbox_rows >= self._options.max_rows
            or self._inbox_bytes >= self._options.max_bytes
            or now - self._inbox[0].read_at >= self._linger_s()
        )

    def _linger_s(self) -> float:
        """How long the oldest message may wait for more."""
        options = self._options
        if sum(self._unread.values()) >= options.behind_messages:
            return max(options.linger_s, options.behind_linger_s)
        few = self._inbox_rows < options.few_rows * options.linger_s
        return options.linger_s * (options.few_longer if few else 1)

    def _turn(self) -> None:
        doing = "take_over"
        try:
            self._open_wanted()
            doing = "batch"
            if self._batch is None:
                self._batch = self._cut()
            if self._batch is not None:
                self._work(self._batch)
                self._finish_batch()
            self._settle_open()
            self._tries = 0
        except _AbandonedError as exc:
            self._abandon(str(exc))
        except SlowDownError as exc:
            self._metrics.counter(m.WRITER_RETRIES, self.stream.name, exc.reason).inc()
            self._retry(exc.reason, exc.retry_after_s)
        except (ClickHouseError, HTTPError, OSError) as exc:
            self._store_error(exc, doing)

    def _finish_batch(self) -> None:
        large = self._batch_bytes >= _LARGE_BYTES
        self._batch = None
        self._batch_bytes = 0
        self._working_since = None
        if large:
            give_back()

    def _open_wanted(self) -> None:
        with self._changed:
            wanted = dict(self._wanted)
        if not wanted:
            return
        opened = self._takeover.take(wanted)
        now = self._clock.monotonic()
        with self._changed:
            for partition, owned in opened.items():
                if self._wanted.get(partition) != wanted[partition]:
                    continue  # taken away, or wanted anew, meanwhile
                del self._wanted[partition]
                settled = (owned.next - 1, owned.leader_epoch)
                generation = wanted[partition].generation
                self._open[partition] = _Open(generation, owned, settled, settled[0], now)
                self._shared.events.put(Opened(self.stream.name, generation, owned))
            left = bool(self._wanted)
        # Another writer may have stored higher numbers of the same collectors meanwhile.
        self._sequences.forget()
        self._metrics.counter(m.WRITER_TAKEOVERS, self.stream.name).inc(len(opened))
        if left and len(opened) < len(wanted):
            # Another writer took it in the same moment: do not fight.
            raise SlowDownError("taken_by_another", random.uniform(0.2, 1.0))  # noqa: S311  # no secret

    def _cut(self) -> Batch | None:
        """Take the oldest items that make up a batch, of one topic id."""
        with self._changed:
            if not self._due(self._clock.monotonic()):
                return None
            label: str | None = None
            rows = size = 0
            taken: list[Item] = []
            kept: list[Item] = []
            full = False
            for item in self._inbox:
                held = self._open.get(item.partition)
                if held is None or held.generation != item.generation:
                    continue
                if label is None:
                    label = held.owned.label
                if full or held.owned.label != label:
                    kept.append(item)
                    continue
                taken.append(item)
                size += item.size
                if isinstance(item.what, Taken):
                    rows += item.what.batch.num_rows
                full = rows >= self._options.max_rows or size >= self._options.max_bytes
            self._inbox = deque(kept)
            self._inbox_bytes = sum(item.size for item in kept)
            self._inbox_rows = sum(
                item.what.batch.num_rows for item in kept if isinstance(item.what, Taken)
            )
            self._batch_bytes = size
            self._hurry = False
        if label is None:
            return None
        batch = Batch(label, taken)
        self._working_since = batch.oldest
        return batch

    def _work(self, batch: Batch) -> None:
        """Do the steps of a batch that are not done yet."""
        name = self.stream.name
        self._check_owned(batch)
        if not batch.topic_checked:
            self._check_topic(batch)
            batch.topic_checked = True
        if not batch.letters_sent:
            self._letters.send(batch.letters, self._client.now())
            for letter in batch.letters:
                self._metrics.counter(m.WRITER_DEAD_LETTERS, name, letter.reason).inc()
            batch.letters_sent = True
        if batch.blocks is None:
            batch.blocks = self._sift(batch)
        while batch.blocks:
            self._check_owned(batch)
            self._insert(batch, batch.blocks[0])
            batch.blocks.popleft()
        with self._changed:
            for partition, upto in batch.upto.items():
                held = self._open.get(partition)
                if held is not None and held.generation == batch.generations[partition]:
                    held.settled = upto
        self._write_settled(batch.quiet)
        self._shared.events.put(Stored(name, batch.upto, batch.generations))

    def _check_owned(self, batch: Batch) -> None:
        with self._changed:
            for partition, generation in batch.generations.items():
                held = self._open.get(partition)
                if held is None or held.generation != generation:
                    raise _AbandonedError("given_away")

    def _check_topic(self, batch: Batch) -> None:
        now = self._shared.topics.now(self.stream.name)
        if now.topic_id != batch.topic_id:
            raise _AbandonedError("recreated")
        if self._partitions and now.partitions > self._partitions:
            grown = f"{self._partitions} -> {now.partitions} partitions: keys move"
            gap = Gap("partitions_added", self.stream.name, now.topic_id, detail=grown)
            gaps.record(self._client, [gap])
            self._metrics.counter(m.WRITER_GAPS, self.stream.name, gap.kind).inc()
            self._sequences.forget()
        self._partitions = now.partitions

    def _sift(self, batch: Batch) -> deque[Block]:
        """Leave out repeats, write gaps down, and cut what is left into blocks."""
        name = self.stream.name
        sifted = self._sequences.sift(batch.messages)
        found = list(batch.gaps)
        found += [
            Gap("sequence", name, collector_id=collector, kafka_key=key,
                first_missing=first, last_missing=last)
            for collector, key, first, last in sifted.gaps
        ] + [
            Gap("sequence_filled", name, collector_id=collector, kafka_key=key,
                first_missing=seq, last_missing=seq)
            for collector, key, seq in sifted.filled
        ]  # fmt: skip
        gaps.record(self._client, found)
        for gap in batch.gaps:
            self._metrics.counter(m.WRITER_GAPS, name, gap.kind).inc()
        self._metrics.counter(m.WRITER_SEQUENCE_GAPS, name).inc(len(sifted.gaps))
        self._metrics.counter(m.WRITER_REPEATS, name).inc(len(sifted.repeats))
        last = {message.partition: message.offset for message in sifted.fresh}
        batch.quiet = {
            partition
            for partition, (offset, _) in batch.upto.items()
            if last.get(partition) != offset
        }
        if not sifted.fresh:
            return deque()
        return deque([Block(self.stream, batch.label, tuple(sifted.fresh))])

    def _insert(self, batch: Batch, block: Block) -> None:
        name = self.stream.name
        with self._changed:
            epochs = {p: self._open[p].owned.epoch for p in block.firsts if p in self._open}
        if len(epochs) < len(block.firsts):
            raise _AbandonedError("given_away")
        fence = Fence(batch.topic_id, batch.label, self._shared.writer_id, epochs)
        started = self._clock.monotonic()
        with self._shared.scratch() as scratch:
            answer = insert(
                self._client(), block, fence, self._client.now(),
                self._shared.insert_settings, scratch,
            )  # fmt: skip
        took = self._clock.monotonic() - started
        self._metrics.histogram(m.WRITER_INSERT_SECONDS, name).observe(took)
        if answer.rows == 0:
            self._metrics.counter(m.WRITER_FENCED, name).inc()
            raise _AbandonedError("fenced")
        if answer.rows != block.rows:
            raise RackpulseError(
                f"The store says that it wrote {answer.rows} of {block.rows} rows of {name}: an"
                " insert must be atomic. Is telemetry." + name + " still the table that"
                " rackpulse migrate  makes?"
            )
        newest = newest_sample(block)
        self.newest = newest if self.newest is None else max(newest, self.newest)
        self._metrics.counter(m.WRITER_ROWS, name).inc(block.rows)
        self._metrics.counter(m.WRITER_MESSAGES, name).inc(len(block.messages))
        self._metrics.counter(m.WRITER_INSERTS, name).inc()
        self._metrics.histogram(m.WRITER_BLOCK_ROWS, name).observe(block.rows)
        delays = self._metrics.histogram(m.WRITER_DELAY_SECONDS, name)
        now_ms = self._client.now().timestamp() * 1000
        for message in block.messages:
            delays.observe(max(0.0, (now_ms - message.header.sent_at_ms) / 1000))

    # ------------------------------------------------------------ places

    def _settle_open(self, force: bool = False) -> None:
        """Write down places that nothing else has kept for a while."""
        now = self._clock.monotonic()
        with self._changed:
            due = {
                partition
                for partition, held in self._open.items()
                if held.settled[0] > held.written
                and (force or now - held.written_at >= self._options.settle_every_s)
            }
        self._write_settled(due)

    def _write_settled(self, partitions: set[int]) -> None:
        with self._changed:
            held = {p: self._open[p] for p in partitions if p in self._open}
        if not held:
            return
        settled = {partition: each.settled for partition, each in held.items()}
        self._ownership.settle(self.stream.name, [each.owned for each in held.values()], settled)
        now = self._clock.monotonic()
        for partition, each in held.items():
            each.written, each.written_at = settled[partition][0], now

    # ------------------------------------------------------------ what goes wrong

    def _abandon(self, why: str) -> None:
        """Give the batch up: its partitions are taken over again and read from there."""
        assert self._batch is not None
        generations = self._batch.generations
        self._finish_batch()
        self._sequences.forget()
        with self._changed:
            mine = {}
            for partition, generation in generations.items():
                held = self._open.get(partition)
                if held is not None and held.generation == generation:
                    del self._open[partition]
                    mine[partition] = generation
            if why == "recreated":
                mine.update({p: held.generation for p, held in self._open.items()})
                self._open.clear()
            self._purge(set(mine))
        if mine:
            log.info(
                "%s: partitions %s are taken over again: %s", self.stream.name, sorted(mine), why
            )
            self._shared.events.put(Reopen(self.stream.name, mine, why))
        if why == "fenced":
            # Another writer works on it: do not fight for it at once.
            self._pause(random.uniform(0.1, 0.5))  # noqa: S311  # no secret

    def _store_error(self, exc: Exception, doing: str) -> None:
        outcome, word = classify(exc), reason(exc)
        self._metrics.counter(m.WRITER_RETRIES, self.stream.name, word).inc()
        if outcome is Outcome.FATAL:
            raise RackpulseError(_advice(self.stream.name, word, exc)) from exc
        if outcome is Outcome.UNCLEAR:
            # The store may come back elsewhere: the embedded one on another port.
            self._client.drop()
        inserting = doing == "batch" and self._batch is not None and bool(self._batch.blocks)
        if inserting and outcome is Outcome.UNCLEAR:
            log.warning("%s: unclear outcome (%s): %s", self.stream.name, word, _first_line(exc))
            self._abandon(f"unclear: {word}")
            self._pause(self._backoff(0.2))
            return
        if inserting and outcome is Outcome.BAD_DATA:
            assert self._batch is not None
            if not self._batch.split_first_block():
                self._set_aside(self._batch, word, exc)
            return
        if inserting and word == "memory_limit":
            assert self._batch is not None
            self._batch.split_first_block()
        self._retry(word, 0.5, exc)

    def _set_aside(self, batch: Batch, word: str, exc: Exception) -> None:
        """The store will never take this one message."""
        assert batch.blocks
        (message,) = batch.blocks[0].messages
        letter = letter_of(message.record, batch.label, f"store_{word}", _first_line(exc))
        self._letters.send([letter], self._client.now())
        self._metrics.counter(m.WRITER_DEAD_LETTERS, self.stream.name, letter.reason).inc()
        batch.blocks.popleft()
        batch.quiet.add(message.partition)

    def _retry(self, word: str, after_s: float, exc: Exception | None = None) -> None:
        """Wait, and do the same again."""
        wait = self._backoff(after_s)
        if word in ("store_away", "kafka_away"):
            wait = min(wait, _LONGEST_RECONNECT_S)
        if self._tries in (1, 5) or self._tries % 20 == 0:
            detail = f": {_first_line(exc)}" if exc else ""
            log.warning("%s: %s, again in %.1f s%s", self.stream.name, word, wait, detail)
        self._pause(wait)

    def _backoff(self, first_s: float) -> float:
        self._tries += 1
        return min(_LONGEST_BACKOFF_S, first_s * 1.6 ** min(self._tries - 1, 20))

    def _pause(self, seconds: float) -> None:
        """Wait, but not beyond a stop."""
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while (left := deadline - self._clock.monotonic()) > 0:
                if self._stop_at is not None and self._clock.monotonic() >= self._stop_at:
                    return
                self._changed.wait(min(left, 0.5) if self._stop_at is not None else left)


def _first_line(exc: BaseException) -> str:
    """What an error says, without the request that an HTTP error repeats."""
    inner: BaseException | None = exc
    while inner is not None:
        told = getattr(inner, "reason", None)  # urllib3's MaxRetryError holds the true one
        if isinstance(told, BaseException):
            exc = told
            break
        inner = inner.__cause__ or inner.__context__
    text = str(exc)
    return text.splitlines()[0][:200] if text else type(exc).__name__


def _advice(stream: str, word: str, exc: Exception) -> str:
    what = {
        "no_such_column": "the table lacks a column of the contract",
        "unknown_identifier": "the table lacks a column of the contract",
        "unknown_table": "the tables are not there",
        "unknown_database": "the tables are not there",
        "type_mismatch": "a column of the table has another type than the contract says",
    }.get(word)
    line = _first_line(exc)
    if what:
        return (
            f"Cannot write telemetry.{stream}: {what}. Run  rackpulse migrate  and start the"
            f" writer again. The store said: {line}"
        )
    return f"Cannot write telemetry.{stream} ({word}). The store said: {line}"
