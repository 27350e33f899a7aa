"""Consumers that read fast and never skip anything in silence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kafka import KafkaConsumer, OffsetSpec, TopicPartition
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import KafkaError

from pipeline.bus.endpoint import ask_admin, client_options, unreachable, warn_without_crc32c
from pipeline.bus.kafka_log import calm_kafka_logs
from pipeline.bus.steady_consumer import SteadyConsumer
from pipeline.settings import Settings

# Memory that a consumer may hold: one fetch of each broker, as the broker sends it (compressed).
FETCH_MAX_BYTES = 16_000_000
PARTITION_FETCH_BYTES = 4_000_000

Ends = dict[tuple[str, int], tuple[int, int]]


def make_consumer(
    settings: Settings,
    group: str | None,
    topics: Sequence[str] = (),
    *,
    instance_id: str | None = None,
    listener: Any = None,
    session_timeout_ms: int = 15_000,
    max_poll_interval_ms: int = 300_000,
    max_poll_records: int = 500,
    **options: Any,
) -> KafkaConsumer:
    """A consumer that commits nothing by itself and never resets an offset.

    Without a committed offset, and for an offset that the log does not hold, ``poll`` raises
    (``NoOffsetForPartitionError``, ``OffsetOutOfRangeError``): the caller seeks, and records
    what was lost.

    Args:
        group: consumer group; None for a consumer that is given its partitions by ``assign``.
        topics: to subscribe to; empty for ``assign``.
        instance_id: makes the membership static: a member that was killed and comes back
            under this id gets its partitions at once.
        listener: a ``ConsumerRebalanceListener`` for the subscription.
        max_poll_interval_ms: the longest time between two polls, above which the group takes
            the partitions away.
        options: further settings of kafka-python's consumer.

    Raises:
        RackpulseError: no broker is known, or none answers (KafkaAwayError).
    """
    warn_without_crc32c()
    calm_kafka_logs()
    if group is not None:
        options = {
            "group_id": group,
            "group_instance_id": instance_id,
            "session_timeout_ms": session_timeout_ms,
            "heartbeat_interval_ms": max(200, min(3_000, session_timeout_ms // 4)),
            "max_poll_interval_ms": max_poll_interval_ms,
            # Keeps partitions where they are when a member joins or leaves.
            "partition_assignment_strategy": (StickyPartitionAssignor,),
            **options,
        }
    try:
        consumer = SteadyConsumer(
            **{
                **client_options(settings),
                "client_id": f"rackpulse-{instance_id or group or 'reader'}",
                "enable_auto_commit": False,
                "auto_offset_reset": "none",
                "allow_auto_create_topics": False,
                "max_poll_records": max_poll_records,
                "fetch_max_bytes": FETCH_MAX_BYTES,
                "max_partition_fetch_bytes": PARTITION_FETCH_BYTES,
                "fetch_max_wait_ms": 100,
                # Leaders, added partitions and topics that were created again are seen soon.
                "metadata_max_age_ms": 15_000,
                "reconnect_backoff_max_ms": 2_000,
                **options,
            }
        )
    except (KafkaError, OSError) as exc:
        raise unreachable(settings, exc) from exc
    if topics:
        consumer.subscribe(list(topics), listener=listener)
    return consumer


def log_ends(settings: Settings, topics: Iterable[str]) -> Ends:
    """First offset and next offset of every partition of these topics.

    Topics that do not exist are left out.

    Raises:
        KafkaAwayError: no broker answers.
    """
    names = sorted(topics)
    return ask_admin(settings, lambda admin: read_log_ends(admin, names))


def read_log_ends(admin: Any, topics: Iterable[str]) -> Ends:
    """:func:`log_ends` through an admin client that the caller keeps.

    Raises:
        KafkaError: as kafka-python raises it.
    """
    partitions = [
        TopicPartition(entry["name"], partition["partition_index"])
        for entry in admin.describe_topics(sorted(topics))
        if not entry["error_code"]
        for partition in entry["partitions"]
    ]
    if not partitions:
        return {}
    starts = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
    ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {(at.topic, at.partition): (starts[at].offset, ends[at].offset) for at in partitions}
