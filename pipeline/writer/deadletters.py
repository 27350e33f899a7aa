"""Messages that can never be read are set aside whole, in a topic of their own.

A dead letter has the original key, bytes and headers; headers of ours say why and where it
came from. It is acknowledged before any insert passes its offset, so it may be there twice
after a crash, but never not at all; who reads takes the first of each origin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from pipeline.bus.endpoint import end_producer, producer_options
from pipeline.bus.topics import DEAD_LETTERS
from pipeline.errors import RackpulseError, SlowDownError
from pipeline.settings import Settings

PREFIX = "rackpulse-dead-"
_ACK_TIMEOUT_S = 30.0
_DETAIL_CHARS = 500


@dataclass(frozen=True)
class Letter:
    """A message that was set aside.

    Attributes:
        topic: name of the topic that it came from.
        topic_id: with the mark of its incarnation.
        timestamp_ms: its own, as the broker gave it.
        reason: short, stable word.
        detail: text for a person.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    reason: str
    detail: str

    @property
    def origin(self) -> tuple[str, int, int]:
        """Topic id, partition and offset: what names it."""
        return self.topic_id, self.partition, self.offset


def letter_of(record: Any, label: str, reason: str, detail: str) -> Letter:
    """The letter of a Kafka record.

    Args:
        record: as kafka-python's consumer gives it.
        label: id of its topic, with the mark of its incarnation.
    """
    return Letter(
        record.topic, label, record.partition, record.offset, record.timestamp,
        record.key, record.value, tuple(record.headers), reason, detail,
    )  # fmt: skip


def to_kafka(letter: Letter, at: datetime) -> dict[str, Any]:
    """The arguments of ``KafkaProducer.send``."""
    nulls = [name for name, value in letter.headers if value is None]
    ours = {
        "reason": letter.reason,
        "detail": letter.detail[:_DETAIL_CHARS],
        "topic": letter.topic,
        "topic-id": letter.topic_id,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "timestamp-ms": str(letter.timestamp_ms),
        "at-ms": str(round(at.timestamp() * 1000)),
        "null-key": "1" if letter.key is None else "",
        "null-value": "1" if letter.value is None else "",
        # kafka-python can not send a header without a value.
        "null-headers": "\n".join(nulls),
    }
    headers = [(name, value or b"") for name, value in letter.headers]
    headers += [(PREFIX + name, text.encode()) for name, text in ours.items() if text]
    return {
        "key": letter.key if letter.key is not None else b"",
        "value": letter.value if letter.value is not None else b"",
        "headers": headers,
    }


def from_kafka(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> Letter:
    """Read a dead letter back.

    Raises:
        ValueError: it was not written by a writer.
    """
    ours = {name: (text or b"").decode() for name, text in headers if name.startswith(PREFIX)}
    nulls = set(ours.get(PREFIX + "null-headers", "").split("\n"))
    original = [
        (name, None if name in nulls and not text else text)
        for name, text in headers
        if not name.startswith(PREFIX)
    ]
    try:
        return Letter(
            topic=ours[PREFIX + "topic"],
            topic_id=ours[PREFIX + "topic-id"],
            partition=int(ours[PREFIX + "partition"]),
            offset=int(ours[PREFIX + "offset"]),
            timestamp_ms=int(ours[PREFIX + "timestamp-ms"]),
            key=None if PREFIX + "null-key" in ours else key,
            value=None if PREFIX + "null-value" in ours else value,
            headers=tuple(original),
            reason=ours[PREFIX + "reason"],
            detail=ours.get(PREFIX + "detail", ""),
        )
    except KeyError as exc:
        raise ValueError(f"no dead letter: header {exc} is missing") from exc


class DeadLetters:
    """Sends dead letters and waits for their acknowledgement."""

    def __init__(self, settings: Settings, topic: str = DEAD_LETTERS) -> None:
        self._settings = settings
        self._topic = topic
        self._producer: KafkaProducer | None = None

    def send(self, letters: Sequence[Letter], at: datetime) -> None:
        """Send letters; when this returns, all are acknowledged.

        Raises:
            SlowDownError: Kafka does not take them now; some may have been taken.
            RackpulseError: Kafka will never take them.
        """
        if not letters:
            return
        try:
            if self._producer is None:
                self._producer = self._make()
            futures = [
                self._producer.send(self._topic, **to_kafka(letter, at)) for letter in letters
            ]
            for future in futures:
                future.get(timeout=_ACK_TIMEOUT_S)
        except (KafkaError, OSError) as exc:
            self.close()
            if isinstance(exc, KafkaError) and not exc.retriable:
                raise RackpulseError(
                    f"The dead-letter topic {self._topic} does not take a message"
                    f" ({type(exc).__name__}: {exc}). Create it with  rackpulse topics create ;"
                    " its max_message_bytes must be above those of the other topics"
                ) from exc
            raise SlowDownError("dead_letter_topic", 1.0) from exc

    def _make(self) -> KafkaProducer:
        return KafkaProducer(
            **producer_options(self._settings),
            client_id="rackpulse-dead-letters",
            acks="all",
            enable_idempotence=True,
            compression_type="zstd",
            max_request_size=8_000_000,
            max_block_ms=10_000,
            request_timeout_ms=10_000,
            delivery_timeout_ms=25_000,
            allow_auto_create_topics=False,
        )

    def close(self) -> None:
        """Let the connection go."""
        producer, self._producer = self._producer, None
        if producer is not None:
            end_producer(producer)


class Limit:
    """When too much of what comes in is bad, the writer stops instead of emptying a topic.

    Args:
        ratio: largest share of bad ones among the latest ``window`` messages.
        consecutive: largest number of bad ones in a row.
    """

    def __init__(self, ratio: float = 0.5, consecutive: int = 200, window: int = 1_000) -> None:
        self._ratio = ratio
        self._most = consecutive
        self._window = window
        self._latest: deque[bool] = deque(maxlen=window)
        self._bad = 0
        self._in_a_row = 0

    def note(self, bad: bool) -> str | None:
        """Count a message; the text says why to stop, when it is time."""
        if len(self._latest) == self._window:
            self._bad -= self._latest[0]
        self._latest.append(bad)
        self._bad += bad
        self._in_a_row = self._in_a_row + 1 if bad else 0
        if self._in_a_row > self._most:
            return f"{self._in_a_row} messages in a row could not be read"
        if len(self._latest) == self._window and self.ratio > self._ratio:
            return f"{self._bad} of the latest {self._window} messages could not be read"
        return None

    @property
    def ratio(self) -> float:
        """Share of bad ones among the latest."""
        return self._bad / len(self._latest) if self._latest else 0.0


def first_of_each(letters: Iterator[Letter]) -> Iterator[Letter]:
    """Letters without the copies that a crash left."""
    seen: set[tuple[str, int, int]] = set()
    for letter in letters:
        if letter.origin not in seen:
            seen.add(letter.origin)
            yield letter
