"""``rackpulse dead-letters``: look at what was set aside, and send it again, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from clickhouse_connect.driver.client import Client
from kafka import TopicPartition
from kafka.errors import KafkaError, UnknownTopicOrPartitionError

from pipeline.bus.consumer import make_consumer, read_log_ends
from pipeline.bus.endpoint import ask_admin, end_producer, producer_options
from pipeline.bus.topics import DEAD_LETTERS
from pipeline.errors import RackpulseError
from pipeline.settings import Settings
from pipeline.streams.ddl import DATABASE
from pipeline.writer.deadletters import Letter, first_of_each, from_kafka

_POLL_MS = 500
REPLAY_HEADER = "rackpulse-replay-of"

Origin = tuple[str, int, int]


def read_letters(settings: Settings) -> Iterator[Letter]:
    """All dead letters that the topic holds now, the first of each origin.

    Raises:
        RackpulseError: Kafka is away.
    """
    try:
        ends = ask_admin(settings, lambda admin: read_log_ends(admin, [DEAD_LETTERS]))
    except UnknownTopicOrPartitionError:
        return
    yield from first_of_each(_read(settings, {p: end for (_, p), end in ends.items()}))


def _read(settings: Settings, ends: dict[int, tuple[int, int]]) -> Iterator[Letter]:
    consumer = make_consumer(settings, None)
    try:
        for partition, (begin, end) in sorted(ends.items()):
            tp = TopicPartition(DEAD_LETTERS, partition)
            if begin >= end:
                continue
            consumer.assign([tp])
            consumer.seek(tp, begin)
            while (consumer.position(tp) or 0) < end:
                for record in consumer.poll(_POLL_MS).get(tp, []):
                    if record.offset >= end:
                        break
                    try:
                        yield from_kafka(record.key, record.value, record.headers)
                    except ValueError:
                        continue  # someone else wrote into the topic
    finally:
        consumer.close(autocommit=False)


def replayed(client: Client) -> dict[Origin, str]:
    """Letters that were sent again, and where to."""
    rows = client.query(
        f"""SELECT kafka_topic_id, kafka_partition, kafka_offset, replayed_to
        FROM {DATABASE}.dead_letter_replay FINAL"""
    ).result_rows
    return {(str(t), int(p), int(o)): str(to) for t, p, o, to in rows}


def replay(
    settings: Settings,
    client: Client,
    wanted: Callable[[Letter], bool],
    say: Callable[[str], None],
) -> int:
    """Send letters to the topic they came from, each once.

    A note is written before and after the sending. When this is killed between the two, the
    letter is sent again by the next call; the writer then drops the second copy by the
    collector's number.

    Args:
        wanted: which letters.
        say: told of each.

    Returns:
        How many were sent.

    Raises:
        RackpulseError: Kafka does not take one.
    """
    from kafka import KafkaProducer

    done = replayed(client)
    letters = [letter for letter in read_letters(settings) if wanted(letter)]
    sent = 0
    producer = None
    try:
        for letter in letters:
            name = f"{letter.topic_id}/{letter.partition}/{letter.offset}"
            if done.get(letter.origin):
                say(f"{name}: sent again before, as {done[letter.origin]}")
                continue
            if producer is None:
                producer = KafkaProducer(
                    **producer_options(settings), client_id="rackpulse-replay", acks="all",
                    enable_idempotence=True, compression_type="zstd", max_request_size=8_000_000,
                    allow_auto_create_topics=False,
                )  # fmt: skip
            _note(client, letter, "")
            headers = [(header, value or b"") for header, value in letter.headers]
            future = producer.send(
                letter.topic,
                key=letter.key,
                value=letter.value if letter.value is not None else b"",
                headers=[*headers, (REPLAY_HEADER, name.encode())],
            )
            at = future.get(timeout=30)
            to = f"{at.topic}/{at.partition}/{at.offset}"
            _note(client, letter, to)
            say(f"{name} ({letter.reason}) -> {to}")
            sent += 1
    except KafkaError as exc:
        raise RackpulseError(f"Kafka did not take the letter back: {exc}") from exc
    finally:
        if producer is not None:
            end_producer(producer)
    return sent


def _note(client: Client, letter: Letter, to: str) -> None:
    client.insert(
        f"{DATABASE}.dead_letter_replay",
        [[*letter.origin, to]],
        column_names=["kafka_topic_id", "kafka_partition", "kafka_offset", "replayed_to"],
        settings={"async_insert": "0", "insert_deduplicate": "0"},
    )
