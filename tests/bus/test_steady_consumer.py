"""A partition that was paused with records in hand is read on after it was resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

from pipeline.bus.steady_consumer import SteadyConsumer
from tests.support.kafka import RunningKafka
from tests.support.wait import wait_until

_MESSAGES = 300
_PARTITIONS = [TopicPartition("t", number) for number in range(3)]


def _read_with_pauses(kind: type[KafkaConsumer], bootstrap: str, timeout_s: float) -> int:
    """Read everything, pausing each partition once while its records are in hand."""
    consumer = kind(
        bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest",
        max_poll_records=20, enable_auto_commit=False,
    )  # fmt: skip
    seen: set[tuple[int, int]] = set()
    try:
        consumer.assign(_PARTITIONS)
        for tp in _PARTITIONS:
            consumer.seek(tp, 0)
        paused: set[TopicPartition] = set()

        def look() -> bool:
            for tp, records in consumer.poll(timeout_ms=200).items():
                seen.update((record.partition, record.offset) for record in records)
                if tp not in paused and len(paused) < 2:
                    # The rest of the fetch is in hand, and is parked by the next poll.
                    paused.add(tp)
                    consumer.pause(tp)
            if len(paused) == 2 and any(tp in consumer.paused() for tp in paused):
                done = sum(1 for partition, _ in seen if partition == 2)
                if done == _MESSAGES:
                    for tp in paused:
                        consumer.resume(tp)
            return len(seen) == _MESSAGES * len(_PARTITIONS)

        wait_until(look, "every message", timeout_s=timeout_s)
    except AssertionError:
        return len(seen)
    finally:
        consumer.close()
    return len(seen)


@pytest.mark.kafka
def test_a_resumed_partition_is_read_on(tmp_path: Path) -> None:
    with RunningKafka(tmp_path) as kafka:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        admin.create_topics([NewTopic("t", len(_PARTITIONS), 1)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
        for number in range(_MESSAGES):
            for tp in _PARTITIONS:
                producer.send("t", value=b"%d" % number, partition=tp.partition)
        producer.flush()
        producer.close()
        assert _read_with_pauses(SteadyConsumer, kafka.bootstrap, 30) == 900


@pytest.mark.kafka
def test_a_member_joins_again_when_a_topic_appears(tmp_path: Path) -> None:
    """Also when one poll is too short for the joining: kafka-python forgot that it had to."""
    with RunningKafka(tmp_path) as kafka:
        consumer = SteadyConsumer(
            bootstrap_servers=kafka.bootstrap, group_id="g", auto_offset_reset="earliest",
            enable_auto_commit=False, metadata_max_age_ms=500, allow_auto_create_topics=False,
            session_timeout_ms=6_000,
        )  # fmt: skip
        try:
            consumer.subscribe(["t"])

            def poll() -> None:
                consumer.poll(timeout_ms=1)

            def joined() -> bool:
                poll()
                return bool(consumer._coordinator.generation_if_stable())

            wait_until(joined, "the member to join an empty group", every_s=0.001)
            admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
            admin.create_topics([NewTopic("t", 2, 1)])
            admin.close()

            def assigned() -> bool:
                poll()
                return len(consumer.assignment()) == 2

            wait_until(assigned, "its partitions", 20, every_s=0.001)
        finally:
            consumer.close()
